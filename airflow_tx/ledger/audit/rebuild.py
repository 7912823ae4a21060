"""The step that rebuilds a lost ledger according to a plan. Source: docs/protocol.md §§5, 7."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_tx.base.errors import (
    PreviewOutdated,
    RenameRefused,
    RepairRefused,
    StateError,
    TxError,
    UnreadableRecord,
)
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger.answers import Done, Repaired
from airflow_tx.ledger.api import Create, Delete, Paths, Put, Store, Write, topologies
from airflow_tx.ledger.attempt import Token
from airflow_tx.ledger.audit.chain import Expected, expected
from airflow_tx.ledger.audit.older_lines import lines_told
from airflow_tx.ledger.audit.plan import HeldState, RebuildPlan, plan_rebuild, rebuild_refused
from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.batch_words import gone_in_words
from airflow_tx.ledger.book import Book
from airflow_tx.ledger.json_text import dumps, is_shortened, replace
from airflow_tx.ledger.ledger import Ledger, OwnStep
from airflow_tx.ledger.life import (
    ACCEPT_CHANGE,
    ACCEPT_CODE,
    BEGAN,
    CHANGE,
    EMPTIED,
    LEDGER_LOST,
    RENAMED,
    RESET,
    STATE_FORGOTTEN,
    STATE_LOST,
    name_now,
    since_reset,
)
from airflow_tx.ledger.reading import Reader, RotatingTransactionalState, repairs_of
from airflow_tx.ledger.receipt import Outcome
from airflow_tx.ledger.records import (
    Binding,
    Counter,
    EndLine,
    RepairRecord,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    decode,
    encode,
)
from airflow_tx.ledger.steps import step
from airflow_tx.ledger.steps.begin import missing_folders
from airflow_tx.ledger.steps.step import (
    Audit,
    Decision,
    Stamp,
    check_not_rolling,
    check_raw_not_rolling,
    next_repair,
    put_or_create,
)

T = TypeVar("T")


# --- rebuild ------------------------------------------------------------------------------------------------------


def ledger_lost(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    request: TopologyRequest,
    plan: RebuildPlan,
    *,
    audit: Audit,
    changes: Sequence[RepairRecord] = (),
) -> Decision[Repaired]:
    """Rebuild the ledger from `plan`. All open transactions are deleted, and their runs start over.

    :param request: the topology as its DAG describes it, for a completely lost ledger.
    :param changes: accepted changes that the journal has copies of.
    :raises RepairRefused: the ledger is ahead of the states because they were set back, or the states belong to another
        ledger.
    """
    found = read.find(TopologyRecord, paths.record)
    current = read.find(Counter, paths.current)
    _check_ledger(paths, plan, found, current)
    if found is not None and current is not None and plan.current <= current.txid:
        check_not_rolling(paths, found)

    first = plan.current
    if found is not None and found.incarnation != plan.incarnation:
        # `begin` created this ledger after the loss, so the rebuild replaces all its records.
        first = 1
        found = replace(found, incarnation=plan.incarnation, generation=0)

    kept = _kept_changes(read, paths, changes, plan)
    wanted = expected(plan.ended, kept, {})
    after = _topology_after(found or request.made(stamp.op, plan.incarnation), plan, stamp)
    after = replace(after, accepted=_accepted_again(kept, plan))
    lines = []
    if request.keeps_book or after.book:
        told = lines_told(wanted, plan.ended, upstream=request.upstream)
        lines = _lines_again(plan, told, next_line=1 if current is None else current.txid)
        after = replace(after, book=_begin_of_book(after.book, lines, plan, current))
    # No later transaction reuses these folder names.
    after = step.left(after, paths, *map(paths.acks, read.names_if_any(paths.all_acks)))
    skipped, without_rows = _skipped_again(read, stamp, paths, wanted)
    writes = [
        *missing_folders(read, paths),
        *_emptied(read, stamp, paths, plan, first, wanted=wanted),
        *_restarted(read, paths, plan),
        *skipped,
        put_or_create(read, paths.record, encode(after)),
        put_or_create(read, paths.current, encode(Counter(plan.current))),
        put_or_create(read, paths.allocated, encode(Counter(plan.current - (not plan.remade)))),
        *Book(read, paths).with_lines(lines),
    ]
    if plan.remade is not None:
        writes = _remade(writes, plan.remade.writes(read, stamp, paths))

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
        change={
            "txid": plan.current,
            "states": {name: plan.current - 1 for name in plan.last if plan.last_run},
        },
        kept=[each for each in kept if not read.exists(paths.repair(each.number))],
        above=plan.change,
    )


LINES_AGAIN = 500
"""Maximum number of lines in the book of ends that a rebuild restores. `repair --ends` restores older lines."""


def _lines_again(plan: RebuildPlan, told: Mapping[int, EndLine], next_line: int) -> list[EndLine]:
    """Return the book lines of lost transactions, newest first, back to the first gap in the states' receipts.

    :param next_line: the first transaction without a line in the ledger.
    """
    lines = list[EndLine]()
    for txid in range(plan.current - 1, max(next_line, plan.current - LINES_AGAIN) - 1, -1):
        if txid not in told:
            break
        lines.append(told[txid])
    return lines


def _begin_of_book(
    before: int, lines: Sequence[EndLine], plan: RebuildPlan, current: Counter | None
) -> int:
    """Return the first transaction from which the book of ends has no gaps."""
    begin = plan.current - len(lines)
    is_whole = before and current is not None and begin <= current.txid
    return before if is_whole else max(begin, 1)


def _remade(writes: Sequence[Write], made: Sequence[Write]) -> list[Write]:
    """Return the planned writes. Writes in `made` replace those to the same paths."""
    own = {each.path for each in made}
    return [*(each for each in writes if each.path not in own), *made]


def _kept_changes(
    read: Reader, paths: Paths, changes: Sequence[RepairRecord], plan: RebuildPlan
) -> list[RepairRecord]:
    """Return all repairs, including accepted changes lost from the ledger.

    Lost changes keep their numbers if possible.
    """
    known = repairs_of(read, paths)
    numbers = {each.number for each in known}
    last = max([*numbers, *(each.number for each in changes), plan.change], default=0)
    found = list(known)
    for each in changes:
        if each.op in {other.op for other in known}:
            continue
        last += 1
        found.append(replace(each, number=last) if each.number in numbers else each)
    return sorted(found, key=lambda each: each.number)


def _accepted_again(
    repairs: Sequence[RepairRecord], plan: RebuildPlan
) -> dict[str, dict[str, Any]]:
    """Return the newest accepted change of each state, so that an older backup of the state is still detected."""
    found = dict[str, dict[str, Any]]()
    for each in since_reset(repairs):
        if each.what == ACCEPT_CHANGE:
            name = name_now(repairs, each.change["state"], each.change["txid"])
            found |= {name: {CHANGE: each.number}} if name in plan.births else {}
    return found


def _check_ledger(
    paths: Paths, plan: RebuildPlan, found: TopologyRecord | None, current: Counter | None
) -> None:
    """Raise an error if the ledger is ahead of the states, since they were set back or belong to another ledger."""
    has_begun = current is not None and current.txid > 1
    if found is not None and found.incarnation != plan.incarnation and (found.states or has_begun):
        raise rebuild_refused(
            paths,
            f"the states belong to ledger {plan.incarnation}, but this is ledger {found.incarnation}, "
            "which has committed transactions of its own",
            "One state serves one topology, so use other tables. To start from the beginning, use --reset.",
        )
    if current is not None and current.txid > plan.current:
        behind = ", ".join(sorted(plan.last)) or "its states"
        raise rebuild_refused(
            paths,
            f"the ledger is at transaction {current.txid}, and the states say that {plan.current} is next ({behind})",
            "The states went back. Restore them, or accept the loss of each state: "
            + Command.of("repair", paths.topology, "--state-lost", "STATE"),
        )


def _topology_after(before: TopologyRecord, plan: RebuildPlan, stamp: Stamp) -> TopologyRecord:
    return replace(
        before,
        generation=max(plan.generation, before.generation + 1),
        states={**before.states, **plan.last} if plan.current > 1 else {},
        births={**before.births, **plan.births},
        grants={},
        rolling=None,
        rebuilt=plan.current - 1,
        # These fields describe open transactions, which are removed.
        skips=[],
        blocked=None,
        bid=None,
        # The hash of the last receipt is unknown, so the next receipt begins a new chain.
        receipt="",
        op=stamp.op,
    )


def _emptied(
    read: Reader, stamp: Stamp, paths: Paths, plan: RebuildPlan, first: int, *, wanted: Expected
) -> list[Write]:
    """Return the writes that delete open transactions and everything from `first` on.

    New batches will reuse their txids.
    """
    writes = _bindings(read, stamp, paths, plan, first, wanted=wanted)
    writes += [Delete(f"{paths.wishes}/{name}") for name in read.names_if_any(paths.wishes)]
    for name in read.names_if_any(paths.histories):
        if int(name) >= first:
            writes.append(Delete(f"{paths.histories}/{name}"))
    return writes


def bound_after(planned: Decision[Repaired], paths: Paths, txid: int, key: str) -> int | None:
    """Return the transaction to which the planned rebuild binds a run. Return None if the rebuild removes the binding.

    :param key: the run key.
    """
    path = paths.run(key)
    last = next((each for each in planned.writes if each.path == path), None)
    if last is None:
        return txid
    return None if isinstance(last, Delete) else decode(Binding, path, last.data).txid


def _restarted(read: Reader, paths: Paths, plan: RebuildPlan) -> list[Write]:
    """Return the writes that keep the position of the last final transaction and remove all other positions."""
    state = RotatingTransactionalState(read, paths)
    last = plan.current - 1
    kept = None if plan.meta is None else last
    gone = [int(name) for name in read.names_if_any(paths.metas) if int(name) != kept]
    writes = [write for txid in gone for write in state.remove_state(txid)]
    return writes if plan.meta is None else [*writes, state.override_state(last, plan.meta)]


def _bindings(
    read: Reader, stamp: Stamp, paths: Paths, plan: RebuildPlan, first: int, *, wanted: Expected
) -> list[Write]:
    """Return the writes that delete open transactions and their bindings, and add the bindings that receipts prove."""
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
    known = _bound_by_receipts(read, paths, plan, wanted)
    bound |= {paths.run(key): binding for key, binding in known.items()}
    # The record of an open transaction has its run key, so the bindings of all runs need not be
    # listed.
    for txid in sorted(gone):
        path = paths.run(opened[txid].key)
        binding = read.find(Binding, path)
        if binding is not None and binding.txid == txid and path not in bound:
            writes.append(Delete(path))
    writes += [put_or_create(read, path, encode(binding)) for path, binding in bound.items()]
    return [*writes, *(Delete(paths.transaction(txid)) for txid in opened)]


def _began_later(record: TransactionRecord, plan: RebuildPlan) -> bool:
    """Return whether a transaction in a ledger that was set back began after the newest grant in the states.

    If it began earlier and a state has its txid, it was committed, but the ledger has lost the commit.
    """
    return record.birth not in plan.births.values() and record.created > plan.granted


def _taken_back(
    read: Reader, stamp: Stamp, paths: Paths, txid: int, skipped: Skipped
) -> list[Write]:
    """Return the writes that undo a readmission whose transaction is deleted.

    They move the rows back to the skip record.
    """
    assert skipped.readmitted_as is not None
    rows = RotatingTransactionalState(read, paths).get_state(skipped.readmitted_as).rows
    writes: list[Write] = [
        Put(
            paths.skipped(txid),
            encode(replace(skipped, rows=rows, readmitted_as=None, op=stamp.op)),
        )
    ]
    history = read.find(TransactionRecord, paths.history(txid))
    if history is not None:
        undone = history.with_outcome(Outcome.SKIPPED)
        writes.append(Put(paths.history(txid), encode(undone)))
    return writes


def _skipped_again(
    read: Reader, stamp: Stamp, paths: Paths, wanted: Expected
) -> tuple[list[Write], list[int]]:
    """Return the writes that restore lost skip records, and the txids whose rows cannot be restored."""
    writes = list[Write]()
    without_rows = list[int]()
    for txid, own in wanted.skipped.items():
        again = own.readmitted_as
        path = paths.skipped(txid)
        found = read.find(Skipped, path)
        if found is not None:
            if again is not None and found.readmitted_as is None:
                later = replace(found, rows=None, readmitted_as=again, op=stamp.op)
                writes.append(Put(path, encode(later)))
        elif is_shortened(own.rows):
            without_rows.append(txid)
        else:
            writes.append(Create(path, encode(replace(own, op=stamp.op))))
    return writes, without_rows


def _bound_by_receipts(
    read: Reader, paths: Paths, plan: RebuildPlan, wanted: Expected
) -> dict[str, Binding]:
    """Return the bindings of the runs whose skip records are restored, and of the fences' last transaction."""
    skipped = {
        own.key: wanted.bindings[own.key]
        for txid, own in wanted.skipped.items()
        if wanted.bindings[own.key].txid != txid or not read.exists(paths.skipped(txid))
    }
    last = {plan.last_run: wanted.bindings[plan.last_run]} if plan.last_run else {}
    return {**skipped, **last, **plan.bound}


