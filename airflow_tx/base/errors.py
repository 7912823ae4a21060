"""Every refusal this package can give: its fields, its wording and its remedy, in one place.

An error keeps its keyword fields, pickled or not. The first line of its `template` says what is refused, expected and
found; the second line says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from airflow_tx.base.remedy import Remedy

# --- root ---------------------------------------------------------------------------------------------------------
# The root of all errors, and errors of settings, blocks, sources and staged output.


class TxError(Exception):
    """Root of every error of this package.

    :param fields: the values named in `template`, kept as attributes. Its second line says what to do.
    :cvar for_good: whether only a person can help: a replay of the transaction would be refused alike.
    :cvar of_values: whether rows or values are refused, which no repair mends: a restatement ends by it.
    """

    template: ClassVar[str] = "{message}"
    for_good: ClassVar[bool] = False
    of_values: ClassVar[bool] = False

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        for name, value in fields.items():
            setattr(self, name, value)
        text = str(Remedy.of(" ".join(self.template.splitlines()), **fields))
        super().__init__(text.encode("utf-8", "backslashreplace").decode())

    @property
    def problem_text(self) -> str:
        """Say what is wrong: the text without its advice."""
        return str(Remedy.of(self.template.splitlines()[0], **self.fields))

    @property
    def advice(self) -> Remedy | None:
        """Say what to do; None: its template has one line."""
        return Remedy.of(" ".join(self.template.splitlines()[1:]), **self.fields) or None

    @property
    def repairable(self) -> bool:
        """Whether a person, a repair, or a store that comes back ends the refusal: a restatement waits for that."""
        return self.for_good and not self.of_values

    @property
    def stored_fields(self) -> dict[str, Any]:
        """Write its fields for another process, which makes the error again with `from_stored`."""
        return {
            name: value.as_stored() if isinstance(value, Remedy) else value
            for name, value in self.fields.items()
        }

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> TxError:
        """Make it of the fields that `stored_fields` wrote: its remedy has its commands again."""
        remedy = stored.get("remedy")
        read = {"remedy": Remedy.from_stored(remedy)} if isinstance(remedy, list) else {}
        return cls(**{**stored, **read})

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return partial(type(self), **self.fields), ()


def shortened_reason(text: str, most: int) -> str:
    """Shorten a text to so many characters between two words: an error says first what failed, and last what to do."""
    if len(text) <= most:
        return text
    gap = " ... "
    begin = text[: (most - len(gap)) // 3]
    end = text[len(begin) + len(gap) - most :]
    return f"{begin.rpartition(' ')[0] or begin}{gap}{end.partition(' ')[2] or end}"


# What colours a text in a terminal, and every other control character but the end of a line.
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def without_controls(text: str) -> str:
    """Take out of a text what a terminal would obey, and write half a surrogate pair as its escape: UTF-8 has none."""
    plain = _CONTROLS.sub(" ", _COLOURS.sub("", text))
    return plain.encode("utf-8", "backslashreplace").decode()


class ConfigError(TxError):
    """A setting that cannot be used."""

    template = "{option} = {value!r} cannot be used.\n{remedy}"
    for_good = True


class TransactionDefinitionError(TxError):
    """A `Transaction` block that cannot work; raised while the DAG file is parsed."""

    template = "Transaction {topology!r} refused: {problem}.\n{remedy}"


class FailedBatch(TxError):
    """Raise it in a task to fail this batch on purpose: only this transaction is replayed (Storm's FailedException).

    :param message: why; it is kept in the ledger.
    """

    def __init__(self, message: str = "the batch was failed on purpose", **fields: Any) -> None:
        super().__init__(message=message, **fields)


class SourceError(TxError):
    """A source that cannot give the rows of a batch."""

    template = "Source {source} refused: {problem}.\n{remedy}"


class RowsRefused(SourceError):
    """Rows of a batch with a value that no reader takes: a replay would read the same."""

    for_good = of_values = True


class OtherSource(SourceError):
    """A position, metadata or key in the ledger that is none of this source."""

    template = (
        "Source {source} refused: {problem}.\nThe topology had another source before: give it another name, "
        "Transaction(topology=...)."
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

    template = "Output {output!r} of task {task} in transaction {txid}.{attempt} refused: {problem}.\n{remedy}"


class StagingUnavailable(StagingError):
    """A file that could not be staged; no reader sees a part of it."""

    template = "{uri} cannot be written: {reason}.\nNo row of it counts. Make room or give access, then clear the task."


class StagingNotRemoved(StagingError):
    """Staged output of a topology that is reset or deleted, and is still there."""

    template = (
        "{uri} cannot be removed.\nThe next topology of this name would take it for its own; give access, then repeat "
        "the command."
    )


class StagingUnreachable(StagingError):
    """A store of files that does not answer now."""

    template = "{uri} cannot be reached: {reason}.\nNothing was changed; the task can be tried again once it answers."


class JournalError(TxError):
    """An entry of the journal that cannot be used."""

    template = "Entry {entry} of the journal cannot be used: {problem}.\n{remedy}"
    for_good = of_values = True


class EntryMissing(JournalError):
    """A file of an entry that is not there."""

    template = (
        "Entry {entry} of the journal cannot be used: {uri} is not there.\nRestore that file from a backup of the "
        "staging area; without it the transaction cannot be restated."
    )


class EntryDiffers(JournalError):
    """A file of an entry whose content is not what was written."""

    template = (
        "Entry {entry} of the journal cannot be used: {uri} has the sha256 {found} instead of {expected}.\nRestore "
        "that file from a backup of the staging area; without it the transaction cannot be restated."
    )


# --- refused ------------------------------------------------------------------------------------------------------
# Refusals of the ledger, by the steps of the protocol.


class Refused(TxError):
    """The ledger says no; a retry of the same request cannot succeed."""


class StaleAttempt(Refused):
    """A task of an attempt that is not the newest one."""

    template = (
        "{step} of transaction {txid} attempt {attempt} refused: attempt {newest} is the newest.\n"
        "Clear `begin`, or the whole run, to replay it."
    )


class StaleTry(Refused):
    """A try of a task that a newer try of the same task has replaced."""

    template = (
        "{step} of task {task} in transaction {txid}.{attempt} refused: try {found} has replaced try {task_try}.\n"
        "The newer try continues; there is nothing to do."
    )


class StaleBegin(Refused):
    """A `begin` whose run was cleared while it lived on."""

    template = (
        "begin of run {run_id} refused: a later begin ({found}) of transaction {txid} exists, this try is {task_try}.\n"
        "The later one continues; there is nothing to do."
    )


class StaleBatch(Refused):
    """The batch was computed from a position that is not where the transaction before it ended."""

    template = (
        "Commit of transaction {txid}.{attempt} refused: its batch starts from position {base}, "
        "but transaction {previous} ended at {found}.\nClear the run: it takes the rows from there."
    )


class RowsChanged(Refused):
    """The rows a task worked on are not those the ledger has for this attempt."""

    template = (
        "Commit of transaction {txid}.{attempt} refused: rows processed {digest}, rows recorded {found}.\n"
        "Clear the run: it is processed again."
    )


class FailedTransaction(Refused):
    """The processing of the newest attempt failed."""

    template = "Transaction {txid}.{attempt} has failed: {reason}.\nClear its failed task or its run to replay it."


class MessagesFailed(FailedTransaction):
    """A message of the newest attempt was failed, or is not acked in time."""

    template = (
        "Transaction {txid}.{attempt} has failed: {reason}.\nClear `begin` or the whole run: its next attempt emits "
        "its messages again."
    )


class IncompleteBatch(Refused):
    """The committer ran although not every processing task has acked."""

    template = (
        "Commit of transaction {txid}.{attempt} refused: no ack from {tasks}.\n"
        "Clear {tasks}: a task marked success by hand leaves no output."
    )


class InputSkipped(Refused):
    """A task right before the committer was skipped, so its transaction is not committed."""

    template = (
        "Transaction {txid}.{attempt} is not committed: {tasks} was skipped, and Airflow skips what follows.\n"
        "To commit without it, put a task with trigger_rule='none_failed_min_one_success' before the committer."
    )


class SkippedAfterCommit(Refused):
    """Tasks after the committer that Airflow would skip in a committed run: they also follow tasks of the block."""

    template = (
        "Transaction {txid} of {topology} is already committed, and its tasks are skipped.\nAirflow would also skip "
        "{tasks}, which follows the committer and {needs}. Give it trigger_rule='none_failed_min_one_success' and "
        "clear the run again."
    )


class RowsNotKept(Refused):
    """A task after the commit asks for the rows of a transaction whose receipt has only their digest."""

    template = (
        "The ledger no longer has the rows of committed transaction {txid} of {topology}: they were too long for the "
        "receipt, or its history has ended.\nDo not read the batch in a task after the committer."
    )


class MessagesLost(IncompleteBatch):
    """The ackers hold other trees of messages than the tasks of the attempt have acked."""

    template = (
        "Commit of transaction {txid}.{attempt} refused: its tasks have acked {expected}, the ackers hold {found}.\n"
        "Their store was emptied, or a replaced try of a task has emitted messages. Clear `begin` or the whole run."
    )


class PhaseIncomplete(Refused):
    """A commit phase of which not every task has done its part."""

    template = (
        "Transaction {txid}.{attempt} is not committed: {problem}.\nClear {task}: the phase then takes the turn again, "
        "and nothing is counted twice."
    )


class StateMissing(Refused):
    """A state that an earlier grant of this transaction may have written is no longer in the DAG."""

    for_good = True
    template = (
        "Commit of transaction {txid} refused: an earlier try may have written to state {states}, which the DAG no "
        "longer updates.\nBring it back until transaction {txid} is committed, then take it out."
    )


class StateRenamed(Refused):
    """A state that the ledger has committed to is no longer in the DAG, and another one is that it does not know."""

    for_good = True
    template = (
        "Transaction {txid} refused: the DAG updates state {new}, which the ledger does not know, and no longer {old}, "
        "which has transaction {last}.\nThe same state under another name: <airflow tx state rename {topology} {old} "
        "{new}>. Another one, which takes its place: <airflow tx state forget {topology} {old}>"
    )


class RenameRefused(Refused):
    """A state whose new name does not fit what the ledger and the state say."""

    template = "State {old!r} of topology {topology!r} is not renamed: {problem}.\nNothing was changed. {remedy}"


class Outranked(Refused):
    """A committer whose grant was taken over."""

    template = (
        "Commit of transaction {txid} refused: token {token} is outranked, the ledger holds {found}.\nA newer try "
        "continues."
    )


class RunHeld(Refused):
    """Another live run works on the same batch."""

    template = (
        "begin of run {run_id} refused: transaction {txid} belongs to run {holder}, which is {state}.\nWait for "
        "that run, or end it and clear this one."
    )


class SkippedTransaction(Refused):
    """The run's transaction was skipped by a person."""

    template = (
        "Transaction {txid} of {topology} was skipped.\nTo process its rows: "
        "<airflow tx readmit {topology} {txid} --why TEXT>"
    )


class TopologyClaimed(Refused):
    """Two DAGs use one topology name."""

    for_good = True
    template = (
        "Topology {topology!r} belongs to DAG {owner!r}, and DAG {dag_id!r} asks for it.\nIf that DAG was renamed: "
        "<airflow tx rename {topology} --dag-id {dag_id} --why TEXT>; if there are two, give one of them another name: "
        "Transaction(topology=...)."
    )


class SourceKindChanged(Refused):
    """The kind of the source changed while transactions are open."""

    for_good = True
    template = (
        "Topology {topology!r} has open transactions ({first} to {last}) of a {found} source, and the DAG now has a "
        "{expected} one.\nDrain it first: go back to the old DAG, pause its coordinator and start no new run, until "
        "<airflow tx list {topology}> shows none open. Skip transactions that cannot be committed."
    )


class SourceShapeChanged(Refused):
    """A source with partitions took the place of one without, or the other way round."""

    for_good = True
    template = (
        "Topology {topology!r} keeps the place of a source with {found}, and the DAG's source has {expected}.\n"
        "Give the new one another name: Transaction(topology=...)."
    )


class AlreadyFinal(Refused):
    """A request that changes a transaction which is final."""

    template = "Transaction {txid} is {outcome}.\n{remedy}"


class SkipRefused(Refused):
    """A transaction that cannot be skipped now."""

    template = "Skip of transaction {txid} refused: {problem}.\n{remedy}"


class ChangeRefused(Refused):
    """A transaction whose rows cannot be decided again."""

    template = (
        "Transaction {txid} of {topology} keeps its rows: {problem}.\nNothing was changed. {remedy}: "
        "<airflow tx replay {topology} {txid}>"
    )


class NotSkipped(Refused):
    """A transaction that cannot be re-admitted, since it was not skipped, or was re-admitted already."""

    template = (
        "Transaction {txid} of {topology} cannot be re-admitted: it is {found}.\nNothing was changed; "
        "<airflow tx list {topology}> shows the skipped ones."
    )


class RestatementSkipped(Refused):
    """A skipped restatement that cannot be re-admitted: the transaction that it was to replace still counts."""

    template = (
        "Transaction {txid} of {topology} cannot be re-admitted: it restated transaction {replaces}, which counts.\n"
        "Nothing was changed. To restate that again: <airflow tx restate {topology} {replaces} --why TEXT>"
    )


class RestateRefused(Refused):
    """A transaction that cannot be restated."""

    template = "Restatement of transaction {txid} of {topology} refused: {problem}.\nNothing was changed. {remedy}"


class PreviewOutdated(Refused):
    """An action on what has changed since it was previewed: another person was first, or a transaction has moved on."""

    template = "{what} of topology {topology!r} has changed since.\nNothing was done; have another look, then repeat."


class Outbid(Refused):
    """A waiter that wants to give up its run slot, while another one is to."""

    template = (
        "Run {run_id} does not yield: run {leader} does.\nIt still waits; there is nothing to do."
    )


class UnknownTransaction(Refused):
    """No such topology or transaction in this ledger."""

    template = "No {what} in the ledger at {path}.\nCheck the name with `<airflow tx list>`, and the root in [tx] root."


class UnknownTxid(UnknownTransaction):
    """No such transaction in the ledger of a topology."""

    template = (
        "No transaction {txid} of topology {topology!r} in the ledger at {path}.\nTo see the transactions that there "
        "are: <airflow tx list {topology}>"
    )


class MoveRefused(Refused):
    """A topology that cannot be renamed or deleted now."""

    template = "Topology {topology!r} is not changed: {problem}.\n{remedy}"


class AcceptanceRefused(Refused):
    """Acceptance of changed values that cannot be compared, or were not changed."""

    template = "Change of state {state!r} of topology {topology!r} not accepted: {problem}.\nNothing was changed."


class LossRefused(Refused):
    """Acceptance of a loss that there is none of."""

    template = (
        "Topology {topology!r} has lost nothing: its source can give every row that comes next.\nNothing was changed. "
        "A transaction whose own rows are gone: <airflow tx skip {topology} TXID --why TEXT>"
    )


class UnscheduledTask(Refused):
    """A task of `airflow tasks test`, or a scheduler beside `airflow dags test`: its transaction would stay open."""

    template = (
        "DAG {dag_id!r} has transactions, and a single task cannot be tried out: its transaction would stay open.\n"
        "The ledger was not touched. Try out the whole DAG: airflow dags test {dag_id}"
    )


class TrialRefused(Refused):
    """A DAG that cannot be tried out."""

    template = "DAG {dag_id!r} cannot be tried out: {problem}.\nNothing was touched. {remedy}"


class RepairRefused(Refused):
    """A repair that does not fit what the ledger and the states say."""

    template = "Repair --{what} of topology {topology!r} refused: {problem}.\nNothing was changed. {remedy}"


class RollingForward(Refused):
    """A step that needs the states of a topology, while they are being written again from the journal."""

    repairable = True
    template = (
        "Topology {topology!r} waits: its states are being written again from the journal, since {when}.\n"
        "Nothing was changed. If that command has died, repeat it: "
        "<airflow tx repair {topology} --roll-forward {states}>. "
        "To give it up, for each state: <airflow tx repair {topology} --state-lost STATE>"
    )


class RollForwardRefused(Refused):
    """A state that cannot be written again from the journal."""

    template = "State {state!r} of {topology!r} cannot be written again: {problem}.\n{remedy}"


class RowsDiffer(Refused):
    """Rows that were read, and others that were emitted, counted by the source, or read by an earlier attempt."""

    template = (
        "Rows of transaction {txid}.{attempt} differ: {problem}.\nNothing was written. {remedy}"
    )


class RowsNotProven(Refused):
    """No task has counted exactly that each row was consumed once, and `[tx] require_rows` requires it."""

    template = (
        "Rows of transaction {txid}.{attempt} are not proven: {problem}; [tx] require_rows = proven refuses that.\n"
        "Nothing was written. Let the task read them as docs/rows.md says, and clear the run; or set require_rows = "
        "counted, and clear the commit task."
    )


# --- state --------------------------------------------------------------------------------------------------------
# Errors of states: fences, updates, and stores that cannot be reached.


class StateError(TxError):
    """A state that cannot take this update; no part of it was applied."""

    template = "State {state!r} refused: {problem}.\n{remedy}"


class StateDiffers(StateError):
    """A place that holds another state than the DAG describes: other columns, other aggregators, another format."""

    for_good = True


class StateUnavailable(StateError):
    """The store of a state cannot be reached; the transaction stays replayable."""

    repairable = True
    template = (
        "State {state!r} ({where}) cannot be reached: {reason}.\nNo value of this transaction was committed. Clear "
        "the commit task when the state is back."
    )


class StateLocked(StateUnavailable):
    """Another session holds what a state's update needs, and did not let go in time; nothing was written."""

    template = (
        "State {state!r} ({where}) is locked by another session: {reason}.\nNo value of this transaction was "
        "committed. The next try waits again."
    )


class StateOutcomeUnknown(StateUnavailable):
    """The answer to the commit of a state's update was lost; the transaction stays replayable."""

    template = (
        "State {state!r} ({where}) cannot be reached: {reason}.\nThe update may have been written, since only the "
        "answer to it is missing; the next try finds out. Clear the commit task when the database is back."
    )


class PortionsLost(StateUnavailable):
    """The store no longer has every portion that it confirmed to the writers of this grant; nothing was committed."""

    template = (
        "State {state!r} ({where}) has lost {lost} of {portions} confirmed portions of transaction {txid}: "
        "the database failed over to a standby that was behind.\nNo value of this transaction was committed. The next "
        "try writes all portions again. If no try is left, clear the commit task."
    )


class FenceOutranked(StateError):
    """The fence refuses a writer that a later grant has outranked."""

    template = (
        "Write to state {state!r} refused: token {token} is outranked, the fence holds {found}.\n"
        "A newer try continues."
    )


class FenceForeign(StateError):
    """The fence belongs to another topology or to another life of this ledger."""

    for_good = True
    template = (
        "State {state!r} refused: its fence belongs to ledger {found}, this topology is ledger {expected}.\n"
        "Look first whether its connection names the right ZooKeeper. One state serves one topology: use another "
        "table. If this ledger was lost and created again: <airflow tx repair {topology} --ledger-lost>. If the DAG "
        "was renamed: <airflow tx rename OLD {topology} --why TEXT>"
    )


class StateBehind(StateError):
    """The store holds less than the ledger committed: it was restored from an older backup, or emptied."""

    for_good = True
    template = (
        "State {state!r} refused: the ledger committed transaction {expected} to it, its fence says {found}.\n"
        "The store went back. {remedy}"
    )

    def __init__(
        self, remedy: Remedy | str = "Restore a newer backup of it.", **fields: Any
    ) -> None:
        super().__init__(remedy=remedy, **fields)


class LedgerBehind(StateError):
    """The ledger holds less than the store: ZooKeeper was restored from an older snapshot."""

    for_good = True
    template = (
        "State {state!r} refused: its fence says transaction {found}, the ledger is at {txid} and committed "
        "{expected} to it.\nLook first whether its connection names the right ZooKeeper: of another or an older one, "
        "correct it and clear the task. If the ledger went back: <airflow tx repair {topology} --ledger-lost>"
    )


class TxidBehind(StateError):
    """A value that a later transaction has already updated (Trident: current batch is behind state's batch)."""

    for_good = True
    template = (
        "Update of transaction {txid} refused: the stored value is of transaction {stored}.\nCommit transactions "
        "in order."
    )


class ChunkConflict(StateError):
    """Two writers of one transaction touched the same key."""

    template = (
        "State {state!r} refused: key {key} came from chunk {found} and from chunk {chunk} in transaction {txid}.\n"
        "Aggregate by key before writing."
    )


class OutputChanged(StateError):
    """A transactional state that holds something of a transaction got another output for it."""

    template = (
        "State {state!r} refused: transaction {txid} has output {digest}, an earlier attempt had {found} and has "
        "written some of it, which cannot be undone.\nReplay it with the code and data of then; or restore the state "
        "from a backup of before the transaction and clear the commit task. To take any output on a replay, "
        'use kind="opaque".'
    )


class NotTakenBack(StateError):
    """A restatement whose earlier contribution the state, or one of its aggregators, cannot take back."""

    for_good = of_values = True


class NotComparable(TxError):
    """Two states that cannot be compared."""

    template = "{first} and {second} cannot be compared: {problem}.\n{remedy}"


class NotComparableNow(NotComparable):
    """Two states that are at different places of their source, or that are being written; they will not be for ever."""

    template = "{first} and {second} cannot be compared now: {problem}.\n{remedy}"


# --- store --------------------------------------------------------------------------------------------------------
# Errors of the store of the ledger: what a write did, did not, or may have done.


class StoreError(TxError):
    """A request that the ledger's store did not carry out."""


class RequirementFailed(StoreError):
    """A multi did NOT happen: something it had read has changed. The ledger reads and plans again."""

    template = (
        "Requirement failed at {path}: expected {expected}, found {found}.\nNothing was written."
    )


class OutcomeUnknown(StoreError):
    """A multi MAY have happened: its answer was lost. Read back before doing anything else."""

    template = "No answer to a write of {paths}: it may have happened ({reason}).\nIt is resolved by reading back."


class StoreUnavailable(StoreError):
    """The ledger's store cannot be reached; nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) cannot be reached: {reason}.\nNothing was changed; "
        "start the server or correct the hosts of the connection, then clear the task."
    )


class NoConnection(StoreUnavailable):
    """No server of the ledger's store accepts a connection with these settings; nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) cannot be reached: {reason}.\nNothing was changed; "
        "{remedy}, then clear the task."
    )


