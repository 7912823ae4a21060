"""The lines of the overview, and the page of one topology, from a snapshot of the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from airflow_tx.actions.ledger_places import ledger_places
from airflow_tx.plugin.api.access import SEE_AUDIT, Access
from airflow_tx.plugin.api.advice import Advice, topology_advice
from airflow_tx.plugin.api.airflow_runs import paused_dags
from airflow_tx.plugin.api.audit import AuditView, DeedLine, LossLine, RepairLine
from airflow_tx.plugin.api.lag_board import AckersLine, LagLine, SourceLine, lag_board
from airflow_tx.plugin.api.ledger_snapshots import HOURS, TopologySnapshot
from airflow_tx.plugin.api.redaction import redacted
from airflow_tx.protocol.health import HealthCode, TopologyState
from airflow_tx.protocol.person import WaitingRun
from airflow_tx.protocol.records import Outcome
from airflow_tx.protocol.view import waiting_runs


@dataclass(frozen=True, kw_only=True)
class CoordinatorLine:
    """The DAG that starts and replays the transactions of a topology."""

    dag_id: str
    paused: bool


@dataclass(frozen=True, kw_only=True)
class LastCommit:
    txid: int
    at: datetime


@dataclass(frozen=True, kw_only=True)
class TopologyLine:
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
    advice: Advice
    may_act: bool


@dataclass(frozen=True, kw_only=True)
class TopologyList:
    """A part of the overview: the most urgent topologies first, then by name.

    :param total: how many topologies have the text and one of the states that were asked for.
    :param counts: by state, how many topologies have the text that was asked for.
    """

    topologies: list[TopologyLine]
    total: int
    limit: int
    offset: int
    counts: dict[HealthCode, int]


@dataclass(frozen=True, kw_only=True)
class StateLine:
    """A state of a topology.

    :param last_txid: the last final transaction whose grant raised its fence.
    """

    name: str
    last_txid: int


@dataclass(frozen=True, kw_only=True)
class SkippedLine:
    """A transaction whose rows are kept to be re-admitted."""

    txid: int
    run_id: str
    skip: DeedLine
    readmit: DeedLine | None


@dataclass(frozen=True, kw_only=True)
class TopologyPage(TopologyLine):
    """One topology, whole.

    :param ackers: null: its tasks emit no messages, or its ackers have not answered.
    """

    ackers: AckersLine | None
    incarnation: str
    generation: int
    states: list[StateLine]
    losses: list[LossLine]
    skipped: list[SkippedLine]
    repairs: list[RepairLine]
    waiting_runs: Sequence[WaitingRun]


@dataclass(frozen=True)
class OverviewPart:
    """Which topologies of the overview are asked for.

    :param states: those in one of these states; none: in every state.
    :param text: topologies whose name, DAG or sentence has this text, in upper or lower case.
    """

    states: frozenset[HealthCode] = frozenset()
    text: str = ""
    limit: int = 100
    offset: int = 0

    def select(self, snapshots: Sequence[TopologySnapshot]) -> OverviewSelection:
        """Select this part: the most urgent topologies first, then by name."""
        text = self.text.strip().casefold()
        with_text = [each for each in snapshots if _has_text(each, text)]
        counts = Counter(each.health.code for each in with_text)
        found = [each for each in with_text if not self.states or each.health.code in self.states]
        found.sort(key=lambda each: (each.health.code.urgency, each.name))
        return OverviewSelection(found[self.offset : self.offset + self.limit], len(found), counts)


@dataclass(frozen=True)
class OverviewSelection:
    """A part of the overview.

    :param total: how many topologies have the text and one of the states.
    :param counts: by state, how many topologies have the text.
    """

    some: Sequence[TopologySnapshot]
    total: int
    counts: Mapping[HealthCode, int]


def overview(
    snapshots: Sequence[TopologySnapshot], part: OverviewPart, access: Access
) -> TopologyList:
    """Describe a part of the topologies that the user may see."""
    selection = part.select(snapshots)
    lag_board().ask_for(selection.some)
    return TopologyList(
        topologies=topology_lines(selection.some, access),
        total=selection.total,
        limit=part.limit,
        offset=part.offset,
        counts={code: selection.counts.get(code, 0) for code in HealthCode},
    )


def _has_text(snapshot: TopologySnapshot, text: str) -> bool:
    if not text:
        return True
    # A text that is hidden in the answer must not be found by its parts either.
    words = (snapshot.name, snapshot.record.dag_id, redacted(snapshot.health.sentence))
    return any(text in each.casefold() for each in words)


def topology_lines(snapshots: Sequence[TopologySnapshot], access: Access) -> list[TopologyLine]:
    """Describe topologies that the user may see."""
    coordinator = ledger_places().coordinator
    names = {name for each in snapshots for name in (each.record.dag_id, coordinator(each.place))}
    paused = paused_dags(names)
    access.readable(names)
    access.editable(each.record.dag_id for each in snapshots)
    advice = topology_advice(snapshots, access)
    return [_line(each, access, paused, advice[each.name]) for each in snapshots]


def topology_page(snapshot: TopologySnapshot, access: Access) -> TopologyPage:
    """Describe one topology, whole."""
    record = snapshot.record
    view = snapshot.view
    paused = paused_dags([record.dag_id, ledger_places().coordinator(snapshot.place)])
    audit = AuditView(access.may(SEE_AUDIT, record.dag_id))
    skipped = [] if view is None else [each for each in view.transactions if each.can_be_readmitted]
    return TopologyPage(
        **vars(_line(snapshot, access, paused, topology_advice([snapshot], access)[snapshot.name])),
        ackers=lag_board().ackers_line(snapshot),
        incarnation=record.incarnation,
        generation=record.generation,
        states=[
            StateLine(name=name, last_txid=txid) for name, txid in sorted(record.states.items())
        ],
        losses=[] if view is None else audit.losses(view.losses),
        skipped=[
            SkippedLine(
                txid=each.txid, run_id=each.run_id, skip=skip, readmit=audit.deed(each.readmit)
            )
            for each in skipped
            if (skip := audit.deed(each.skip)) is not None
        ],
        repairs=[] if view is None else audit.repairs(view.repairs),
        waiting_runs=waiting_runs(record),
    )


def _line(
    snapshot: TopologySnapshot, access: Access, paused: Mapping[str, bool], advice: Advice
) -> TopologyLine:
    record = snapshot.record
    view = snapshot.view
    coordinator = ledger_places().coordinator(snapshot.place)
    return TopologyLine(
        topology=snapshot.name,
        dag_id=record.dag_id,
        paused=paused.get(record.dag_id),
        coordinator=CoordinatorLine(dag_id=coordinator, paused=paused[coordinator])
        if coordinator in paused and access.may_read(coordinator)
        else None,
        source=lag_board().source_line(snapshot),
        lag=lag_board().lag_line(snapshot),
        open=len(snapshot.opened),
        max_pending=record.max_pending,
        turn=0 if view is None else view.current,
        allocated=0 if view is None else view.allocated,
        last_commit=_last_commit(snapshot),
        commits_per_hour=[0] * HOURS
        if view is None
        else snapshot.commits_per_hour(datetime.now(timezone.utc)),
        state=snapshot.health,
        advice=advice,
        may_act=access.may_act(record.dag_id),
    )


def _last_commit(snapshot: TopologySnapshot) -> LastCommit | None:
    for txid in reversed(snapshot.final):
        found = snapshot.final_view(txid)
        if found is not None and found.ended and found.status == Outcome.COMMITTED.value:
            return LastCommit(txid=txid, at=found.ended)
    return None