# --- repair -------------------------------------------------------------------------------------------------------
# Repairs after a state was set back or renamed, and the reset, which starts a topology over.
# Source: docs/protocol.md §§5, 7.
#
# Each repair is one multi. It raises the generation and records who made it, when and why. Only a
# reset needs several multis: the topology stays closed until the last one, and the reset can be
# repeated.


# --- --state-lost ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeenState:
    """The content of a state at the time it was accepted.

    :param fence: the token in the fence of the state; None if it had none.
    :param found: the last transaction that the state contained completely; 0 if it was empty; None if unknown.
    :param change: the newest accepted change in the fence.
    """

    fence: Token | None
    found: int | None
    change: int = 0


def state_lost(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    state: str,
    audit: Audit,
    *,
    seen: SeenState | None = None,
) -> Decision[Repaired]:
    """Accept the content of a state that lacks committed transactions.

    :param seen: the content that the user has seen. Only this content is accepted. None accepts any content.
    :raises RepairRefused: no transaction was committed to a state with this name, and no grant was about to write to
        one.
    """
    topology = read.get(TopologyRecord, paths.record)
    before = {
        name: each
        for name, each in topology.accepted.get(state, {}).items()
        if name in (BEGAN, EMPTIED)
    }
    noted = {**before, "generation": topology.generation + 1}
    summary = f"state {state} was at transaction {topology.states.get(state, 0)}; what it holds now is accepted"
    change: dict[str, Any] = {}
    if seen is not None:
        noted["fence"] = None if seen.fence is None else seen.fence.to_json()
        change = {"fence": noted["fence"], CHANGE: seen.change}
        if seen.found is not None:
            noted["whole"] = True
            change["found"] = seen.found
            summary += f": its transactions up to {seen.found}"
    return _left(
        read, stamp, paths, state, noted, what=STATE_LOST, told=summary, change=change, audit=audit
    )


