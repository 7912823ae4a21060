"""The errors of this package, with their fields, texts and remedies.

An error keeps its keyword fields, even after pickling. The first part of its `template` names the refused request, the
expected value and the actual value. The rest is the remedy.
"""

from __future__ import annotations

from typing import Any, ClassVar

from airflow_tx.base.remedy import Command, Remedy, Template, TxError as TxError

# Errors in settings, blocks, sources and staged output.


class ConfigError(TxError):
    """A setting has an invalid value."""

    template = "{option} = {value!r} cannot be used."
    for_good = True


class TransactionDefinitionError(TxError):
    """A `Transaction` block is invalid. Airflow raises this error when it parses the DAG file."""

    template = "Transaction {topology!r} refused: {problem}."


class FailedBatch(TxError):
    """Raise this error in a task to fail its batch deliberately, as with Storm's FailedException.

    Only this transaction is replayed.

    :param message: the reason, which the ledger keeps.
    """

    def __init__(self, message: str = "the batch was failed on purpose", **fields: Any) -> None:
        super().__init__(message=message, **fields)


class SourceError(TxError):
    """A source cannot return the rows of a batch."""

    template: ClassVar[Template] = "Source {source} refused: {problem}."


class RowsRefused(SourceError):
    """A batch contains a value that no reader accepts. A replay would read the same value."""

    for_good = of_values = True


class SourceNotSettled(SourceError):
    """Rows of an upstream table are temporarily missing, while another transaction is ending.

    No user action is needed. Airflow starts the task again later, and the failed try does not count.
    """

    template = (
        "Source {source} is not settled: {problem}.",
        "The task starts again by itself, and no try is counted.",
    )


class OtherSource(SourceError):
    """A position, metadata or key in the ledger belongs to another source."""

    template = (
        "Source {source} refused: {problem}.",
        "The topology had another source before: give it another name, Transaction(topology=...).",
    )


class AheadOfOrder(TxError):
    """The run waits until an earlier interval gets a txid.

    :param after: date that the order of txids must reach first.
    :param missing: start of the earlier interval.
    """

    template = "The interval {interval} waits: the interval that begins at {missing} comes first, and has no txid yet."


class PartitionUnavailable(SourceError):
    """A source partition cannot be reached now. An opaque source continues without it. Other sources stop."""

    template = "Partition {partition!r} of source {source} cannot be reached: {reason}."


class StagingError(TxError):
    """Staged output is missing or incomplete, or belongs to another attempt."""

    template: ClassVar[Template] = (
        "Output {output!r} of task {task} in transaction {txid}.{attempt} refused: {problem}."
    )


class StagingUnavailable(StagingError):
    """A file could not be staged. Readers do not see an incomplete file."""

    template = (
        "{uri} cannot be written: {reason}.",
        "No row of this file counts. Make room or give access, then clear the task.",
    )


class StagingNotRemoved(StagingError):
    """Staged output still exists although its topology was reset or deleted."""

    template = (
        "{uri} cannot be removed.",
        "The next topology of this name would read it as its own output. Give access, then repeat the command.",
    )


class StagingUnreachable(StagingError):
    """A file store does not respond."""

    template = (
        "{uri} cannot be reached: {reason}.",
        "Nothing was changed; the task can be tried again once it answers.",
    )


class JournalError(TxError):
    """A journal entry cannot be used."""

    template: ClassVar[Template] = "Entry {entry} of the journal cannot be used: {problem}."
    for_good = of_values = True


class EntryMissing(JournalError):
    """A file of a journal entry is missing."""

    template = (
        "Entry {entry} of the journal cannot be used: {uri} is not there.",
        "Restore that file from a backup of the staging area; without it the transaction cannot be restated.",
    )


class EntryDiffers(JournalError):
    """A file of a journal entry has changed since it was written."""

    template = (
        "Entry {entry} of the journal cannot be used: {uri} has the sha256 {found} instead of {expected}.",
        "Restore that file from a backup of the staging area; without it the transaction cannot be restated.",
    )


# Refusals by the ledger, in the order of the protocol steps.


class Refused(TxError):
    """The ledger refuses a request. Retrying the same request cannot succeed."""


class StaleAttempt(Refused):
    """A task belongs to an attempt that is no longer the newest one."""

    template = (
        "{step} of transaction {txid} attempt {attempt} refused: attempt {newest} is the newest.",
        "Clear `begin`, or the whole run, to replay it.",
    )


