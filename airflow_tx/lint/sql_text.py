"""The SQL that a call sends: its text, as far as the file shows it, and what the text writes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_tx.lint.scope import Scope

_DEPTH = 6
_LONGEST = 100_000
"""A longer file of SQL is a dump: its statements are not read."""
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.S)
_PLACE = re.compile(r"\{+[^{}]*\}+")
_STRING = re.compile(r"'(?:[^']|'')*'")
_TABLE = r"(?:IF\s+EXISTS\s+|ONLY\s+|TABLE\s+)*([\w.\"`\[\]$-]+)"
_INSERT = re.compile(
    rf"^(?:WITH\b.*?\b)?(INSERT(?:\s+(?:IGNORE|OR\s+\w+|INTO|OVERWRITE))*|REPLACE\s+INTO|COPY)\s+{_TABLE}",
    re.I | re.S,
)
_UPDATE = re.compile(
    rf"^(?:WITH\b.*?\b)?(UPDATE\s+{_TABLE}\s+.*?\bSET|MERGE\s+INTO)\b", re.I | re.S
)
_RESET = re.compile(
    r"^(?:DELETE\s+FROM|TRUNCATE|DROP\s+TABLE|CREATE\s+(?:OR\s+REPLACE\s+)?(?:\w+\s+){0,2}TABLE(?!\s+IF\b))"
    rf"\s+{_TABLE}",
    re.I,
)
_ONCE = re.compile(
    r"\bON\s+(CONFLICT|DUPLICATE)\b|\bIGNORE\b|\bOR\s+(IGNORE|REPLACE)\b|\bOVERWRITE\b|^REPLACE\b|\bNOT\s+EXISTS\b",
    re.I,
)
_NEW = re.compile(r"\b(EXCLUDED|s|src|source|new)\.\w+|\bVALUES\s*\(\s*\w+\s*\)", re.I)
_SET = re.compile(r"\b(?:SET|KEY\s+UPDATE)\b(.*)", re.I | re.S)
_SUM = re.compile(r"[\"`]?(\w+)[\"`]?\s*=\s*(?=[^=]*[-+*|])[^=]*\b\1\b", re.I)


@dataclass(frozen=True)
class SqlWrite:
    """One statement that writes.

    :param table: the table, in small letters.
    :param adds: whether a second time changes the table once more.
    :param resets: whether it removes rows, so that rows which come next are not twice there.
    """

    table: str
    adds: bool
    resets: bool = False


def writes_of(text: str) -> list[SqlWrite]:
    """Give the statements of a text that write."""
    shown = _PLACE.sub(lambda match: _named(match[0]), text[:_LONGEST])
    statements = _COMMENT.sub(" ", shown).split(";")
    found = [_write_of(_STRING.sub("''", each).strip()) for each in statements]
    return [each for each in found if each is not None]


def _write_of(text: str) -> SqlWrite | None:
    if match := _RESET.match(text):
        return SqlWrite(table_name(match[1]), False, True)
    if match := _INSERT.match(text):
        if match[1].upper() == "COPY" and not re.search(r"\bFROM\b", text, re.I):
            return None
        return SqlWrite(table_name(match[2]), not _ONCE.search(text) or _sums(text))
    if match := _UPDATE.match(text):
        return SqlWrite(table_name(match[2] or "merged"), _sums(text))
    return None


def _sums(text: str) -> bool:
    match = _SET.search(text)
    return match is not None and _SUM.search(_NEW.sub("0", match[1])) is not None


def table_name(table: str) -> str:
    return re.sub(r"[\"`\[\]]", "", table).lower()


def texts_of(
    scope: Scope, node: ast.expr | None, folder: Path, depth: int = _DEPTH
) -> Iterator[str]:
    """Give the texts that an expression can have. A word replaces each part that the file does not show."""
    if node is None or depth == 0:
        return
    if isinstance(node, ast.Constant):
        yield from _text_or_file(node.value, folder)
    elif isinstance(node, ast.JoinedStr):
        parts = (
            each.value if isinstance(each, ast.Constant) else _word(each) for each in node.values
        )
        yield "".join(map(str, parts))
    elif isinstance(node, ast.BinOp):
        yield from _joined(scope, node, folder, depth)
    elif isinstance(node, ast.List | ast.Tuple):
        for each in node.elts:
            yield from texts_of(scope, each, folder, depth - 1)
    elif isinstance(node, ast.Call):
        yield from texts_of(scope, _inside(node), folder, depth - 1)
    else:
        for each in scope.values(node):
            yield from texts_of(scope, each, folder, depth - 1)


def _inside(call: ast.Call) -> ast.expr | None:
    """Give the text below `text("…")`, `dedent("…")`, `"…".format()` and `"…".strip()`."""
    if isinstance(call.func, ast.Attribute) and not call.args:
        return call.func.value
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("format", "replace", "join"):
        return call.func.value
    return call.args[0] if call.args else None


def _joined(scope: Scope, node: ast.BinOp, folder: Path, depth: int) -> Iterator[str]:
    lefts = list(texts_of(scope, node.left, folder, depth - 1))
    if not isinstance(node.op, ast.Add):
        yield from lefts
        return
    right = next(texts_of(scope, node.right, folder, depth - 1), _word(node.right))
    for left in lefts:
        yield left + right


def _text_or_file(value: object, folder: Path) -> Iterator[str]:
    if not isinstance(value, str):
        return
    file = folder / value
    if value.endswith(".sql") and "\n" not in value and file.is_file():
        yield file.read_text(encoding="utf-8", errors="replace")
    else:
        yield value


def _word(node: ast.AST) -> str:
    return _named(ast.unparse(node))


def _named(code: str) -> str:
    return "_" + re.sub(r"\W+", "_", code)
