"""Write journal entries, and compute the difference that a restatement writes for each update."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeGuard

from msgspec import to_builtins

from airflow_tx.base.errors import JournalError, NotTakenBack, RestateRefused
from airflow_tx.base.failpoints import failpoint
from airflow_tx.base.remedy import Command
from airflow_tx.ledger import Life, Processed, Receipt, TopologyRecord, dumps, renamed_since
from airflow_tx.outputs import Contribution, Entry, JournalArea, StagedFiles
from airflow_tx.sources import Source
from airflow_tx.state import (
    FencedState,
    QueryableState,
    SoleWriterState,
    StateKind,
    can_invert,
    reducers_of,
)
from airflow_tx.transaction.commit.case import CommitCase
from airflow_tx.transaction.commit.contributions import Difference, StagingPlace, difference_of
from airflow_tx.transaction.commit.rejected import rejected_refs
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.commit.write import RowsInTurn, RowsToWrite, StagedRows
from airflow_tx.transaction.spec import TransactionSpec

# --- entry --------------------------------------------------------------------------------------------------------
# A committer writes the journal entry from the whole acked output, before its turn.


def write_entry(
    case: CommitCase,
    processed: Processed,
    rows: Sequence[RowsToWrite],
    *,
    left: Collection[str] = (),
) -> str:
    """Write the journal entry of a transaction.

    An entry is valid only if a commit record names it. A retry may therefore write the entry again.

    :param rows: the whole output of each update, which can be read several times.
    :param left: the states that the transaction leaves unchanged, so that it contributes nothing to them.
    :return: the name of the entry, or "" if the topology keeps no journal.
    :raises StagingUnavailable, StagingUnreachable: the entry cannot be written.
    """
    if not case.spec.journal_time:
        return ""
    failpoint("commit.before_journal", **case.where)
    begun = case.begun
    incarnation = case.ledger.incarnation()
    journal = JournalArea(case.spec.staging(), incarnation)
    # The clock of this machine may be behind, so the time of the entry is at least the time of
    # begin.
    written = max(case.ledger.clock.now().isoformat(timespec="milliseconds"), processed.began)
    entry = Entry(
        case.spec.topology,
        incarnation,
        begun.txid,
        attempt=begun.attempt.attempt,
        birth=begun.attempt.birth,
        key=processed.key,
        run_id=case.run_id,
        began=processed.began,
        written=written,
        metadata=begun.metadata,
        source=_serialized(case.spec.source),
        replaces=None if begun.replaces is None else to_builtins(begun.replaces),
        contributions={
            update.state.name: Contribution(refusal=_LEFT)
            if update.state.name in left
            else _contribution(case, journal, update, found, day=written[:10])
            for update, found in zip(case.updates, rows, strict=True)
            # Omit the table of rejected rows if no row was rejected, so that a restatement does not
            # need it.
            if update.input is not None or rejected_refs(processed.acks)
        },
    )
    name = journal.write(entry)
    failpoint("commit.after_journal", **case.where)
    return name


_LEFT = "a person accepted its values, and the restatement left it out"


def no_contribution(update: Update, inside: Collection[str] = ()) -> str:
    """Return a clause that explains why the contribution of an update cannot be taken back. Return "" if it can.

    :param inside: ids of the tasks between the first and the last task of the commit phase.
    """
    columns = update.state.columns
    if columns is None:
        return f"{type(update.state).__name__} stores rows unchanged"
    if reducers := reducers_of(columns):
        return f"column {reducers[0]} has a reducer"
    if (task := update.input.operator.task_id) in inside:
        return f"its rows come from task {task}, which runs in the commit phase"
    return ""


def takes_no_rows(update: Update, inside: Collection[str] = ()) -> str:
    """Return a clause that explains why the journal keeps no rows of a table's update. Return "" if it keeps them."""
    state = update.state
    if not state.journal_rows:
        return f"{type(state).__name__}(journal_rows=False) keeps no rows in the journal"
    if update.input is None:
        return "the journal does not keep rejected rows"
    if inside and state.append_table is not None:
        return "its committer writes its own files in the commit phase"
    if (task := update.input.operator.task_id) in inside:
        return f"its rows come from task {task}, which runs in the commit phase"
    return ""


