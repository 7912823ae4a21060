"""Canonical JSON, in which equal values have equal texts and digests, and the base class of stored values.

A long value is kept as its digest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import structs

from airflow_tx.base.errors import UnreadableRecord

_compact = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def dumps(value: Any) -> str:
    """Serialize a value as compact JSON with sorted keys, so that equal values have equal texts."""
    return _compact.encode(value)


def digest(value: Any) -> str:
    """Return the digest of a plain JSON value, as 32 hex digits."""
    return hashlib.sha256(dumps(value).encode()).hexdigest()[:32]


_DIGEST = "tx_digest"
_LENGTH = "tx_length"
NOT_KEPT = {_DIGEST: "", _LENGTH: 0}
"""The form in which a receipt keeps a value whose digest is not known."""


def as_kept(value: Any, most: int) -> Any:
    """Return the value, or its digest if its JSON has more than `most` characters."""
    length = len(dumps(value))
    return value if length <= most else {_DIGEST: digest(value), _LENGTH: length}


def is_shortened(kept: Any) -> bool:
    """Return whether a receipt keeps only the digest of a value."""
    return isinstance(kept, Mapping) and kept.keys() == {_DIGEST, _LENGTH}


def digest_of(kept: Any) -> str:
    """Return the digest of a value in a receipt. The receipt may keep only the digest."""
    return str(kept[_DIGEST]) if is_shortened(kept) else digest(kept)


_EARLIEST = 1970
_LATEST = 9000

if TYPE_CHECKING:
    Moment = str
else:

    class Moment(str):
        """A time in a record; "" means no time."""

        __slots__ = ()


Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A 64-bit integer, which databases can store."""
PathElement = Annotated[str, msgspec.Meta(pattern="^[!-.0-~]*$")]
"""One element of a ZooKeeper path. Some characters would make ZooKeeper close the connection."""
Size = dict[str, Int | bool | str | None]
"""The size of a batch: the number of rows or files, whether this is the maximum (`at_most`), and the reason."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of the values that the ledger stores: records, and values within records."""


R = TypeVar("R", bound=Record)


def read_as(cls: type[R], value: Any, path: str) -> R:
    """Read a stored value as an instance of `cls`.

    :param path: path of the record, for the error.
    :raises UnreadableRecord: a field is missing or unknown, or has another type.
    """
    try:
        return msgspec.convert(value, cls, dec_hook=_read_moment)
    except ValueError as error:
        raise UnfitRecord(path=path, **_misfit(cls, value, error)) from error


class UnfitRecord(UnreadableRecord):
    """A field of a record is missing, unknown, or of another type."""

    template = (
        "Record {path} cannot be read: {reason} ({value}).",
        "Nothing was changed; restore the node, or upgrade airflow-provider-tx if a newer version wrote it.",
    )


def as_plain(value: Any) -> Any:
    """Convert a value, including any records inside it, to plain JSON.

    :raises TypeError: the value has no JSON form.
    """
    return msgspec.to_builtins(value, builtin_types=_NOT_JSON, enc_hook=_as_builtin)


_NOT_JSON = (bytes, bytearray, datetime, date, time, timedelta, UUID, Decimal)
"""Types that msgspec would write as text and never convert back. This module refuses them."""


def _as_builtin(value: Any) -> Any:
    # msgspec refuses subclasses of these types, such as numpy floats.
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"JSON has no form for {value!r}, which is {type(value).__name__}")


def _read_moment(_: Any, value: Any) -> Moment:
    try:
        found = None if value == "" else datetime.fromisoformat(value)
        fits = found is None or (found.tzinfo is not None and _EARLIEST <= found.year < _LATEST)
    except (TypeError, ValueError):  # Do not show the message, which quotes private text.
        fits = False
    if not fits:
        raise ValueError("it is not a time in the format of this ledger")
    return Moment(value)


def _misfit(cls: type[Record], value: Any, error: ValueError) -> dict[str, str]:
    """Return the name of the first invalid field and, separately, its value, which may be private."""
    found = value if isinstance(value, Mapping) else {}
    for each in structs.fields(cls):
        if each.encode_name in found:
            try:
                msgspec.convert(found[each.encode_name], each.type, dec_hook=_read_moment)
            except ValueError as wrong:
                said = dumps(found[each.encode_name])[:_SHOWN]
                reason = f"its field {each.encode_name} does not fit: {wrong}"
                return {"reason": reason, "value": f"{each.encode_name} = {said}"}
    unknown = {name: found[name] for name in found.keys() - {*cls.__struct_encode_fields__}}
    return {
        "reason": f"it is no {cls.__name__}: {error}",
        "value": dumps(unknown or value)[:_SHOWN],
    }


_SHOWN = 80


if TYPE_CHECKING:
    from dataclasses import replace as replace  # mypy then checks the fields.
else:

    def replace(value, /, **changes):
        """Copy a record or a dataclass with some fields replaced, like `copy.replace` in Python 3.13."""
        return (structs if isinstance(value, msgspec.Struct) else dataclasses).replace(
            value, **changes
        )
