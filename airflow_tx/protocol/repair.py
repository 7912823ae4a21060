"""Repairs by a person: a state went back, the ledger went back, or everything begins again. Source: protocol.md §§1, 7.

Each is one multi, checks what it has read, raises the generation, and is noted with who, when and why. A reset alone
takes several: it keeps the topology unusable until its last one, and can be repeated.
"""

from __future__ import annotations

import json
from dataclasses import replace

from airflow_tx.errors import RenameRefused, RepairRefused
from airflow_tx.protocol import garbage
from airflow_tx.protocol.answers import Repaired
from airflow_tx.protocol.api import Create, Delete, Put, Store, Write
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.rebuild import LEDGER_LOST, Rebuilt
from airflow_tx.protocol.records import (
    Binding,
    Counter,
    History,
    Outcome,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    dumps,
    encode,
)
from airflow_tx.protocol.rotating_state import RotatingTransactionalState
from airflow_tx.protocol.step import Audit, Decision, Stamp
from airflow_tx.protocol.topology import TopologyRequest

STATE_LOST = "state-lost"
RENAMED = "state-renamed"
RESET = "reset"
_RESETTING = "being reset: "


# --- --state-lost ------------------------------------------------------------------------------------------------


def state_lost(read: Reader, stamp: Stamp, paths: Paths, state: str, audit: Audit) -> Decision[Repaired]:
    """Accept what a state holds, though it is less than the ledger committed to it.

    :raises RepairRefused: the ledger never committed to a state of this name, nor is it about to.
    """
    topology = read.get(TopologyRecord, paths.record)
    current = read.get(Counter, paths.current)
    opened = read.find(TransactionRecord, paths.transaction(current.txid))
    if state not in topology.states and (opened is None or state not in opened.fenced):
        known = ", ".join(sorted(topology.states)) or "none"
        raise _refuse(paths, STATE_LOST, f"the ledger has committed nothing to {state!r}", f"It knows: {known}.")
    left = {name: txid for name, txid in topology.states.items() if name != state}
    births = {name: birth for name, birth in topology.births.items() if name != state}
    after = replace(topology, generation=topology.generation + 1, states=left, births=births, op=stamp.op)
    told = f"state {state} was at transaction {topology.states.get(state, 0)}; what it holds now is accepted"
    return _decide(read, stamp, paths, [Put(paths.record, encode(after))], STATE_LOST, audit, after, current.txid, told)


def rename_state(read: Reader, stamp: Stamp, paths: Paths, old: str, new: str, audit: Audit) -> Decision[Repaired]:
    """Let a state have another name. Whoever writes under the old one is outranked.

    :raises RenameRefused: the ledger does not know the old name, or knows the new one.
    """
    topology = read.get(TopologyRecord, paths.record)
    current = read.get(Counter, paths.current)
    path = paths.transaction(current.txid)
    opened = read.find(TransactionRecord, path)
    begun = [] if opened is None else opened.fenced
    known = {*topology.states, *begun}
    if old not in known or new in known:
        problem = f"the ledger knows {new!r} already" if new in known else f"the ledger does not know {old!r}"
        remedy = f"It knows: {', '.join(sorted(known)) or 'none'}."
        raise RenameRefused(topology=paths.topology, old=old, problem=problem, remedy=remedy)

    def renamed(name: str) -> str:
        return new if name == old else name

    states = {renamed(name): txid for name, txid in topology.states.items()}
    births = {renamed(name): birth for name, birth in topology.births.items()}
    after = replace(topology, generation=topology.generation + 1, states=states, births=births, op=stamp.op)
    writes: list[Write] = [Put(paths.record, encode(after))]
    if opened is not None and old in begun:
        outputs = {renamed(name): output for name, output in opened.outputs.items()}
        again = replace(opened, fenced=sorted(map(renamed, begun)), outputs=outputs, op=stamp.op)
        writes.append(Put(path, encode(again)))
    told = f"state {old}, at transaction {topology.states.get(old, 0)}, is called {new} now"
    return _decide(read, stamp, paths, writes, RENAMED, audit, after, current.txid, told)


# --- --ledger-lost -----------------------------------------------------------------------------------------------