def is_kept(update: Update, inside: Collection[str] = ()) -> bool:
    """Return whether the journal keeps the rows of an update."""
    refuses = takes_no_rows if update.state.takes_back_by_txid else no_contribution
    return not refuses(update, inside)


def _contribution(
    case: CommitCase, journal: JournalArea, update: Update, rows: RowsToWrite, *, day: str
) -> Contribution:
    phase = case.spec.phase
    inside = () if phase is None else phase.inside
    if update.state.takes_back_by_txid:
        refusal = takes_no_rows(update, inside)
        return (
            Contribution(refusal=refusal) if refusal else _rows_of_table(case, journal, rows, day)
        )
    refusal = no_contribution(update, inside)
    if refusal:
        return Contribution(refusal=refusal)
    columns = update.state.columns
    assert columns is not None
    return journal.contribution(columns, rows, day=day, staged=_files_of(case, rows))


def _rows_of_table(
    case: CommitCase, journal: JournalArea, rows: RowsToWrite, day: str
) -> Contribution:
    """Write the rows of a table's update to the journal, one output after another. Staged files are copied."""
    given: Sequence[Any] = rows.outputs if isinstance(rows, RowsInTurn) else [rows]
    staged = {
        number: files
        for number, each in enumerate(given)
        if (files := _files_of(case, each)) is not None
    }
    return journal.rows_in_turn(given, staged, day=day)


def _files_of(case: CommitCase, rows: RowsToWrite) -> StagedFiles | None:
    """Return the files of one staged output. Return None if its rows are in the manifest or are not staged."""
    if not isinstance(rows, StagedRows) or not rows.paths:
        return None
    return StagedFiles(rows.paths, rows.columns, case.begun.incarnation)


def _serialized(source: Source) -> tuple[str, dict[str, Any]]:
    path, arguments = source.serialize()
    try:
        dumps(arguments)
    except (TypeError, ValueError):
        return path, {}  # No other process can read the arguments of this custom source.
    return path, arguments


# --- restatement --------------------------------------------------------------------------------------------------


INSTEAD = "To correct the values, compute the table again from the beginning of the source, in a DAG with another id."
"""The remedy for a transaction that cannot be restated."""


def takes_nothing_back(updates: Iterable[Update], inside: Collection[str] = ()) -> str | None:
    """Return a clause that names an update of a block that can never be taken back.

    Return None if there is no such update.
    """
    for update in updates:
        state = update.state
        if state.takes_back_by_txid:
            continue
        problem = no_contribution(update, inside)
        if not problem and not isinstance(state, QueryableState):
            problem = f"{type(state).__name__} cannot return the values of keys"
        if problem:
            return f"state {state.name!r} cannot take anything back: {problem}"
    return None


def never_restated(spec: TransactionSpec, dag: Any) -> str | None:
    """Return a clause that explains why no transaction of a DAG can be restated.

    Return None if transactions can be restated.

    :param dag: the DAG, with all committers of the block.
    """
    if not spec.journal_time:
        return "it keeps no journal"
    updates = (update for task in dag.tasks for update in getattr(task, "updates", ()))
    return takes_nothing_back(updates, _inside(spec))


def refuses_restatement(
    updates: Iterable[Update],
    entry: Entry,
    *,
    inside: Collection[str] = (),
    renamed: Mapping[str, str],
    columns: Mapping[str, Mapping[str, int]] | None = None,
) -> str | None:
    """Return a clause that explains why the updates of a block cannot replace an entry's contributions.

    Return None if they can. This function opens no state. Only the new output shows whether each single value can be
    taken back.

    :param updates: the updates of all committers of the block.
    :param entry: the journal entry of the restated transaction.
    :param inside: ids of the tasks between the first and the last task of the commit phase.
    :param renamed: the current name of each state, by its name in the entry.
    :param columns: by state and value column, the first transaction that has values in the column.
    """
    by_name = {update.state.name: update for update in updates}
    if problem := takes_nothing_back(by_name.values(), inside):
        return problem
    for name, contribution in contributions(entry, renamed).items():
        if name not in by_name:
            return f"it has written state {name!r}, which the DAG no longer writes"
        if by_name[name].state.takes_back_by_txid:
            continue
        lives = (columns or {}).get(name)
        problem = contribution.refusal or misfit(
            by_name[name].state, contribution, lives, entry.txid
        )
        if problem:
            return f"what it contributed to state {name!r} cannot be taken back: {problem}"
    return None


