"""The end of a transaction: what is due after it, what it leaves, and how a skip takes effect."""

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
"""How much longer an entry is in the journal than a person may want its transaction restated."""
# Seconds that a run which has just yielded gets to end.
_PATIENCE = 4
# Seconds that another one gets to finish a skip; those between two readings.
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
    """Continue after a final transaction: take skips that are due, start runs that yielded. It fails nothing.

    :param states: all states of the topology, by name.
    :param ended: what its commit or skip gave.
    """
    while isinstance(ended, Committed) and ended.skip and ledger.turn().current == ended.txid + 1:
        try:
            ended = take_skip(ledger, ended.txid + 1, states, log=log)
        except TxError as error:
            log.warning("The next transaction is not skipped now: %s", error)
            return
    if isinstance(ended, Committed) and ended.waiting:
        try:
            for _, run_id, _ in start_yielded(ledger, runs, ended.waiting, patience=_PATIENCE):
                log.info("Run %s had yielded, and is started again", run_id)
        except (TxError, AirflowRuntimeError) as error:
            log.warning(
                "Runs that yielded (%s) are not started again now: %s",
                ", ".join(ended.waiting),
                error,
            )


def clean_up(spec: TransactionSpec, ledger: Ledger, ti: Any, txid: int, *, log: Any) -> None:
    """Remove what no task needs any more once a transaction is committed. It fails nothing."""

    def has_live_run(txid: int) -> bool:
        history = ReadOnlyLedger(ledger.store, spec.paths).outcome(txid)
        return (
            history is not None
            and compat.run_state(ti, spec.dag_id, history.run_id) in LIVE_RUN_STATES
        )

    try:
        incarnation = ledger.incarnation()
        area = spec.staging().of_topology(incarnation)
        # Its own run lives on: a task beside or after the block may not have read yet.
        read = area.sweep(spec.topology, txid, has_live_run)
        area.kept.sweep(spec.topology, txid + 1 - Settings.load().keep_new_values)
        sweep_journal(spec, ledger)
        with closing(spec.source_of(incarnation)) as source:
            source.cleanup_before(min([*read, txid]))
        if spec.ackers:
            with spec.open_ackers(ledger.store) as ackers:
                ackers.forget(Origin(spec.topology, txid, 0, incarnation))
    except Exception as error:  # noqa: BLE001
        log.warning("Transaction %s is committed, but was not cleaned up: %s", txid, error)


def note_committed(spec: TransactionSpec, begun: Begun, *, log: Any) -> None:
    """Call `Source.committed`, at least once: if it fails, so does the task, whose next try finds the commit done.

    :raises SourceError: it failed; the transaction is committed.
    """
    if begun.replaces is not None:
        return  # the source learned it when the restated transaction was committed
    if is_shortened(begun.metadata):
        # Its run was cleared after the commit, and the receipt keeps only the digest of long metadata.
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
            problem=f"transaction {begun.txid} is committed, and committed() failed: {type(error).__name__}: {error}",
            remedy="Clear this task: it calls committed() again, and nothing is counted again.",
        ) from error
    finally:
        source.close()


# --- the journal ----------------------------------------------------------------------------------------------------


def sweep_journal(spec: TransactionSpec, ledger: Ledger) -> None:
    """Remove the days of the journal that are too old to be restated, unless an entry is about to be used."""
    kept = spec.journal_time + GRACE
    journal = JournalArea(spec.staging(), ledger.incarnation())
    if journal.days((ledger.clock.now() - kept).date()):
        journal.sweep((ledger.past_time() - kept).date(), ledger.entries_in_use)


# --- skips -------------------------------------------------------------------------------------------------------


def due_skip(ledger: Ledger) -> int | None:
    """Return the txid whose turn it is, if it is to be skipped."""
    turn = ledger.turn()
    return turn.current if turn.record is not None and turn.record.skip is not None else None


