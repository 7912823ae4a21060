"""A person wants a committed transaction restated. Source: docs/protocol.md §11."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wish:
    """`wanted/<txid>`: a person wants a committed transaction restated; no run has begun that yet.

    :param key: of the run whose next `begin` restates it.
    :param changed_rows: whether that `begin` decides the rows again, as they are now.
    """

    txid: int
    key: str
    run_id: str
    who: str
    when: str
    why: str
    op: str
    changed_rows: bool = False