class StaleTry(Refused):
    """A newer try of the same task has replaced this try."""

    template = (
        "{step} of task {task} in transaction {txid}.{attempt} refused: try {found} has replaced try {task_try}.",
        "The newer try continues; there is nothing to do.",
    )


class StaleBegin(Refused):
    """The run was cleared while the process of its `begin` task was still running."""

    template = (
        "begin of run {run_id} refused: a later begin ({found}) of transaction {txid} exists, this try is {task_try}.",
        "The later one continues; there is nothing to do.",
    )


class StaleBatch(Refused):
    """The batch does not start at the position where the previous transaction ended."""

    template = (
        "Commit of transaction {txid}.{attempt} refused: its batch starts from position {base}, but transaction "
        "{previous} ended at {found}.",
        "Clear the run: its next attempt begins at the new position.",
    )


class RowsChanged(Refused):
    """The rows that a task processed differ from the rows in the ledger for this attempt."""

    template = (
        "Commit of transaction {txid}.{attempt} refused: rows processed {digest}, rows recorded {found}.",
        "Clear the run: it is processed again.",
    )


class FailedTransaction(Refused):
    """The processing of the newest attempt has failed."""

    template = (
        "Transaction {txid}.{attempt} has failed: {reason}.",
        "Clear its failed task or its run to replay it.",
    )


class MessagesFailed(FailedTransaction):
    """A message of the newest attempt has failed, or was not acked in time."""

    template = (
        "Transaction {txid}.{attempt} has failed: {reason}.",
        "Clear `begin` or the whole run: its next attempt emits its messages again.",
    )


class IncompleteBatch(Refused):
    """The committer ran before every processing task had acked."""

    template = (
        "Commit of transaction {txid}.{attempt} refused: no ack from {tasks}.",
        "Clear {tasks}: a task marked success by hand leaves no output.",
    )


class InputSkipped(Refused):
    """A task directly before the committer was skipped. The transaction is therefore not committed."""

    template = (
        "Transaction {txid}.{attempt} is not committed: {tasks} was skipped, and Airflow skips what follows.",
        "To commit without it, put a task with trigger_rule='none_failed_min_one_success' before the committer.",
    )


class SkippedAfterCommit(Refused):
    """Airflow would skip tasks after the committer in a committed run, since they also follow block tasks."""

    template = (
        "Transaction {txid} of {topology} is already committed, and its tasks are skipped.",
        "Airflow would also skip {tasks}, which follows the committer and {needs}. Give it "
        "trigger_rule='none_failed_min_one_success' and clear the run again.",
    )


class RowsNotKept(Refused):
    """A task after the commit needs the rows of a transaction, but the receipt has only the digest of the batch."""

    template = (
        "The ledger no longer has the rows of committed transaction {txid} of {topology}: they were too long for the "
        "receipt, or its history has ended.",
        "Do not read the batch in a task after the committer.",
    )


class MessagesLost(IncompleteBatch):
    """The message trees in the ackers differ from the trees that the attempt's tasks reported."""

    template = (
        "Commit of transaction {txid}.{attempt} refused: its tasks have acked {expected}, the ackers hold {found}.",
        "Their store was emptied, or a replaced try of a task has emitted messages. Clear `begin` or the whole run.",
    )


class PhaseIncomplete(Refused):
    """Some tasks of a commit phase have not completed their work."""

    template = (
        "Transaction {txid}.{attempt} is not committed: {problem}.",
        "Clear {task}: the phase then takes the turn again, and nothing is counted twice.",
    )


class StateMissing(Refused):
    """The DAG lacks a state to which an earlier grant of this transaction may have written."""

    for_good = True
    template = (
        "Commit of transaction {txid} refused: an earlier try may have written to state {states}, which the DAG no "
        "longer updates.",
        "Put it back into the DAG until transaction {txid} is committed, then remove it.",
    )


class StateRenamed(Refused):
    """The DAG lacks a state to which the ledger has committed, and has a state that the ledger does not know."""

    for_good = True
    template = (
        "Transaction {txid} refused: the DAG updates state {new}, which the ledger does not know, and no longer {old}, "
        "which has transaction {last}.",
        "If it is the same state under a new name: ",
        Command.of("state rename", "{topology}", "{old}", "{new}"),
        ". If another state replaces it: ",
        Command.of("state forget", "{topology}", "{old}"),
    )


