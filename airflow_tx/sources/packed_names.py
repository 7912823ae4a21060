"""Compress a set of names to a short text, so that a position can contain the names of all taken files."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable


def pack(names: Iterable[str]) -> str:
    """Compress a set of names to ASCII text. Similar names take 2 to 5 bytes each."""
    joined = "\0".join(sorted(names)).encode("utf-8", "surrogateescape")
    return base64.b64encode(zlib.compress(joined, 9)).decode()


def unpack(packed: str) -> frozenset[str]:
    """Return the names that `pack` compressed.

    :raises ValueError: the text was not returned by `pack`.
    """
    try:
        names = zlib.decompress(base64.b64decode(packed)).decode("utf-8", "surrogateescape")
    except (TypeError, zlib.error) as error:
        raise ValueError(f"{str(packed)[:80]!r} is not a packed set of names") from error
    return frozenset(names.split("\0") if names else ())
