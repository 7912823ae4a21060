"""Every refusal this package can give: its fields, its wording and its remedy, in one place.

An error keeps its keyword fields, pickled or not. The first part of its `template` says what is refused, expected and
found; the other parts say what to do.
"""

from __future__ import annotations

from typing import Any, ClassVar

from airflow_tx.base.remedy import Command, Remedy, Template, TxError as TxError

# Errors of settings, blocks, sources and staged output.


class ConfigError(TxError):
    """A setting that cannot be used."""

    template = "{option} = {value!r} cannot be used."
    for_good = True


class TransactionDefinitionError(TxError):
    """A `Transaction` block that cannot work; raised while the DAG file is parsed."""

    template = "Transaction {topology!r} refused: {problem}."


class FailedBatch(TxError):
    """Raise it in a task to fail this batch on purpose: only this transaction is replayed (Storm's FailedException).

    :param message: why; it is kept in the ledger.
    """

    def __init__(self, message: str = "the batch was failed on purpose", **fields: Any) -> None:
        super().__init__(message=message, **fields)


class SourceError(TxError):
    """A source that cannot give the rows of a batch."""

    template: ClassVar[Template] = "Source {source} refused: {problem}."


class RowsRefused(SourceError):
    """Rows of a batch with a value that no reader takes: a replay would read the same."""

    for_good = of_values = True


class SourceNotSettled(SourceError):
    """Rows of an upstream table that are not there yet, or no more, while another transaction is about to end.

    It passes without a person. A task that meets it starts again later, and no try is counted.
    """

    template = (
        "Source {source} is not settled: {problem}.",
        "The task starts again by itself, and no try is counted.",
    )


class OtherSource(SourceError):
    """A position, metadata or key in the ledger that is none of this source."""

    template = (
        "Source {source} refused: {problem}.",
        "The topology had another source before: give it another name, Transaction(topology=...).",
    )


class AheadOfOrder(TxError):
    """An interval whose turn to get a txid has not come: its run waits.

    :param after: the date to which the order must have come; `missing`: the date of the next interval.
    """

    template = "The interval {interval} waits: the one that begins at {missing} comes before it, and has no txid yet."


class PartitionUnavailable(SourceError):
    """A partition of a source that cannot be reached now. An opaque source is used without it, others stop."""

    template = "Partition {partition!r} of source {source} cannot be reached: {reason}."


class StagingError(TxError):
    """Staged output that is missing, incomplete or of another attempt."""

    template: ClassVar[Template] = (
        "Output {output!r} of task {task} in transaction {txid}.{attempt} refused: {problem}."
    )


class StagingUnavailable(StagingError):
    """A file that could not be staged; no reader sees a part of it."""

    template = (
        "{uri} cannot be written: {reason}.",
        "No row of it counts. Make room or give access, then clear the task.",
    )


class StagingNotRemoved(StagingError):
    """Staged output of a topology that is reset or deleted, and is still there."""

    template = (
        "{uri} cannot be removed.",
        "The next topology of this name would take it for its own; give access, then repeat the command.",
    )


class StagingUnreachable(StagingError):
    """A store of files that does not answer now."""

    template = (
        "{uri} cannot be reached: {reason}.",
        "Nothing was changed; the task can be tried again once it answers.",
    )


class JournalError(TxError):
    """An entry of the journal that cannot be used."""

    template: ClassVar[Template] = "Entry {entry} of the journal cannot be used: {problem}."
    for_good = of_values = True


class EntryMissing(JournalError):
    """A file of an entry that is not there."""

    template = (
        "Entry {entry} of the journal cannot be used: {uri} is not there.",
        "Restore that file from a backup of the staging area; without it the transaction cannot be restated.",
    )


class EntryDiffers(JournalError):
    """A file of an entry whose content is not what was written."""

    template = (
        "Entry {entry} of the journal cannot be used: {uri} has the sha256 {found} instead of {expected}.",
        "Restore that file from a backup of the staging area; without it the transaction cannot be restated.",
    )


# Refusals of the ledger, by the steps of the protocol.


class Refused(TxError):
    """The ledger says no; a retry of the same request cannot succeed."""


class StaleAttempt(Refused):
    """A task of an attempt that is not the newest one."""

    template = (
        "{step} of transaction {txid} attempt {attempt} refused: attempt {newest} is the newest.",
        "Clear `begin`, or the whole run, to replay it.",
    )


