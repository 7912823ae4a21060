"""A key column of ours, for states without keys and for keys that no index takes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from airflow_tx.state.keys import encode_key

OWN_KEY = "tx_key"
OWN_KEY_BYTES = 255
# No text in UTF-8 and no number has this byte, so no short key is a long one.
_LONG = b"\xff"


def has_own_key(table: sa.Table) -> bool:
    """Whether the primary key of a table is a column of ours."""
    return OWN_KEY in table.c


def own_values(kinds: Sequence[str], keys: Sequence[Sequence[Any]], rows: int) -> Sequence[Any]:
    """Make the values of the column of ours, from the key columns: equal keys have equal ones, other keys others."""
    if not keys:
        return [0] * rows
    forms = _forms(kinds, keys)
    if max(map(len, forms)) <= OWN_KEY_BYTES:
        return forms
    return [
        form if len(form) <= OWN_KEY_BYTES else _LONG + hashlib.sha256(form).digest()
        for form in forms
    ]


def _forms(kinds: Sequence[str], keys: Sequence[Sequence[Any]]) -> list[bytes]:
    columns = [_column_forms(kind, values) for kind, values in zip(kinds, keys, strict=True)]
    if len(columns) == 1:
        return columns[0]
    # With their lengths: "ab", "c" is not "a", "bc".
    return [
        b"".join(b"%d:%b" % (len(form), form) for form in row) for row in zip(*columns, strict=True)
    ]


def _column_forms(kind: str, values: Sequence[Any]) -> list[bytes]:
    return (
        [value.encode() for value in values]
        if kind == "text"
        else [encode_key([kind], [v]) for v in values]
    )