def forget_state(
    read: Reader, stamp: Stamp, paths: Paths, state: str, audit: Audit
) -> Decision[Repaired]:
    """Continue the topology without a state. A later state with the same name counts as a different state.

    :raises RepairRefused: no transaction was committed to a state with this name, and no grant was about to write to
        one.
    """
    told = "state {} was at transaction {}; the topology continues without it"
    last = read.get(TopologyRecord, paths.record).states.get(state, 0)
    told = told.format(state, last)
    return _left(
        read, stamp, paths, state, {}, what=STATE_FORGOTTEN, told=told, change={}, audit=audit
    )


def _left(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    state: str,
    accepted: Mapping[str, Any],
    *,
    what: str,
    told: str,
    change: Mapping[str, Any],
    audit: Audit,
) -> Decision[Repaired]:
    """Remove a state from the topology record, so that the next grant does not require its last transaction.

    :param accepted: the accepted facts about the state that the topology record keeps instead.
    """
    topology = read.get(TopologyRecord, paths.record)
    current = read.get(Counter, paths.current)
    opened = read.find(TransactionRecord, paths.transaction(current.txid))
    if state not in topology.states and (opened is None or state not in opened.fenced):
        known = ", ".join(sorted(topology.states)) or "none"
        raise _refuse(
            paths,
            what,
            f"the ledger has no committed transaction of state {state!r}",
            f"Known states: {known}.",
        )
    others = _without(topology.accepted, state)
    # A new generation ends any permanent refusal, so no transaction is blocked any longer.
    generation = topology.generation + 1
    after = replace(
        topology,
        generation=generation,
        blocked=None,
        states=_without(topology.states, state),
        births=_without(topology.births, state),
        grants=_without(topology.grants, state),
        accepted={**others, state: dict(accepted)} if accepted else others,
        rolling=None,
        op=stamp.op,
    )
    return audit.repair(
        read,
        stamp,
        paths,
        [Put(paths.record, encode(after))],
        what=what,
        after=after,
        current=current.txid,
        summary=told,
        change={
            "state": state,
            "txid": current.txid,
            **change,
        },
    )