class StaleTry(Refused):
    """A try of a task that a newer try of the same task has replaced."""

    template = (
        "{step} of task {task} in transaction {txid}.{attempt} refused: try {found} has replaced try {task_try}.",
        "The newer try continues; there is nothing to do.",
    )


class StaleBegin(Refused):
    """A `begin` whose run was cleared while it lived on."""

    template = (
        "begin of run {run_id} refused: a later begin ({found}) of transaction {txid} exists, this try is {task_try}.",
        "The later one continues; there is nothing to do.",
    )


class StaleBatch(Refused):
    """The batch was computed from a position that is not where the transaction before it ended."""

    template = (
        "Commit of transaction {txid}.{attempt} refused: its batch starts from position {base}, but transaction "
        "{previous} ended at {found}.",
        "Clear the run: it takes the rows from there.",
    )


class RowsChanged(Refused):
    """The rows a task worked on are not those the ledger has for this attempt."""

    template = (
        "Commit of transaction {txid}.{attempt} refused: rows processed {digest}, rows recorded {found}.",
        "Clear the run: it is processed again.",
    )


class FailedTransaction(Refused):
    """The processing of the newest attempt failed."""

    template = (
        "Transaction {txid}.{attempt} has failed: {reason}.",
        "Clear its failed task or its run to replay it.",
    )


class MessagesFailed(FailedTransaction):
    """A message of the newest attempt was failed, or is not acked in time."""

    template = (
        "Transaction {txid}.{attempt} has failed: {reason}.",
        "Clear `begin` or the whole run: its next attempt emits its messages again.",
    )


class IncompleteBatch(Refused):
    """The committer ran although not every processing task has acked."""

    template = (
        "Commit of transaction {txid}.{attempt} refused: no ack from {tasks}.",
        "Clear {tasks}: a task marked success by hand leaves no output.",
    )


class InputSkipped(Refused):
    """A task right before the committer was skipped, so its transaction is not committed."""

    template = (
        "Transaction {txid}.{attempt} is not committed: {tasks} was skipped, and Airflow skips what follows.",
        "To commit without it, put a task with trigger_rule='none_failed_min_one_success' before the committer.",
    )


class SkippedAfterCommit(Refused):
    """Tasks after the committer that Airflow would skip in a committed run: they also follow tasks of the block."""

    template = (
        "Transaction {txid} of {topology} is already committed, and its tasks are skipped.",
        "Airflow would also skip {tasks}, which follows the committer and {needs}. Give it "
        "trigger_rule='none_failed_min_one_success' and clear the run again.",
    )


class RowsNotKept(Refused):
    """A task after the commit asks for the rows of a transaction whose receipt has only their digest."""

    template = (
        "The ledger no longer has the rows of committed transaction {txid} of {topology}: they were too long for the "
        "receipt, or its history has ended.",
        "Do not read the batch in a task after the committer.",
    )


class MessagesLost(IncompleteBatch):
    """The ackers hold other trees of messages than the tasks of the attempt have acked."""

    template = (
        "Commit of transaction {txid}.{attempt} refused: its tasks have acked {expected}, the ackers hold {found}.",
        "Their store was emptied, or a replaced try of a task has emitted messages. Clear `begin` or the whole run.",
    )


class PhaseIncomplete(Refused):
    """A commit phase of which not every task has done its part."""

    template = (
        "Transaction {txid}.{attempt} is not committed: {problem}.",
        "Clear {task}: the phase then takes the turn again, and nothing is counted twice.",
    )


class StateMissing(Refused):
    """A state that an earlier grant of this transaction may have written is no longer in the DAG."""

    for_good = True
    template = (
        "Commit of transaction {txid} refused: an earlier try may have written to state {states}, which the DAG no "
        "longer updates.",
        "Bring it back until transaction {txid} is committed, then take it out.",
    )


class StateRenamed(Refused):
    """A state that the ledger has committed to is no longer in the DAG, and another one is that it does not know."""

    for_good = True
    template = (
        "Transaction {txid} refused: the DAG updates state {new}, which the ledger does not know, and no longer {old}, "
        "which has transaction {last}.",
        "The same state under another name: ",
        Command.of("state rename", "{topology}", "{old}", "{new}"),
        ". Another one, which takes its place: ",
        Command.of("state forget", "{topology}", "{old}"),
    )