class RenameRefused(Refused):
    """A state's new name contradicts the ledger or the state's fence."""

    template = (
        "State {old!r} of topology {topology!r} is not renamed: {problem}.",
        "Nothing was changed. {remedy}",
    )


class Outranked(Refused):
    """A later grant of the turn has replaced the grant of this committer."""

    template = (
        "Commit of transaction {txid} refused: token {token} is outranked, the ledger holds {found}.",
        "A newer try continues.",
    )


class RunHeld(Refused):
    """Another run that is queued or running has the same batch."""

    template = (
        "begin of run {run_id} refused: transaction {txid} belongs to run {holder}, which is {state}.",
        "Wait for that run, or end it and clear this one.",
    )


class SkippedTransaction(Refused):
    """A user has skipped this run's transaction."""

    template = (
        "Transaction {txid} of {topology} was skipped.",
        "To process its rows: ",
        Command.of("readmit", "{topology}", "{txid}", "--why", "TEXT"),
    )


class TopologyClaimed(Refused):
    """Two DAGs use the same topology name."""

    for_good = True
    template = (
        "Topology {topology!r} belongs to DAG {owner!r}, and DAG {dag_id!r} asks for it.",
        "If that DAG was renamed: ",
        Command.of("rename", "{topology}", "--dag-id", "{dag_id}", "--why", "TEXT"),
        "; if there are two, give one of them another name: Transaction(topology=...).",
    )


class SourceKindChanged(Refused):
    """The source kind was changed while transactions were open."""

    for_good = True
    template = (
        "Topology {topology!r} has open transactions ({first} to {last}) of a {found} source, and the DAG now has a "
        "{expected} one.",
        "Drain it first: go back to the old DAG, pause its coordinator and start no new run, until ",
        Command.of("list", "{topology}"),
        " shows none open. Skip transactions that cannot be committed.",
    )


class SourceShapeChanged(Refused):
    """The source has partitions and the previous source had none, or vice versa."""

    for_good = True
    template = (
        "Topology {topology!r} keeps the position of a source with {found}, and the DAG's source has {expected}.",
        "Give the topology of the new source another name: Transaction(topology=...).",
    )


class AlreadyFinal(Refused):
    """A request would change a final transaction."""

    template = "Transaction {txid} is {outcome}."


class SkipRefused(Refused):
    """A transaction cannot be skipped now."""

    template = "Skip of transaction {txid} refused: {problem}."


class ChangeRefused(Refused):
    """The rows of a transaction cannot be decided again."""

    template = (
        "Transaction {txid} of {topology} keeps its rows: {problem}.",
        "Nothing was changed. {remedy}: ",
        Command.of("replay", "{topology}", "{txid}"),
    )


class NotSkipped(Refused):
    """A transaction cannot be readmitted, since it was not skipped, or was already readmitted."""

    template = (
        "Transaction {txid} of {topology} cannot be re-admitted: it is {found}.",
        "Nothing was changed; ",
        Command.of("list", "{topology}"),
        " shows the skipped ones.",
    )


class RestatementSkipped(Refused):
    """A skipped restatement cannot be readmitted, since the transaction that it restated still counts."""

    template = (
        "Transaction {txid} of {topology} cannot be re-admitted: it restated transaction {replaces}, which counts.",
        "Nothing was changed. To restate that again: ",
        Command.of("restate", "{topology}", "{replaces}", "--why", "TEXT"),
    )


class RestateRefused(Refused):
    """A transaction cannot be restated."""

    template = (
        "Restatement of transaction {txid} of {topology} refused: {problem}.",
        "Nothing was changed. {remedy}",
    )


class PreviewOutdated(Refused):
    """The preview of an action is outdated, since another user acted or a transaction ended."""

    template = (
        "{what} of topology {topology!r} has changed since.",
        "Nothing was done; have another look, then repeat.",
    )


class Outbid(Refused):
    """A waiting run keeps its run slot, since another waiting run yields instead."""

    template = (
        "Run {run_id} does not yield: run {leader} does.",
        "It still waits; there is nothing to do.",
    )


class UnknownTransaction(Refused):
    """The ledger has no such topology or transaction."""

    template: ClassVar[Template] = (
        "No {what} in the ledger at {path}.",
        "Check the name with `",
        Command.of("list"),
        "`, and the root in [tx] root.",
    )


