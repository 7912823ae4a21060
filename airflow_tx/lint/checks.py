"""The checks behind the rules: each reads a parsed file and gives a code and a node for what it finds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from airflow_tx.lint.dag_file import FunctionNode, LintedFile, TransactionBlock
from airflow_tx.lint.names import calls_in, constant, keyword

Hit = tuple[str, ast.expr | ast.stmt]
SQL_WRITE = re.compile(r"^\s*(INSERT|UPDATE|DELETE|MERGE|REPLACE)\s", re.I)
HTTP_WRITE = {
    f"{library}.{verb}"
    for library in ("requests", "httpx")
    for verb in ("post", "put", "patch", "delete")
}
CLOCK = {
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "datetime.date.today",
    "pendulum.now",
    "pendulum.today",
    "time.time",
}
CHANCE = {"uuid.uuid1", "uuid.uuid4", "os.urandom"} | {
    f"random.{name}"
    for name in "random randint randrange uniform choice choices sample shuffle gauss getrandbits".split()
}
SPARK_FUNCTIONS = (
    "rand randn uuid current_timestamp current_date now monotonically_increasing_id shuffle".split()
)
SPARK_VALUES = {f"pyspark.sql.functions.{name}" for name in SPARK_FUNCTIONS}
SPARK_TEXT = re.compile(rf"\b({'|'.join(SPARK_FUNCTIONS)})\s*\(", re.I)
SOURCES_OF_RUNS = ("DataIntervalSource", "RunPartitionSource")
CHANGES = {
    "append",
    "extend",
    "add",
    "update",
    "insert",
    "setdefault",
    "pop",
    "clear",
    "remove",
    "discard",
}


def hits(file: LintedFile) -> Iterator[Hit]:
    """Give each node of a file that breaks a rule, with the code of the rule."""
    for block in file.blocks:
        yield from _block(file, block)
    for function in file.processing():
        yield from _task(file, function)
        yield from _module_state(file, function)
    for function in file.applications():
        yield from _application(file, function)
        yield from _module_state(file, function)


def _block(file: LintedFile, block: TransactionBlock) -> Iterator[Hit]:
    if block.dag is None:
        return
    runs = constant(keyword(block.dag, "max_active_runs"))
    pending = constant(keyword(block.call, "max_pending"))
    if isinstance(runs, int) and isinstance(pending, int) and runs <= pending:
        yield "TX109", block.call
    source = keyword(block.call, "source")
    if constant(keyword(block.dag, "catchup")) is True and isinstance(source, ast.Call):
        if file.names.of(source.func).startswith("airflow_tx.") and not any(
            file.names.is_own(source.func, name) for name in SOURCES_OF_RUNS
        ):
            yield "TX107", block.call


def _task(file: LintedFile, function: FunctionNode) -> Iterator[Hit]:
    for call in calls_in(function):
        code = _code_of(file, call)
        if code:
            yield code, call


def _code_of(file: LintedFile, call: ast.Call) -> str | None:
    name = file.names.of(call.func)
    if _writes_sql(file, call):
        return "TX101"
    if name in HTTP_WRITE:
        return "TX102"
    if _writes_file(name, call):
        return "TX103"
    if name in CLOCK:
        return "TX104"
    if name in CHANCE or name.startswith("secrets."):
        return "TX105"
    return "TX106" if name in ("airflow.sdk.Variable.get", "airflow.models.Variable.get") else None


def _writes_sql(file: LintedFile, call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or not call.args:
        return False
    if call.func.attr not in ("execute", "executemany", "run", "exec_driver_sql"):
        return False
    text = _text(file, call.args[0])
    return text is not None and SQL_WRITE.match(text) is not None


def _text(file: LintedFile, node: ast.expr) -> str | None:
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]  # the verb of a statement is its first word
    if isinstance(node, ast.Call) and file.names.of(node.func) == "sqlalchemy.text" and node.args:
        node = node.args[0]
    if isinstance(node, ast.Name):
        assigned = [each for each in file.tree.body if isinstance(each, ast.Assign)]
        same = [each.value for each in assigned if ast.unparse(each.targets[0]) == node.id]
        node = same[-1] if same else node
    value = constant(node)
    return value if isinstance(value, str) else None


def _writes_file(name: str, call: ast.Call) -> bool:
    if name == "open":
        mode = constant(keyword(call, "mode") or (call.args[1] if len(call.args) > 1 else None))
        return isinstance(mode, str) and bool(set(mode) & set("wax+"))
    return name.rpartition(".")[2] in (
        "write_text",
        "write_bytes",
        "to_csv",
        "to_parquet",
        "to_sql",
    )


def _module_state(file: LintedFile, function: FunctionNode) -> Iterator[Hit]:
    assigned = [each for each in file.tree.body if isinstance(each, ast.Assign | ast.AnnAssign)]
    targets = [
        each.targets[0] if isinstance(each, ast.Assign) else each.target for each in assigned
    ]
    shared = {target.id for target in targets if isinstance(target, ast.Name)} - _local(function)
    for node in ast.walk(function):
        if isinstance(node, ast.Global):
            yield "TX110", node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if node.func.attr in CHANGES and isinstance(owner, ast.Name) and owner.id in shared:
                yield "TX110", node


def _local(function: FunctionNode) -> set[str]:
    stored = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return stored | {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}


def _application(file: LintedFile, function: FunctionNode) -> Iterator[Hit]:
    for call in calls_in(function):
        name = file.names.of(call.func)
        text = constant(call.args[0]) if call.args else None
        is_sql = name.rpartition(".")[2] in ("expr", "selectExpr", "sql")
        if name in SPARK_VALUES or (is_sql and isinstance(text, str) and SPARK_TEXT.search(text)):
            yield "TX111", call