def undoable(
    ledger: Ledger, states: Mapping[str, FencedState], txid: int
) -> dict[str, bool | None]:
    """Find out by name whether a state can undo its values of an open transaction, or has none.

    :return: None: a state cannot undo, and cannot tell.
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
    """Skip a transaction, if it is its turn.

    :param states: all states of the topology, by name.
    :raises SkipRefused: a state that cannot undo it holds something of it; the wish is taken back.
    :raises Refused: it cannot be skipped now.
    :raises StateError: a state does not take the grant; the transaction stays open, and this can be repeated.
    """
    found = undoable(ledger, states, txid)
    with _taken_back(ledger, txid, keeps_grant=True):
        answer = ledger.grant_skip(txid, found)
    if isinstance(answer, AlreadySkipped):
        return Committed(txid, by_this_call=False)
    if isinstance(answer, NotYet):
        return answer
    grant = answer.grant
    # Of the states of one database the fence decides, in the transaction that raises it and notes the skip.
    groups = sharing_a_store(states.values())
    first = [each for each in groups[0] if isinstance(each, StoredState)] if groups else []
    moment = [each for each in first if each.store_key is not None]
    others = [each for each in states.values() if each not in moment]
    with _taken_back(ledger, txid, keeps_grant=False), outranked_explained(ledger, states, grant):
        raise_fences(others, grant)
        # A committer may have written since the first look; now none can any more.
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
    """Say of states that get their first transaction under a grant whether their place was empty before it."""
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
    """Skip a transaction as `take_skip` does; while another process skips it, wait until that one has finished.

    Without the wait, two processes might outrank each other for ever.

    :param pauses: seconds to wait for the other process, one after the other.
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
    """Let a state's refusal say whether the grant is outranked, or the ledger was set back."""
    try:
        yield
    except (LedgerBehind, FenceOutranked) as error:
        raise explain_outranked(ledger, states, grant, error) from None


def explain_outranked(
    ledger: Ledger, states: Mapping[str, FencedState], grant: Grant, error: StateError
) -> TxError:
    """Tell an outranked grant, as it should be, from a ledger that was set back to before that grant.

    The fences are read before the ledger: an intact ledger has every grant that had raised one of them.
    """
    fences = {name: state.fence() for name, state in states.items()}
    try:
        is_granted = ledger.holds(grant.token)
    except StoreUnavailable:
        if isinstance(error, FenceOutranked):
            return error  # this grant writes nothing more, even if the ledger can be reached later
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
    """Take the wish for a skip back if it is refused: else each replay would find it, and be refused for ever."""
    try:
        yield
    except SkipRefused:
        with suppress(AlreadyFinal):  # another try has committed it
            ledger.withdraw_skip(txid, keeps_grant=keeps_grant)
        raise


# --- messages -----------------------------------------------------------------------------------------------------
# The committer waits until every message of its attempt is acked. See docs/acks.md.


@dataclass(frozen=True)
class Messages:
    """How the messages of an attempt are.

    :param emitted: by try of a task, how many trees of messages the ackers know.
    :param waiting: the missing messages, in words; "": none.
    :param problem: why they are never all acked; "": they may be.
    """

    emitted: Mapping[TaskTry, int] = field(default_factory=dict)
    waiting: str = ""
    problem: str = ""


def is_processing(record: TransactionRecord | None, attempt: int) -> TypeGuard[TransactionRecord]:
    """Whether an attempt may still wait for messages; once it is processed, they were acked."""
    return record is not None and record.attempt == attempt and record.phase is Phase.PROCESSING


def messages_of(
    ackers: Callable[[], AbstractContextManager[AckerStore]],
    origin: Origin,
    record: TransactionRecord,
    *,
    timeout: float,
    now: datetime,
) -> Messages:
    """Ask the ackers how the messages of an attempt are.

    Ackers without it have lost it, or it has just ended: the ledger decides.

    :param ackers: connects to them.
    :param timeout: seconds that they have from begin on.
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
            problem=f"after {timeout:g} s (processing_timeout) it still waits: {found.waiting}"
        )
    return found


def _judged(report: TreeReport) -> Messages:
    if report.failed is not None:
        return Messages(problem=f"a message was failed: {report.failed}")
    if report.twice:
        return Messages(problem=f"messages of {', '.join(report.twice)} were acked more than once")
    if not report.open:
        return Messages(report.emitted)
    trees = ", ".join(f"{count} of task {task}" for task, count in report.open.items())
    return Messages(
        waiting=f"of {sum(report.emitted.values())} trees of messages these are not complete: {trees}"
    )


def await_messages(spec: TransactionSpec, ledger: Ledger, begun: Begun) -> Messages:
    """Ask whether every message of an attempt is acked; what cannot become so fails the attempt.

    :raises MessagesFailed: a message was failed, or the time for them is up.
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