class UnknownTxid(UnknownTransaction):
    """The ledger of a topology has no such transaction."""

    template = (
        "No transaction {txid} of topology {topology!r} in the ledger at {path}.",
        "To see the transactions that there are: ",
        Command.of("list", "{topology}"),
    )


class MoveRefused(Refused):
    """A topology cannot be renamed or deleted now."""

    template = "Topology {topology!r} is not changed: {problem}."


class AcceptanceRefused(Refused):
    """Values cannot be accepted as changed, since they have not changed or cannot be compared."""

    template = (
        "Change of state {state!r} of topology {topology!r} not accepted: {problem}.",
        "Nothing was changed.",
    )


class LossRefused(Refused):
    """A loss cannot be accepted, since the source has lost no rows."""

    template = (
        "Topology {topology!r} has lost nothing: its source can give every row that comes next.",
        "Nothing was changed. To skip a transaction whose own rows are gone: ",
        Command.of("skip", "{topology}", "TXID", "--why", "TEXT"),
    )


class UnscheduledTask(Refused):
    """`airflow tasks test`, or `dags test` next to a scheduler, would leave the transaction of its task open."""

    template = (
        "DAG {dag_id!r} has transactions, and a single task cannot be tried out: its transaction would stay open.",
        "The ledger was not touched. Try out the whole DAG: airflow dags test {dag_id}",
    )


class TrialRefused(Refused):
    """A DAG cannot be tested with `airflow dags test`."""

    template = ("DAG {dag_id!r} cannot be tried out: {problem}.", "Nothing was touched. {remedy}")


class RepairRefused(Refused):
    """A repair contradicts the ledger's records or the states' values."""

    template = (
        "Repair --{what} of topology {topology!r} refused: {problem}.",
        "Nothing was changed. {remedy}",
    )


class RollingForward(Refused):
    """A step needs a topology's states, but a roll forward is writing to them."""

    repairable = True
    template = (
        "Topology {topology!r} waits: its states are being written again from the journal, since {when}.",
        "Nothing was changed. If that command has died, repeat it: ",
        Command.of("repair", "{topology}", "--roll-forward", "{states}"),
        ". To give it up, for each state: ",
        Command.of("repair", "{topology}", "--state-lost", "STATE"),
    )


class RollForwardRefused(Refused):
    """A roll forward cannot write a state from the journal."""

    template = "State {state!r} of {topology!r} cannot be written again: {problem}."


class RowsDiffer(Refused):
    """The rows that a task read differ from the rows of the source, or from the rows of an earlier attempt."""

    template = (
        "Rows of transaction {txid}.{attempt} differ: {problem}.",
        "Nothing was written. {remedy}",
    )


class RowsNotProven(Refused):
    """No task has proved that it read each row once. The option `[tx] require_rows` requires this proof."""

    template = (
        "Rows of transaction {txid}.{attempt} are not proven: {problem}; [tx] require_rows = proven refuses that.",
        "Nothing was written. Let the task read them as docs/rows.md says, and clear the run; or set require_rows = "
        "counted, and clear the commit task.",
    )


# Errors of states: fences, updates, and stores that cannot be reached.


class StateError(TxError):
    """A state refuses an update. Nothing was applied."""

    template: ClassVar[Template] = "State {state!r} refused: {problem}."


class StateDiffers(StateError):
    """A state's stored columns, aggregators or format differ from its definition in the DAG."""

    for_good = True


class StateUnavailable(StateError):
    """The store of a state cannot be reached. The transaction can be replayed."""

    repairable = True
    template = (
        "State {state!r} ({where}) cannot be reached: {reason}.",
        "No value of this transaction was committed. Clear the commit task when the state is back.",
    )


class StateLocked(StateUnavailable):
    """Another session has locked data that a state's update must change. Nothing was written."""

    template = (
        "State {state!r} ({where}) is locked by another session: {reason}.",
        "No value of this transaction was committed. The next try waits again.",
    )


class StateOutcomeUnknown(StateUnavailable):
    """The response to the commit of a state's update was lost. The transaction can be replayed."""

    template = (
        "State {state!r} ({where}) cannot be reached: {reason}.",
        "The update may have been written, since only the answer to it is missing; the next try finds out. Clear the "
        "commit task when the database is back.",
    )


