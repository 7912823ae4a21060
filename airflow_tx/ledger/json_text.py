"""JSON in one form: equal values give equal text, and equal digests."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_compact = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def dumps(value: Any) -> str:
    """Write compact JSON with sorted keys: equal values give equal text."""
    return _compact.encode(value)


def digest(value: Any) -> str:
    """Give the fingerprint of a plain-JSON value, 32 hex digits."""
    return hashlib.sha256(dumps(value).encode()).hexdigest()[:32]