class RenameRefused(Refused):
    """A state whose new name does not fit what the ledger and the state say."""

    template = (
        "State {old!r} of topology {topology!r} is not renamed: {problem}.",
        "Nothing was changed. {remedy}",
    )


class Outranked(Refused):
    """A committer whose grant was taken over."""

    template = (
        "Commit of transaction {txid} refused: token {token} is outranked, the ledger holds {found}.",
        "A newer try continues.",
    )


class RunHeld(Refused):
    """Another live run works on the same batch."""

    template = (
        "begin of run {run_id} refused: transaction {txid} belongs to run {holder}, which is {state}.",
        "Wait for that run, or end it and clear this one.",
    )


class SkippedTransaction(Refused):
    """The run's transaction was skipped by a person."""

    template = (
        "Transaction {txid} of {topology} was skipped.",
        "To process its rows: ",
        Command.of("readmit", "{topology}", "{txid}", "--why", "TEXT"),
    )


class TopologyClaimed(Refused):
    """Two DAGs use one topology name."""

    for_good = True
    template = (
        "Topology {topology!r} belongs to DAG {owner!r}, and DAG {dag_id!r} asks for it.",
        "If that DAG was renamed: ",
        Command.of("rename", "{topology}", "--dag-id", "{dag_id}", "--why", "TEXT"),
        "; if there are two, give one of them another name: Transaction(topology=...).",
    )


class SourceKindChanged(Refused):
    """The kind of the source changed while transactions are open."""

    for_good = True
    template = (
        "Topology {topology!r} has open transactions ({first} to {last}) of a {found} source, and the DAG now has a "
        "{expected} one.",
        "Drain it first: go back to the old DAG, pause its coordinator and start no new run, until ",
        Command.of("list", "{topology}"),
        " shows none open. Skip transactions that cannot be committed.",
    )


class SourceShapeChanged(Refused):
    """A source with partitions took the place of one without, or the other way round."""

    for_good = True
    template = (
        "Topology {topology!r} keeps the place of a source with {found}, and the DAG's source has {expected}.",
        "Give the new one another name: Transaction(topology=...).",
    )


class AlreadyFinal(Refused):
    """A request that changes a transaction which is final."""

    template = "Transaction {txid} is {outcome}."


class SkipRefused(Refused):
    """A transaction that cannot be skipped now."""

    template = "Skip of transaction {txid} refused: {problem}."


class ChangeRefused(Refused):
    """A transaction whose rows cannot be decided again."""

    template = (
        "Transaction {txid} of {topology} keeps its rows: {problem}.",
        "Nothing was changed. {remedy}: ",
        Command.of("replay", "{topology}", "{txid}"),
    )


class NotSkipped(Refused):
    """A transaction that cannot be re-admitted, since it was not skipped, or was re-admitted already."""

    template = (
        "Transaction {txid} of {topology} cannot be re-admitted: it is {found}.",
        "Nothing was changed; ",
        Command.of("list", "{topology}"),
        " shows the skipped ones.",
    )


class RestatementSkipped(Refused):
    """A skipped restatement that cannot be re-admitted: the transaction that it was to replace still counts."""

    template = (
        "Transaction {txid} of {topology} cannot be re-admitted: it restated transaction {replaces}, which counts.",
        "Nothing was changed. To restate that again: ",
        Command.of("restate", "{topology}", "{replaces}", "--why", "TEXT"),
    )


class RestateRefused(Refused):
    """A transaction that cannot be restated."""

    template = (
        "Restatement of transaction {txid} of {topology} refused: {problem}.",
        "Nothing was changed. {remedy}",
    )


class PreviewOutdated(Refused):
    """An action on what has changed since it was previewed: another person was first, or a transaction has moved on."""

    template = (
        "{what} of topology {topology!r} has changed since.",
        "Nothing was done; have another look, then repeat.",
    )


class Outbid(Refused):
    """A waiter that wants to give up its run slot, while another one is to."""

    template = (
        "Run {run_id} does not yield: run {leader} does.",
        "It still waits; there is nothing to do.",
    )


class UnknownTransaction(Refused):
    """No such topology or transaction in this ledger."""

    template: ClassVar[Template] = (
        "No {what} in the ledger at {path}.",
        "Check the name with `",
        Command.of("list"),
        "`, and the root in [tx] root.",
    )


