"""The step `yield`: a waiting run releases its run slot for the run that has the turn. Source: docs/protocol.md §6.

Waiting runs place offers in the ledger, since no process has a list of waiting runs. Only one run yields at a time.
Runs without a txid yield first, newest first. Then the run with the highest txid yields.
"""

from __future__ import annotations

from airflow_tx.base.errors import Outbid
from airflow_tx.ledger.answers import Bidding, Done, NotNeeded
from airflow_tx.ledger.api import Paths, Put, Write
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import (
    Counter,
    TopologyRecord,
    TransactionRecord,
    Waiter,
    Yield,
    encode,
)
from airflow_tx.ledger.steps.step import Decision, Stamp, put


def bid(
    read: Reader, stamp: Stamp, paths: Paths, waiter: Waiter, *, overdue: str = ""
) -> Decision[Bidding | NotNeeded]:
    """Offer the run slot of a waiting run.

    The best offer leads until its run yields or another transaction gets the turn.

    :param overdue: time (ISO 8601, UTC). An earlier offer no longer counts, since its process seems to have died. ""
        means that all offers count.
    """
    topology = read.get(TopologyRecord, paths.record)
    if read.get(Counter, paths.current).txid != waiter.blocking:
        return Decision(NotNeeded())
    found = topology.bid
    if found is not None and found.when >= overdue:
        if found.blocking == waiter.blocking and found.rank >= waiter.rank:
            return Decision(Bidding(found.run_id))
    after = replace(topology, bid=replace(waiter, when=stamp.now), op=stamp.op)
    return put(paths.record, after, Bidding(waiter.run_id))


def note_yield(
    read: Reader, stamp: Stamp, paths: Paths, waiter: Waiter
) -> Decision[Done | NotNeeded]:
    """Yield the run slot. The run fails, keeps its transaction, and is started again when it can get a slot.

    :raises Outbid: the offer of another waiter leads.
    """
    topology = read.get(TopologyRecord, paths.record)
    # If the run was restarted, an entry for an earlier turn may remain.
    before = topology.yielded.get(waiter.run_id)
    if before is not None and before.blocking == waiter.blocking:
        return Decision(Done())
    if read.get(Counter, paths.current).txid != waiter.blocking:
        return Decision(NotNeeded())
    leader = "none" if topology.bid is None else topology.bid.run_id
    if topology.bid is None or leader != waiter.run_id:
        raise Outbid(run_id=waiter.run_id, leader=leader)
    entry = Yield(waiter.blocking, waiter.txid, stamp.now)
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
    """Record that a run that yielded was restarted, or need not be restarted."""
    topology = read.get(TopologyRecord, paths.record)
    if run_id not in topology.yielded:
        return Decision(Done())
    left = {name: entry for name, entry in topology.yielded.items() if name != run_id}
    after = replace(topology, yielded=left, op=stamp.op)
    return put(paths.record, after, Done())
