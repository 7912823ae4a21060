"""JSON in one form: equal values give equal text, and equal digests. A long value is kept as its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_compact = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def dumps(value: Any) -> str:
    """Write compact JSON with sorted keys: equal values give equal text."""
    return _compact.encode(value)


def digest(value: Any) -> str:
    """Give the fingerprint of a plain-JSON value, 32 hex digits."""
    return hashlib.sha256(dumps(value).encode()).hexdigest()[:32]


_DIGEST = "tx_digest"
_LENGTH = "tx_length"
NOT_KEPT = {_DIGEST: "", _LENGTH: 0}
"""A value of which not even the digest is known."""


def as_kept(value: Any, most: int) -> Any:
    """Return a value as a receipt keeps it: itself, or its digest if it is longer than `most`."""
    length = len(dumps(value))
    return value if length <= most else {_DIGEST: digest(value), _LENGTH: length}


def is_shortened(kept: Any) -> bool:
    """Ask whether a receipt keeps the digest of a value alone."""
    return isinstance(kept, Mapping) and kept.keys() == {_DIGEST, _LENGTH}


def digest_of(kept: Any) -> str:
    """Give the digest of the value that a receipt keeps."""
    return str(kept[_DIGEST]) if is_shortened(kept) else digest(kept)
