"""The rules of DAGs without a transaction: what a cleared run does once more."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from airflow_tx.lint.dags import PlainDag, dags_of, is_own
from airflow_tx.lint.effects import DATABASE, FILE, REQUEST, Effect, effects_of
from airflow_tx.lint.hit import Hit
from airflow_tx.lint.project import LintedProject
from airflow_tx.lint.scope import Scope, own_nodes

_REMOVES = {
    DATABASE: re.compile(r"Delete(Dataset|Table)\w*Operator$"),
    REQUEST: re.compile(r"(Delete(Topic|Queue)\w*Operator|\.delete_(topic|queue))$"),
}
"""What removes the tables or the queue of a run at its end."""
_CODES = {DATABASE: "TX201", REQUEST: "TX202", FILE: "TX203"}


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
            yield Hit(scope, _CODES[effect.kind], effect.node, dag.dag_id)


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