def refused_by_dag(
    spec: TransactionSpec, dag: Any, entry: Entry, topology: TopologyRecord
) -> str | None:
    """Return a clause that explains why a DAG cannot replace the contributions of an entry. Return None if it can.

    :param dag: the DAG, with all committers of the block.
    :param topology: the topology record. Its field `renamed` contains the current names of the states in the entry.
    """
    updates = [update for task in dag.tasks for update in getattr(task, "updates", ())]
    return refuses_restatement(
        updates,
        entry,
        inside=_inside(spec),
        renamed=topology.renamed,
        columns=topology.columns,
    )


def check_entry(
    spec: TransactionSpec, dag: Any, entry: Entry, topology: TopologyRecord
) -> Collection[str]:
    """Refuse a restatement that the DAG cannot commit, before the restatement gets a txid.

    :param dag: the DAG, with all committers of the block.
    :return: the states from which values are taken back. Tables are omitted, since their rows are removed as a unit.
    :raises RestateRefused: a contribution cannot be taken back. The error names its state or column.
    """
    problem = refused_by_dag(spec, dag, entry, topology)
    if problem is not None:
        remedy = (
            "To withdraw it: "
            + Command.of("restate", spec.topology, entry.txid, "--withdraw")
            + f". {INSTEAD}"
        )
        raise RestateRefused(
            txid=entry.txid, topology=spec.topology, problem=problem, remedy=remedy
        )
    updates = [update for task in dag.tasks for update in getattr(task, "updates", ())]
    tables = {each.state.name for each in updates if each.state.takes_back_by_txid}
    return contributions(entry, topology.renamed).keys() - tables


def _inside(spec: TransactionSpec) -> tuple[str, ...]:
    return () if spec.phase is None else spec.phase.inside


def contributions(entry: Entry, renamed: Mapping[str, str]) -> dict[str, Contribution]:
    """Return the contributions of an entry, by the current names of their states.

    :param renamed: the result of `renamed_since`.
    """
    return {renamed.get(name, name): each for name, each in entry.contributions.items()}


def _began_since(lives: Mapping[str, int] | None, column: str, txid: int) -> bool:
    """Return whether a column is newer than a transaction because it was dropped and added again.

    :param lives: by value column, the first transaction that has values in it, or None if it is unknown.
    """
    return lives is not None and lives.get(column, txid + 1) > txid


def still_held(
    state: FencedState, old: Contribution, lives: Mapping[str, int] | None, txid: int
) -> Contribution:
    """Return an earlier contribution without the columns that were dropped from the state and added again later."""
    assert state.columns is not None
    now = state.columns.values
    values = {
        name: each
        for name, each in old.values.items()
        if name not in now or not _began_since(lives, name, txid)
    }
    return replace(old, values=values, count=old.count if values else 0)


def misfit(
    state: FencedState, whole: Contribution, lives: Mapping[str, int] | None, txid: int
) -> str:
    """Return a clause that names a column of the earlier contribution that the state has changed.

    Return "" if there is none.
    """
    old = still_held(state, whole, lives, txid)
    columns = state.columns
    assert columns is not None
    if set(old.keys) != set(columns.keys):
        return f"its keys were {', '.join(old.keys)} and are {', '.join(columns.keys)} now"
    now = columns.serialized()["values"]
    for name, aggregator in old.values.items():
        if name not in now:
            return f"column {name} is no longer in the state"
        if dict(aggregator) != now[name]:
            was, found = ("{aggregator}({type})".format(**each) for each in (aggregator, now[name]))
            return f"column {name} was a {was} and is now a {found}"
    for name in whole.values.keys() - old.values.keys():
        since = (lives or {}).get(name, txid + 1)
        others = (
            each
            for each in now.keys() - whole.values.keys()
            if txid < (lives or {}).get(each, since) <= since
        )
        if (other := min(others, default=None)) is not None:
            return f"column {name} was later dropped and added again, and may have been renamed to column {other}"
    return ""


