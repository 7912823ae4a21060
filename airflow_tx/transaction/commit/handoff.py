"""The end of a transaction: handing over the turn, cleaning up, skipping, and checking the messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeGuard

from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_tx.base import compat
from airflow_tx.base.config import Settings
from airflow_tx.base.errors import (
    AckersUnavailable,
    AlreadyFinal,
    FenceOutranked,
    LedgerBehind,
    MessagesFailed,
    Outranked,
    SkipRefused,
    SourceError,
    StaleMessage,
    StateError,
    StoreUnavailable,
    TxError,
    UnknownMessage,
)
from airflow_tx.ledger import (
    LIVE_RUN_STATES,
    AlreadySkipped,
    Begun,
    Committed,
    Grant,
    Ledger,
    NotYet,
    Phase,
    ReadOnlyLedger,
    TaskTry,
    TransactionRecord,
    is_shortened,
    skip_refused,
)
from airflow_tx.outputs import AckerStore, JournalArea, Origin, TreeReport, origin_of
from airflow_tx.state import (
    FencedState,
    StateWrite,
    StoredState,
    raise_fences,
    sharing_a_store,
    write_together,
)
from airflow_tx.transaction.commit.run_slots import Runs, start_yielded
from airflow_tx.transaction.metrics import Metric, send_failure
from airflow_tx.transaction.processing.begin import note_failed
from airflow_tx.transaction.spec import TransactionSpec

# --- handoff ------------------------------------------------------------------------------------------------------


GRACE = timedelta(days=7)
"""How long the journal keeps the entry of a transaction that can no longer be restated."""
# The maximum wait for the end of a run that has just yielded, in seconds.
_PATIENCE = 4
# The wait for another process to finish a skip, in seconds, for each try. `_PACE` is the number of
# seconds between two readings of the ledger.
_PAUSES = (5.0, 20.0, 60.0)
_PACE = 0.2


def pass_on(
    ledger: Ledger,
    states: Mapping[str, FencedState],
    runs: Runs,
    ended: Committed | NotYet,
    *,
    log: Any,
) -> None:
    """Hand over the turn of a final transaction. Run the skips that are due, and start runs that yielded.

    Errors are only logged.

    :param states: all states of the topology, by name.
    :param ended: the ledger's response to the commit or the skip.
    """
    while isinstance(ended, Committed) and ended.skip and ledger.turn().current == ended.txid + 1:
        try:
            ended = take_skip(ledger, ended.txid + 1, states, log=log)
        except TxError as error:
            log.warning("The next transaction could not be skipped: %s", error)
            return
    if isinstance(ended, Committed) and ended.waiting:
        try:
            for _, run_id, _ in start_yielded(ledger, runs, ended.waiting, patience=_PATIENCE):
                log.info("Run %s had yielded and starts again", run_id)
        except (TxError, AirflowRuntimeError) as error:
            log.warning(
                "Runs that yielded (%s) could not be started again: %s",
                ", ".join(ended.waiting),
                error,
            )


def clean_up(spec: TransactionSpec, ledger: Ledger, ti: Any, txid: int, *, log: Any) -> None:
    """Delete data that no task needs after the commit of a transaction. Errors are only logged."""

    def has_live_run(txid: int) -> bool:
        history = ReadOnlyLedger(ledger.store, spec.paths).outcome(txid)
        return (
            history is not None
            and compat.run_state(ti, spec.dag_id, history.run_id) in LIVE_RUN_STATES
        )

    try:
        incarnation = ledger.incarnation()
        area = spec.staging().of_topology(incarnation)
        # Keep the output of runs that are still running. A task after the block may not have read
        # it yet.
        read = area.sweep(spec.topology, txid, has_live_run)
        area.kept.sweep(spec.topology, txid + 1 - Settings.load().keep_new_values)
        sweep_journal(spec, ledger)
        with closing(spec.source_of(incarnation)) as source:
            source.cleanup_before(min([*read, txid]))
        if spec.ackers:
            with spec.open_ackers(ledger.store) as ackers:
                ackers.forget(Origin(spec.topology, txid, 0, incarnation))
    except Exception as error:  # noqa: BLE001
        log.warning(
            "Transaction %s is committed, but its temporary data could not be deleted: %s",
            txid,
            error,
        )


def note_committed(spec: TransactionSpec, begun: Begun, *, log: Any) -> None:
    """Call `Source.committed` at least once. If the call fails, the task fails, and the next try calls it again.

    :raises SourceError: `committed()` failed. The transaction is committed.
    """
    if begun.replaces is not None:
        return  # The source was already notified when the original transaction was committed.
    if is_shortened(begun.metadata):
        # The run was cleared after the commit, and the receipt keeps only a digest of long
        # metadata.
        log.warning(
            "Source %r: committed() of transaction %s is not called again",
            spec.source,
            begun.attempt,
        )
        return
    source = spec.source_of(begun.incarnation)
    try:
        source.committed(begun.txid, begun.metadata)
    except Exception as error:
        raise SourceError(
            source=repr(source),
            problem=f"transaction {begun.txid} is committed, but committed() of the source failed: "
            f"{type(error).__name__}: {error}",
            remedy="Clear this task: it calls committed() again, and no row counts twice.",
        ) from error
    finally:
        source.close()


# --- the journal ----------------------------------------------------------------------------------------------------


def sweep_journal(spec: TransactionSpec, ledger: Ledger) -> None:
    """Delete the days of the journal that are too old for restatements, except days with an entry in use."""
    kept = spec.journal_time + GRACE
    journal = JournalArea(spec.staging(), ledger.incarnation())
    if journal.days((ledger.clock.now() - kept).date()):
        journal.sweep((ledger.past_time() - kept).date(), ledger.entries_in_use)


# --- skips -------------------------------------------------------------------------------------------------------


def due_skip(ledger: Ledger) -> int | None:
    """Return the txid that has the turn if its skip was requested, or None."""
    turn = ledger.turn()
    return turn.current if turn.record is not None and turn.record.skip is not None else None


def undoable(
    ledger: Ledger, states: Mapping[str, FencedState], txid: int
) -> dict[str, bool | None]:
    """Return, for each state, whether an open transaction can be undone in it.

    A state without values of the transaction counts as undone.

    :return: True or False, by state. None if the state cannot undo values, and it is unknown whether it has any.
    """
    record = ledger.status(txid)
    birth = "" if record is None else record.birth
    life = ledger.incarnation()
    return {
        name: state.undoes
        or (None if state.holds(txid) is None else not state.holds_for_good(txid, birth, life))
        for name, state in states.items()
    }


def take_skip(
    ledger: Ledger, txid: int, states: Mapping[str, FencedState], *, log: Any
) -> Committed | NotYet:
    """Skip a transaction if it has the turn.

    :param states: all states of the topology, by name.
    :raises SkipRefused: a state holds values of the transaction that it cannot undo. The skip request is withdrawn.
    :raises Refused: the transaction cannot be skipped now.
    :raises StateError: a state refuses the grant. The transaction stays open, and you can repeat the skip.
    """
    found = undoable(ledger, states, txid)
    with _taken_back(ledger, txid, keeps_grant=True):
        answer = ledger.grant_skip(txid, found)
    if isinstance(answer, AlreadySkipped):
        return Committed(txid, by_this_call=False)
    if isinstance(answer, NotYet):
        return answer
    grant = answer.grant
    # A single store transaction raises the fences of all states in one database, and notes the skip
    # in them.
    groups = sharing_a_store(states.values())
    first = [each for each in groups[0] if isinstance(each, StoredState)] if groups else []
    moment = [each for each in first if each.store_key is not None]
    others = [each for each in states.values() if each not in moment]
    with _taken_back(ledger, txid, keeps_grant=False), outranked_explained(ledger, states, grant):
        raise_fences(others, grant)
        # Check again, since a committer may have written after `undoable`. The raised fences now
        # refuse every committer.
        stuck = [
            state.name
            for state in others
            if not state.undoes and state.holds_for_good(txid, grant.token.birth, grant.incarnation)
        ]
        if stuck:
            raise skip_refused(txid, stuck, noted=True)
        write_together([(each, StateWrite(each.name, grant, raising=True)) for each in moment])
    for state in others:
        state.pass_over(grant)
    done = ledger.commit_skip(grant.token, states=list(states), began=began(states, grant))
    log.info("Transaction %s of %s is skipped", grant.attempt, ledger.paths.topology)
    Metric.SKIPPED.send(ledger.paths)
    return done


def began(states: Mapping[str, FencedState], grant: Grant) -> dict[str, bool]:
    """Return, for each state with its first transaction under a grant, whether its table was empty before."""
    new = {name: state.fence() for name, state in states.items() if name not in grant.last_txids}
    return {
        name: fence.began
        for name, fence in new.items()
        if fence is not None and fence.began is not None
    }


def take_skip_or_wait(
    ledger: Ledger,
    txid: int,
    states: Mapping[str, FencedState],
    *,
    log: Any,
    pauses: Sequence[float] = _PAUSES,
    sleep: Callable[[float], None] = time.sleep,
) -> Committed | NotYet:
    """Skip a transaction as `take_skip` does. If another process is skipping it, wait for that process.

    Without the wait, the two processes could outrank each other again and again.

    :param pauses: the longest waits for the other process, in seconds, one per try.
    """
    for pause in pauses:
        try:
            return take_skip(ledger, txid, states, log=log)
        except (Outranked, FenceOutranked) as error:
            log.info("%s", error)
        for _ in range(round(pause / _PACE)):
            if ledger.status(txid) is None:
                break
            sleep(_PACE)
    return take_skip(ledger, txid, states, log=log)


@contextmanager
def outranked_explained(
    ledger: Ledger, states: Mapping[str, FencedState], grant: Grant
) -> Iterator[None]:
    """Replace the error of a state by an error that explains it: the grant is outranked, or the ledger was restored."""
    try:
        yield
    except (LedgerBehind, FenceOutranked) as error:
        raise explain_outranked(ledger, states, grant, error) from None


def explain_outranked(
    ledger: Ledger, states: Mapping[str, FencedState], grant: Grant, error: StateError
) -> TxError:
    """Return the error for a refused grant: a later grant has outranked it, or the ledger was restored from a backup.

    The fences are read before the ledger, so an intact ledger has recorded every grant that raised one of them.
    """
    fences = {name: state.fence() for name, state in states.items()}
    try:
        is_granted = ledger.holds(grant.token)
    except StoreUnavailable:
        if isinstance(error, FenceOutranked):
            # The fence will still refuse this grant when the ledger is available again.
            return error
        raise
    if not is_granted:
        return Outranked(txid=grant.txid, token=str(grant.token), found="a later grant")
    for name, fence in fences.items():
        if (
            fence is not None
            and fence.incarnation == grant.incarnation
            and fence.token.rank > grant.token.rank
        ):
            last = grant.last_txids.get(name, "nothing")
            found = fence.token.txid
            return LedgerBehind(
                state=name, topology=grant.topology, found=found, expected=last, txid=grant.txid
            )
    return error


@contextmanager
def _taken_back(ledger: Ledger, txid: int, *, keeps_grant: bool) -> Iterator[None]:
    """Withdraw a skip request if the `with` block refuses it.

    Otherwise, each replay would try the skip again in vain.
    """
    try:
        yield
    except SkipRefused:
        with suppress(AlreadyFinal):  # Another try has committed the transaction.
            ledger.withdraw_skip(txid, keeps_grant=keeps_grant)
        raise


# --- messages -----------------------------------------------------------------------------------------------------
# A committer waits until every message of its attempt is acked. See docs/acks.md.


@dataclass(frozen=True)
class Messages:
    """The status of an attempt's messages.

    :param emitted: the number of message trees in the ackers' store, by try.
    :param waiting: a description of the missing acks, or "" if none is missing.
    :param problem: the reason why not all messages can be acked, or "" if they still can.
    """

    emitted: Mapping[TaskTry, int] = field(default_factory=dict)
    waiting: str = ""
    problem: str = ""


def is_processing(record: TransactionRecord | None, attempt: int) -> TypeGuard[TransactionRecord]:
    """Return whether an attempt may still wait for messages, all of which are acked after the processing phase."""
    return record is not None and record.attempt == attempt and record.phase is Phase.PROCESSING


def messages_of(
    ackers: Callable[[], AbstractContextManager[AckerStore]],
    origin: Origin,
    record: TransactionRecord,
    *,
    timeout: float,
    now: datetime,
) -> Messages:
    """Read the status of an attempt's messages from the ackers.

    An attempt that is missing in the ackers' store was lost, or has just ended. The ledger shows which.

    :param ackers: a function that connects to the ackers.
    :param timeout: the longest time from begin until all messages are acked, in seconds.
    """
    try:
        with ackers() as store:
            found = _judged(store.report(origin))
    except (StaleMessage, UnknownMessage):
        return Messages()
    except AckersUnavailable as error:
        found = Messages(waiting=str(error))
    began = datetime.fromisoformat(record.began)
    if found.waiting and now >= began + timedelta(seconds=timeout):
        return Messages(
            problem=f"it still waits after {timeout:g} s (processing_timeout): {found.waiting}"
        )
    return found


def _judged(report: TreeReport) -> Messages:
    if report.failed is not None:
        return Messages(problem=f"a worker failed a message: {report.failed}")
    if report.twice:
        return Messages(problem=f"messages of {', '.join(report.twice)} were acked more than once")
    if not report.open:
        return Messages(report.emitted)
    trees = ", ".join(f"{count} of task {task}" for task, count in report.open.items())
    return Messages(
        waiting=f"of its {sum(report.emitted.values())} message trees, these are not complete: {trees}"
    )


def await_messages(spec: TransactionSpec, ledger: Ledger, begun: Begun) -> Messages:
    """Read the status of an attempt's messages. Fail the attempt if not all messages can be acked.

    :raises MessagesFailed: a message failed, or `processing_timeout` has passed.
    """
    attempt = begun.attempt
    record = ledger.status(attempt.txid) if spec.ackers else None
    if not is_processing(record, attempt.attempt):
        return Messages()
    found = messages_of(
        lambda: spec.open_ackers(ledger.store),
        origin_of(spec.topology, begun.attempt, begun.incarnation),
        record,
        timeout=spec.timeout,
        now=ledger.clock.now(),
    )
    if found.problem:
        send_failure(spec.paths, ledger.fail_messages(attempt, found.problem))
        if begun.replaces is None:
            source = spec.source_of(begun.incarnation)
            note_failed(source, attempt, begun.metadata, found.problem)
        raise MessagesFailed(txid=attempt.txid, attempt=attempt.attempt, reason=found.problem)
    return found