class PortionsLost(StateUnavailable):
    """The store lost data that it had confirmed to a writer of this grant. Nothing was committed."""

    template = (
        "State {state!r} ({where}) has lost {lost} of {portions} confirmed portions of transaction {txid}: the "
        "database failed over to a standby that was behind.",
        "No value of this transaction was committed. The next try writes all portions again. If no try is left, clear "
        "the commit task.",
    )


class FenceOutranked(StateError):
    """The fence refuses a writer, since the fence has the token of a later grant."""

    template = (
        "Write to state {state!r} refused: token {token} is outranked, the fence holds {found}.",
        "A newer try continues.",
    )


class FenceForeign(StateError):
    """The fence belongs to another topology, or to another incarnation of this ledger."""

    for_good = True
    template = (
        "State {state!r} refused: its fence belongs to ledger {found}, this topology is ledger {expected}.",
        "First check that its connection names the right ZooKeeper. One state serves one topology: use another "
        "table. If this ledger was lost and created again: ",
        Command.of("repair", "{topology}", "--ledger-lost"),
        ". If the DAG was renamed: ",
        Command.of("rename", "OLD", "{topology}", "--why", "TEXT"),
    )


class StateBehind(StateError):
    """The state lacks transactions that the ledger committed, since it was emptied or restored from an older backup."""

    for_good = True
    template = (
        "State {state!r} refused: the ledger committed transaction {expected} to it, its fence says {found}.",
        "The store was restored from an older backup, or emptied. {remedy}",
    )

    def __init__(
        self, remedy: Remedy | str = "Restore a newer backup of it.", **fields: Any
    ) -> None:
        super().__init__(remedy=remedy, **fields)


class LedgerBehind(StateError):
    """The ledger lacks transactions that the state has, since ZooKeeper was restored from an older backup."""

    for_good = True
    template = (
        "State {state!r} refused: its fence says transaction {found}, the ledger is at {txid} and committed {expected} "
        "to it.",
        "First check that its connection names the right ZooKeeper. If not, correct it and clear the task. If "
        "ZooKeeper was restored from an older backup: ",
        Command.of("repair", "{topology}", "--ledger-lost"),
    )


class TxidBehind(StateError):
    """A later transaction has already updated a value (Trident: current batch is behind state's batch)."""

    for_good = True
    template = (
        "Update of transaction {txid} refused: the stored value is of transaction {stored}.",
        "Commit transactions in order.",
    )


class ChunkConflict(StateError):
    """Two writers of one transaction updated the same key."""

    template = (
        "State {state!r} refused: key {key} came from chunk {found} and from chunk {chunk} in transaction {txid}.",
        "Aggregate by key before writing.",
    )


class OutputChanged(StateError):
    """A replay has different output for a transactional state that the transaction has already updated."""

    template = (
        "State {state!r} refused: transaction {txid} has output {digest}, an earlier attempt had {found} and has "
        "written some of it, which cannot be undone.",
        "Replay it with the code and data of that attempt. Or restore the state from a backup that is older than the "
        'transaction, and clear the commit task. To accept any output on a replay, use kind="opaque".',
    )


class NotTakenBack(StateError):
    """A state, or one of its aggregators, cannot remove a restated transaction's earlier contribution."""

    for_good = of_values = True


class NotComparable(TxError):
    """Two states that cannot be compared."""

    template = "{first} and {second} cannot be compared: {problem}."


class NotComparableNow(NotComparable):
    """Two states cannot be compared now: their source positions differ, or a transaction is writing to them."""

    template = "{first} and {second} cannot be compared now: {problem}."


# Errors of the ledger's store. Each error shows whether a write happened, or may have happened.


class StoreError(TxError):
    """The ledger's store did not execute a request."""


class RequirementFailed(StoreError):
    """A multi did NOT happen, since a record of the step has changed. The ledger repeats the step."""

    template = (
        "Requirement failed at {path}: expected {expected}, found {found}.",
        "Nothing was written.",
    )


class OutcomeUnknown(StoreError):
    """A multi MAY have happened, since its response was lost. Read the records again before you continue."""

    template = (
        "ZooKeeper did not answer a write of {paths}: the write may have happened ({reason}).",
        "The next step reads the records again to find out.",
    )


