"""Refusals of the ledger, by the steps of the protocol."""

from __future__ import annotations

from airflow_tx.errors.root import TxError


class Refused(TxError):
    """The ledger says no; a retry of the same request cannot succeed."""


class StaleAttempt(Refused):
    """A task of an attempt that is not the newest one."""

    template = (
        "{step} of transaction {txid} attempt {attempt} refused: attempt {newest} is the newest. "
        "Clear `begin`, or the whole run, to replay it."
    )


class StaleTry(Refused):
    """A try of a task that a newer try of the same task has replaced."""

    template = (
        "{step} of task {task} in transaction {txid}.{attempt} refused: try {found} has replaced try {task_try}. "
        "The newer try continues; there is nothing to do."
    )


class StaleBegin(Refused):
    """A `begin` whose run was cleared while it lived on."""

    template = (
        "begin of run {run_id} refused: a later begin ({found}) of transaction {txid} exists, this try is {task_try}. "
        "The later one continues; there is nothing to do."
    )


class StaleBatch(Refused):
    """The batch was computed from a position that is not where the transaction before it ended."""

    template = (
        "Commit of transaction {txid}.{attempt} refused: its batch starts from position {base}, "
        "but transaction {previous} ended at {found}. Clear the run: it takes the rows from there."
    )


class RowsChanged(Refused):
    """The rows a task worked on are not those the ledger has for this attempt."""

    template = (
        "Commit of transaction {txid}.{attempt} refused: rows processed {digest}, rows recorded {found}. "
        "Clear the run: it is processed again."
    )


class FailedTransaction(Refused):
    """The processing of the newest attempt failed."""

    template = "Transaction {txid}.{attempt} has failed: {reason}. Clear its failed task or its run to replay it."


class MessagesFailed(FailedTransaction):
    """A message of the newest attempt was failed, or is not acked in time."""

    template = (
        "Transaction {txid}.{attempt} has failed: {reason}. Clear `begin` or the whole run: its next attempt emits its "
        "messages again."
    )


class IncompleteBatch(Refused):
    """The committer ran although not every processing task has acked."""

    template = (
        "Commit of transaction {txid}.{attempt} refused: no ack from {tasks}. "
        "Clear {tasks}: a task marked success by hand leaves no output."
    )


class InputSkipped(Refused):
    """A task right before the committer was skipped, so its transaction is not committed."""

    template = (
        "Transaction {txid}.{attempt} is not committed: {tasks} was skipped, and Airflow skips what follows. "
        "To commit without it, put a task with trigger_rule='none_failed_min_one_success' before the committer."
    )


class SkippedAfterCommit(Refused):
    """Tasks after the committer that Airflow would skip in a committed run: they also follow tasks of the block."""

    template = (
        "Transaction {txid} of {topology} is already committed, and its tasks are skipped. Airflow would also skip "
        "{tasks}, which follows the committer and {needs}. Give it trigger_rule='none_failed_min_one_success' and "
        "clear the run again."
    )


class RowsNotKept(Refused):
    """A task after the commit asks for the rows of a transaction whose receipt has only their digest."""

    template = (
        "The ledger no longer has the rows of committed transaction {txid} of {topology}: they were too long for the "
        "receipt, or its history has ended. Do not read the batch in a task after the committer."
    )


class MessagesLost(IncompleteBatch):
    """The ackers hold other trees of messages than the tasks of the attempt have acked."""

    template = (
        "Commit of transaction {txid}.{attempt} refused: its tasks have acked {expected}, the ackers hold {found}. "
        "Their store was emptied, or a replaced try of a task has emitted messages. Clear `begin` or the whole run."
    )


class PhaseIncomplete(Refused):
    """A commit phase of which not every task has done its part."""

    template = (
        "Transaction {txid}.{attempt} is not committed: {problem}. Clear {task}: the phase then takes the turn again, "
        "and nothing is counted twice."
    )


class StateMissing(Refused):
    """A state that an earlier grant of this transaction may have written is no longer in the DAG."""

    for_good = True
    template = (
        "Commit of transaction {txid} refused: an earlier try may have written to state {states}, which the DAG no "
        "longer updates. Bring it back until transaction {txid} is committed, then take it out."
    )


class StateRenamed(Refused):
    """A state that the ledger has committed to is no longer in the DAG, and another one is that it does not know."""

    for_good = True
    template = (
        "Transaction {txid} refused: the DAG updates state {new}, which the ledger does not know, and no longer {old}, "
        "which has transaction {last}. The same state under another name: airflow tx state rename {topology} {old} "
        "{new}. Another one, which takes its place: airflow tx state forget {topology} {old}"
    )


class RenameRefused(Refused):
    """A state whose new name does not fit what the ledger and the state say."""

    template = "State {old!r} of topology {topology!r} is not renamed: {problem}. Nothing was changed. {remedy}"


class Outranked(Refused):
    """A committer whose grant was taken over."""

    template = (
        "Commit of transaction {txid} refused: token {token} is outranked, the ledger holds {found}. A newer try "
        "continues."
    )


class RunHeld(Refused):
    """Another live run works on the same batch."""

    template = (
        "begin of run {run_id} refused: transaction {txid} belongs to run {holder}, which is {state}. Wait for "
        "that run, or end it and clear this one."
    )


class SkippedTransaction(Refused):
    """The run's transaction was skipped by a person."""

    template = (
        "Transaction {txid} of {topology} was skipped. To process its rows: "
        "airflow tx readmit {topology} {txid} --why TEXT"
    )


class TopologyClaimed(Refused):
    """Two DAGs use one topology name."""

    for_good = True
    template = (
        "Topology {topology!r} belongs to DAG {owner!r}, and DAG {dag_id!r} asks for it. If that DAG was renamed: "
        "airflow tx rename {topology} --dag-id {dag_id} --why TEXT; if there are two, give one of them another name: "
        "Transaction(topology=...)."
    )


