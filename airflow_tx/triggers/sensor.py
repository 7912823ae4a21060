"""The trigger of a sensor, which waits for a commit of another DAG."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from msgspec import to_builtins

from airflow_tx.ledger import Paths, ReadOnlyLedger, Store, listed_topologies
from airflow_tx.sources import rebuild
from airflow_tx.triggers.base import Event, WaitTrigger


@dataclass(kw_only=True, eq=False, repr=False)
class CommittedTrigger(WaitTrigger):
    """Fires when the wanted commit has happened or can no longer happen.

    :param wanted: the commit to wait for; see `commit_of`.
    """

    wanted: dict[str, Any]

    def event(self, store: Store) -> Event | None:
        return commit_of(store, self.paths, self.wanted)


def commit_of(store: Store, paths: Paths, wanted: Mapping[str, Any]) -> Event | None:
    """Return an event if the wanted commit has happened or can no longer happen. Return None to keep waiting.

    :param wanted: the commit: a `txid`, the run `key`, or a position `up_to` with its `source` (class path and
        arguments).
    :return: the `txid`, with `skipped` (who, when and why) if the transaction was skipped. If the source cannot
        determine whether `up_to` is reached, the event has `unknown` instead.
    :raises UnreadableRecord: a record is damaged. The error names it.
    """
    ledger = ReadOnlyLedger(store, paths)
    current = ledger.current_if_any()
    if current is None:
        return None  # the topology has not begun
    if "up_to" in wanted:
        return _reached(ledger, wanted, last=current - 1)
    txid = wanted.get("txid")
    if txid is None:
        binding = ledger.binding(wanted["key"])
        if binding is None:
            return None
        txid = binding.txid
    return _final(ledger, txid, current)


def missing_topology(store: Store, paths: Paths) -> str | None:
    """Explain that a topology has not begun, and list similar names. Return None if the topology has begun."""
    if ReadOnlyLedger(store, paths).is_listed():
        return None
    names = listed_topologies(store, paths.root)
    near = get_close_matches(paths.topology, names, n=_NAMED) or names[:_NAMED]
    known = (
        f"Topologies there: {', '.join(near)}{', ...' if len(names) > len(near) else ''}"
        if near
        else "It is empty"
    )
    return (
        f"Topology {paths.topology!r} is not in the ledger at {paths.root}: it has not begun yet, or the name is "
        f"wrong. {known}. The sensor waits until it begins. If the name is wrong, correct topology= or root= in the "
        "DAG file, and clear this task."
    )


_NAMED = 3
"""Maximum number of similar names to list for a missing topology."""


def _final(ledger: ReadOnlyLedger, txid: int, current: int) -> Event | None:
    if txid >= current:
        return None
    skipped = ledger.skipped(txid)
    if skipped is None:
        return {"txid": txid}
    if skipped.readmitted_as is not None:
        return _final(ledger, skipped.readmitted_as, current)
    said = {"txid": txid, "skipped": to_builtins(skipped.skip, enc_hook=str)}
    return None if skipped.readmit is not None else said


def _reached(ledger: ReadOnlyLedger, wanted: Mapping[str, Any], *, last: int) -> Event | None:
    classpath, arguments = wanted["source"]
    zone = ledger.topology().zone
    with closing(rebuild(classpath, arguments).in_zone(zone)) as source:
        reached = source.reaches(ledger.position(), wanted["up_to"])
    if reached is None:
        return {"unknown": True}
    return {"txid": last} if reached else None
