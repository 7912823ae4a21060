"""Check DAGs and Spark applications: find the code that breaks a rule, and values that differ between executions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from airflow_tx.lint.effects import (
    DATABASE,
    FILE,
    REQUEST,
    Effect,
    effects_of,
    is_temporary,
)
from airflow_tx.lint.scope import (
    FunctionNode,
    LintedProject,
    PlainDag,
    Scope,
    TransactionBlock,
    calls_in,
    committers_in_phase,
    dags_of,
    is_own,
    is_phase,
    loose_tasks,
    own_nodes,
)
from airflow_tx.provider_info import OPTIONS


@dataclass(frozen=True)
class Hit:
    """A place in the code that breaks a rule.

    :param scope: the scope in which the node is.
    :param code: code of the rule.
    :param dag: dag_id of a DAG without a transaction; "" if unknown or inside a transaction.
    """

    scope: Scope
    code: str
    node: ast.expr | ast.stmt
    dag: str = ""


# --- plain checks -------------------------------------------------------------------------------------------------
# The rules for DAGs without a transaction: find effects that a cleared run repeats.


_REMOVES = {
    DATABASE: re.compile(r"Delete(Dataset|Table)\w*Operator$"),
    REQUEST: re.compile(r"(Delete(Topic|Queue)\w*Operator|\.delete_(topic|queue))$"),
}
"""Calls that delete a run's tables or queue at its end, so that a repeated effect does no harm."""
_PLAIN_CODES = {DATABASE: "TX201", REQUEST: "TX202", FILE: "TX203"}


def plain_hits(project: LintedProject, dag: PlainDag) -> Iterator[Hit]:
    """Yield the calls of a DAG without a transaction whose effects count twice if a run is cleared."""
    reached = project.reached(dag.scope, dag.roots)
    parts: list[tuple[Scope, ast.AST]] = [(dag.scope, root) for root in dag.roots]
    parts += [(scope, scope.node) for scope in reached]
    calls = [(scope, call) for scope, root in parts for call in _calls(root)]
    calls += [each for scope, call in list(calls) for each in _submitted(project, scope, call)]
    if any(is_own(scope, call.func, "Transaction") for scope, call in calls):
        return
    effects = [
        (scope, effect)
        for scope, call in calls
        for effect in effects_of(scope, call, project.path_of(scope).parent)
    ]
    names = [scope.name_of(call.func) for scope, call in calls]
    removed = {kind for kind, pattern in _REMOVES.items() if any(map(pattern.search, names))}
    emptied = {
        effect.statement.table
        for _, effect in effects
        if effect.statement is not None and effect.statement.resets
    }
    for scope, effect in effects:
        if effect.adds and effect.kind not in removed and not _is_emptied(effect, emptied):
            yield Hit(scope, _PLAIN_CODES[effect.kind], effect.node, dag.dag_id)


def _submitted(
    project: LintedProject, scope: Scope, call: ast.Call
) -> Iterator[tuple[Scope, ast.Call]]:
    """Yield the calls in the Spark application that an operator submits."""
    module = project.application_of(scope, call)
    if module is None or dags_of(module).applications:
        return
    yield from ((module, each) for each in _calls(module.node))
    for function in project.reached(module, [module.node]):
        yield from ((function, each) for each in _calls(function.node))


def _is_emptied(effect: Effect, emptied: set[str]) -> bool:
    """Return whether the DAG deletes the rows of the table that the effect writes to."""
    return effect.statement is not None and effect.statement.table in emptied


def _calls(root: ast.AST) -> list[ast.Call]:
    nodes = [root, *own_nodes(root)]
    return [each for each in nodes if isinstance(each, ast.Call)]


# --- module state -------------------------------------------------------------------------------------------------
# Find functions that change a module variable. Its value then depends on earlier runs in the same
# process.


_CHANGES = frozenset(
    """
    append extend add update insert setdefault pop
    popitem clear remove discard appendleft subtract
    sort
    """.split()
)
_MADE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_MAKERS = frozenset(
    """
    list dict set collections.defaultdict
    collections.Counter collections.deque
    collections.OrderedDict itertools.count
    """.split()
)


def changes_in(scope: Scope) -> Iterator[ast.expr | ast.stmt]:
    """Yield the nodes of a function that change a module variable or the default value of an argument."""
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Global) and _assigned(scope, node.names):
            yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _CHANGES and _outlives(scope, node.func.value):
                yield node
        elif isinstance(node, ast.Call) and scope.name_of(node.func) == "next" and node.args:
            if _outlives(scope, node.args[0]):
                yield node
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            if _outlives(scope, node.value):
                yield node