def _without(found: Mapping[str, T], state: str) -> dict[str, T]:
    return {name: each for name, each in found.items() if name != state}


def rename_state(
    read: Reader, stamp: Stamp, paths: Paths, old: str, new: str, *, audit: Audit
) -> Decision[Repaired]:
    """Rename a state. The new generation outranks any writer that uses the old name.

    :raises RenameRefused: the ledger has no state with the old name, or already has one of the new name.
    """
    topology = read.get(TopologyRecord, paths.record)
    check_not_rolling(paths, topology)
    current = read.get(Counter, paths.current)
    path = paths.transaction(current.txid)
    opened = read.find(TransactionRecord, path)
    begun = [] if opened is None else opened.fenced
    known = {*topology.states, *begun}
    if old not in known or new in known:
        problem = (
            f"the ledger already has state {new!r}"
            if new in known
            else f"the ledger has no state {old!r}"
        )
        remedy = f"Known states: {', '.join(sorted(known)) or 'none'}."
        raise RenameRefused(topology=paths.topology, old=old, problem=problem, remedy=remedy)

    def renamed(name: str) -> str:
        return new if name == old else name

    states = {renamed(name): txid for name, txid in topology.states.items()}
    births = {renamed(name): birth for name, birth in topology.births.items()}
    grants = {renamed(name): grant for name, grant in topology.grants.items()}
    names = {**{each: renamed(now) for each, now in topology.renamed.items()}, old: new}
    after = replace(
        topology,
        generation=topology.generation + 1,
        blocked=None,
        states=states,
        births=births,
        grants=grants,
        columns={renamed(name): each for name, each in topology.columns.items()},
        accepted={renamed(name): each for name, each in topology.accepted.items()},
        renamed={each: now for each, now in names.items() if each != now},
        op=stamp.op,
    )
    writes: list[Write] = [Put(paths.record, encode(after))]
    if opened is not None and old in begun:
        outputs = {renamed(name): output for name, output in opened.outputs.items()}
        again = replace(opened, fenced=sorted(map(renamed, begun)), outputs=outputs, op=stamp.op)
        writes.append(Put(path, encode(again)))
    summary = f"state {old}, at transaction {topology.states.get(old, 0)}, is called {new} now"
    return audit.repair(
        read,
        stamp,
        paths,
        writes,
        what=RENAMED,
        after=after,
        current=current.txid,
        summary=summary,
        change={"state": old, "to": new, "txid": current.txid},
    )


