"""Every refusal this package can give: its fields, its wording and its remedy, in one place.

An error is built from keyword fields; `template` words it as "<what> refused: expected X, found Y. <what to do>".
Fields stay readable as attributes and survive pickling.
"""

from __future__ import annotations

from typing import Any, ClassVar


def _rebuild(cls: type[TxError], fields: dict[str, Any]) -> TxError:
    return cls(**fields)


class TxError(Exception):
    """Root of every error of this package.

    :param fields: the values named in `template`, kept as attributes.
    """

    template: ClassVar[str] = "{message}"

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        for name, value in fields.items():
            setattr(self, name, value)
        super().__init__(self.template.format(**fields))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _rebuild, (type(self), self.fields)


class ConfigError(TxError):
    """A setting that cannot be used."""

    template = "{option} = {value!r} cannot be used. {remedy}"


class TransactionDefinitionError(TxError):
    """A `Transaction` block that cannot work; raised while the DAG file is parsed."""

    template = "Transaction {topology!r} refused: {problem}. {remedy}"


class FailedBatch(TxError):
    """Raise it in a task to fail this batch on purpose: only this transaction is replayed (Storm's FailedException).

    :param message: why; it is kept in the ledger.
    """

    def __init__(self, message: str = "the batch was failed on purpose", **fields: Any) -> None:
        super().__init__(message=message, **fields)


# --- the store of the ledger -------------------------------------------------------------------------------------


class StoreError(TxError):
    """The ledger's store did not do what was asked."""


class RequirementFailed(StoreError):
    """A multi did NOT happen: something it had read has changed. The ledger reads again and plans anew."""

    template = "Requirement failed at {path}: expected {expected}, found {found}. Nothing was written."


class OutcomeUnknown(StoreError):
    """A multi MAY have happened: its answer was lost. Read back before doing anything else."""

    template = "No answer to a write of {paths}: it may have happened ({reason}). It is resolved by reading back."


class StoreUnavailable(StoreError):
    """The ledger's store cannot be reached; nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) cannot be reached: {reason}. Nothing was changed; "
        "start the server or correct the hosts of the connection, then clear the task."
    )


class StoreRefused(StoreError):
    """The ledger's store does not let this connection read or write a record; nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) refused access to {path}: {reason}. Nothing was changed; "
        "use the login and password that made the record, or correct its ACL."
    )


class UnreadableRecord(StoreError):
    """A record that is damaged or of a newer format; it is never taken for empty."""

    template = (
        "Record {path} cannot be read: {reason}. Nothing was changed; restore the node, "
        "or upgrade airflow-provider-tx if a newer version wrote it."
    )


class TooMuchMetadata(StoreError):
    """A record larger than a znode may be."""

    template = (
        "{path} would hold {size} bytes, and ZooKeeper takes at most {limit}. Nothing was written; let the source "
        "put fewer rows into a batch, or describe them with less metadata."
    )


class TooMuchContention(StoreError):
    """A step lost the race for its records too many times in a row."""

    template = "Step {step} of {subject} was overtaken {times} times in a row. Nothing was written; clear the task."


# --- steps of the protocol ---------------------------------------------------------------------------------------


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
        "The newer try goes on; there is nothing to do."
    )


