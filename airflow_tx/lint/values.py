"""Values that differ each time: the clock, chance, a Variable, what Spark computes differently."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from airflow_tx.lint.scope import Scope, calls_in, own_nodes

_CLOCK = "TX104"
_CHANCE = "TX105"
_SETTING = "TX106"
_TIMES = frozenset(
    """
    datetime.datetime.now datetime.datetime.today
    datetime.datetime.utcnow datetime.date.today
    pendulum.now pendulum.today pendulum.yesterday
    pendulum.tomorrow pendulum.DateTime.now
    pendulum.DateTime.today pendulum.DateTime.utcnow
    pendulum.Date.today time.time time.time_ns arrow.now
    arrow.utcnow pandas.Timestamp.now
    pandas.Timestamp.today pandas.Timestamp.utcnow
    airflow.utils.timezone.utcnow
    airflow.sdk.timezone.utcnow airflow.sdk.timezone.now
    time.localtime time.gmtime time.ctime time.strftime
    django.utils.timezone.now
    """.split()
)
_SHORT = {"time.localtime": 0, "time.gmtime": 0, "time.ctime": 0, "time.strftime": 1}
"""Functions that read the clock if they have at most so many arguments."""
_DRAWS = frozenset(
    """
    random randint randrange uniform choice choices
    sample shuffle gauss normalvariate getrandbits
    randbytes expovariate betavariate triangular
    """.split()
)
_UNIQUE = frozenset("uuid.uuid1 uuid.uuid4 os.urandom random.SystemRandom".split())
_SEEDED = ("random.Random", "numpy.random.default_rng", "numpy.random.RandomState")
_SETTINGS = tuple(
    f"{module}.Variable.{verb}"
    for module in ("airflow.sdk", "airflow.models", "airflow.models.variable")
    for verb in ("get", "set")
)
_TEMPLATES = (
    (_SETTING, re.compile(r"\{\{[^}]*\bvar\.(value|json)\b")),
    (_CLOCK, re.compile(r"\{\{[^}]*\bmacros\.(datetime\.(now|utcnow|today)|time\.time)\b")),
    (_CHANCE, re.compile(r"\{\{[^}]*\bmacros\.(uuid|random)\b")),
)
_LOGS = frozenset(
    """
    debug info warning warn error exception critical log
    print
    """.split()
)
_SPARK = """
    rand randn uuid current_timestamp current_date now
    localtimestamp monotonically_increasing_id shuffle
    spark_partition_id
    """.split()
_SPARK_VALUES = {
    f"pyspark.sql{where}.functions.{name}" for name in _SPARK for where in ("", ".connect")
}
_SPARK_TEXT = re.compile(rf"\b({'|'.join(_SPARK)})\s*\(|\bcurrent_(timestamp|date)\b", re.I)
_LISTS = {"pyspark.sql.functions.collect_list", "pyspark.sql.functions.collect_set"}
_SORTS = re.compile(r"\.(sort_array|array_sort|size|array_distinct|array_max|array_min)$")

ValueHit = tuple[str, ast.expr]


def changing_values(scope: Scope, root: ast.AST) -> Iterator[ValueHit]:
    """Give the nodes of a function, or of a block, that read a value which differs each time."""
    nodes = list(own_nodes(root))
    calls = [each for each in nodes if isinstance(each, ast.Call)]
    harmless = _harmless(scope, nodes)
    seeded = any(_seeds(scope, call) for call in calls)
    for call in calls:
        code = value_of(scope, call)
        if code and id(call) not in harmless and not (code == _CHANCE and seeded):
            yield code, call
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "{{" in node.value:
            yield from (
                (code, node) for code, template in _TEMPLATES if template.search(node.value)
            )


def value_of(scope: Scope, call: ast.Call) -> str | None:
    """Give the code of a call whose result differs each time."""
    name = scope.name_of(call.func)
    if name in _TIMES:
        return None if name in _SHORT and len(call.args) > _SHORT[name] else _CLOCK
    if name.startswith("secrets.") or name in _UNIQUE:
        return _CHANCE
    if name in _SEEDED:
        return None if call.args or call.keywords else _CHANCE
    module, _, last = name.rpartition(".")
    if (module == "random" and last in _DRAWS) or (module == "numpy.random" and last != "seed"):
        return _CHANCE
    if last == "sample" and isinstance(call.func, ast.Attribute) and _unseeded(call):
        return _CHANCE
    return _SETTING if name in _SETTINGS else None


def _unseeded(call: ast.Call) -> bool:
    """Tell whether a `sample` of a data frame has no seed."""
    named = {each.arg for each in call.keywords}
    number = len(call.args) == 1 and isinstance(call.args[0], ast.Constant)
    draws = number or bool(named & {"n", "frac", "fraction"})
    return draws and not named & {"random_state", "seed"}


def _seeds(scope: Scope, call: ast.Call) -> bool:
    return scope.name_of(call.func) in ("random.seed", "numpy.random.seed") and bool(call.args)


def _harmless(scope: Scope, nodes: list[ast.AST]) -> set[int]:
    """Find calls whose values do not leave: in a log line, or in a duration."""
    found: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Call) and scope.name_of(node.func).rpartition(".")[2] in _LOGS:
            found |= {id(each) for each in ast.walk(node)}
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            found |= _timed(scope, nodes, [node.left, node.right])
        elif isinstance(node, ast.Compare):
            found |= _timed(scope, nodes, [node.left, *node.comparators])
    return found


def _timed(scope: Scope, nodes: list[ast.AST], sides: list[ast.expr]) -> set[int]:
    """Find the clocks of a duration: each side is a clock, or a name that only a clock was assigned."""
    clocks = [_clock(scope, side) for side in sides]
    if not all(clocks):
        return set()
    names = {side.id for side in sides if isinstance(side, ast.Name)}
    if any(_leaves(nodes, name) for name in names):
        return set()
    return {id(each) for found in clocks for each in found}


def _clock(scope: Scope, side: ast.expr) -> list[ast.Call]:
    values = scope.values(side) if isinstance(side, ast.Name) else [side]
    return [call for value in values for call in calls_in(value) if value_of(scope, call) == _CLOCK]


def _leaves(nodes: list[ast.AST], name: str) -> bool:
    """Tell whether a name is used outside of a subtraction or a comparison."""
    inside = {
        id(each)
        for node in nodes
        if (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub))
        or isinstance(node, ast.Compare)
        for each in ast.walk(node)
    }
    used = [each for each in nodes if isinstance(each, ast.Name) and each.id == name]
    return any(isinstance(each.ctx, ast.Load) and id(each) not in inside for each in used)


# --- Spark --------------------------------------------------------------------------------------------------------


def spark_values_in(scope: Scope, root: ast.AST) -> Iterator[ValueHit]:
    """Give the expressions of an application that Spark computes differently each time."""
    calls = [each for each in own_nodes(root) if isinstance(each, ast.Call)]
    sorted_ = {id(each) for call in calls if _sorts(scope, call) for each in ast.walk(call)}
    for call in calls:
        name = scope.name_of(call.func)
        last = name.rpartition(".")[2]
        text = scope.constant(call.args[0]) if call.args else None
        is_sql = last in ("expr", "selectExpr", "sql") and isinstance(text, str)
        if name in _SPARK_VALUES or (is_sql and _SPARK_TEXT.search(str(text))):
            yield "TX111", call
        elif name in _LISTS and id(call) not in sorted_:
            yield "TX111", call
        elif last == "randomSplit" and len(call.args) < 2 and not scope.argument(call, "seed"):
            yield "TX111", call


def _sorts(scope: Scope, call: ast.Call) -> bool:
    return _SORTS.search(scope.name_of(call.func)) is not None
