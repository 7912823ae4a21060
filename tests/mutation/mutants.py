"""One small change to a function each, made in its syntax tree."""

from __future__ import annotations

import ast
import copy
import difflib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
# What is said, and to whom, and the lines where a test kills, are no rules of the protocol.
_SAID = ("log", "_log", "logger", "warnings", "TYPE_CHECKING")


@dataclass(frozen=True)
class Mutant:
    """A changed function.

    :param path: of its file, relative to the repository.
    :param line: of the change.
    :param lines: what a test executes if it comes past the change.
    :param function: its qualified name.
    :param first_line: of the function, its decorators included.
    :param what: the change in words.
    :param diff: the change, as lines.
    :param compiled: makes the code of its changed file.
    """

    path: str
    line: int
    lines: range
    function: str
    first_line: int
    what: str
    diff: str
    compiled: Callable[[], CodeType]

    @cached_property
    def key(self) -> str:
        """What it is known by as long as its function is as it is."""
        text = f"{self.path} {self.function} {self.what} {self.diff}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def apply(self, functions: list[FunctionType]) -> bool:
        """Give the functions of its file their changed code, whoever has imported them.

        :return: whether there was one.
        """
        changed = dict(_codes(self.compiled()))
        found = False
        for function in functions:
            code = changed.get((function.__code__.co_firstlineno, function.__code__.co_name))
            if code is not None and code.co_freevars == function.__code__.co_freevars:
                found |= code.co_firstlineno == self.first_line
                function.__code__ = code
        return found


