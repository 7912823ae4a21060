"""The answers of the board's API: what it says of topologies, and what they have in common. Times are UTC."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Any

from pydantic import BaseModel

from airflow_tx.plugin.api.redaction import Words
from airflow_tx.protocol.health import HealthCode


class TopologyState(BaseModel):
    """How a topology is, in one sentence.

    :param since: when that began, if it is known.
    :param txid: the transaction that is to be seen to, or that the others wait for.
    :param remedy: what a person can do; null: nothing needs to be done.
    """

    code: HealthCode
    since: datetime | None = None
    txid: int | None = None
    sentence: Words
    remedy: Words | None = None


class SourceLine(BaseModel):
    """What a topology reads.

    :param kind: transactional, opaque or non-transactional.
    :param description: the source as its DAG file names it; null as long as that was not read.
    """

    kind: str
    partitioned: bool
    description: Words | None = None


class LagLine(BaseModel):
    """How much data a source has that no transaction has taken.

    :param value: null: it is not known, `why` says why.
    :param at: when the source was asked.
    """

    value: int | None = None
    unit: str | None = None
    at: datetime | None = None
    why: Words | None = None


class AckersLine(BaseModel):
    """What the ackers of a topology do, whose tasks emit messages.

    :param trees: of messages, that are not complete.
    :param acks_a_second: messages that were acked lately; null: they were asked once only.
    :param at: when they were asked.
    """

    trees: int
    acks_a_second: float | None
    at: datetime


class CoordinatorLine(BaseModel):
    """The DAG that starts and replays the transactions of a topology."""

    dag_id: str
    paused: bool


class LastCommit(BaseModel):
    txid: int
    at: datetime


class TopologyLine(BaseModel):
    """One topology, as the overview shows it.

    :param paused: whether its DAG is paused; null: Airflow does not know the DAG.
    :param open: how many transactions are open, of `max_pending` at most.
    :param turn: the txid whose turn it is to commit; `allocated`: the last one that was handed out.
    :param commits_per_hour: transactions that became final in each of the last 24 hours, the oldest hour first.
    :param may_act: whether the user may act on its transactions.
    """

    topology: str
    dag_id: str
    paused: bool | None
    coordinator: CoordinatorLine | None
    source: SourceLine
    lag: LagLine
    open: int
    max_pending: int
    turn: int
    allocated: int
    last_commit: LastCommit | None
    commits_per_hour: list[int]
    state: TopologyState
    may_act: bool


class TopologyList(BaseModel):
    """A part of the overview: the most urgent topologies first, then by name.

    :param total: how many topologies have the text and one of the states that were asked for.
    :param counts: by state, how many topologies have the text that was asked for.
    """

    topologies: list[TopologyLine]
    total: int
    limit: int
    offset: int
    counts: dict[HealthCode, int]


class Person(BaseModel):
    """Who did something, when and why."""

    who: str
    when: datetime
    why: Words


class StateLine(BaseModel):
    """A state of a topology.

    :param last_txid: the last final transaction whose grant raised its fence.
    """

    name: str
    last_txid: int


class AcceptedLoss(Person):
    """Rows that the source lost, and that a person accepted as lost."""

    partition: str | None
    description: Words


class SkippedLine(BaseModel):
    """A transaction whose rows are kept to be re-admitted."""

    txid: int
    run_id: str
    skip: Person
    readmit: Person | None


class RepairLine(Person):
    """What a person did to the ledger."""

    number: int
    what: str
    done: Words


class WaitingRun(BaseModel):
    """A run that gave up its run slot before it had a transaction."""

    run_id: str
    waiting_for: Words
    since: datetime


class TopologyPage(TopologyLine):
    """One topology, whole.

    :param ackers: null: its tasks emit no messages, or its ackers have not answered.
    """

    ackers: AckersLine | None
    incarnation: str
    generation: int
    states: list[StateLine]
    losses: list[AcceptedLoss]
    skipped: list[SkippedLine]
    repairs: list[RepairLine]
    waiting_runs: list[WaitingRun]


class DagAnswer(BaseModel):
    """Which topology a DAG has.

    :param topology: null: it is transactional, and none of its runs has begun a transaction yet.
    :param role: `transactions`: its runs are the transactions; `coordinator`: it starts and replays them.
    """

    dag_id: str
    topology: str | None
    role: str


class WhyCode(str, Enum):
    """Why a run is no transaction, in one word."""

    QUEUED = "queued"
    WINDOW_FULL = "window_full"
    ORDER = "order"
    NO_DATA = "no_data"
    SOURCE = "source"
    YIELDED = "yielded"
    BEGINS = "begins"
    FAILED = "failed"
    ENDED = "ended"
    UNKNOWN = "unknown"


class WhyNot(BaseModel):
    code: WhyCode
    sentence: Words


class RunAnswer(BaseModel):
    """The transaction of a run.

    :param txid: null: it has none, `why` says why.
    """

    dag_id: str
    run_id: str
    topology: str | None
    txid: int | None
    why: WhyNot | None = None


class Problem(BaseModel):
    """Why there is no answer, in one sentence."""

    detail: Words


JsonValue = Any