class StaleBegin(Refused):
    """A `begin` whose run was cleared while it lived on."""

    template = (
        "begin of run {run_id} refused: a later begin ({found}) of transaction {txid} exists, this try is {task_try}. "
        "The later one goes on; there is nothing to do."
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


class IncompleteBatch(Refused):
    """The committer ran although not every processing task has acked."""

    template = (
        "Commit of transaction {txid}.{attempt} refused: no ack from {tasks}. "
        "Clear {tasks}: a task marked success by hand leaves no output."
    )


class PhaseIncomplete(Refused):
    """A commit phase of which not every task has done its part."""

    template = (
        "Transaction {txid}.{attempt} is not committed: {problem}. Clear {task}: the phase then takes the turn again, "
        "and nothing is counted twice."
    )


class StateMissing(Refused):
    """A state that an earlier grant of this transaction may have written is no longer in the DAG."""

    template = (
        "Commit of transaction {txid} refused: an earlier try may have written to state {states}, which the DAG no "
        "longer updates. Bring it back until transaction {txid} is committed, then take it out."
    )


class StateRenamed(Refused):
    """A state that the ledger has committed to is no longer in the DAG, and another one is that it does not know."""

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
        "goes on."
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

    template = (
        "Topology {topology!r} belongs to DAG {owner!r}, and DAG {dag_id!r} asks for it. If that DAG was renamed: "
        "airflow tx rename {topology} --dag-id {dag_id} --why TEXT; if there are two, give one of them another name: "
        "Transaction(topology=...)."
    )


class SourceKindChanged(Refused):
    """The kind of the source changed while transactions are open."""

    template = (
        "Topology {topology!r} has open transactions ({first} to {last}) of a {found} source, and the DAG now has a "
        "{expected} one. Drain it first: go back to the old DAG, pause its coordinator and start no new run, until "
        "airflow tx list {topology} shows none open; skip what cannot be committed."
    )


class SourceShapeChanged(Refused):
    """A source with partitions took the place of one without, or the other way round."""

    template = (
        "Topology {topology!r} keeps the place of a source with {found}, and the DAG's source has {expected}. "
        "Give the new one another name: Transaction(topology=...)."
    )


class AlreadyFinal(Refused):
    """Something was asked of a transaction that is over."""

    template = "Transaction {txid} is {outcome}. {remedy}"


class SkipRefused(Refused):
    """A transaction that cannot be skipped as it is."""

    template = "Skip of transaction {txid} refused: {problem}. {remedy}"


class ChangeRefused(Refused):
    """A transaction whose rows cannot be decided anew."""

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


class Outbid(Refused):
    """A waiter that wants to give up its run slot, while another one is to."""

    template = "Run {run_id} does not yield: run {leader} does. It goes on waiting; there is nothing to do."


class UnknownTransaction(Refused):
    """No such topology or transaction in this ledger."""

    template = "No {what} in the ledger at {path}. Check the name with `airflow tx list`, and the root in [tx] root."


class MoveRefused(Refused):
    """A topology that cannot be renamed or deleted as it is."""

    template = "Topology {topology!r} stays as it is: {problem}. {remedy}"


class LossRefused(Refused):
    """Acceptance of a loss that there is none of."""

    template = (
        "Topology {topology!r} has lost nothing: its source can give every row that comes next. Nothing was changed. "
        "A transaction whose own rows are gone: airflow tx skip {topology} TXID --why TEXT"
    )


class UnscheduledTask(Refused):
    """A task that `airflow tasks test` or `airflow dags test` executes: nobody replays what such a run leaves open."""

    template = (
        "DAG {dag_id!r} is run by `airflow dags test`, `airflow tasks test` or DAG.test(), which make no transactions: "
        "all later ones of topology {topology!r} would wait for theirs. The ledger was not touched; start a run: "
        "airflow dags trigger {dag_id}"
    )


class RepairRefused(Refused):
    """A repair that does not fit what the ledger and the states say."""

    template = "Repair --{what} of topology {topology!r} refused: {problem}. Nothing was changed. {remedy}"


# --- source ------------------------------------------------------------------------------------------------------


class SourceError(TxError):
    """A source that cannot give the rows of a batch."""

    template = "Source {source} refused: {problem}. {remedy}"


class PartitionUnavailable(SourceError):
    """A partition of a source that cannot be reached now. An opaque source is used without it, others stop."""

    template = "Partition {partition!r} of source {source} cannot be reached: {reason}."


# --- staging -----------------------------------------------------------------------------------------------------


class StagingError(TxError):
    """Staged output that is missing, incomplete or of another attempt."""

    template = "Output {output!r} of task {task} in transaction {txid}.{attempt} refused: {problem}. {remedy}"


# --- state -------------------------------------------------------------------------------------------------------


class StateError(TxError):
    """A state that cannot take this update; nothing of it was applied."""

    template = "State {state!r} refused: {problem}. {remedy}"


class StateUnavailable(StateError):
    """The store of a state cannot be reached; the transaction stays replayable."""

    template = (
        "State {state!r} ({where}) cannot be reached: {reason}. Nothing of this transaction was committed; clear "
        "the commit task when it is back."
    )


class StateLocked(StateUnavailable):
    """Another session holds what a state's update needs, and did not let go in time; nothing was written."""

    template = (
        "State {state!r} ({where}) is locked by another session: {reason}. Nothing of this transaction was committed; "
        "the next try waits again."
    )


class StateOutcomeUnknown(StateUnavailable):
    """The answer to the commit of a state's update was lost; the transaction stays replayable."""

    template = (
        "State {state!r} ({where}) cannot be reached: {reason}. The update may have been written, since only the "
        "answer to it is missing; the next try finds out. Clear the commit task when the database is back."
    )


class FenceOutranked(StateError):
    """The fence refuses a writer that a later grant has outranked."""

    template = (
        "Write to state {state!r} refused: token {token} is outranked, the fence holds {found}. A newer try goes on."
    )


class FenceForeign(StateError):
    """The fence belongs to another topology or to another life of this ledger."""

    template = (
        "State {state!r} refused: its fence belongs to ledger {found}, this topology is ledger {expected}. "
        "One state serves one topology: use another table; if the DAG was renamed: airflow tx rename OLD {topology} "
        "--why TEXT; if this ledger was lost and made anew: airflow tx repair {topology} --ledger-lost"
    )


class StateBehind(StateError):
    """The store holds less than the ledger committed: it was restored from an older backup, or emptied."""

    template = (
        "State {state!r} refused: the ledger committed transaction {expected} to it, its fence says {found}. The "
        "store went back. "
        "Restore it, or accept what it holds: airflow tx repair {topology} --state-lost {state}"
    )


class LedgerBehind(StateError):
    """The ledger holds less than the store: ZooKeeper was restored from an older snapshot."""

    template = (
        "State {state!r} refused: its fence says transaction {found}, the ledger is at {txid} and committed "
        "{expected} to it. "
        "The ledger went back. Take the place from the state: airflow tx repair {topology} --ledger-lost"
    )


class TxidBehind(StateError):
    """A value that a later transaction has already updated (Trident: current batch is behind state's batch)."""

    template = (
        "Update of transaction {txid} refused: the stored value is of transaction {stored}. Commit transactions "
        "in order."
    )


class ChunkConflict(StateError):
    """Two writers of one transaction touched the same key."""

    template = (
        "State {state!r} refused: key {key} came from chunk {found} and from chunk {chunk} in transaction {txid}. "
        "Aggregate by key before writing."
    )


class OutputChanged(StateError):
    """A transactional state that holds something of a transaction got another output for it."""

    template = (
        "State {state!r} refused: transaction {txid} has output {digest}, an earlier attempt had {found} and has "
        "written some of it, which cannot be undone. Replay it with the code and data of then; or restore the state "
        "from a backup of before the transaction and clear the commit task. To take any output on a replay, "
        'use kind="opaque".'
    )
