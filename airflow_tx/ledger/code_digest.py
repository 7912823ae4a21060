"""Digests of the code that processed a batch. Names, comments and layout do not change them.

A digest is computed from the syntax tree of the source. Compiled code differs between Python versions, so two workers
could compute different digests.
"""

from __future__ import annotations

import ast
import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LEFT_OUT: Final = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
"""Fields of a syntax tree that do not change what the code does."""
_PARSING: Final = threading.Lock()
_TRIES: Final = 10


def file_digest(source: bytes) -> str:
    """Return the digest of a whole source file. If the file is not Python, its bytes are digested.

    :return: 16 hex digits.
    """
    try:
        return _digest(_plain(_parsed(source), ""))
    except (SyntaxError, ValueError, RecursionError):
        return hashlib.sha256(source).hexdigest()[:16]


def function_digest(source: str, line: int) -> str:
    """Return the digest of a function and of all functions, classes and constants in its file that it uses.

    The digest excludes the decorator ``@task``, since arguments such as `retries` do not change the result of the
    function. It also excludes modules that the function imports.

    :param source: the source of the whole file.
    :param line: the first line of the function, as its code object gives it.
    :return: 16 hex digits; "" if no function begins on this line, or the source cannot be parsed.
    """
    try:
        found = _found(_parsed(source), line, ())
        if found is None:
            return ""
        functions, scopes = found
        names = {each.name for each in functions if isinstance(each, _DEFINITIONS)}
        own = next(iter(names), "")
        used = _used(functions, _bound(scopes))
        return _digest([[_plain(each, own) for each in functions], used])
    except (SyntaxError, ValueError, RecursionError):
        return ""


def _parsed(source: str | bytes) -> ast.Module:
    """Parse a file under a lock. Python 3.11 raises SystemError if two threads parse (python/cpython issue 106905)."""
    for _ in range(_TRIES):
        with suppress(SystemError), _PARSING:
            return ast.parse(source)
    return ast.parse(source)


def _digest(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain).encode("utf-8", "backslashreplace")).hexdigest()[:16]


# --- one function and its scopes ----------------------------------------------------------------------------------


def _found(
    node: ast.AST, line: int, scopes: Sequence[ast.AST]
) -> tuple[list[ast.AST], Sequence[ast.AST]] | None:
    """Find the function or all lambdas that begin on a line. Return them with their enclosing scopes."""
    inside = (*scopes, node) if isinstance(node, ast.Module | _Function) else scopes
    lambdas = list[ast.AST]()
    for each in ast.iter_child_nodes(node):
        if isinstance(each, _DEFINITIONS) and _first_line(each) == line:
            return [each], inside
        if isinstance(each, ast.Lambda) and each.lineno == line:
            lambdas.append(each)
        elif (found := _found(each, line, inside)) is not None:
            if isinstance(found[0][0], _DEFINITIONS):
                return found
            lambdas += found[0]
    return (lambdas, inside) if lambdas else None


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _bound(scopes: Sequence[ast.AST]) -> dict[str, list[ast.stmt]]:
    """Return the definitions in the scopes by name: functions, classes, and constants with a literal value."""
    found = dict[str, list[ast.stmt]]()
    for scope in scopes:
        for each in _statements(scope):
            for name in _names(each):
                found.setdefault(name, []).append(each)
    return found


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a scope, including the statements inside blocks such as ``with DAG(...)``."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.stmt):
            yield each
        if not isinstance(each, (*_DEFINITIONS, ast.expr)):
            yield from _statements(each)


def _names(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, _DEFINITIONS):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign) and _is_literal(statement.value):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (each.id for each in targets if isinstance(each, ast.Name))


def _is_literal(value: ast.expr | None) -> bool:
    try:
        ast.literal_eval(value or ast.Name(""))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _used(functions: Sequence[ast.AST], bound: dict[str, list[ast.stmt]]) -> list[Any]:
    """Return the definitions that the functions use, directly or indirectly, as JSON, ordered by name."""
    seen = dict[str, list[ast.stmt]]()
    left = list[ast.AST](functions)
    while left:
        for each in ast.walk(left.pop()):
            name = each.id if isinstance(each, ast.Name) else ""
            if name not in seen and name in bound:
                seen[name] = [each for each in bound[name] if each not in functions]
                left += seen[name]
    return [
        [name, [_plain(each, "") for each in seen[name]]] for name in sorted(seen) if seen[name]
    ]


# --- a syntax tree as JSON ----------------------------------------------------------------------------------------


def _plain(node: Any, own: str) -> Any:
    """Return a syntax tree as JSON, without docstrings and without fields that vary between Python versions.

    :param own: name of the digested function, which the JSON leaves out.
    """
    if isinstance(node, list):
        return [_plain(each, own) for each in node]
    if not isinstance(node, ast.AST):
        return "" if own and node == own else repr(node)
    kept = ((name, _kept(node, name, own)) for name in node._fields if name not in _LEFT_OUT)
    fields = {name: _plain(each, own) for name, each in kept if each is not None and each != []}
    return [type(node).__name__, fields]


def _kept(node: ast.AST, field: str, own: str) -> Any:
    """Return the value of a field, without docstrings and without Airflow's decorator on the function ``own``."""
    value: Any = getattr(node, field, None)
    if field == "body" and isinstance(node, (*_DEFINITIONS, ast.Module)):
        return value[1:] if value and _is_text(value[0]) else value
    if field == "decorator_list" and own and isinstance(node, _DEFINITIONS) and node.name == own:
        return [each for each in value if "task" not in _dotted(each)]
    return value


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _dotted(decorator: ast.expr) -> list[str]:
    """Return the parts of a decorator's name. ``sdk.task.virtualenv(...)`` has three parts."""
    if isinstance(decorator, ast.Call):
        return _dotted(decorator.func)
    if isinstance(decorator, ast.Attribute):
        return [*_dotted(decorator.value), decorator.attr]
    return [decorator.id] if isinstance(decorator, ast.Name) else []