class StoreUnavailable(StoreError):
    """The ledger's store cannot be reached. Nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) cannot be reached: {reason}.",
        "Nothing was changed; start the server or correct the hosts of the connection, then clear the task.",
    )


class NoConnection(StoreUnavailable):
    """No server of the ledger's store accepts a connection with these settings. Nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) cannot be reached: {reason}.",
        "Nothing was changed; {remedy}, then clear the task.",
    )


class StoreRefused(StoreError):
    """The login has no permission to read or write a record in the ledger's store. Nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) refused access to {path}: {reason}.",
        "Nothing was changed; use the login and password that made the record, or correct its ACL.",
    )


class LoginRefused(StoreRefused):
    """The ledger's store refuses this login for every record. Nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) refused the connection: {reason}.",
        "Nothing was changed; correct the login, the password and the extra auth_scheme of the connection, then clear "
        "the task.",
    )


class StoreDeclined(StoreError):
    """The ledger's store refused a request for a reason other than a missing permission. Nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) did not carry out a request about {path}: {reason}.",
        "Nothing was changed; {remedy}, then clear the task.",
    )


class UnreadableRecord(StoreError):
    """A record is damaged, or has a newer format. A damaged record never counts as empty."""

    template = (
        "Record {path} cannot be read: {reason}.",
        "Nothing was changed; restore the node, or upgrade airflow-provider-tx if a newer version wrote it.",
    )


class TooMuchMetadata(StoreError):
    """A record is larger than ZooKeeper's limit for a znode."""

    template = (
        "{path} would hold {size} bytes, and ZooKeeper takes at most {limit}.",
        "Nothing was written; let the source put fewer rows into a batch, or describe them with less metadata.",
    )


class TooMuchContention(StoreError):
    """Other steps changed the records of this step too many times."""

    template = (
        "Step {step} of {subject} was overtaken {times} times in a row.",
        "Nothing was written; clear the task.",
    )


# Errors of message trees: references, messages, and the ackers that keep the trees.


class MessageError(TxError):
    """A message cannot be accepted, emitted, acked or failed."""


class NotAReference(MessageError):
    """A text is not a message reference."""

    template = (
        "{text!r} is no reference to a message: {problem}.",
        "Pass the text that emit() gave, whole and unchanged.",
    )


class ForeignMessage(MessageError):
    """A message belongs to a different topology than the collector."""

    template = (
        "Message {message} of topology {found!r} refused: this collector works for topology {expected!r}.",
        "Let it read another queue, or leave out Collector(topology=...).",
    )


class StaleMessage(MessageError):
    """A message belongs to an attempt that was replayed."""

    template = (
        "Message of transaction {txid}.{attempt} of topology {topology!r} refused: attempt {newest} is the newest.",
        "Drop the message: the newest attempt emits its own.",
    )


class UnknownMessage(MessageError):
    """No acker has the tree of a message."""

    template = (
        "Message of transaction {txid}.{attempt} of topology {topology!r} refused: {problem}.",
        "Drop the message; it is counted in no tree.",
    )


class MessageDone(MessageError):
    """A message is used after it was acked or failed."""

    template = (
        "{step} of message {message} refused: it is {done} already.",
        "Emit what is anchored to it before its ack, and ack it once.",
    )


class MixedAnchors(MessageError):
    """The anchors of a message belong to different attempts."""

    template = (
        "A message cannot be anchored to messages of {first} and of {second}: it belongs to one attempt of one "
        "transaction.",
        "Emit one message for each.",
    )


class EmittedBefore(MessageError):
    """A task emits messages that an earlier try of the task has already emitted in the same attempt."""

    template = (
        "Task {task} has emitted messages of transaction {txid}.{attempt} of topology {topology!r} in an earlier try, "
        "and workers may have taken them.",
        "Clear `begin` or the whole run: the next attempt emits the messages again.",
    )


class AckersUnavailable(MessageError):
    """The store of the ackers does not respond."""

    template = (
        "The ackers at {where} cannot be reached: {reason}.",
        "Start their store, or correct acker_store=; until they answer no transaction with messages is committed.",
    )


class AckersRefused(MessageError):
    """The store of the ackers refuses a request."""

    template = "The ackers at {where} refused: {problem}."


class AckersBehind(MessageError):
    """The store of the ackers has lost data that it had accepted."""

    template = (
        "The store of the ackers was restored from an older backup, or emptied: for transaction {txid}.{attempt} of "
        "topology {topology!r} it holds part {found} of a worker's messages, but had accepted part {expected}.",
        "Clear `begin` or the whole run.",
    )
