"""The rules of transactions and Spark applications."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from airflow_tx.lint.committed_paths import loose_tasks
from airflow_tx.lint.dags import TransactionBlock, dags_of, is_own, is_phase
from airflow_tx.lint.effects import DATABASE, FILE, REQUEST, effects_of
from airflow_tx.lint.hit import Hit
from airflow_tx.lint.module_state import changes_in
from airflow_tx.lint.project import LintedProject
from airflow_tx.lint.scope import Scope, own_nodes
from airflow_tx.lint.values import changing_values, spark_values_in
from airflow_tx.provider_info import OPTIONS

_CODES = {DATABASE: "TX101", REQUEST: "TX102", FILE: "TX103"}
_SOURCES_OF_RUNS = ("DataIntervalSource", "RunPartitionSource")
_EMITS = ("emit_many", "emit_messages")
_RUNS = 16
"""Airflow's own max_active_runs."""


def transaction_hits(project: LintedProject, block: TransactionBlock) -> Iterator[Hit]:
    """Check a block, the functions of its tasks, and the functions that these call."""
    yield from _window(block)
    yield from _catchup(block)
    yield from (Hit(block.scope, "TX108", task) for task in loose_tasks(project, block))
    roots = [
        each for statement in block.body.body for each in _outside_of_phases(block.scope, statement)
    ]
    for root in roots:
        yield from _code(project, block.scope, root)
    for scope in project.reached(block.scope, roots):
        yield from _function(project, scope)
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


def _catchup(block: TransactionBlock) -> Iterator[Hit]:
    scope = block.scope
    if block.dag is None or scope.constant(scope.argument(block.dag, "catchup")) is not True:
        return
    source = scope.argument(block.call, "source")
    made = [source, *scope.values(source)] if source is not None else []
    calls = [each for each in made if isinstance(each, ast.Call)]
    if not calls or not scope.name_of(calls[-1].func).startswith("airflow_tx."):
        return
    if not any(is_own(scope, calls[-1].func, name) for name in _SOURCES_OF_RUNS):
        yield Hit(scope, "TX107", block.call)