# --- in a commit --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replacing:
    """The differences of a restatement, computed before its turn.

    :param differences: the rows to write in place of the output, by state. It is empty if this is not a restatement.
    :param taken_back: the current name of each state from which values are taken back, by its name in the entry.
    :param held: the digest of the ledger's facts about these states, see `held_at`. If the digest changes, the
        differences are out of date.
    :param sole: the states that were queried for the keys to which only the restated transaction has contributed.
    :param left: the states that are left unchanged. A user has accepted their loss, and the transaction cannot be
        skipped.
    :param own: by state, the receipt of the restated transaction in the state, if a rebuilt ledger lacks it.
    """

    differences: Mapping[str, Difference] = field(default_factory=dict)
    taken_back: Mapping[str, str] = field(default_factory=dict)
    held: str = ""
    sole: tuple[str, ...] = ()
    left: frozenset[str] = frozenset()
    own: Mapping[str, Receipt] = field(default_factory=dict)


NOTHING_REPLACED = Replacing()


def differences(case: CommitCase, rows: Sequence[RowsToWrite]) -> Replacing:
    """Compute the differences that a restatement writes, before its committer requests the turn.

    The result has the current names of the states. If a state is renamed later, `acquire` refuses the turn.

    :param rows: the whole output of each update.
    :raises NotTakenBack: the restated contribution cannot be taken back.
    :raises JournalError: the journal entry is missing or was changed.
    """
    replaces = case.begun.replaces
    if replaces is None:
        return NOTHING_REPLACED
    topology = case.ledger.topology()
    repairs = case.ledger.repairs()
    journal = JournalArea(case.spec.staging(), topology.incarnation)
    entry = journal.read(replaces.entry)
    renamed = renamed_since(repairs, entry.contributions, entry.txid)
    entry = _of_states_that_are_there(case, entry, renamed, topology.incarnation)
    problem = refuses_restatement(
        case.updates,
        entry,
        inside=_inside(case.spec),
        renamed=renamed,
        columns=topology.columns,
    )
    if problem is not None:
        # The DAG has changed since this transaction started.
        raise NotTakenBack(state=", ".join(case.states), problem=problem, remedy=INSTEAD)
    own = case.begun.attempt
    place = StagingPlace(case.area, case.spec.topology, own, case.task_id)
    taken = contributions(entry, renamed)
    # Rows of a table are removed by their txid, so the values in the entry are not needed.
    taken_back = {
        name: now
        for name, now in zip(entry.contributions, taken, strict=True)
        if not case.states[now].takes_back_by_txid
    }
    receipts = _own_receipts(case, topology, taken_back.values(), entry.txid)
    lives = {
        now: Life.of(now, topology, repairs, own={entry.txid: each} if each else None)
        for now in taken_back.values()
        for each in [receipts.get(now)]
    }
    may_lack = [now for now, life in lives.items() if life.cannot_restate(entry.txid)]
    left = frozenset(may_lack if may_lack and _is_for_good(case, topology.incarnation) else ())
    taken_back = {name: now for name, now in taken_back.items() if now not in left}
    staged = case.spec.phase is not None  # other tasks of the phase read even a few rows
    spark = {update.state.name for update in case.updates if update.writers == "spark"}
    sole = {
        name: partial(state.sole_values, txids=replaced_txids(journal, entry), own=own.txid)
        for name, state in case.states.items()
        if not staged and name not in spark and is_asked(state)
    }
    held = case.ledger.held_at(topology, taken_back, sole)
    found = dict[str, Difference]()
    for update, new in zip(case.updates, rows, strict=True):
        state = update.state
        if state.name not in taken_back.values():
            continue
        assert isinstance(state, QueryableState)
        columns = topology.columns.get(state.name)
        old = still_held(state, taken[state.name], columns, replaces.txid)
        found[state.name] = difference_of(
            state,
            old,
            new,
            place,
            staged=staged or update.writers == "spark",
            gone=lives[state.name].gone(replaces.txid),
            sole=sole.get(state.name),
        )
        _log(case, state.name, found[state.name], replaces.txid)
    return Replacing(found, taken_back, held, tuple(sole), left, receipts)