def note_change(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    state: str,
    columns: Mapping[str, int],
    *,
    rows: Mapping[int, int] | None = None,
    keys: Sequence[str] | None,
    made_after: int | None = None,
    marked: bool = True,
    receipt: str,
    audit: Audit,
) -> Decision[Repaired]:
    """Record a deliberate manual change of a state's values, so that later comparisons expect the new values.

    :param columns: difference between a column's total and the total that receipts and earlier changes imply, by
        column.
    :param rows: number of rows of each changed transaction in the table.
    :param keys: digests of the deleted keys, which restatements leave alone. None means unknown: no earlier transaction
        can then be restated.
    :param made_after: the transaction after which the values were changed; None means the last final one.
    :param marked: whether the fence of the state will have the number of the change.
    :param receipt: hash of the last receipt when the totals were compared.
    :raises PreviewOutdated: a transaction has ended since the totals were compared.
    """
    topology = read.get(TopologyRecord, paths.record)
    if topology.receipt != receipt:
        raise PreviewOutdated(what=f"State {state!r}", topology=paths.topology)
    check_not_rolling(paths, topology)
    current = read.get(Counter, paths.current)
    noted = {**topology.accepted.get(state, {}), CHANGE: next_repair(read, paths)}
    after = replace(
        topology,
        accepted={**topology.accepted, **({state: noted} if marked else {})},
        op=stamp.op,
    )
    changed = [f"the total of {name} by {by:+}" for name, by in sorted(columns.items())]
    changed += [
        f"{count} rows of transaction {txid}" for txid, count in sorted((rows or {}).items())
    ]
    if keys:
        changed.append(gone_in_words(len(keys)))
    return audit.repair(
        read,
        stamp,
        paths,
        [Put(paths.record, encode(after))],
        what=ACCEPT_CHANGE,
        after=after,
        current=current.txid,
        summary=f"{state}: its values were changed on purpose, {'; '.join(changed)}",
        change={
            "state": state,
            "columns": dict(columns),
            "txid": current.txid - 1 if made_after is None else made_after,
            "keys": [*(keys or ())],
            "unknown": keys is None,
            **({"rows": dict(rows)} if rows else {}),
        },
    )