class UnknownTxid(UnknownTransaction):
    """No such transaction in the ledger of a topology."""

    template = (
        "No transaction {txid} of topology {topology!r} in the ledger at {path}.",
        "To see the transactions that there are: ",
        Command.of("list", "{topology}"),
    )


class MoveRefused(Refused):
    """A topology that cannot be renamed or deleted now."""

    template = "Topology {topology!r} is not changed: {problem}."


class AcceptanceRefused(Refused):
    """Acceptance of changed values that cannot be compared, or were not changed."""

    template = (
        "Change of state {state!r} of topology {topology!r} not accepted: {problem}.",
        "Nothing was changed.",
    )


class LossRefused(Refused):
    """Acceptance of a loss that there is none of."""

    template = (
        "Topology {topology!r} has lost nothing: its source can give every row that comes next.",
        "Nothing was changed. A transaction whose own rows are gone: ",
        Command.of("skip", "{topology}", "TXID", "--why", "TEXT"),
    )


class UnscheduledTask(Refused):
    """A task of `airflow tasks test`, or a scheduler beside `airflow dags test`: its transaction would stay open."""

    template = (
        "DAG {dag_id!r} has transactions, and a single task cannot be tried out: its transaction would stay open.",
        "The ledger was not touched. Try out the whole DAG: airflow dags test {dag_id}",
    )


class TrialRefused(Refused):
    """A DAG that cannot be tried out."""

    template = ("DAG {dag_id!r} cannot be tried out: {problem}.", "Nothing was touched. {remedy}")


class RepairRefused(Refused):
    """A repair that does not fit what the ledger and the states say."""

    template = (
        "Repair --{what} of topology {topology!r} refused: {problem}.",
        "Nothing was changed. {remedy}",
    )


class RollingForward(Refused):
    """A step that needs the states of a topology, while they are being written again from the journal."""

    repairable = True
    template = (
        "Topology {topology!r} waits: its states are being written again from the journal, since {when}.",
        "Nothing was changed. If that command has died, repeat it: ",
        Command.of("repair", "{topology}", "--roll-forward", "{states}"),
        ". To give it up, for each state: ",
        Command.of("repair", "{topology}", "--state-lost", "STATE"),
    )


class RollForwardRefused(Refused):
    """A state that cannot be written again from the journal."""

    template = "State {state!r} of {topology!r} cannot be written again: {problem}."


class RowsDiffer(Refused):
    """Rows that were read, and others that were emitted, counted by the source, or read by an earlier attempt."""

    template = (
        "Rows of transaction {txid}.{attempt} differ: {problem}.",
        "Nothing was written. {remedy}",
    )


class RowsNotProven(Refused):
    """No task has counted exactly that each row was consumed once, and `[tx] require_rows` requires it."""

    template = (
        "Rows of transaction {txid}.{attempt} are not proven: {problem}; [tx] require_rows = proven refuses that.",
        "Nothing was written. Let the task read them as docs/rows.md says, and clear the run; or set require_rows = "
        "counted, and clear the commit task.",
    )


# Errors of states: fences, updates, and stores that cannot be reached.


class StateError(TxError):
    """A state that cannot take this update; no part of it was applied."""

    template: ClassVar[Template] = "State {state!r} refused: {problem}."


class StateDiffers(StateError):
    """A place that holds another state than the DAG describes: other columns, other aggregators, another format."""

    for_good = True


class StateUnavailable(StateError):
    """The store of a state cannot be reached; the transaction stays replayable."""

    repairable = True
    template = (
        "State {state!r} ({where}) cannot be reached: {reason}.",
        "No value of this transaction was committed. Clear the commit task when the state is back.",
    )


class StateLocked(StateUnavailable):
    """Another session holds what a state's update needs, and did not let go in time; nothing was written."""

    template = (
        "State {state!r} ({where}) is locked by another session: {reason}.",
        "No value of this transaction was committed. The next try waits again.",
    )


class StateOutcomeUnknown(StateUnavailable):
    """The answer to the commit of a state's update was lost; the transaction stays replayable."""

    template = (
        "State {state!r} ({where}) cannot be reached: {reason}.",
        "The update may have been written, since only the answer to it is missing; the next try finds out. Clear the "
        "commit task when the database is back.",
    )