class StoreRefused(StoreError):
    """The ledger's store does not let this connection read or write a record; nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) refused access to {path}: {reason}.\nNothing was changed; "
        "use the login and password that made the record, or correct its ACL."
    )


class LoginRefused(StoreRefused):
    """The ledger's store lets this login in nowhere; nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) refused the connection: {reason}.\nNothing was changed; "
        "correct the login, the password and the extra auth_scheme of the connection, then clear the task."
    )


class StoreDeclined(StoreError):
    """The ledger's store did not carry out a request, and not for lack of rights; nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) did not carry out a request about {path}: {reason}.\n"
        "Nothing was changed; {remedy}, then clear the task."
    )


class UnreadableRecord(StoreError):
    """A record that is damaged or of a newer format; it is never taken for empty."""

    template = (
        "Record {path} cannot be read: {reason}.\nNothing was changed; restore the node, "
        "or upgrade airflow-provider-tx if a newer version wrote it."
    )


class TooMuchMetadata(StoreError):
    """A record larger than a znode may be."""

    template = (
        "{path} would hold {size} bytes, and ZooKeeper takes at most {limit}.\nNothing was written; let the source "
        "put fewer rows into a batch, or describe them with less metadata."
    )


class TooMuchContention(StoreError):
    """A step lost the race for its records too many times in a row."""

    template = "Step {step} of {subject} was overtaken {times} times in a row.\nNothing was written; clear the task."


# --- acks ---------------------------------------------------------------------------------------------------------
# Errors of message trees: references, messages, and the ackers that keep the trees.


class MessageError(TxError):
    """A message that is not taken, emitted, acked or failed."""


class NotAReference(MessageError):
    """A text that names no message."""

    template = "{text!r} is no reference to a message: {problem}.\nPass the text that emit() gave, whole and unchanged."


class ForeignMessage(MessageError):
    """A message of another topology than the collector works for."""

    template = (
        "Message {message} of topology {found!r} refused: this collector works for topology {expected!r}.\n"
        "Let it read another queue, or leave out Collector(topology=...)."
    )


class StaleMessage(MessageError):
    """A message of an attempt that was replayed."""

    template = (
        "Message of transaction {txid}.{attempt} of topology {topology!r} refused: attempt {newest} is the newest.\n"
        "Drop the message: the newest attempt emits its own."
    )


class UnknownMessage(MessageError):
    """A message whose tree no acker has."""

    template = (
        "Message of transaction {txid}.{attempt} of topology {topology!r} refused: {problem}.\nDrop the message; it is "
        "counted in no tree."
    )


class MessageDone(MessageError):
    """A message that was acked or failed, and is used again."""

    template = (
        "{step} of message {message} refused: it is {done} already.\nEmit what is anchored to it before its ack, "
        "and ack it once."
    )


class MixedAnchors(MessageError):
    """Anchors of different attempts."""

    template = (
        "A message cannot be anchored to messages of {first} and of {second}: it belongs to one attempt of one "
        "transaction.\nEmit one message for each."
    )


class EmittedBefore(MessageError):
    """A task that emits messages which an earlier try of it has emitted in the same attempt."""

    template = (
        "Task {task} has emitted messages of transaction {txid}.{attempt} of topology {topology!r} in an earlier try, "
        "and workers may have taken them.\nClear `begin` or the whole run: its next attempt emits them again."
    )


class AckersUnavailable(MessageError):
    """The store of the ackers does not answer."""

    template = (
        "The ackers at {where} cannot be reached: {reason}.\nStart their store, or correct acker_store=; until they "
        "answer no transaction with messages is committed."
    )


class AckersRefused(MessageError):
    """The store of the ackers does not take what it is sent."""

    template = "The ackers at {where} refused: {problem}.\n{remedy}"


class AckersBehind(MessageError):
    """The store of the ackers has lost something that it had taken."""

    template = (
        "The ackers of transaction {txid}.{attempt} of topology {topology!r} hold part {found} of a worker's messages, "
        "and part {expected} was taken: their store went back, or was emptied.\nClear `begin` or the whole run."
    )