def note_code(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    code: Mapping[str, str],
    *,
    last: int,
    audit: Audit,
) -> Decision[Repaired]:
    """Record that transactions need no restatement, although different code processed them.

    :param code: current digest of the code of each task; "" if the task is gone.
    :param last: the last of these transactions.
    """
    topology = read.get(TopologyRecord, paths.record)
    after = replace(topology, op=stamp.op)
    named = ", ".join(sorted(code))
    return audit.repair(
        read,
        stamp,
        paths,
        [Put(paths.record, encode(after))],
        what=ACCEPT_CODE,
        after=after,
        current=read.get(Counter, paths.current).txid,
        summary=f"transactions up to {last} count unchanged, although the code of {named} is another one",
        change={"code": dict(code), "txid": last},
    )


# --- --reset -----------------------------------------------------------------------------------------------------


def close_for_reset(read: Reader, stamp: Stamp, paths: Paths) -> Decision[Done]:
    """Close the topology until `reset` has finished. Every other step fails with an error that names the command."""
    check_raw_not_rolling(paths, read.raw(paths.record))
    command = Command("repair", paths.topology, options=("--reset", "--why", "TEXT"))
    before = {"incarnation": incarnation_of(read, paths)}
    mark = dumps({**before, "format": f"being reset: {command}", "op": stamp.op}).encode()
    writes = (*missing_folders(read, paths), put_or_create(read, paths.record, mark))
    return Decision(Done(), writes, paths.record)


def incarnation_of(read: Reader, paths: Paths) -> str:
    """Return the incarnation of the ledger, even if a reset closed it. Return "" if its record is lost or damaged."""
    data = read.raw(paths.record) or b""
    with suppress(ValueError, AttributeError):
        return str(json.loads(data).get("incarnation", ""))
    return ""


def is_being_reset(data: bytes) -> bool:
    """Return whether the topology record is the mark that `close_for_reset` writes."""
    try:
        mark = json.loads(data)
        # The format of a topology record is a number. The mark of a topology that is being renamed
        # or deleted has one more field.
        return isinstance(mark["format"], str) and "moving" not in mark
    except (ValueError, KeyError, TypeError):
        return False


def remove_records(store: Store, paths: Paths) -> None:
    """Delete every record below the folders of a topology, except the records of repairs."""
    for path in (*paths.folders, paths.wishes, paths.ends, paths.all_behind):
        if path not in (paths.base, paths.coordinator):
            step.empty(store, path)


def reset(
    read: Reader, stamp: Stamp, paths: Paths, request: TopologyRequest, audit: Audit
) -> Decision[Repaired]:
    """Create a new ledger. The records below its folders must already be deleted, and the states emptied."""
    after = request.made(stamp.op)
    writes = [
        put_or_create(read, paths.record, encode(after)),
        put_or_create(read, paths.current, encode(Counter(1))),
        put_or_create(read, paths.allocated, encode(Counter(0))),
    ]
    summary = "the ledger and its states were emptied; transaction 1 is next"
    return audit.repair(
        read,
        stamp,
        paths,
        writes,
        what=RESET,
        after=after,
        current=1,
        summary=summary,
        change={"incarnation": after.incarnation},
    )


# --- on a ledger -------------------------------------------------------------------------------------------------


class ResetIncomplete(TxError):
    """A reset was started, but is not complete."""

    template = (
        "Reset of topology {topology!r} is not complete: {reason}.",
        "Its ledger is closed, and its states are only partly emptied. Remove the cause, then repeat: ",
        Command.of("repair", "{topology}", "--reset", "--why", "TEXT"),
    )


