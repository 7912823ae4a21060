"""The acked output and the output that the committer finds must be the same. Source: traces.md: 11."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from airflow_tx.compat import canonical
from airflow_tx.protocol.json_text import digest
from airflow_tx.protocol.records import Ack
from airflow_tx.staging.output import OutputRef

RETURN_KEY = "return_value"
_REF = frozenset(field.name for field in fields(OutputRef))
_NEEDED = frozenset(field.name for field in fields(OutputRef) if field.default is MISSING)

Acks = Mapping[tuple[str, int], Ack]


def xcom_fingerprint(value: Any) -> str:
    """Digest of an XCom value; the same for what a task returns and for what XCom gives back."""
    try:
        return digest(value)
    except (TypeError, ValueError):
        return digest(canonical(value))


def returned(value: Any, *, multiple: bool) -> list[dict[str, str]]:
    """The acks of a plain task: per XCom that its return value becomes, name and fingerprint.

    :param multiple: whether each entry of a returned mapping becomes an XCom of its own, too.
    """
    if value is None:
        return []
    found = {RETURN_KEY: value, **(value if multiple and isinstance(value, Mapping) else {})}
    return [{"name": str(name), "digest": xcom_fingerprint(item)} for name, item in found.items()]


def is_ref(value: Any) -> bool:
    """Whether a value is a reference to staged output."""
    return isinstance(value, Mapping) and value.keys() >= _NEEDED and value.keys() <= _REF


def acked(acks: Acks, task: str, name: str) -> dict[int, str]:
    """Per map index (−1: not mapped) the fingerprint of the output called `name` that the instance acked."""
    return {
        index: xcom_fingerprint(entry) if is_ref(entry) else entry["digest"]
        for (of, index), ack in sorted(acks.items())
        if of == task
        for entry in ack.outputs
        if entry["name"] == name
    }
