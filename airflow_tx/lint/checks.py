"""The rules of transactions and Spark applications."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from airflow_tx.lint.effects import (
    DATABASE,
    FILE,
    REQUEST,
    Effect,
    changing_values,
    effects_of,
    spark_values_in,
)
from airflow_tx.lint.rules import Hit
from airflow_tx.lint.scope import (
    FunctionNode,
    LintedProject,
    PlainDag,
    Scope,
    TransactionBlock,
    committers_in_phase,
    dags_of,
    is_own,
    is_phase,
    loose_tasks,
    own_nodes,
)
from airflow_tx.provider_info import OPTIONS

# --- plain checks -------------------------------------------------------------------------------------------------
# The rules of DAGs without a transaction: what a cleared run does once more.


_REMOVES = {
    DATABASE: re.compile(r"Delete(Dataset|Table)\w*Operator$"),
    REQUEST: re.compile(r"(Delete(Topic|Queue)\w*Operator|\.delete_(topic|queue))$"),
}
"""What removes the tables or the queue of a run at its end."""
_PLAIN_CODES = {DATABASE: "TX201", REQUEST: "TX202", FILE: "TX203"}


def plain_hits(project: LintedProject, dag: PlainDag) -> Iterator[Hit]:
    """Find what counts twice when a run of a plain DAG is cleared."""
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
    """Give the calls of the Spark application that an operator submits."""
    module = project.application_of(scope, call)
    if module is None or dags_of(module).applications:
        return
    yield from ((module, each) for each in _calls(module.node))
    for function in project.reached(module, [module.node]):
        yield from ((function, each) for each in _calls(function.node))


def _is_emptied(effect: Effect, emptied: set[str]) -> bool:
    """Tell whether the DAG removes the rows of a table before it inserts them."""
    return effect.statement is not None and effect.statement.table in emptied


def _calls(root: ast.AST) -> list[ast.Call]:
    nodes = [root, *own_nodes(root)]
    return [each for each in nodes if isinstance(each, ast.Call)]


# --- module state -------------------------------------------------------------------------------------------------
# Variables of a module that a function changes: their values depend on earlier runs of the process.


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
    """Give the nodes of a function that change a variable of its module, or a default of an argument."""
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
    """Tell whether a function assigns one of the names, and does not only read it."""
    stored = {
        each.id
        for each in own_nodes(scope.node)
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)
    }
    return bool(stored & set(names))


def _outlives(scope: Scope, node: ast.expr) -> bool:
    """Tell whether an expression is a list, dict or set that outlives the call of the function."""
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
    """Give the default of an argument, if the function assigns the name nothing else."""
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
"""Airflow's own max_active_runs."""


def transaction_hits(project: LintedProject, block: TransactionBlock) -> Iterator[Hit]:
    """Check a block, the functions of its tasks, and the functions that these call."""
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
    """Check a Spark application, and the functions that it calls."""
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
    """Tell whether a call makes messages that the transaction waits for: sending them is their purpose."""
    if not isinstance(call.func, ast.Attribute):
        return False
    return call.func.attr in _EMITS or (call.func.attr == "emit" and not call.args)


def _read_at_parsing(scope: Scope) -> Iterator[Hit]:
    """Find values of the module that differ at each parse, and that a function reads."""
    names = [each for each in own_nodes(scope.node) if isinstance(each, ast.Name)]
    for name in {each.id: each for each in names if isinstance(each.ctx, ast.Load)}.values():
        home = scope.home(name.id)
        if home is not None and home.parent is None:
            for value in home.values(name):
                found = changing_values(home, ast.Expr(value))
                yield from (Hit(home, code, node) for code, node in found)


def _outside_of_phases(scope: Scope, node: ast.AST) -> Iterator[ast.AST]:
    """Give code of the block, without the tasks of a commit phase: these run in the turn."""
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
    """Find committers of a commit phase that may take rows out before another one has written values by key."""
    for committer, others in committers_in_phase(project, block):
        tables = _written(block.scope, committer, tables=True)
        if tables and any(_written(block.scope, each, tables=False) for each in others):
            yield Hit(block.scope, "TX112", tables[0])


def _written(scope: Scope, committer: ast.Call, *, tables: bool) -> list[ast.Call]:
    """Give the updates of a committer by what they write: tables of rows, or states of this package with keys."""
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
    """Give the calls that may make the source of a block, the likeliest one last."""
    source = block.scope.argument(block.call, "source")
    made = [source, *block.scope.values(source)] if source is not None else []
    return [each for each in made if isinstance(each, ast.Call)]


# --- logical date -------------------------------------------------------------------------------------------------
# Reads of the logical date of a run, where the batch is its data interval.


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
    """Tell whether an expression reads the logical date: of a context, of a run, or in a template."""
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
