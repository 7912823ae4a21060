"""Who did something by hand, and why: kept in the ledger with what was done."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_tx.protocol.step import Stamp


@dataclass(frozen=True)
class Audit:
    """A person, and the reason he gave."""

    who: str
    why: str

    def noted(self, stamp: Stamp) -> dict[str, str]:
        """As it is kept in a record."""
        return {"who": self.who, "when": stamp.now, "why": self.why}
