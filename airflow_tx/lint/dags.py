"""The DAGs of a file: transactions, plain DAGs, Spark applications."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from airflow_tx.lint.scope import FunctionNode, Scope

_SPARK_APPLICATION = "batch_app"


@dataclass(frozen=True)
class TransactionBlock:
    """A `with Transaction(...)`, and the DAG around it, if the file shows it."""

    scope: Scope
    call: ast.Call
    body: ast.With
    dag: ast.Call | None


@dataclass
class PlainDag:
    """A DAG without a transaction.

    :param roots: the code that makes its tasks.
    """

    scope: Scope
    call: ast.Call
    roots: list[ast.AST]

    @property
    def dag_id(self) -> str:
        """Its dag_id, or the name of its function; "" if the file makes the id as it runs."""
        given = self.scope.argument(self.call, "dag_id") or (
            self.call.args[0] if self.call.args else None
        )
        found = self.scope.constant(given)
        if isinstance(found, str):
            return found
        return self.roots[0].name if isinstance(self.roots[0], FunctionNode) else ""


@dataclass
class FileDags:
    """The DAGs and applications of a file."""

    blocks: list[TransactionBlock] = field(default_factory=list)
    plain: list[PlainDag] = field(default_factory=list)
    applications: list[Scope] = field(default_factory=list)


def dags_of(module: Scope) -> FileDags:
    """Find the DAGs and the applications of a file."""
    found = FileDags()
    _walk(found, module, module.node, None)
    _module_dag(found, module)
    inside = {id(block.dag) for block in found.blocks}
    found.plain = [each for each in found.plain if id(each.call) not in inside]
    return found


def is_own(scope: Scope, node: ast.expr, name: str) -> bool:
    """Tell whether an expression is this public name of airflow_tx."""
    full = scope.name_of(node)
    return full.startswith("airflow_tx.") and full.rpartition(".")[2] == name


def is_phase(scope: Scope, node: ast.AST) -> bool:
    """Tell whether a node is `with commit_phase():`."""
    if not isinstance(node, ast.With):
        return False
    return any(is_own(scope, call.func, "commit_phase") for call in _entered(scope, node))


def _walk(found: FileDags, scope: Scope, node: ast.AST, dag: ast.Call | None) -> None:
    left: list[tuple[Scope, ast.AST, ast.Call | None]] = [(scope, node, dag)]
    while left:
        scope, node, dag = left.pop()
        if isinstance(node, FunctionNode | ast.ClassDef) and node is not scope.node:
            scope = scope.below[id(node)]
            dag = _decorated(found, scope, node) or dag
        if isinstance(node, ast.With):
            dag = _opened(found, scope, node, dag)
        left.extend((scope, child, dag) for child in ast.iter_child_nodes(node))


def _decorated(found: FileDags, scope: Scope, node: FunctionNode | ast.ClassDef) -> ast.Call | None:
    """Note an application, or a DAG that `@dag` makes; give the call that makes the DAG."""
    outside = scope.parent or scope
    for each in node.decorator_list:
        call = each if isinstance(each, ast.Call) else ast.Call(each, [], [])
        name = outside.name_of(call.func)
        if is_own(outside, call.func, _SPARK_APPLICATION):
            found.applications.append(scope)
        if name in ("airflow.sdk.dag", "airflow.decorators.dag", "airflow.decorators.dag.dag"):
            ast.copy_location(call, each)
            found.plain.append(PlainDag(scope, call, [node]))
            return call
    return None


def _opened(found: FileDags, scope: Scope, node: ast.With, dag: ast.Call | None) -> ast.Call | None:
    for call in _entered(scope, node):
        if _is_dag(scope, call):
            dag = call
            found.plain.append(PlainDag(scope, call, list(node.body)))
        elif is_own(scope, call.func, "Transaction"):
            found.blocks.append(TransactionBlock(scope, call, node, dag))
    return dag


def _entered(scope: Scope, node: ast.With) -> Iterator[ast.Call]:
    """Give the calls that make what a `with` enters, also calls that a name was assigned."""
    for item in node.items:
        if isinstance(item.context_expr, ast.Call):
            yield item.context_expr
        elif values := scope.values(item.context_expr):
            if isinstance(values[-1], ast.Call):
                yield values[-1]


def _is_dag(scope: Scope, call: ast.Call) -> bool:
    return scope.name_of(call.func).rpartition(".")[2] == "DAG"


def _module_dag(found: FileDags, module: Scope) -> None:
    """Find a DAG that tasks name as their `dag=`, without a `with`."""
    entered = {id(each.call) for each in found.plain}
    assert isinstance(module.node, ast.Module)
    for statement in module.node.body:
        call = statement.value if isinstance(statement, ast.Assign) else None
        if isinstance(call, ast.Call) and _is_dag(module, call) and id(call) not in entered:
            found.plain.append(PlainDag(module, call, list(module.node.body)))
