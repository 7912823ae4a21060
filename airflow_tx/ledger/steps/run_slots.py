"""The step `yield`: a waiting run gives up its run slot to the run whose turn it is. Source: docs/protocol.md §6.

Waiters bid in the ledger, since no process knows all of them. One without a txid goes first, the newest of them,
then the one with the highest txid. Only one gives up at a time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow_tx.base.errors import Outbid
from airflow_tx.ledger.answers import Bidding, Done, NotNeeded
from airflow_tx.ledger.api import Paths, Put, Write
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import Counter, TopologyRecord, TransactionRecord, encode
from airflow_tx.ledger.steps.step import Decision, Stamp, put


@dataclass(frozen=True)
class Waiter:
    """A run that waits.

    :param txid: its transaction; None while it waits in `begin` for one.
    :param task_try: of the task that waits; later ones are greater.
    :param blocking: the txid whose run has no run slot.
    """

    run_id: str
    txid: int | None
    task_try: str
    blocking: int

    @property
    def rank(self) -> tuple[bool, int, str]:
        """Rank it: the greatest one yields."""
        return (self.txid is None, self.txid or 0, self.task_try)


def bid(
    read: Reader, stamp: Stamp, paths: Paths, waiter: Waiter, *, overdue: str = ""
) -> Decision[Bidding | NotNeeded]:
    """Offer to yield; the best offer leads until it does, or until the turn has moved on.

    :param overdue: an offer that was made before this time (ISO 8601, UTC) counts no more: who made it would have
        yielded by now, and has died. "": all count.
    """
    topology = read.get(TopologyRecord, paths.record)
    if read.get(Counter, paths.current).txid != waiter.blocking:
        return Decision(NotNeeded())
    if topology.bid is not None and topology.bid["when"] >= overdue:
        found = Waiter(**{name: value for name, value in topology.bid.items() if name != "when"})
        if found.blocking == waiter.blocking and found.rank >= waiter.rank:
            return Decision(Bidding(found.run_id))
    after = replace(topology, bid={**asdict(waiter), "when": stamp.now}, op=stamp.op)
    return put(paths.record, after, Bidding(waiter.run_id))


def note_yield(
    read: Reader, stamp: Stamp, paths: Paths, waiter: Waiter
) -> Decision[Done | NotNeeded]:
    """Yield: the run ends as failed, keeps its transaction, and is started again when the way is free.

    :raises Outbid: another waiter leads.
    """
    topology = read.get(TopologyRecord, paths.record)
    # An entry of another turn was left over when the run was started again.
    if topology.yielded.get(waiter.run_id, {}).get("blocking") == waiter.blocking:
        return Decision(Done())
    if read.get(Counter, paths.current).txid != waiter.blocking:
        return Decision(NotNeeded())
    if topology.bid is None or topology.bid["run_id"] != waiter.run_id:
        raise Outbid(
            run_id=waiter.run_id, leader="none" if topology.bid is None else topology.bid["run_id"]
        )
    entry: dict[str, Any] = {"blocking": waiter.blocking, "txid": waiter.txid, "when": stamp.now}
    after = replace(
        topology,
        bid=None,
        yielded={**topology.yielded, waiter.run_id: entry},
        yields=topology.yields + 1,
        op=stamp.op,
    )
    writes: list[Write] = [Put(paths.record, encode(after))]
    if waiter.txid is not None:
        record = read.find(TransactionRecord, paths.transaction(waiter.txid))
        if record is None:
            return Decision(NotNeeded())
        noted = replace(record, yielded=waiter.blocking, op=stamp.op)
        writes.append(Put(paths.transaction(waiter.txid), encode(noted)))
    return Decision(Done(), tuple(writes), paths.record)


def came_back(read: Reader, stamp: Stamp, paths: Paths, run_id: str) -> Decision[Done]:
    """Note that a run which had yielded was started again, or needs no start."""
    topology = read.get(TopologyRecord, paths.record)
    if run_id not in topology.yielded:
        return Decision(Done())
    left = {name: entry for name, entry in topology.yielded.items() if name != run_id}
    after = replace(topology, yielded=left, op=stamp.op)
    return put(paths.record, after, Done())