def _assigned(scope: Scope, names: list[str]) -> bool:
    """Return whether a function assigns a value to one of these names."""
    stored = {
        each.id
        for each in own_nodes(scope.node)
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)
    }
    return bool(stored & set(names))


def _outlives(scope: Scope, node: ast.expr) -> bool:
    """Return whether an expression is a list, dict or set that outlives the call of the function."""
    if not isinstance(node, ast.Name):
        return False
    home = scope.home(node.id)
    if home is None:
        return False
    if home.parent is None:
        return any(_is_container(home, each) for each in home.values(node))
    return home is scope and _is_container(scope, _default(scope, node.id))


def _is_container(scope: Scope, value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return scope.name_of(value.func) in _MAKERS
    return isinstance(value, _MADE)


def _default(scope: Scope, name: str) -> ast.expr | None:
    """Return the default value of an argument, unless the function reassigns the argument."""
    if not isinstance(scope.node, FunctionNode) or scope.assigned.get(name) != [None]:
        return None
    found = scope.node.args
    placed = [*found.posonlyargs, *found.args]
    defaults = dict(
        zip(reversed([each.arg for each in placed]), reversed(found.defaults), strict=False)
    )
    return defaults.get(name)


# --- transaction checks -------------------------------------------------------------------------------------------


_CODES = {DATABASE: "TX101", REQUEST: "TX102", FILE: "TX103"}
_SOURCES_OF_RUNS = ("DataIntervalSource", "RunPartitionSource")
_TABLES = ("SqlTable", "DeltaTable")
_EMITS = ("emit_many", "emit_messages")
_RUNS = 16
"""Airflow's default for max_active_runs."""


def transaction_hits(project: LintedProject, block: TransactionBlock) -> Iterator[Hit]:
    """Check a `with Transaction(...)` block, the functions of its tasks, and the functions that they call."""
    yield from _window(block)
    yield from _catchup(block)
    yield from (Hit(block.scope, "TX108", task) for task in loose_tasks(project, block))
    yield from _tables_last(project, block)
    roots = [
        each for statement in block.body.body for each in _outside_of_phases(block.scope, statement)
    ]
    for root in roots:
        yield from _code(project, block.scope, root)
    for scope in project.reached(block.scope, roots):
        yield from _function(project, scope)
    if any(is_own(block.scope, call.func, "DataIntervalSource") for call in _sources(block)):
        yield from _logical_dates(project, block.scope, roots)
    calls = [each for root in roots for each in own_nodes(root) if isinstance(each, ast.Call)]
    modules = [project.application_of(block.scope, call) for call in calls]
    for module in filter(None, modules):
        for application in dags_of(module).applications:
            yield from application_hits(project, application)


def application_hits(project: LintedProject, application: Scope) -> Iterator[Hit]:
    """Check a Spark application and the functions that it calls."""
    for scope in [application, *project.reached(application, [application.node])]:
        yield from _function(project, scope)
        yield from (Hit(scope, code, node) for code, node in spark_values_in(scope, scope.node))


def _function(project: LintedProject, scope: Scope) -> Iterator[Hit]:
    yield from _code(project, scope, scope.node)
    yield from (Hit(scope, "TX110", node) for node in changes_in(scope))
    yield from _read_at_parsing(scope)


def _code(project: LintedProject, scope: Scope, root: ast.AST) -> Iterator[Hit]:
    folder = project.path_of(scope).parent
    calls = [each for each in own_nodes(root) if isinstance(each, ast.Call)]
    tracked = any(map(_makes_messages, calls))
    for call in calls:
        for effect in effects_of(scope, call, folder):
            if not (effect.message and tracked):
                yield Hit(scope, _CODES[effect.kind], call)
    yield from (Hit(scope, code, node) for code, node in changing_values(scope, root))


def _makes_messages(call: ast.Call) -> bool:
    """Return whether a call emits messages that the transaction waits for. Such messages may be sent."""
    if not isinstance(call.func, ast.Attribute):
        return False
    return call.func.attr in _EMITS or (call.func.attr == "emit" and not call.args)


def _read_at_parsing(scope: Scope) -> Iterator[Hit]:
    """Yield module values that a function reads and that change each time the file is parsed."""
    names = [each for each in own_nodes(scope.node) if isinstance(each, ast.Name)]
    for name in {each.id: each for each in names if isinstance(each.ctx, ast.Load)}.values():
        home = scope.home(name.id)
        if home is not None and home.parent is None:
            for value in home.values(name):
                found = changing_values(home, ast.Expr(value))
                yield from (Hit(home, code, node) for code, node in found)


def _outside_of_phases(scope: Scope, node: ast.AST) -> Iterator[ast.AST]:
    """Yield the code of a block, except commit phases, whose tasks run only while they have the turn."""
    if is_phase(scope, node):
        return
    if isinstance(node, ast.With):
        for statement in node.body:
            yield from _outside_of_phases(scope, statement)
    else:
        yield ast.Module([node], []) if isinstance(node, ast.stmt) else node


def _window(block: TransactionBlock) -> Iterator[Hit]:
    if block.dag is None:
        return
    scope = block.scope
    runs = scope.argument(block.dag, "max_active_runs")
    pending = scope.argument(block.call, "max_pending")
    most = _RUNS if runs is None else scope.constant(runs)
    window = int(OPTIONS["max_pending"]["default"]) if pending is None else scope.constant(pending)
    if isinstance(most, int) and isinstance(window, int) and most <= window:
        yield Hit(scope, "TX109", block.call)


def _tables_last(project: LintedProject, block: TransactionBlock) -> Iterator[Hit]:
    """Yield updates of tables in a commit phase that run before another committer writes values by key."""
    for committer, others in committers_in_phase(project, block):
        tables = _written(block.scope, committer, tables=True)
        if tables and any(_written(block.scope, each, tables=False) for each in others):
            yield Hit(block.scope, "TX112", tables[0])


def _written(scope: Scope, committer: ast.Call, *, tables: bool) -> list[ast.Call]:
    """Return a committer's updates of tables, or of this package's states with keys.

    :param tables: whether to return the updates of tables; if False, of states that have keys.
    """
    listed = scope.argument(committer, "updates")
    nodes = [] if listed is None else [listed, *scope.values(listed)]
    found = []
    for update in (each for node in nodes for each in getattr(node, "elts", ())):
        call = update if isinstance(update, ast.Call) else next(iter(scope.values(update)), None)
        state = scope.argument(call, "state") if isinstance(call, ast.Call) else None
        name = "" if state is None else scope.name_of(state).removesuffix(".from_url()")
        kind = name.removesuffix("()").rpartition(".")[2]
        if name.startswith("airflow_tx.") and (kind in _TABLES) is tables:
            assert isinstance(call, ast.Call)
            found.append(call)
    return found


def _catchup(block: TransactionBlock) -> Iterator[Hit]:
    scope = block.scope
    if block.dag is None or scope.constant(scope.argument(block.dag, "catchup")) is not True:
        return
    calls = _sources(block)
    if not calls or not scope.name_of(calls[-1].func).startswith("airflow_tx."):
        return
    if not any(is_own(scope, calls[-1].func, name) for name in _SOURCES_OF_RUNS):
        yield Hit(scope, "TX107", block.call)


def _sources(block: TransactionBlock) -> list[ast.Call]:
    """Return the calls that may create the source of a transaction. The most likely call is last."""
    source = block.scope.argument(block.call, "source")
    made = [source, *block.scope.values(source)] if source is not None else []
    return [each for each in made if isinstance(each, ast.Call)]


# --- logical date -------------------------------------------------------------------------------------------------
# Find code that reads a run's logical date, although the batch is the run's data interval.


_DATES = "ds ds_nodash ts ts_nodash ts_nodash_with_tz logical_date execution_date".split()
_IN_TEMPLATE = re.compile(
    r"\{[{%][^}]*(?:(?<![\w.])[dt]s(?:_nodash(?:_with_tz)?)?|\b(?:logical|execution)_date)\b"
)
_FILTER = re.compile(r"\|\s*\w+")


def _logical_dates(project: LintedProject, block: Scope, roots: list[ast.AST]) -> Iterator[Hit]:
    called = [
        function.node
        for root in roots
        for call in _calls(root)
        if (given := block.argument(call, "python_callable"))
        for function in project.functions_of(block, given)
    ]
    for root in roots:
        yield from _dates_in(block, root)
    for scope in project.reached(block, roots):
        node = scope.node
        assert isinstance(node, FunctionNode)
        if (node in called or _is_task(scope)) and _has_dates(node.args):
            yield Hit(scope, "TX113", node)
        yield from _dates_in(scope, node)


def _dates_in(scope: Scope, root: ast.AST) -> Iterator[Hit]:
    for node in own_nodes(root):
        if isinstance(node, ast.expr) and _is_date(scope, node):
            yield Hit(scope, "TX113", node)


def _is_task(scope: Scope) -> bool:
    assert isinstance(scope.node, FunctionNode)
    names = map(scope.name_of, scope.node.decorator_list)
    return any("task" in name.replace("()", "").split(".") for name in names)


def _has_dates(arguments: ast.arguments) -> bool:
    given = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return any(each.arg in _DATES for each in given)


def _is_date(scope: Scope, node: ast.expr) -> bool:
    """Return whether an expression reads the logical date from a context, from a run, or in a template."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("logical_date", "execution_date")
    if isinstance(node, ast.Subscript):
        return scope.constant(node.slice) in _DATES and _is_context(scope, node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        key = scope.constant(node.args[0])
        return node.func.attr == "get" and key in _DATES and _is_context(scope, node.func.value)
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and bool(_IN_TEMPLATE.search(_FILTER.sub("", text)))


def _is_context(scope: Scope, node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return scope.name_of(node.func).endswith("get_current_context")
    if not isinstance(node, ast.Name):
        return False
    function = scope.node
    rest = function.args.kwarg if isinstance(function, FunctionNode) else None
    named = node.id == "context" or (rest is not None and rest.arg == node.id)
    return named or any(_is_context(scope, each) for each in scope.values(node))


# --- values -------------------------------------------------------------------------------------------------------
# Find values that differ between executions: the clock, random values, a Variable, and some
# functions of Spark.


_CLOCK = "TX104"
_CHANCE = "TX105"
_SETTING_CODE = "TX106"
_BESIDE_CODE = "TX114"
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
"""Functions that read the clock when called with at most this number of arguments."""
_DRAWS = frozenset(
    """
    random randint randrange uniform choice choices
    sample shuffle gauss normalvariate getrandbits
    randbytes expovariate betavariate triangular
    """.split()
)
_UNIQUE = frozenset("uuid.uuid1 uuid.uuid4 os.urandom random.SystemRandom".split())
_SEEDED = ("random.Random", "numpy.random.default_rng", "numpy.random.RandomState")
_BESIDE = frozenset("os.listdir os.scandir os.walk glob.glob glob.iglob".split())
_SETTINGS = tuple(
    f"{module}.Variable.{verb}"
    for module in ("airflow.sdk", "airflow.models", "airflow.models.variable")
    for verb in ("get", "set")
)
_TEMPLATES = (
    (_SETTING_CODE, re.compile(r"\{\{[^}]*\bvar\.(value|json)\b")),
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
    """Yield the nodes of a function or a block whose value differs between executions."""
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
        elif _is_try_number(node) and id(node) not in harmless:
            yield _BESIDE_CODE, node


def value_of(scope: Scope, call: ast.Call) -> str | None:
    """Return the code of the rule for a call whose result differs between executions. Return None for other calls."""
    name = scope.name_of(call.func)
    if name in _TIMES:
        return None if name in _SHORT and len(call.args) > _SHORT[name] else _CLOCK
    if name.startswith("secrets.") or name in _UNIQUE:
        return _CHANCE
    if name == "hash" and call.args and _is_text(scope, call.args[0]):
        return _CHANCE
    if name in _BESIDE or name.endswith(".iterdir"):
        return None if is_temporary(scope, call) else _BESIDE_CODE
    if name in _SEEDED:
        return None if call.args or call.keywords else _CHANCE
    module, _, last = name.rpartition(".")
    if (module == "random" and last in _DRAWS) or (module == "numpy.random" and last != "seed"):
        return _CHANCE
    if last == "sample" and isinstance(call.func, ast.Attribute) and _unseeded(call):
        return _CHANCE
    return _SETTING_CODE if name in _SETTINGS else None


def _is_text(scope: Scope, node: ast.expr) -> bool:
    """Return whether an expression is a string. A string's hash differs between processes."""
    made = isinstance(node, ast.Call) and scope.name_of(node.func) in ("str", "repr", "ascii")
    return made or isinstance(node, ast.JoinedStr) or isinstance(scope.constant(node), str)


def _is_try_number(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """Return whether a node reads the try number of a task."""
    return isinstance(node, ast.Attribute) and node.attr == "try_number"


def _unseeded(call: ast.Call) -> bool:
    """Return whether a call of `sample` on a data frame has no seed."""
    named = {each.arg for each in call.keywords}
    number = len(call.args) == 1 and isinstance(call.args[0], ast.Constant)
    draws = number or bool(named & {"n", "frac", "fraction"})
    return draws and not named & {"random_state", "seed"}


def _seeds(scope: Scope, call: ast.Call) -> bool:
    return scope.name_of(call.func) in ("random.seed", "numpy.random.seed") and bool(call.args)


def _harmless(scope: Scope, nodes: list[ast.AST]) -> set[int]:
    """Return the calls whose values do not reach the output, since they are used in a log line or a duration."""
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
    """Return the calls that read the clock to measure a duration.

    Each operand must be such a call, or a name for its value.
    """
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
    """Return whether a name is used outside subtractions and comparisons."""
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
    """Yield the expressions in an application that Spark evaluates differently in each execution."""
    calls = [each for each in own_nodes(root) if isinstance(each, ast.Call)]
    sorting = (call for call in calls if _SORTS.search(scope.name_of(call.func)))
    sorted_ = {id(each) for call in sorting for each in ast.walk(call)}
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