def _is_for_good(case: CommitCase, incarnation: str) -> bool:
    """Return whether this transaction can no longer be skipped, since a state holds values that it cannot undo."""
    own = case.begun.attempt
    return any(
        state.holds_for_good(own.txid, own.birth, incarnation) for state in case.states.values()
    )


def _of_states_that_are_there(
    case: CommitCase, entry: Entry, renamed: Mapping[str, str], incarnation: str
) -> Entry:
    """Return the entry.

    If this transaction can no longer be skipped, leave out the states that the DAG no longer writes.
    """
    there = {
        name: each for name, each in entry.contributions.items() if renamed[name] in case.states
    }
    if len(there) == len(entry.contributions) or not _is_for_good(case, incarnation):
        return entry
    return replace(entry, contributions=there)


def _own_receipts(
    case: CommitCase, topology: TopologyRecord, states: Iterable[str], txid: int
) -> dict[str, Receipt]:
    """Read the receipts of a transaction from its states if a rebuilt ledger does not have them."""
    found = dict[str, Receipt]()
    for name in states if txid <= topology.rebuilt else ():
        for each in case.states[name].receipts() or ():
            if each.txid == txid:
                receipt = Receipt.from_json(json.loads(each.text))
                if receipt.incarnation == topology.incarnation:
                    found[name] = receipt
    return found


def is_asked(state: FencedState) -> TypeGuard[SoleWriterState]:
    """Return whether a state records which transactions wrote each key, and has values that cannot be inverted."""
    if not isinstance(state, SoleWriterState) or state.kind is not StateKind.OPAQUE:
        return False
    return not all(map(can_invert, state.columns.values.values()))


def replaced_txids(journal: JournalArea, entry: Entry) -> set[int]:
    """Return the transaction of an entry, and all transactions that it replaces.

    A replaced transaction may still be the last writer of a key, since a restatement with equal output writes no rows.
    """
    found = {entry.txid}
    while entry.replaces is not None:
        found.add(entry.replaces["txid"])
        try:
            entry = journal.read(entry.replaces["entry"])
        except JournalError:
            break
    return found


def check_taken(states: Iterable[FencedState], found: Mapping[str, Difference]) -> None:
    """Refuse to write if a state lacks a key that is taken back. The fences of the states are raised before this call.

    :raises NotTakenBack: a key is missing.
    """
    for state in states:
        if state.name in found:
            assert isinstance(state, QueryableState)
            found[state.name].check_taken(state, state.multi_get)


def shared_differences(found: Mapping[str, Difference]) -> dict[str, Any]:
    """Return references to staged differences, by state, for the other tasks of the phase.

    A state with equal contributions has the value None. A state without an earlier contribution is not in the result,
    since the output itself is written.
    """
    rows = {name: each.rows for name, each in found.items()}
    return {
        name: each.ref if isinstance(each, StagedRows) else None
        for name, each in rows.items()
        if isinstance(each, StagedRows) or not each
    }


def _log(case: CommitCase, name: str, found: Difference, txid: int) -> None:
    case.log.info("State %s: the contribution of transaction %s is replaced", name, txid)
    for column, most in found.lost.items():
        case.log.warning(
            "State %s: sums of column %s may be wrong by %.3g afterwards. Doubles lose the last digits of a "
            'large number that is taken back. A Sum("numeric") in a new table loses none.',
            name,
            column,
            most,
        )