class PortionsLost(StateUnavailable):
    """The store no longer has every portion that it confirmed to the writers of this grant; nothing was committed."""

    template = (
        "State {state!r} ({where}) has lost {lost} of {portions} confirmed portions of transaction {txid}: the "
        "database failed over to a standby that was behind.",
        "No value of this transaction was committed. The next try writes all portions again. If no try is left, clear "
        "the commit task.",
    )


class FenceOutranked(StateError):
    """The fence refuses a writer that a later grant has outranked."""

    template = (
        "Write to state {state!r} refused: token {token} is outranked, the fence holds {found}.",
        "A newer try continues.",
    )


class FenceForeign(StateError):
    """The fence belongs to another topology or to another life of this ledger."""

    for_good = True
    template = (
        "State {state!r} refused: its fence belongs to ledger {found}, this topology is ledger {expected}.",
        "Look first whether its connection names the right ZooKeeper. One state serves one topology: use another "
        "table. If this ledger was lost and created again: ",
        Command.of("repair", "{topology}", "--ledger-lost"),
        ". If the DAG was renamed: ",
        Command.of("rename", "OLD", "{topology}", "--why", "TEXT"),
    )


class StateBehind(StateError):
    """The store holds less than the ledger committed: it was restored from an older backup, or emptied."""

    for_good = True
    template = (
        "State {state!r} refused: the ledger committed transaction {expected} to it, its fence says {found}.",
        "The store went back. {remedy}",
    )

    def __init__(
        self, remedy: Remedy | str = "Restore a newer backup of it.", **fields: Any
    ) -> None:
        super().__init__(remedy=remedy, **fields)


class LedgerBehind(StateError):
    """The ledger holds less than the store: ZooKeeper was restored from an older snapshot."""

    for_good = True
    template = (
        "State {state!r} refused: its fence says transaction {found}, the ledger is at {txid} and committed {expected} "
        "to it.",
        "Look first whether its connection names the right ZooKeeper: of another or an older one, correct it and clear "
        "the task. If the ledger went back: ",
        Command.of("repair", "{topology}", "--ledger-lost"),
    )


class TxidBehind(StateError):
    """A value that a later transaction has already updated (Trident: current batch is behind state's batch)."""

    for_good = True
    template = (
        "Update of transaction {txid} refused: the stored value is of transaction {stored}.",
        "Commit transactions in order.",
    )


class ChunkConflict(StateError):
    """Two writers of one transaction touched the same key."""

    template = (
        "State {state!r} refused: key {key} came from chunk {found} and from chunk {chunk} in transaction {txid}.",
        "Aggregate by key before writing.",
    )


class OutputChanged(StateError):
    """A transactional state that holds something of a transaction got another output for it."""

    template = (
        "State {state!r} refused: transaction {txid} has output {digest}, an earlier attempt had {found} and has "
        "written some of it, which cannot be undone.",
        "Replay it with the code and data of then; or restore the state from a backup of before the transaction and "
        'clear the commit task. To take any output on a replay, use kind="opaque".',
    )


class NotTakenBack(StateError):
    """A restatement whose earlier contribution the state, or one of its aggregators, cannot take back."""

    for_good = of_values = True


class NotComparable(TxError):
    """Two states that cannot be compared."""

    template = "{first} and {second} cannot be compared: {problem}."


class NotComparableNow(NotComparable):
    """Two states that are at different places of their source, or that are being written; they will not be for ever."""

    template = "{first} and {second} cannot be compared now: {problem}."


# Errors of the store of the ledger: what a write did, did not, or may have done.


class StoreError(TxError):
    """A request that the ledger's store did not carry out."""


class RequirementFailed(StoreError):
    """A multi did NOT happen: something it had read has changed. The ledger reads and plans again."""

    template = (
        "Requirement failed at {path}: expected {expected}, found {found}.",
        "Nothing was written.",
    )


class OutcomeUnknown(StoreError):
    """A multi MAY have happened: its answer was lost. Read back before doing anything else."""

    template = (
        "No answer to a write of {paths}: it may have happened ({reason}).",
        "It is resolved by reading back.",
    )


