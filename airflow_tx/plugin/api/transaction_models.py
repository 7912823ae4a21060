"""The answers of the board's API: what it says of transactions. Times are UTC."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from airflow_tx.plugin.api.models import JsonValue, Person
from airflow_tx.plugin.api.redaction import Words


class AttemptBar(BaseModel):
    """One attempt of a transaction.

    :param begun_at: null: it is not remembered.
    :param failed_at: when the last of its tasks failed, as Airflow knows it; null: none did.
    :param ended_at: when the next attempt began, or the transaction became final; null: it is under way.
    :param outcome: `replayed`, or the phase or outcome of the transaction for its newest attempt.
    :param why: why it was replayed.
    """

    attempt: int
    begun_at: datetime | None
    failed_at: datetime | None = None
    ended_at: datetime | None
    outcome: str
    why: Words | None = None


class TaskBar(BaseModel):
    """One try of one task instance of the run.

    :param map_index: -1: it is not mapped.
    :param attempt: the attempt that it began in; null: none is known.
    :param state: as Airflow spells it; null: it has none yet.
    :param operator: the class of the task.
    """

    task_id: str
    map_index: int
    operator: str | None
    attempt: int | None
    try_number: int
    state: str | None
    start: datetime | None
    end: datetime | None


class WaitBar(BaseModel):
    """From when until when a processed transaction waited for its turn.

    :param end: null: it waits.
    :param waiting_for: in words; null once it does not wait any more.
    """

    start: datetime
    end: datetime | None
    waiting_for: Words | None


class CommitBar(BaseModel):
    """From the last grant until the mark.

    :param end: null: it is being committed.
    """

    start: datetime
    end: datetime | None


class TimelineRow(BaseModel):
    """One transaction, as the timeline shows it.

    :param phase: PROCESSING, PROCESSED, COMMITTING or FAILED while it is open, then COMMITTED, SKIPPED or READMITTED.
    :param waiting_for: what has to happen next, in the words of `airflow tx show`; null: nothing.
    :param blocked: why it is replayed no more unless a person asks for it.
    :param rows: rows of the batch, if its tasks counted them.
    :param batch_name: the file, the range or the interval of the batch; null: it has no name.
    :param to_skip: whether it is to be skipped at its turn.
    :param lane: whether a lane works on it now; `has_run`: whether Airflow has a run of it.
    """

    txid: int
    run_id: str
    phase: str
    open: bool
    attempt: int
    attempts: list[AttemptBar]
    tasks: list[TaskBar]
    waiting: WaitBar | None
    commit: CommitBar | None
    rows: int | None
    batch_name: Words | None
    waiting_for: Words | None
    blocked: Words | None
    error: Words | None
    to_skip: bool
    lane: bool
    has_run: bool


class Timeline(BaseModel):
    """Transactions of a topology, newest first.

    :param total: how many there are, within `since` and `until`.
    :param before: give this as `before` for the next page; null: there is none.
    """

    topology: str
    transactions: list[TimelineRow]
    total: int
    limit: int
    before: int | None


class BatchAnswer(BaseModel):
    """Which rows a transaction has.

    :param words: how many, and why so many, if the source counted.
    :param metadata: exactly which rows, as JSON; null: not remembered, or none.
    :param position_before: where the source stood; `position_after`: where it stands after them.
    :param shortened: which of these three are digests, since they were too long to be kept.
    """

    words: Words | None
    metadata: JsonValue = None
    position_before: JsonValue = None
    position_after: JsonValue = None
    shortened: list[str]
    partitioned: bool


class TaskWork(BaseModel):
    """What one task did for the transaction, all its instances together.

    :param acked: null: the transaction is final, and every task had acked.
    :param rows: rows of the batch that it read, if it counted.
    :param outputs: per output, how many rows it emitted.
    :param code: digest of the code that it ran.
    """

    task_id: str
    instances: int
    acked: bool | None
    rows: int | None
    outputs: dict[str, int | None]
    digests: dict[str, str]
    code: str | None


class StateWork(BaseModel):
    """What the transaction did to one state.

    :param fenced: whether its grant was about to raise the fence of the state, or did.
    :param token: the token of that grant, as `generation/txid.attempt#epoch`: what a later one outranks.
    :param keys: how many keys, or rows, were written; null: nothing is known yet.
    :param sums: of value columns that are added up.
    :param last_txid: the last final transaction in the state.
    """

    state: str
    fenced: bool
    token: str | None
    keys: int | None
    digest: str | None
    sums: dict[str, int]
    last_txid: int | None


class NewValuesLine(BaseModel):
    """An output of a committer: the keys of the batch, with the values that they have after the commit.

    :param rows: how many, if they were counted.
    """

    task_id: str
    name: str
    rows: int | None


class ChangedRows(Person):
    """Who let the rows be decided anew, instead of those of which attempt."""

    attempt: int


class ReceiptLine(BaseModel):
    """The receipt of a final transaction; `airflow tx verify` compares it with the states."""

    hash: str
    previous: str
    dag_version: str | None
    granted: datetime


class AuditLine(BaseModel):
    """What a person did to the transaction."""

    what: str
    who: str
    when: datetime
    why: Words | None


class TransactionLinks(BaseModel):
    """Paths within Airflow's UI, below its base URL; `audit`: what Airflow itself has logged of the run."""

    run: str
    dag: str
    audit: str
    tasks: dict[str, str]


class TransactionPage(TimelineRow):
    """One transaction, whole.

    :param actions: what the user can do to it now.
    :param unproven: why it is not proven that its tasks consumed each row once, one line each; none: it is.
    :param losses: rows before it that were accepted as lost, in words.
    :param pinned: it stands for a batch that was skipped: its rows stay.
    :param stale: its predecessor ended elsewhere than its batch starts.
    :param yielded_to: the txid whose run it gave its run slot.
    :param ack_val: 16 hex digits; all 0: everything emitted was acked.
    :param previous: the txid before it that the ledger still knows, `following`: the one after it; null: there is none.
    """

    topology: str
    dag_id: str
    may_act: bool
    actions: list[str]
    batch: BatchAnswer
    digest: str | None
    unproven: list[Words]
    ack_val: str
    failures: int
    work: list[TaskWork]
    states: list[StateWork]
    new_values: list[NewValuesLine]
    losses: list[Words]
    changed: list[ChangedRows]
    skip: Person | None
    readmit: Person | None
    readmitted_as: int | None
    pinned: bool
    stale: bool
    yielded_to: int | None
    previous: int | None
    following: int | None
    receipt: ReceiptLine | None
    audit: list[AuditLine]
    links: TransactionLinks