class Repairs:
    """The manual repairs after the ledger or its states were set back."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.state_lost = OwnStep(ledger, state_lost)
        self.forget_state = OwnStep(ledger, forget_state)
        self.rename_state = OwnStep(ledger, rename_state)
        self.note_change = OwnStep(ledger, note_change)
        self.note_code = OwnStep(ledger, note_code)

    def incarnation(self) -> str:
        """Return the incarnation of the ledger; see `incarnation_of`."""
        return incarnation_of(self._ledger.reader, self._ledger.paths)

    def ledger_lost(
        self,
        held: Sequence[HeldState],
        request: TopologyRequest,
        audit: Audit,
        *,
        changes: Sequence[RepairRecord] = (),
    ) -> Repaired:
        """Rebuild the ledger from the states. The runs of open transactions must then be cleared by hand.

        :param held: the evidence from the fence of each state.
        :param changes: the accepted changes in the journal.
        :raises RepairRefused: the fences contradict each other, or the ledger is ahead of them.
        :raises UnreadableRecord: the record of another topology, which may own the states, cannot be read.
        """
        plan = self._plan(held)
        self._ledger.store.ensure(self._ledger.paths.root)
        done = self._ledger.run(ledger_lost, request, plan, changes=changes, audit=audit)
        self._ledger.sweep()
        return done

    def preview_ledger_lost(
        self,
        held: Sequence[HeldState],
        request: TopologyRequest,
        audit: Audit,
        *,
        changes: Sequence[RepairRecord] = (),
    ) -> Decision[Repaired]:
        """Decide the writes of `ledger_lost`, but write nothing. Raises the errors of `ledger_lost`."""
        plan = self._plan(held)
        return self._ledger.preview(ledger_lost, request, plan, changes=changes, audit=audit)

    def preview_reset(self, request: TopologyRequest, audit: Audit) -> Decision[Repaired]:
        """Decide the writes of `reset`, but write nothing. Raises the errors of `reset`."""
        return self._ledger.preview(reset, request, audit)

    def _plan(self, held: Sequence[HeldState]) -> RebuildPlan:
        self._check_by_hand(held)
        plan = plan_rebuild(self._ledger.paths, held)
        self._check_owner(plan.incarnation)
        return plan

    def _check_by_hand(self, held: Sequence[HeldState]) -> None:
        """Raise an error if the txid in a fence was raised by hand, since the transactions up to it never existed."""
        paths, births = self._ledger.paths, dict[str, int]()
        with suppress(UnreadableRecord):
            births = {each.birth: txid for txid, each in self._ledger.open_records().items()}
        for each in held:
            known = births | {receipt.birth: receipt.txid for receipt in each.receipts}
            if told := each.token.by_hand(known, each.state, paths.topology):
                raise rebuild_refused(paths, **told)

    def _check_owner(self, incarnation: str) -> None:
        """Raise an error if the states belong to another topology that has a ledger.

        :raises UnreadableRecord: the record of another topology, which may own the state, cannot be read.
        """
        store = self._ledger.store
        own = self._ledger.paths
        for name in topologies(store, own.root):
            node = store.get(path := Paths(own.root, name).record)
            if name == own.topology or node is None or is_being_reset(node.data):
                continue  # a topology that is being reset no longer owns its states
            if decode(TopologyRecord, path, node.data).incarnation == incarnation:
                raise RepairRefused(
                    what=LEDGER_LOST,
                    topology=own.topology,
                    problem=f"its states belong to topology {name!r}",
                    remedy=(
                        "If the DAG of that topology was renamed: "
                        + Command.of("rename", name, own.topology, "--why", "TEXT")
                        + ". Otherwise use another table: one state serves one topology."
                    ),
                )

    def reset(
        self, request: TopologyRequest, audit: Audit, *, clear: Callable[[], None]
    ) -> Repaired:
        """Delete all records of the topology and empty its states. The next transaction is 1.

        The next batch begins at the start of the source. A reset does not stop a running committer, so stop the
        topology's runs first. If the reset fails, repeat it.

        :param clear: function that empties the states and their fences, while no step can use the topology. Check
            beforehand that it will succeed, since it runs after the ledger's records are deleted.
        :raises ResetIncomplete: the reset failed. The topology stays closed until the reset is repeated.
        """
        ledger = self._ledger
        paths = ledger.paths
        ledger.store.ensure(paths.root)
        ledger.run(close_for_reset)
        try:
            remove_records(ledger.store, paths)
            clear()
            return ledger.run(reset, request, audit)
        except Exception as error:
            where = f"state {error.state!r}: " if isinstance(error, StateError) else ""
            raise ResetIncomplete(
                topology=paths.topology, reason=where + reason_of(error)
            ) from error


def reason_of(error: Exception) -> str:
    """Return the reason for an error, without its remedy."""
    fields = error.fields if isinstance(error, TxError) else {}
    return str(fields.get("reason") or fields.get("problem") or error) or type(error).__name__


def _refuse(paths: Paths, what: str, problem: str, remedy: Remedy | str) -> RepairRefused:
    return RepairRefused(what=what, topology=paths.topology, problem=problem, remedy=remedy)