class StoreUnavailable(StoreError):
    """The ledger's store cannot be reached; nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) cannot be reached: {reason}.",
        "Nothing was changed; start the server or correct the hosts of the connection, then clear the task.",
    )


class NoConnection(StoreUnavailable):
    """No server of the ledger's store accepts a connection with these settings; nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) cannot be reached: {reason}.",
        "Nothing was changed; {remedy}, then clear the task.",
    )


class StoreRefused(StoreError):
    """The ledger's store does not let this connection read or write a record; nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) refused access to {path}: {reason}.",
        "Nothing was changed; use the login and password that made the record, or correct its ACL.",
    )


class LoginRefused(StoreRefused):
    """The ledger's store lets this login in nowhere; nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) refused the connection: {reason}.",
        "Nothing was changed; correct the login, the password and the extra auth_scheme of the connection, then clear "
        "the task.",
    )


class StoreDeclined(StoreError):
    """The ledger's store did not carry out a request, and not for lack of rights; nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) did not carry out a request about {path}: {reason}.",
        "Nothing was changed; {remedy}, then clear the task.",
    )


class UnreadableRecord(StoreError):
    """A record that is damaged or of a newer format; it is never taken for empty."""

    template = (
        "Record {path} cannot be read: {reason}.",
        "Nothing was changed; restore the node, or upgrade airflow-provider-tx if a newer version wrote it.",
    )


class TooMuchMetadata(StoreError):
    """A record larger than a znode may be."""

    template = (
        "{path} would hold {size} bytes, and ZooKeeper takes at most {limit}.",
        "Nothing was written; let the source put fewer rows into a batch, or describe them with less metadata.",
    )


class TooMuchContention(StoreError):
    """A step lost the race for its records too many times in a row."""

    template = (
        "Step {step} of {subject} was overtaken {times} times in a row.",
        "Nothing was written; clear the task.",
    )


# Errors of message trees: references, messages, and the ackers that keep the trees.


class MessageError(TxError):
    """A message that is not taken, emitted, acked or failed."""


class NotAReference(MessageError):
    """A text that names no message."""

    template = (
        "{text!r} is no reference to a message: {problem}.",
        "Pass the text that emit() gave, whole and unchanged.",
    )


class ForeignMessage(MessageError):
    """A message of another topology than the collector works for."""

    template = (
        "Message {message} of topology {found!r} refused: this collector works for topology {expected!r}.",
        "Let it read another queue, or leave out Collector(topology=...).",
    )


class StaleMessage(MessageError):
    """A message of an attempt that was replayed."""

    template = (
        "Message of transaction {txid}.{attempt} of topology {topology!r} refused: attempt {newest} is the newest.",
        "Drop the message: the newest attempt emits its own.",
    )


class UnknownMessage(MessageError):
    """A message whose tree no acker has."""

    template = (
        "Message of transaction {txid}.{attempt} of topology {topology!r} refused: {problem}.",
        "Drop the message; it is counted in no tree.",
    )


class MessageDone(MessageError):
    """A message that was acked or failed, and is used again."""

    template = (
        "{step} of message {message} refused: it is {done} already.",
        "Emit what is anchored to it before its ack, and ack it once.",
    )


class MixedAnchors(MessageError):
    """Anchors of different attempts."""

    template = (
        "A message cannot be anchored to messages of {first} and of {second}: it belongs to one attempt of one "
        "transaction.",
        "Emit one message for each.",
    )


class EmittedBefore(MessageError):
    """A task that emits messages which an earlier try of it has emitted in the same attempt."""

    template = (
        "Task {task} has emitted messages of transaction {txid}.{attempt} of topology {topology!r} in an earlier try, "
        "and workers may have taken them.",
        "Clear `begin` or the whole run: its next attempt emits them again.",
    )


class AckersUnavailable(MessageError):
    """The store of the ackers does not answer."""

    template = (
        "The ackers at {where} cannot be reached: {reason}.",
        "Start their store, or correct acker_store=; until they answer no transaction with messages is committed.",
    )


class AckersRefused(MessageError):
    """The store of the ackers does not take what it is sent."""

    template = "The ackers at {where} refused: {problem}."


class AckersBehind(MessageError):
    """The store of the ackers has lost something that it had taken."""

    template = (
        "The ackers of transaction {txid}.{attempt} of topology {topology!r} hold part {found} of a worker's messages, "
        "and part {expected} was taken: their store went back, or was emptied.",
        "Clear `begin` or the whole run.",
    )