class SourceKindChanged(Refused):
    """The kind of the source changed while transactions are open."""

    for_good = True
    template = (
        "Topology {topology!r} has open transactions ({first} to {last}) of a {found} source, and the DAG now has a "
        "{expected} one. Drain it first: go back to the old DAG, pause its coordinator and start no new run, until "
        "airflow tx list {topology} shows none open. Skip transactions that cannot be committed."
    )


class SourceShapeChanged(Refused):
    """A source with partitions took the place of one without, or the other way round."""

    for_good = True
    template = (
        "Topology {topology!r} keeps the place of a source with {found}, and the DAG's source has {expected}. "
        "Give the new one another name: Transaction(topology=...)."
    )


class AlreadyFinal(Refused):
    """A request that changes a transaction which is final."""

    template = "Transaction {txid} is {outcome}. {remedy}"


class SkipRefused(Refused):
    """A transaction that cannot be skipped now."""

    template = "Skip of transaction {txid} refused: {problem}. {remedy}"


class ChangeRefused(Refused):
    """A transaction whose rows cannot be decided again."""

    template = (
        "Transaction {txid} of {topology} keeps its rows: {problem}. Nothing was changed. {remedy}: "
        "airflow tx replay {topology} {txid}"
    )


class NotSkipped(Refused):
    """A transaction that cannot be re-admitted, since it was not skipped, or was re-admitted already."""

    template = (
        "Transaction {txid} of {topology} cannot be re-admitted: it is {found}. Nothing was changed; "
        "airflow tx list {topology} shows the skipped ones."
    )


class RestatementSkipped(Refused):
    """A skipped restatement that cannot be re-admitted: the transaction that it was to replace still counts."""

    template = (
        "Transaction {txid} of {topology} cannot be re-admitted: it restated transaction {replaces}, which counts. "
        "Nothing was changed. To restate that again: airflow tx restate {topology} {replaces} --why TEXT"
    )


class RestateRefused(Refused):
    """A transaction that cannot be restated."""

    template = "Restatement of transaction {txid} of {topology} refused: {problem}. Nothing was changed. {remedy}"


class PreviewOutdated(Refused):
    """An action on what has changed since it was previewed: another person was first, or a transaction has moved on."""

    template = "{what} of topology {topology!r} has changed since. Nothing was done; have another look, then repeat."


class Outbid(Refused):
    """A waiter that wants to give up its run slot, while another one is to."""

    template = (
        "Run {run_id} does not yield: run {leader} does. It still waits; there is nothing to do."
    )


class UnknownTransaction(Refused):
    """No such topology or transaction in this ledger."""

    template = "No {what} in the ledger at {path}. Check the name with `airflow tx list`, and the root in [tx] root."


class UnknownTxid(UnknownTransaction):
    """No such transaction in the ledger of a topology."""

    template = (
        "No transaction {txid} of topology {topology!r} in the ledger at {path}. To see the transactions that there "
        "are: airflow tx list {topology}"
    )


class MoveRefused(Refused):
    """A topology that cannot be renamed or deleted now."""

    template = "Topology {topology!r} is not changed: {problem}. {remedy}"


class AcceptanceRefused(Refused):
    """Acceptance of changed values that cannot be compared, or were not changed."""

    template = "Change of state {state!r} of topology {topology!r} not accepted: {problem}. Nothing was changed."


class LossRefused(Refused):
    """Acceptance of a loss that there is none of."""

    template = (
        "Topology {topology!r} has lost nothing: its source can give every row that comes next. Nothing was changed. "
        "A transaction whose own rows are gone: airflow tx skip {topology} TXID --why TEXT"
    )


class UnscheduledTask(Refused):
    """A task that `airflow tasks test` executes, or a scheduler beside `airflow dags test`: its transaction would stay
    open."""

    template = (
        "DAG {dag_id!r} has transactions, and a single task cannot be tried out: its transaction would stay open. "
        "The ledger was not touched. Try out the whole DAG: airflow dags test {dag_id}"
    )


class TrialRefused(Refused):
    """A DAG that cannot be tried out."""

    template = "DAG {dag_id!r} cannot be tried out: {problem}. Nothing was touched. {remedy}"


class RepairRefused(Refused):
    """A repair that does not fit what the ledger and the states say."""

    template = (
        "Repair --{what} of topology {topology!r} refused: {problem}. Nothing was changed. {remedy}"
    )


class RollingForward(Refused):
    """A step that needs the states of a topology, while they are being written again from the journal."""

    template = (
        "Topology {topology!r} waits: its states are being written again from the journal, since {when}. "
        "Nothing was changed. If that command has died, repeat it: "
        "airflow tx repair {topology} --roll-forward {states}. "
        "To give it up, for each state: airflow tx repair {topology} --state-lost STATE"
    )


class RollForwardRefused(Refused):
    """A state that cannot be written again from the journal."""

    template = (
        "State {state!r} of topology {topology!r} cannot be written again: {problem}. {remedy}"
    )


class RowsDiffer(Refused):
    """Rows that were read, and others that were emitted, counted by the source, or read by an earlier attempt."""

    template = (
        "Rows of transaction {txid}.{attempt} differ: {problem}. Nothing was written. {remedy}"
    )


class RowsNotProven(Refused):
    """No task has counted exactly that each row was consumed once, and `[tx] require_rows` requires it."""

    template = (
        "Rows of transaction {txid}.{attempt} are not proven: {problem}; [tx] require_rows = proven refuses that. "
        "Nothing was written. Let the task read them as docs/rows.md says, and clear the run; or set require_rows = "
        "counted, and clear the commit task."
    )