def _codes(code: CodeType) -> Iterator[tuple[tuple[int, str], CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield (constant.co_firstlineno, constant.co_name), constant
            yield from _codes(constant)


def mutants(path: Path, root: Path) -> Iterator[Mutant]:
    """Every mutant of a file."""
    module = ast.parse(path.read_text())
    for name, function in _functions(module, ""):
        before = ast.unparse(function).splitlines()
        first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
        for node, lines in _nodes(function, range(0)):
            for what, change in _changes(node):
                changed = _changed(function, node, change)
                after = ast.unparse(changed).splitlines()
                if before != after:
                    diff = "\n".join(list(difflib.unified_diff(before, after, lineterm="", n=1))[2:])
                    line = getattr(node, "lineno", lines.start)
                    compiled = partial(_compiled, module, function, changed, path)
                    yield Mutant(str(path.relative_to(root)), line, lines, name, first, what, diff, compiled)


def _compiled(module: ast.Module, function: Function, changed: Function, path: Path) -> CodeType:
    """Compile the changed function alone, in its classes."""
    body = [each for each in module.body if isinstance(each, ast.ImportFrom) and each.module == "__future__"]
    return compile(ast.Module([*body, *_around(module, function, changed)], []), path, "exec")


def _around(tree: ast.Module | ast.ClassDef, function: Function, changed: Function) -> Iterator[ast.stmt]:
    for each in tree.body:
        if each is function:
            yield changed
        elif isinstance(each, ast.ClassDef) and (body := [*_around(each, function, changed)]):
            copied = copy.copy(each)
            copied.body, copied.decorator_list, copied.bases = body, [], []
            yield copied


def _functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    """The outer functions and the methods; what is defined in them belongs to them."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node


def _nodes(tree: ast.AST, lines: range) -> Iterator[tuple[ast.AST, range]]:
    """What may be changed below a node, and the lines of its statement, of a compound one its head.

    No annotation, no default, no decorator, nothing that is only said.
    """
    own = tree.body if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef) else ast.iter_child_nodes(tree)
    for child in own:
        if isinstance(tree, ast.AnnAssign) and child is tree.annotation:
            continue
        if _is_said(child) or isinstance(child, ast.Import | ast.ImportFrom | ast.JoinedStr):
            continue
        near = _head(child) if isinstance(child, ast.stmt) else lines
        yield child, near
        if not isinstance(child, ast.Raise):  # what an error says
            yield from _nodes(child, near)


def _head(statement: ast.stmt) -> range:
    below = [each.lineno for name in ("body", "handlers") for each in getattr(statement, name, ())]
    end = statement.end_lineno or statement.lineno
    return range(statement.lineno, max(min([end + 1, *below]), statement.lineno + 1))


def _is_said(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr):
        return False
    if isinstance(node.value, ast.Constant):
        return True
    called = node.value.func if isinstance(node.value, ast.Call) else None
    owner = called.value if isinstance(called, ast.Attribute) else None
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return name in _SAID or getattr(called, "id", "") == "failpoint"


Change = Callable[[Any], ast.AST | None]


def _changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    """Per change of a node its words, and what makes it of a copy."""
    if isinstance(node, ast.stmt):
        yield from _changes_of_statement(node)
    elif isinstance(node, ast.expr):
        yield from _changes_of_expression(node)
    elif isinstance(node, ast.comprehension):
        for index in range(len(node.ifs)):
            yield "a filter is dropped", _without("ifs", index)


def _changes_of_statement(node: ast.stmt) -> Iterator[tuple[str, Change]]:
    if isinstance(node, ast.If | ast.While):
        yield "a condition is negated", _negated
    if isinstance(node, ast.Raise):
        yield "a raise is dropped", _nothing
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield "None is returned", lambda copied: ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Expr | ast.AugAssign | ast.Delete) or (
        isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
    ):
        yield "a statement is dropped", _nothing
    elif isinstance(node, ast.Continue):
        yield "continue is break", lambda copied: ast.Break()
    elif isinstance(node, ast.Break):
        yield "break is continue", lambda copied: ast.Continue()


def _changes_of_expression(node: ast.expr) -> Iterator[tuple[str, Change]]:
    if isinstance(node, ast.List | ast.Tuple | ast.Call):
        yield from _changes_of_parts(node)
    elif isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            yield "a comparison is another", _with_item("ops", index, _COMPARED[type(operator)]())
    elif isinstance(node, ast.BoolOp):
        other: ast.boolop = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield "and, or", _with("op", other)
        for index in range(len(node.values)):
            yield "an operand is dropped", _operand_dropped(index)
    elif isinstance(node, ast.BinOp) and type(node.op) in _CALCULATED:
        yield "an operator is another", _with("op", _CALCULATED[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not is dropped", lambda copied: copied.operand
    elif isinstance(node, ast.IfExp):
        yield "a condition is negated", _negated
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int):
        value = (not node.value) if isinstance(node.value, bool) else node.value + 1
        yield "a constant is another", _with("value", value)


def _changes_of_parts(node: ast.List | ast.Tuple | ast.Call) -> Iterator[tuple[str, Change]]:
    """A write or an argument that is not there."""
    if isinstance(node, ast.Call):
        for index, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                yield f"argument {keyword.arg} is dropped", _without("keywords", index)
        return
    for index, element in enumerate(node.elts):
        if isinstance(element, ast.Call | ast.Starred):
            yield "an element is dropped", _without("elts", index)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _nothing(copied: ast.AST) -> ast.AST:
    return ast.Pass()


def _negated(copied: Any) -> ast.AST:
    copied.test = ast.UnaryOp(ast.Not(), copied.test)
    return copied  # type: ignore[no-any-return]


def _with(name: str, value: object) -> Change:
    def change(copied: ast.AST) -> ast.AST:
        setattr(copied, name, value)
        return copied

    return change


def _with_item(name: str, index: int, value: object) -> Change:
    def change(copied: ast.AST) -> ast.AST:
        getattr(copied, name)[index] = value
        return copied

    return change


def _without(name: str, index: int) -> Change:
    def change(copied: ast.AST) -> ast.AST:
        del getattr(copied, name)[index]
        return copied

    return change


def _operand_dropped(index: int) -> Change:
    def change(copied: ast.BoolOp) -> ast.AST:
        del copied.values[index]
        return copied if len(copied.values) > 1 else copied.values[0]

    return change


def _changed(function: Function, node: ast.AST, change: Change) -> Function:
    """A copy of a function in which one node is changed."""
    memo: dict[int, Any] = {}
    copied: Function = copy.deepcopy(function, memo)
    old = memo[id(node)]
    new = change(copy.copy(old) if isinstance(old, ast.stmt) and not hasattr(old, "test") else old)
    if new is not old and new is not None:
        ast.copy_location(new, old)
        _Replacing(old, new).visit(copied)
    return ast.fix_missing_locations(copied)


class _Replacing(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)