def ledger_lost(
    read: Reader, stamp: Stamp, paths: Paths, request: TopologyRequest, plan: Rebuilt, audit: Audit
) -> Decision[Repaired]:
    """Rebuild the ledger where `plan` says. Transactions that were open in it are open no more: their runs begin anew.

    :param request: what the DAG says of its topology, for a ledger that is lost altogether.
    :raises RepairRefused: the ledger is further than the states: it is they who went back; or it is not theirs.
    """
    found = read.find(TopologyRecord, paths.record)
    current = read.find(Counter, paths.current)
    anew = plan.current
    if found is not None and found.incarnation != plan.incarnation:
        anew = 1
        # One that begin made after the loss is replaced, unless it has results of its own.
        if found.states or (current is not None and current.txid > 1):
            raise _refuse(
                paths,
                LEDGER_LOST,
                f"the states belong to ledger {plan.incarnation}, this is ledger {found.incarnation}, and it has "
                "committed transactions of its own",
                "One state serves one topology: use other tables. To begin anew: --reset.",
            )
        found = replace(found, incarnation=plan.incarnation, generation=0)
    if current is not None and current.txid > plan.current:
        behind = ", ".join(sorted(plan.last)) or "its states"
        raise _refuse(
            paths,
            LEDGER_LOST,
            f"the ledger is at transaction {current.txid}, and the states say that {plan.current} is next ({behind})",
            f"The states went back: restore them, or for each: airflow tx repair {paths.topology} --state-lost STATE",
        )
    generation = max(plan.generation, 0 if found is None else found.generation + 1)
    after = replace(
        found or request.made(stamp.op, plan.incarnation),
        generation=generation,
        states={**(found.states if found else {}), **plan.last} if plan.current > 1 else {},
        births={**(found.births if found else {}), **plan.births},
        rebuilt=plan.current - 1,
        # What was noted of open transactions goes with them.
        skips=[],
        blocked=None,
        bid=None,
        op=stamp.op,
    )
    after = garbage.left(after, paths, *_left(read, paths))
    writes = [*_folders(read, paths), *_emptied(read, stamp, paths, plan, anew), *_restarted(read, paths, plan)]
    writes.append(_put(read, paths.record, encode(after)))
    writes.append(_put(read, paths.current, encode(Counter(plan.current))))
    writes.append(_put(read, paths.allocated, encode(Counter(plan.current - 1))))
    return _decide(read, stamp, paths, writes, LEDGER_LOST, audit, after, plan.current, plan.summary)


def _folders(read: Reader, paths: Paths) -> list[Write]:
    return [Create(path, b"") for path in paths.folders if not read.exists(path)]


def _emptied(read: Reader, stamp: Stamp, paths: Paths, plan: Rebuilt, anew: int) -> list[Write]:
    """What the ledger holds of open transactions, and of all from `anew` on: they stand for other batches now."""
    writes = _bindings(read, stamp, paths, plan, anew)
    writes += [
        Delete(path) for name in _names(read, paths.transactions) if read.exists(path := paths.transaction(int(name)))
    ]
    for name in _names(read, paths.histories):
        if int(name) >= anew:
            writes.append(Delete(f"{paths.histories}/{name}"))
    return writes


def _restarted(read: Reader, paths: Paths, plan: Rebuilt) -> list[Write]:
    """The state of the last final transaction, and no other."""
    state, last = RotatingTransactionalState(read, paths), plan.current - 1
    kept = None if plan.meta is None else last
    gone = [int(name) for name in _names(read, paths.metas) if int(name) != kept]
    writes = [write for txid in gone for write in state.remove_state(txid)]
    return writes if plan.meta is None else [*writes, state.override_state(last, plan.meta)]


def _bindings(read: Reader, stamp: Stamp, paths: Paths, plan: Rebuilt, anew: int) -> list[Write]:
    """Runs whose transaction the states do not know begin anew; the one whose transaction they prove is bound to it."""
    writes, bound = list[Write](), dict[str, int]()
    opened = {
        int(name): read.get(TransactionRecord, paths.transaction(int(name)))
        for name in _names(read, paths.transactions)
    }
    gone = {txid for txid, record in opened.items() if txid >= anew or _began_later(record, plan)}
    if any(opened[txid].pinned for txid in gone):
        for name in _names(read, paths.all_skipped):
            skipped = read.get(Skipped, paths.skipped(int(name)))
            if skipped.readmitted_as in gone:
                writes += _taken_back(read, stamp, paths, int(name), skipped)
                bound[paths.run(skipped.key)] = int(name)
    if plan.told:
        writes += _final(read, stamp, paths, plan)
        bound[paths.run(plan.told["key"])] = plan.current - 1
    # Each transaction that is not final has its key in its record: the bindings of all runs need not be listed.
    for txid in sorted(gone):
        path = paths.run(opened[txid].key)
        binding = read.find(Binding, path)
        if binding is not None and binding.txid == txid and path not in bound:
            writes.append(Delete(path))
    return [*writes, *(_put(read, path, encode(Binding(txid))) for path, txid in bound.items())]


