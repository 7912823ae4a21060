"""The clock and the random ids of this machine."""

from __future__ import annotations

import os
from datetime import datetime, timezone


class SystemClock:
    """A `Clock`: the machine's time."""

    def now(self) -> datetime:
        """See `Clock.now`."""
        return datetime.now(timezone.utc)


class SystemIds:
    """An `Ids`: the machine's random numbers."""

    def nonce(self) -> str:
        """See `Ids.nonce`."""
        return os.urandom(16).hex()

    def message_id(self) -> int:
        """See `Ids.message_id`."""
        return int.from_bytes(os.urandom(8), "big") or 1
