"""The steps of the commit phase: `acquire` takes the turn, `commit` uses its token. Source: docs/protocol.md §§2, 4."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_tx.base.errors import FailedTransaction, PreviewOutdated, RowsChanged, UnreadableRecord
from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger.answers import (
    AlreadyCommitted,
    Committed,
    Done,
    FailureNoted,
    Granted,
    NotYet,
    Restarted,
    ToBeSkipped,
)
from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.attempt import Token, TransactionAttempt
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.output import same_output
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.receipt import CheckNote, Code, Outcome, Receipt, TaskRows, Written
from airflow_tx.ledger.records import Counter, Phase, TopologyRecord, TransactionRecord
from airflow_tx.ledger.steps.end import (
    check_grant,
    check_states,
    check_token,
    claimed,
    ended,
    fence_batch,
    make_grant,
    still_open,
)
from airflow_tx.ledger.steps.processing import newest_record
from airflow_tx.ledger.steps.replay import check_still_held, held_at
from airflow_tx.ledger.steps.step import Audit, Decision, Stamp, is_another, is_committed, put

AcquireAnswer = Granted | NotYet | Restarted | ToBeSkipped | AlreadyCommitted


@dataclass(frozen=True)
class AcquireRequest:
    """A committer's request for the turn.

    :param epoch: the epoch that `processed` returned before the committer read the output.
    :param rows_digest: digest of the rows of the batch that the run processed.
    :param outputs: outputs that the committer will write, as texts from `output_text`, by transactional state.
    :param states: names of the states whose fence the committer will raise.
    :param by_phase: whether several tasks will hold the turn in sequence.
    :param metadata: metadata of the batch, which the fences keep.
    :param position: the position of the source after the batch, which the fences keep.
    :param rows: number of rows in the batch; None if not counted. Like `tasks`, `code` and `unproven`, it goes into the
        receipt.
    :param journal: name of the journal entry of the transaction; "" if there is none.
    :param taken_back: the states from which a restatement removes the old output, by their names in the old receipt.
    :param checks: the results of the checks, in the form of the receipt.
    :param held: the digest that `held_at` returned when the committer read these states.
    :param sole: the states whose last transaction must not have changed since then.
    :param own: the restated transaction's receipt in each state that has one, for a rebuilt ledger.
    """

    attempt: TransactionAttempt
    epoch: int
    rows_digest: str
    outputs: Mapping[str, str] = field(hash=False, default_factory=dict)
    states: tuple[str, ...] = ()
    by_phase: bool = False
    metadata: Any = field(hash=False, default=None)
    position: Any = field(hash=False, default=None)
    rows: int | None = None
    tasks: Mapping[str, TaskRows] = field(hash=False, default_factory=dict)
    code: Code = field(hash=False, default_factory=Code)
    unproven: tuple[str, ...] = ()
    journal: str = ""
    taken_back: Mapping[str, str] = field(hash=False, default_factory=dict)
    held: str = ""
    sole: tuple[str, ...] = ()
    own: Mapping[str, Receipt] = field(hash=False, default_factory=dict)
    checks: Mapping[str, CheckNote] = field(hash=False, default_factory=dict)


def acquire(
    read: Reader, stamp: Stamp, paths: Paths, request: AcquireRequest
) -> Decision[AcquireAnswer]:
    """Take the turn to commit. The new grant outranks the previous one.

    :raises StaleAttempt, FailedTransaction, RowsChanged, StaleBatch, StateMissing, StateRenamed, NotTakenBack: this
        attempt can never get the turn.
    :raises UnreadableRecord: its turn has passed, since a record was changed by hand.
    """
    attempt = request.attempt
    record = newest_record(read, paths, attempt, "commit")
    if isinstance(record, AlreadyCommitted):
        return Decision(record)
    if record.phase is Phase.FAILED and record.skip is None:
        raise FailedTransaction(txid=attempt.txid, attempt=attempt.attempt, reason=record.failure)
    current = read.get(Counter, paths.current)
    if current.txid != attempt.txid:
        if current.txid > attempt.txid:
            reason = f"it is at {current.txid}, and transaction {attempt.txid} is open"
            raise UnreadableRecord(path=paths.current, reason=reason)
        return Decision(NotYet(current.txid))
    if record.skip is not None:
        return Decision(ToBeSkipped(attempt.txid))
    if record.phase is Phase.PROCESSING or record.epoch != request.epoch:
        return Decision(Restarted())
    _check_rows(record, request)
    check_states(paths, record, request.states)
    topology, before = check_grant(read, paths, record, request.states)
    if record.replaces is not None:
        taken_back = request.taken_back
        replaced = record.replaces.txid
        check_still_held(read, paths, attempt.txid, replaced, taken_back, own=request.own)
        # A restatement that skips a state removes no output from it.
        if (taken_back or request.held) and request.held != held_at(
            read, paths, topology, taken_back, request.sole
        ):
            return Decision(Restarted())
    epoch = record.epoch + 1
    changed = {
        state: found
        for state, found in record.outputs.items()
        if not same_output(found, request.outputs.get(state, found))
    }
    taken = replace(
        record.without_failure(),
        phase=Phase.COMMITTING,
        epoch=epoch,
        nonce=stamp.op,
        granted=True,
        # Keep the outputs that an earlier grant may have begun to write, until the committer proves
        # that none was written.
        outputs={**request.outputs, **record.outputs},
        granted_at=stamp.now,
        fenced=sorted({*record.fenced, *request.states}),
        by_phase=request.by_phase,
        journal=request.journal or None,
        checks=record.accepted_checks,
        op=stamp.op,
    )
    batch = fence_batch(
        taken,
        stamp.now,
        rows=request.metadata,
        position=request.position,
        prev=before,
        outputs=request.outputs,
    )
    taken = claimed(
        taken,
        topology,
        stamp,
        paths,
        batch=batch,
        outcome=Outcome.COMMITTED,
        rows=request.rows,
        tasks=request.tasks,
        code=request.code,
        unproven=list(request.unproven),
        checks=dict(request.checks) or None,
    )
    grant = make_grant(taken, topology, paths, batch=batch, noted=record.outputs)
    return put(paths.transaction(attempt.txid), taken, Granted(grant, changed))


def _check_rows(record: TransactionRecord, request: AcquireRequest) -> None:
    found = record.rows_digest
    # The request for different rows set the phase to FAILED, but a task may have reset it.
    if record.to_change is not None:
        found = "none: a person wants them decided again"
    if found != request.rows_digest:
        own = request.attempt
        raise RowsChanged(
            txid=own.txid, attempt=own.attempt, digest=request.rows_digest, found=found
        )


def take_output(
    read: Reader, stamp: Stamp, paths: Paths, token: Token, outputs: Mapping[str, str]
) -> Decision[Done]:
    """Record the new output of the transaction, if an earlier grant was about to write a different output.

    The committer has already proved that the states have no other values from the transaction. Their fences have this
    token, so no earlier grant can write. While the ledger has the token, no later grant exists.

    :raises Outranked: the ledger holds another token.
    """
    path = paths.transaction(token.txid)
    record = check_token(
        read.find(TransactionRecord, path), read.get(TopologyRecord, paths.record), token
    )
    noted = replace(record, outputs={**record.outputs, **outputs}, op=stamp.op)
    return put(path, noted, Done())


def note_commit_failed(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    attempt: TransactionAttempt,
    epoch: int | None,
    *,
    reason: str,
    remedy: Remedy | None = None,
    for_good: bool = False,
    repairable: bool = False,
    failed_task: str = "",
    checks: Mapping[str, CheckNote] | None = None,
) -> Decision[FailureNoted]:
    """Record, for display, that a commit has failed and is not retried.

    The phase and the turn do not change, so that another try can still succeed.

    Only a grant's first failure is recorded, since it causes the failures of the other committers.

    :param epoch: newest epoch that the failed try knows, from its grant or from `processed`; None if it knows none.
    :param remedy: the remedy of the refusal; None if the error is not a refusal.
    :param for_good: whether a replay would be refused again. If so, no replay starts until a user acts.
    :param repairable: whether the failure can end after a repair or once a store is available again.
    :param failed_task: see `fail`.
    :param checks: the failed checks, each with its finding and the digest of the output, so that users can accept them.
    :raises StaleAttempt: a newer attempt exists.
    """
    record = newest_record(read, paths, attempt, "fail")
    if isinstance(record, AlreadyCommitted) or record.phase not in (
        Phase.PROCESSED,
        Phase.COMMITTING,
    ):
        return Decision(FailureNoted(first=False))
    granted = record.phase is Phase.COMMITTING
    if epoch != record.epoch and (granted or epoch is not None):
        return Decision(
            FailureNoted(first=False)
        )  # a newer grant or a restarted task makes this failure irrelevant
    if granted and record.error is not None:
        return Decision(FailureNoted(first=False))
    generation = read.get(TopologyRecord, paths.record).generation if for_good else 0
    failed = replace(
        record.with_failure(
            stamp.op, reason, remedy, repairable=repairable, failed_task=failed_task
        ),
        for_good=generation,
        checks={**record.accepted_checks, **(checks or {})},
    )
    return put(paths.transaction(attempt.txid), failed, FailureNoted(first=True))


def accept_checks(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    txid: int,
    digests: Mapping[str, str],
    *,
    audit: Audit,
) -> Decision[Done]:
    """Record that the findings of checks are accepted. This applies only to outputs with the same digests.

    :param digests: digest of the output that the user saw, by check.
    :raises UnknownTransaction, AlreadyFinal: the transaction is not open.
    :raises PreviewOutdated: a check has a different finding now.
    """
    record = still_open(read, paths, txid)
    shown = {name: record.checks[name] for name in digests if name in record.checks}
    if {name: each.digest for name, each in shown.items()} != digests:
        raise PreviewOutdated(what=f"Transaction {txid}", topology=paths.topology)
    by = audit.noted(stamp)
    # Keep the user who first accepted the finding.
    accepted = {name: replace(each, accepted=each.accepted or by) for name, each in shown.items()}
    noted = replace(record, checks={**record.checks, **accepted}, op=stamp.op)
    return put(paths.transaction(txid), noted, Done())


def commit(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    token: Token,
    *,
    states: Collection[str],
    written: Mapping[str, Written] | None = None,
    columns: Mapping[str, Collection[str]] | None = None,
    began: Mapping[str, bool] | None = None,
) -> Decision[Committed]:
    """Make the transaction final and give the turn to the next one, in one multi.

    :param states: names of the states whose fence the grant raised.
    :param written: the rows that were written to each state.
    :param columns: the value columns of each state.
    :param began: whether a state was empty before its first transaction, for each state whose first transaction this
        is.
    :raises Outranked: the ledger holds another token.
    """
    txid = token.txid
    record = read.find(TransactionRecord, paths.transaction(txid))
    if (
        record is None
        and is_committed(read, paths, txid)
        and not is_another(read, paths, txid, token.birth)
    ):
        return Decision(Committed(txid, by_this_call=False))
    topology = read.get(TopologyRecord, paths.record)
    record = check_token(record, topology, token)
    return ended(
        read,
        stamp,
        paths,
        record,
        topology,
        outcome=Outcome.COMMITTED,
        states=states,
        written=written,
        columns=columns,
        began=began,
    )