def _began_later(record: TransactionRecord, plan: Rebuilt) -> bool:
    """Whether a transaction began after all that the states know, in a ledger that had gone back. One that began before
    was committed in the time that is lost, if its txid is one of theirs."""
    return record.birth not in plan.births.values() and plan.granted is not None and record.created > plan.granted


def _taken_back(read: Reader, stamp: Stamp, paths: Paths, txid: int, skipped: Skipped) -> list[Write]:
    """Undo a re-admission whose transaction is forgotten: that one alone holds the rows."""
    assert skipped.readmitted_as is not None
    rows = RotatingTransactionalState(read, paths).get_state(skipped.readmitted_as).rows
    writes: list[Write] = [
        Put(paths.skipped(txid), encode(replace(skipped, rows=rows, readmitted_as=None, op=stamp.op)))
    ]
    history = read.find(History, paths.history(txid))
    if history is not None:
        told = replace(history, outcome=Outcome.SKIPPED, readmitted_as=None)
        writes.append(Put(paths.history(txid), encode(told)))
    return writes


def _final(read: Reader, stamp: Stamp, paths: Paths, plan: Rebuilt) -> list[Write]:
    """What the end of the transaction that the states prove has left, if the ledger does not know of it."""
    path, told = paths.skipped(plan.current - 1), plan.told
    if told["skip"] is None or read.exists(path):
        return []
    return [Create(path, encode(Skipped(told["key"], told["run_id"], told["rows"], told["skip"], stamp.op)))]


def _left(read: Reader, paths: Paths) -> list[str]:
    """What is as large as the batches were: nothing that is begun after this finds it under its name."""
    acks = [f"{paths.all_acks}/{name}" for name in _names(read, paths.all_acks)]
    return [*acks, *([paths.sources] if _names(read, paths.sources) else [])]


# --- --reset -----------------------------------------------------------------------------------------------------


def close_for_reset(read: Reader, stamp: Stamp, paths: Paths) -> Decision[Repaired]:
    """First half: nobody can use the topology until `reset` is done, and whoever tries is told so."""
    told = f"{_RESETTING}airflow tx repair {paths.topology} --reset"
    mark = dumps({"format": told, "op": stamp.op}).encode()
    writes = (*_folders(read, paths), _put(read, paths.record, mark))
    return Decision(Repaired(0, 0, told), writes, paths.record)


def is_being_reset(data: bytes) -> bool:
    """Whether the topology record is the mark that `close_for_reset` left."""
    try:
        return str(json.loads(data)["format"]).startswith(_RESETTING)
    except (ValueError, KeyError, TypeError):
        return False


def empty(store: Store, paths: Paths) -> None:
    """Delete every record below the folders of a topology, the notes of repairs aside."""
    for path in (*paths.folders, paths.sources):
        if path not in (paths.base, paths.coordinator):
            garbage.empty(store, path)


def reset(read: Reader, stamp: Stamp, paths: Paths, request: TopologyRequest, audit: Audit) -> Decision[Repaired]:
    """Second half, once everything below the folders is deleted and the states are empty: a new ledger."""
    after = request.made(stamp.op)
    writes = [
        _put(read, paths.record, encode(after)),
        _put(read, paths.current, encode(Counter(1))),
        _put(read, paths.allocated, encode(Counter(0))),
    ]
    told = "the ledger and its states were emptied; transaction 1 is next"
    return _decide(read, stamp, paths, writes, RESET, audit, after, 1, told)


# --- shared ------------------------------------------------------------------------------------------------------


def _decide(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    writes: list[Write],
    what: str,
    audit: Audit,
    after: TopologyRecord,
    current: int,
    told: str,
) -> Decision[Repaired]:
    """The writes, and the note of who made them."""
    noted = audit.repair(read, stamp, paths, what=what, generation=after.generation, told=told)
    return Decision(Repaired(after.generation, current, told), (*writes, *noted), noted[-1].path)


def _names(read: Reader, path: str) -> tuple[str, ...]:
    return read.names(path) if read.exists(path) else ()


def _put(read: Reader, path: str, data: bytes) -> Write:
    return Put(path, data) if read.exists(path) else Create(path, data)


def _refuse(paths: Paths, what: str, problem: str, remedy: str) -> RepairRefused:
    return RepairRefused(what=what, topology=paths.topology, problem=problem, remedy=remedy)
