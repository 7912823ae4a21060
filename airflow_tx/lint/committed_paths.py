"""Tasks of a transaction from which no path leads to its committer."""

from __future__ import annotations

import ast
from collections import defaultdict

from airflow_tx.lint.dags import TransactionBlock, is_own, is_phase
from airflow_tx.lint.project import LintedProject
from airflow_tx.lint.scope import FunctionNode, Scope, calls_in

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
