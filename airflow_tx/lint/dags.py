"""The DAGs of a file: transactions, plain DAGs, Spark applications."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from airflow_tx.lint.scope import FunctionNode, LintedProject, Scope, calls_in

# --- dags ---------------------------------------------------------------------------------------------------------


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


# --- committed paths ----------------------------------------------------------------------------------------------
# Tasks of a transaction from which no path leads to its committer.


_TASKS = (
    "airflow.sdk.task",
    "airflow.decorators.task",
    "airflow.sdk.task_group",
    "airflow.decorators.task_group",
)
_PREPARING = ("override", "partial")
_MAPPING = ("expand", "expand_kwargs")


def loose_tasks(project: LintedProject, block: TransactionBlock) -> list[ast.Call]:
    """Give the calls that make tasks which the committer does not wait for."""
    paths = _Paths(project, block.scope)
    paths.follow(block.body.body)
    return paths.loose()


class _Paths:
    """The tasks of a block, and which of them come before which.

    A name counts wherever it is mentioned: a path too many hides a finding, a path too few invents one.
    """

    def __init__(self, project: LintedProject, scope: Scope) -> None:
        self._project = project
        self._scope = scope
        self._tasks: dict[int, ast.Call] = {}
        self._before: dict[int, set[int]] = defaultdict(set)
        self._names: dict[str, set[int]] = defaultdict(set)
        self._ends: set[int] = set()

    def follow(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def loose(self) -> list[ast.Call]:
        if not self._ends:
            return []
        reached: set[int] = set()
        left = list(self._ends)
        while left:
            each = left.pop()
            if each not in reached:
                reached.add(each)
                left.extend(self._before[each])
        return [call for key, call in self._tasks.items() if key not in reached]

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, FunctionNode | ast.ClassDef):
            return
        if isinstance(node, ast.With):
            self._with(node)
            return
        bodies = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._expression(child)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            self._assign(
                node.targets if isinstance(node, ast.Assign) else [node.target], node.value
            )
        if isinstance(node, ast.For):
            self._assign([node.target], node.iter)
        for body in bodies:
            self.follow(body)

    def _with(self, node: ast.With) -> None:
        known = set(self._tasks)
        self.follow(node.body)
        inside = set(self._tasks) - known
        if is_phase(self._scope, node):
            self._ends |= inside
        for item in node.items:
            if isinstance(item.optional_vars, ast.Name):
                self._names[item.optional_vars.id] |= inside

    def _assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        tasks = self._mentioned(value)
        for target in targets:
            for each in ast.walk(target):
                if isinstance(each, ast.Name):
                    self._names[each.id] |= tasks

    def _expression(self, node: ast.expr) -> None:
        for call in calls_in(node):
            if self._is_task(call):
                self._tasks[id(call)] = call
                if is_own(self._scope, call.func, "CommitOperator"):
                    self._ends.add(id(call))
        for each in ast.walk(node):
            if isinstance(each, ast.Call):
                self._arguments(each)
            elif isinstance(each, ast.BinOp) and isinstance(each.op, ast.RShift | ast.LShift):
                self._shift(each)

    def _arguments(self, call: ast.Call) -> None:
        given: set[int] = set()
        for argument in [*call.args, *(each.value for each in call.keywords)]:
            given |= self._mentioned(argument)
        if id(call) in self._tasks:
            self._before[id(call)] |= given | self._mentioned(call.func)
            return
        last = _attribute(call.func) or self._scope.name_of(call.func).rpartition(".")[2]
        if isinstance(call.func, ast.Attribute):
            owner = self._mentioned(call.func.value)
            if last == "set_upstream":
                self._edge(given, owner)
            elif last == "set_downstream":
                self._edge(owner, given)
            elif isinstance(call.func.value, ast.Name):
                self._names[call.func.value.id] |= given
        if last in ("chain", "chain_linear", "cross_downstream"):
            for left, right in zip(call.args, call.args[1:], strict=False):
                self._edge(self._mentioned(left), self._mentioned(right))

    def _shift(self, node: ast.BinOp) -> None:
        left, right = node.left, node.right
        if isinstance(left, ast.BinOp):
            left = left.right
        before, after = self._mentioned(left), self._mentioned(right)
        if isinstance(node.op, ast.LShift):
            self._edge(after, before)
        else:
            self._edge(before, after)

    def _edge(self, before: set[int], after: set[int]) -> None:
        for each in after:
            self._before[each] |= before - {each}

    def _mentioned(self, node: ast.expr) -> set[int]:
        found: set[int] = set()
        for each in ast.walk(node):
            if isinstance(each, ast.Name):
                found |= self._names.get(each.id, set())
            elif id(each) in self._tasks:
                found.add(id(each))
        return found

    def _is_task(self, call: ast.Call) -> bool:
        """Tell whether a call makes a task: an operator with a task_id, or a decorated function."""
        if _attribute(call.func) in _PREPARING:
            return False
        function = call.func
        options = [call]
        if isinstance(function, ast.Attribute) and function.attr in _MAPPING:
            function = function.value
        while isinstance(function, ast.Call) and isinstance(function.func, ast.Attribute):
            options.append(function)
            function = function.func.value
        if any(self._scope.argument(each, "task_id") is not None for each in options):
            return True
        found = self._project.definition(self._scope, function)
        return found is not None and self._is_decorated(found)

    def _is_decorated(self, scope: Scope) -> bool:
        if not isinstance(scope.node, FunctionNode):
            return False
        outside = scope.parent or scope
        plain = [
            each.func if isinstance(each, ast.Call) else each for each in scope.node.decorator_list
        ]
        return any(outside.name_of(each).startswith(_TASKS) for each in plain)


def _attribute(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ""
