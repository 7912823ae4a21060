"""The step that rebuilds a lost ledger by a plan. Source: docs/protocol.md §§5, 7."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_tx.protocol import garbage
from airflow_tx.protocol.answers import Repaired
from airflow_tx.protocol.api import Create, Delete, Put, Write
from airflow_tx.protocol.batch import TopologyRequest
from airflow_tx.protocol.begin import missing_folders
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.rebuild_plan import LEDGER_LOST, RebuildPlan, rebuild_refused
from airflow_tx.protocol.receipt import Receipt, is_shortened
from airflow_tx.protocol.records import (
    Binding,
    Counter,
    History,
    Outcome,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    encode,
)
from airflow_tx.protocol.roll_forward import check_not_rolling
from airflow_tx.protocol.rotating_state import RotatingTransactionalState
from airflow_tx.protocol.step import Audit, Decision, Stamp, put_or_create


def ledger_lost(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    request: TopologyRequest,
    plan: RebuildPlan,
    *,
    audit: Audit,
) -> Decision[Repaired]:
    """Rebuild the ledger where `plan` says. Transactions that were open in it are open no more: their runs begin again.

    :param request: what the DAG says of its topology, for a ledger that is lost altogether.
    :raises RepairRefused: the ledger is further than the states: it is they who went back; or it is not theirs.
    """
    found = read.find(TopologyRecord, paths.record)
    current = read.find(Counter, paths.current)
    _check_ledger(paths, plan, found, current)
    if found is not None and current is not None and plan.current <= current.txid:
        check_not_rolling(paths, found)

    first = plan.current
    if found is not None and found.incarnation != plan.incarnation:
        # `begin` made this ledger after the loss: all its records are replaced.
        first = 1
        found = replace(found, incarnation=plan.incarnation, generation=0)

    after = _topology_after(found or request.made(stamp.op, plan.incarnation), plan, stamp)
    after = garbage.left(after, paths, *_old_acks(read, paths))
    skipped, without_rows = _skipped_again(read, stamp, paths, plan)
    writes = [
        *missing_folders(read, paths),
        *_emptied(read, stamp, paths, plan, first),
        *_restarted(read, paths, plan),
        *skipped,
        put_or_create(read, paths.record, encode(after)),
        put_or_create(read, paths.current, encode(Counter(plan.current))),
        put_or_create(read, paths.allocated, encode(Counter(plan.current - 1))),
    ]

    summary = plan.summary
    if without_rows:
        names = ", ".join(map(str, without_rows))
        summary += f"; the rows of skipped transaction {names} are lost, as its receipt keeps their digest alone"
    return audit.repair(
        read,
        stamp,
        paths,
        writes,
        what=LEDGER_LOST,
        after=after,
        current=plan.current,
        summary=summary,
    )


def _check_ledger(
    paths: Paths, plan: RebuildPlan, found: TopologyRecord | None, current: Counter | None
) -> None:
    """Refuse a ledger that has more than the states: they went back, or they belong to another ledger."""
    has_begun = current is not None and current.txid > 1
    if found is not None and found.incarnation != plan.incarnation and (found.states or has_begun):
        raise rebuild_refused(
            paths,
            f"the states belong to ledger {plan.incarnation}, this is ledger {found.incarnation}, and it has "
            "committed transactions of its own",
            "One state serves one topology: use other tables. To start from the beginning: --reset.",
        )
    if current is not None and current.txid > plan.current:
        behind = ", ".join(sorted(plan.last)) or "its states"
        raise rebuild_refused(
            paths,
            f"the ledger is at transaction {current.txid}, and the states say that {plan.current} is next ({behind})",
            f"The states went back: restore them, or for each: airflow tx repair {paths.topology} --state-lost STATE",
        )


def _topology_after(before: TopologyRecord, plan: RebuildPlan, stamp: Stamp) -> TopologyRecord:
    return replace(
        before,
        generation=max(plan.generation, before.generation + 1),
        states={**before.states, **plan.last} if plan.current > 1 else {},
        births={**before.births, **plan.births},
        grants={},
        rolling=None,
        # Replacements of the lost time are unknown, except for the last complete transaction.
        taken_back_from={
            **before.taken_back_from,
            **dict.fromkeys(plan.births, plan.current - bool(plan.transaction)),
        },
        rebuilt=plan.current - 1,
        # These notes belong to open transactions, which are removed.
        skips=[],
        blocked=None,
        bid=None,
        # The last receipt is not known: the next one begins a chain.
        receipt="",
        op=stamp.op,
    )


def _emptied(
    read: Reader, stamp: Stamp, paths: Paths, plan: RebuildPlan, first: int
) -> list[Write]:
    """Delete what the ledger holds of open transactions, and of all from `first` on: they are other batches now."""
    writes = _bindings(read, stamp, paths, plan, first)
    writes += [Delete(f"{paths.wishes}/{name}") for name in read.names_if_any(paths.wishes)]
    for name in read.names_if_any(paths.histories):
        if int(name) >= first:
            writes.append(Delete(f"{paths.histories}/{name}"))
    return writes


def _restarted(read: Reader, paths: Paths, plan: RebuildPlan) -> list[Write]:
    """Keep the state of the last final transaction, and no other."""
    state = RotatingTransactionalState(read, paths)
    last = plan.current - 1
    kept = None if plan.meta is None else last
    gone = [int(name) for name in read.names_if_any(paths.metas) if int(name) != kept]
    writes = [write for txid in gone for write in state.remove_state(txid)]
    return writes if plan.meta is None else [*writes, state.override_state(last, plan.meta)]


def _bindings(
    read: Reader, stamp: Stamp, paths: Paths, plan: RebuildPlan, first: int
) -> list[Write]:
    """Unbind runs whose transaction the states do not know; bind the one whose transaction they prove."""
    writes = list[Write]()
    bound = dict[str, Binding]()
    opened = {
        int(name): read.get(TransactionRecord, paths.transaction(int(name)))
        for name in read.names_if_any(paths.transactions)
    }
    gone = {txid for txid, record in opened.items() if txid >= first or _began_later(record, plan)}
    if any(opened[txid].pinned for txid in gone):
        for name in read.names_if_any(paths.all_skipped):
            skipped = read.get(Skipped, paths.skipped(int(name)))
            if skipped.readmitted_as in gone:
                writes += _taken_back(read, stamp, paths, int(name), skipped)
                bound[paths.run(skipped.key)] = Binding(int(name))
    bound |= _bound_by_receipts(read, paths, plan)
    if plan.transaction:
        writes += _final(read, stamp, paths, plan)
    bound |= {paths.run(key): binding for key, binding in plan.bound.items()}
    # Each transaction that is not final has its key in its record: the bindings of all runs need not be listed.
    for txid in sorted(gone):
        path = paths.run(opened[txid].key)
        binding = read.find(Binding, path)
        if binding is not None and binding.txid == txid and path not in bound:
            writes.append(Delete(path))
    writes += [put_or_create(read, path, encode(binding)) for path, binding in bound.items()]
    return [*writes, *(Delete(paths.transaction(txid)) for txid in opened)]


def _began_later(record: TransactionRecord, plan: RebuildPlan) -> bool:
    """Ask whether a transaction began after the newest grant that the states know, in a ledger that had gone back.

    A transaction that began earlier, and whose txid the states know, was committed in the time that is lost.
    """
    return record.birth not in plan.births.values() and record.created > plan.granted


def _taken_back(
    read: Reader, stamp: Stamp, paths: Paths, txid: int, skipped: Skipped
) -> list[Write]:
    """Undo a re-admission whose transaction is forgotten: that one alone holds the rows."""
    assert skipped.readmitted_as is not None
    rows = RotatingTransactionalState(read, paths).get_state(skipped.readmitted_as).rows
    writes: list[Write] = [
        Put(
            paths.skipped(txid),
            encode(replace(skipped, rows=rows, readmitted_as=None, op=stamp.op)),
        )
    ]
    history = read.find(History, paths.history(txid))
    if history is not None:
        undone = replace(history, outcome=Outcome.SKIPPED, readmitted_as=None)
        writes.append(Put(paths.history(txid), encode(undone)))
    return writes


def _final(read: Reader, stamp: Stamp, paths: Paths, plan: RebuildPlan) -> list[Write]:
    """Give what the end of the transaction that the states prove has left, if the ledger does not know it."""
    path = paths.skipped(plan.current - 1)
    last = plan.transaction
    if last["skip"] is None or read.exists(path):
        return []
    own = Skipped(last["key"], last["run_id"], last["rows"], last["skip"], stamp.op)
    return [Create(path, encode(_without_rows(own, last.get("replaces"))))]


def _without_rows(skipped: Skipped, replaces: Mapping[str, Any] | None) -> Skipped:
    """Leave the rows out if it was a restatement: the transaction that it restated counts."""
    return skipped if replaces is None else replace(skipped, rows=None, replaces=replaces["txid"])


def _skipped_again(
    read: Reader, stamp: Stamp, paths: Paths, plan: RebuildPlan
) -> tuple[list[Write], list[int]]:
    """Keep the rows of transactions that were skipped in the lost time; list the transactions whose rows are lost."""
    writes = list[Write]()
    without_rows = list[int]()
    for txid, receipt in sorted(plan.ended.items()):
        if receipt.outcome != Outcome.SKIPPED.value or receipt.skip is None:
            continue
        again = _readmitted_as(plan, receipt)
        path = paths.skipped(txid)
        found = read.find(Skipped, path)
        if found is not None:
            if again is not None and found.readmitted_as is None:
                later = replace(found, rows=None, readmitted_as=again, op=stamp.op)
                writes.append(Put(path, encode(later)))
        elif txid == plan.current - 1 and plan.transaction:
            continue  # the fences keep its rows
        elif again is None and receipt.replaces is None and is_shortened(receipt.metadata):
            without_rows.append(txid)
        else:
            rows = None if again is not None else receipt.metadata
            own = Skipped(
                receipt.key, receipt.run_id, rows, dict(receipt.skip), stamp.op, readmitted_as=again
            )
            writes.append(Create(path, encode(_without_rows(own, receipt.replaces))))
    return writes, without_rows


def _readmitted_as(plan: RebuildPlan, skipped: Receipt) -> int | None:
    """Find the transaction in which the rows of a skipped one came back: the next one of its run."""
    later = [
        each.txid
        for each in plan.ended.values()
        if each.key == skipped.key and each.txid > skipped.txid
    ]
    return min(later, default=None)


def _bound_by_receipts(read: Reader, paths: Paths, plan: RebuildPlan) -> dict[str, Binding]:
    """Bind the runs of transactions that were skipped in the lost time, by the path of each binding."""
    bound = dict[str, Binding]()
    for txid, receipt in sorted(plan.ended.items()):
        if receipt.outcome != Outcome.SKIPPED.value:
            continue
        counts = _counts_now(plan, receipt)
        if counts is not None:
            bound[paths.run(receipt.key)] = counts
        elif not read.exists(paths.skipped(txid)):
            bound[paths.run(receipt.key)] = Binding(txid)
    return bound


def _counts_now(plan: RebuildPlan, skipped: Receipt) -> Binding | None:
    """Say which transaction counts of the run of a skipped one; None: none does."""
    later = _readmitted_as(plan, skipped)
    committed = [
        each
        for each in plan.ended.values()
        if each.key == skipped.key and each.outcome == Outcome.COMMITTED.value
    ]
    last = max(committed, key=lambda each: each.txid, default=None)
    if last is not None:
        return Binding(last.txid, last.journal or "")
    if skipped.replaces is not None:
        return Binding(skipped.replaces["txid"], skipped.replaces["entry"])
    return None if later is None else Binding(later)


def _old_acks(read: Reader, paths: Paths) -> list[str]:
    """List the folders of acks. No transaction that begins after the rebuild uses one of their names."""
    return [paths.acks(name) for name in read.names_if_any(paths.all_acks)]
