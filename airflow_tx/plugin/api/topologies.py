"""The lines of the overview, and the page of one topology, from a snapshot of the ledger."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Annotated, Any

from airflow_tx.base import compat
from airflow_tx.ledger import (
    HealthCode,
    Outcome,
    Phase,
    TopologyState,
    TransactionView,
    WaitingRun,
    Words,
    digest,
    moment,
    waiting_runs,
)
from airflow_tx.operations import BEGIN, ledger_places
from airflow_tx.plugin.api.access import (
    SEE_TASKS,
    Access,
    DeedLine,
    LossLine,
    OnlyFor,
    RepairLine,
    deed_line,
    repair_line,
)
from airflow_tx.plugin.api.activity import (
    EVERY_ROW,
    ChosenRows,
    RowFilter,
    Stretch,
    begun_at,
    chosen_rows,
    stretches,
)
from airflow_tx.plugin.api.advice import Advice, topology_advice
from airflow_tx.plugin.api.airflow_runs import TaskBar, paused_dags, task_tries
from airflow_tx.plugin.api.dag_process import AckersLine, LagLine, SourceLine, lag_board
from airflow_tx.plugin.api.redaction import BatchName, redacted
from airflow_tx.plugin.api.snapshots import HOURS, TopologySnapshot

# --- topology lines -----------------------------------------------------------------------------------------------


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
class CauseLine:
    """Several topologies that fail by the same cause, as one line of the overview.

    :param cause: to ask for these topologies; it stays the same while they change.
    :param sentence: what is wrong; `…` is where the topologies differ: their names and numbers.
    :param since: when the first of them failed, if that is known.
    :param place: how many topologies of this part stand before it.
    """

    cause: str
    code: HealthCode
    topologies: int
    sentence: Words
    since: datetime | None
    place: int


@dataclass(frozen=True, kw_only=True)
class TopologyList:
    """A part of the overview: the most urgent topologies first, then by name.

    :param causes: of this part: each is the topologies that fail by one cause, if grouping was asked for.
    :param total: how many topologies have the text and one of the states that were asked for.
    :param lines: how many topologies and causes are listed in all parts together; `limit` and `offset` count them.
    :param counts: by state, how many topologies have the text that was asked for.
    """

    topologies: list[TopologyLine]
    causes: list[CauseLine]
    total: int
    lines: int
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
    causes: list[TransactionCause]


@dataclass(frozen=True, kw_only=True)
class TransactionCause:
    """Several open transactions of a topology that fail by the same cause, as `CauseLine`."""

    sentence: Words
    txids: list[int]


@dataclass(frozen=True)
class OverviewPart:
    """Which topologies of the overview are asked for.

    :param states: those in one of these states; none: in every state.
    :param text: topologies whose name, DAG or sentence has this text, in upper or lower case.
    :param grouped: whether topologies that fail by the same cause are one line.
    :param cause: topologies that fail by this cause alone; "": by any cause, or by none.
    """

    states: frozenset[HealthCode] = frozenset()
    text: str = ""
    limit: int = 100
    offset: int = 0
    grouped: bool = False
    cause: str = ""

    def select(self, snapshots: Sequence[TopologySnapshot]) -> OverviewSelection:
        """Select this part: the most urgent topologies first, then by name."""
        text = self.text.strip().casefold()
        with_text = [each for each in snapshots if _has_text(each, text)]
        counts = Counter(each.health.code for each in with_text)
        found = [each for each in with_text if not self.states or each.health.code in self.states]
        found.sort(key=lambda each: (each.health.code.urgency, each.name))
        shared = shared_causes(found) if self.grouped or self.cause else ()
        if self.cause:
            found = [each for cause in shared if cause.key == self.cause for each in cause.of]
        lines = _grouped(found, () if self.cause else shared)
        some = lines[self.offset : self.offset + self.limit]
        return OverviewSelection(
            [each for each in some if isinstance(each, TopologySnapshot)],
            len(found),
            counts,
            some,
            len(lines),
        )


@dataclass(frozen=True)
class OverviewSelection:
    """A part of the overview.

    :param some: its topologies; `lines`: these and the causes between them.
    :param total: how many topologies have the text and one of the states.
    :param counts: by state, how many topologies have the text.
    :param total_lines: how many lines all parts have together.
    """

    some: Sequence[TopologySnapshot]
    total: int
    counts: Mapping[HealthCode, int]
    lines: Sequence[TopologySnapshot | SharedCause]
    total_lines: int


def overview(
    snapshots: Sequence[TopologySnapshot], part: OverviewPart, access: Access
) -> TopologyList:
    """Describe a part of the topologies that the user may see."""
    selection = part.select(snapshots)
    lag_board().ask_for(selection.some)
    return TopologyList(
        topologies=topology_lines(selection.some, access),
        causes=_cause_lines(selection.lines),
        total=selection.total,
        lines=selection.total_lines,
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
    skipped = [] if view is None else [each for each in view.transactions if each.can_be_readmitted]
    return TopologyPage(
        **vars(_line(snapshot, access, paused, topology_advice([snapshot], access)[snapshot.name])),
        ackers=lag_board().ackers_line(snapshot),
        incarnation=record.incarnation,
        generation=record.generation,
        states=[
            StateLine(name=name, last_txid=txid) for name, txid in sorted(record.states.items())
        ],
        losses=[] if view is None else [LossLine(**vars(each)) for each in view.losses],
        skipped=[
            SkippedLine(
                txid=each.txid, run_id=each.run_id, skip=skip, readmit=deed_line(each.readmit)
            )
            for each in skipped
            if (skip := deed_line(each.skip)) is not None
        ],
        repairs=[] if view is None else [repair_line(each) for each in view.repairs],
        waiting_runs=waiting_runs(record),
        causes=transaction_causes(snapshot),
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


# --- causes -------------------------------------------------------------------------------------------------------
# Many that fail by one cause, as one line.


LEAST_SHARED = 3
"""So many have a line of their own, with buttons: fewer are not grouped."""
_URGENT = (HealthCode.BLOCKED, HealthCode.UNREADABLE, HealthCode.FAILED)
_OWN_NAME = "\x00"
"""Replaces a name of the topology or the transaction itself."""
_TASK = re.compile(r"task [\w.-]+(?:\[\d+\])?: ")
_CLASS = re.compile(r"[A-Za-z_][\w.]*(?=: )")
# A refusal names the state or the connection that it is about: these belong to the cause. Its counts do not.
_COUNTS = re.compile(r"[\x00…]|(?<![\w.:/-])\d+(?:\.\d+)?(?![\w:/-]|\.\d)")
# Of another error every name and number is left out: what is in quotes, and each word with a digit or a slash.
_BREAK = r"\s'\"`()\[\]{},;="
_NAMES = re.compile(
    r"[\x00…]|(?<!\w)(?:'[^'\n]{0,300}'|\"[^\"\n]{0,300}\"|`[^`\n]{0,300}`)(?!\w)"
    rf"|(?<![^{_BREAK}])(?=[^{_BREAK}\d/]{{0,300}}[\d/])[^{_BREAK}]{{1,300}}(?<![.:!?])"
)


@dataclass(frozen=True)
class FailureCause:
    """Why a topology or a transaction fails, to be compared with others.

    :param kind: what the ledger knows of it, and the class of its error.
    :param words: what it has in common with others; `names`: what stands between these words.
    """

    kind: tuple[str, ...]
    words: tuple[str, ...]
    names: tuple[str, ...] = field(compare=False)

    @classmethod
    def of(cls, view: TransactionView, own: Sequence[str]) -> FailureCause:
        """Find why an open transaction fails.

        :param own: names of its topology and its DAG.
        """
        if view.stale:
            return cls(("stale",), ("its predecessor ended elsewhere than its batch starts",), ())
        text = view.cause or view.blocked or ""
        # Only a refusal has a remedy: an error of a task's own code has none.
        is_refusal = view.refused or view.remedy is not None or view.error is None
        return cls.read(text, (*own, view.run_id), is_refusal=is_refusal)

    @classmethod
    def read(cls, text: str, own: Sequence[str], *, is_refusal: bool) -> FailureCause:
        """Take its names and numbers out of a text."""
        task = _TASK.match(text)
        text = text if task is None else text[task.end() :]
        found = _CLASS.match(text)
        name = "" if found is None else found[0]
        rest = text[len(name) :]
        for each in sorted(filter(None, own), key=len, reverse=True):
            if each in rest:
                rest = re.sub(rf"(?<!\w){re.escape(each)}(?!\w)", _OWN_NAME, rest)
        pattern = _COUNTS if is_refusal else _NAMES
        kind = "refusal" if is_refusal else "error"
        return cls((kind, name), tuple(pattern.split(rest)), tuple(pattern.findall(rest)))

    def sentence(self, others: Iterable[FailureCause]) -> str:
        """Say what is wrong: the names that all of them have stay, the others are left out."""
        names = [self.names, *(each.names for each in others)]
        same = [
            each[0] if len(set(each)) == 1 and _OWN_NAME not in each[0] else "…"
            for each in zip(*names, strict=True)
        ]
        between = "".join(f"{name}{word}" for name, word in zip(same, self.words[1:], strict=True))
        return f"{self.kind[-1] if len(self.kind) > 1 else ''}{self.words[0]}{between}".strip()


@dataclass(frozen=True)
class SharedCause:
    """Topologies that fail by the same cause.

    :param of: these, in the order of the overview.
    """

    code: HealthCode
    is_refusal: bool
    sentence: str
    of: Sequence[TopologySnapshot]

    @cached_property
    def key(self) -> str:
        """Name the cause: by the words that a person may read, so that no one can guess at hidden ones."""
        shown = FailureCause.read(redacted(self.sentence), (), is_refusal=self.is_refusal)
        return digest([self.code.value, *shown.kind, *shown.words])[:16]


def shared_causes(snapshots: Iterable[TopologySnapshot]) -> list[SharedCause]:
    """Find the causes by which several of these topologies fail."""
    found: dict[tuple[HealthCode, FailureCause], list[tuple[TopologySnapshot, FailureCause]]] = (
        defaultdict(list)
    )
    for each in snapshots:
        if each.health.code in _URGENT:
            cause = _cause_of(each)
            found[each.health.code, cause].append((each, cause))
    shared: dict[str, SharedCause] = {}
    for (code, cause), some in found.items():
        sentence = cause.sentence(other for _, other in some)
        of = [each for each, _ in some]
        made = SharedCause(code, cause.kind[0] != "error", sentence, of)
        known = shared.setdefault(made.key, made)
        if known is not made:  # they differ in what a person may not read
            shared[made.key] = replace(known, of=[*known.of, *of])
    return [each for each in shared.values() if len(each.of) >= LEAST_SHARED]


def _cause_of(snapshot: TopologySnapshot) -> FailureCause:
    health = snapshot.health
    own = (snapshot.name, snapshot.paths.topology, snapshot.record.dag_id)
    view = None if health.txid is None else snapshot.open_by_txid.get(health.txid)
    if view is None:
        return FailureCause.read(health.sentence, own, is_refusal=True)
    return FailureCause.of(view, own)


def _grouped(
    found: Sequence[TopologySnapshot], shared: Iterable[SharedCause]
) -> list[TopologySnapshot | SharedCause]:
    """Put a cause at the place of its first topology."""
    by_name = {each.name: cause for cause in shared for each in cause.of}
    firsts = {cause.of[0].name for cause in by_name.values()}
    return [
        by_name.get(each.name, each)
        for each in found
        if each.name not in by_name or each.name in firsts
    ]


def _cause_lines(lines: Sequence[TopologySnapshot | SharedCause]) -> list[CauseLine]:
    return [
        CauseLine(
            cause=each.key,
            code=each.code,
            topologies=len(each.of),
            sentence=each.sentence,
            since=min(filter(None, (one.health.since for one in each.of)), default=None),
            place=sum(isinstance(before, TopologySnapshot) for before in lines[:index]),
        )
        for index, each in enumerate(lines)
        if isinstance(each, SharedCause)
    ]


def transaction_causes(snapshot: TopologySnapshot) -> list[TransactionCause]:
    """Find the causes by which several open transactions of a topology fail."""
    found: dict[FailureCause, list[tuple[int, FailureCause]]] = defaultdict(list)
    for each in snapshot.opened:
        if each.failed or each.stale or each.blocked:
            own = (snapshot.name, snapshot.paths.topology, snapshot.record.dag_id)
            cause = FailureCause.of(each, own)
            found[cause].append((each.txid, cause))
    return [
        TransactionCause(
            sentence=cause.sentence(other for _, other in some), txids=[txid for txid, _ in some]
        )
        for cause, some in found.items()
        if len(some) >= LEAST_SHARED
    ]


# --- timeline -----------------------------------------------------------------------------------------------------
# Transactions over time: attempts, tasks, waiting and commit, from the ledger and from Airflow's task instances.


@dataclass(frozen=True, kw_only=True)
class AttemptBar:
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


@dataclass(frozen=True, kw_only=True)
class WaitBar:
    """From when until when a processed transaction waited for its turn.

    :param end: null: it waits.
    :param waiting_for: in words; null once it does not wait any more.
    """

    start: datetime
    end: datetime | None
    waiting_for: Words | None


@dataclass(frozen=True, kw_only=True)
class CommitBar:
    """From the last grant until the mark.

    :param end: null: it is being committed.
    """

    start: datetime
    end: datetime | None


@dataclass(frozen=True, kw_only=True)
class TimelineRow:
    """One transaction, as the timeline shows it.

    :param phase: PROCESSING, PROCESSED, COMMITTING or FAILED while it is open, then COMMITTED, SKIPPED or READMITTED;
        UNREADABLE: only its txid is known, and the error that names its record.
    :param waiting_for: what has to happen next, in the words of `airflow tx show`; null: nothing.
    :param blocked: why it is replayed no more unless a person asks for it.
    :param rows: rows of the batch, if its tasks counted them.
    :param batch_name: the file, the range or the interval of the batch; null: it has no name.
    :param to_skip: whether it is to be skipped at its turn.
    :param restates: the transaction that it restates, or was to restate; null: it is no restatement.
    :param restated_by: the transaction that counts instead of it; null: it counts itself, if any does.
    :param to_restate: whether a person wants it restated, and no run has begun that.
    :param lane: whether a lane works on it now; `has_run`: whether Airflow has a run of it.
    :param rejected: rows that its tasks, or its source, kept aside; `warnings`: the checks that only warned.
    """

    txid: int
    run_id: str
    phase: str
    open: bool
    attempt: int
    attempts: list[AttemptBar]
    tasks: Annotated[list[TaskBar], OnlyFor(SEE_TASKS)]
    waiting: WaitBar | None
    commit: CommitBar | None
    rows: int | None
    batch_name: BatchName | None
    waiting_for: Words | None
    blocked: Words | None
    error: Words | None
    to_skip: bool
    restates: int | None
    restated_by: int | None
    to_restate: bool
    lane: bool
    has_run: bool
    rejected: int
    warnings: list[str]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Transactions of a topology, newest first.

    :param total: how many there are, within `since` and `until`; of a filter: before `before`, too.
    :param before: give this as `before` for the next page; null: there is none.
    :param earlier: when the transactions of the next pages were under way; null: `earlier` was not asked for.
    :param txids: the transactions that the filter lets through, the newest first; null: there is no filter.
    :param looked_to: the oldest transaction that the filter looked at; null: it looked at all of them.
    :param slow_beyond: the seconds that 95 of 100 committed transactions do not exceed; null: that was not asked.
    """

    topology: str
    transactions: list[TimelineRow]
    total: int
    limit: int
    before: int | None
    earlier: list[Stretch] | None = None
    txids: list[int] | None = None
    looked_to: int | None = None
    slow_beyond: float | None = None


@dataclass(frozen=True)
class TimelineWindow:
    """Which transactions are asked for.

    :param since: transactions that ended at this time or later, and open ones; `until`: the ones that began before it.
    :param before: transactions with smaller txids.
    """

    since: datetime | None = None
    until: datetime | None = None
    before: int | None = None
    limit: int = 100

    def rounded(self) -> TimelineWindow:
        """Widen it to whole steps of time, so that viewers of about the same window share an answer."""
        since = None if self.since is None else _whole(self.since)
        until = None if self.until is None else _whole(self.until)
        if until is not None and self.until is not None and until < self.until:
            until = min(until, _LAST - _STEP) + _STEP
        return replace(self, since=since, until=until)


_STEP = timedelta(seconds=10)
_FIRST = datetime.min.replace(tzinfo=timezone.utc)
_LAST = datetime.max.replace(tzinfo=timezone.utc)


def _whole(moment: datetime) -> datetime:
    """Round down to a whole step; a zone may shift the first and the last moment there is out of the calendar."""
    try:
        utc = moment.astimezone(timezone.utc)
    except OverflowError:
        return _FIRST if moment.year < _LAST.year else _LAST
    return utc - (utc - _FIRST) % _STEP


def timeline(
    snapshot: TopologySnapshot,
    window: TimelineWindow,
    wanted: RowFilter = EVERY_ROW,
    *,
    with_tasks: bool,
    with_earlier: bool = False,
) -> Timeline:
    """Describe the transactions of a topology, newest first.

    :param wanted: which of the window.
    :param with_tasks: with the tries of their tasks, which not everybody may read.
    :param with_earlier: with the times of the next pages.
    """
    within = _within(snapshot, window)
    earlier = within if window.before is None else within[: bisect_left(within, window.before)]
    chosen = None if wanted.is_empty else chosen_rows(snapshot, earlier, wanted)
    txids = earlier if chosen is None else chosen.txids
    rest = txids[: -window.limit]
    some = txids[-window.limit :]
    views = snapshot.transaction_views(reversed(some))
    return Timeline(
        topology=snapshot.name,
        transactions=timeline_rows(snapshot.record.dag_id, views, with_tasks=with_tasks),
        total=len(within if chosen is None else txids),
        limit=window.limit,
        before=some[0] if rest else None,
        earlier=stretches(snapshot, rest) if with_earlier else None,
        **_chosen(chosen),
    )


def _chosen(chosen: ChosenRows | None) -> dict[str, Any]:
    if chosen is None:
        return {}
    return {
        "txids": list(reversed(chosen.txids)),
        "looked_to": chosen.oldest,
        "slow_beyond": chosen.slow,
    }


def timeline_rows(
    dag_id: str, views: Sequence[TransactionView], *, with_tasks: bool
) -> list[TimelineRow]:
    """Describe these transactions, in this order."""
    run_ids = {each.run_id for each in views if each.run_id and not each.lane}
    runs = compat.runs_of(dag_id, run_ids)
    tries = task_tries(dag_id, run_ids) if with_tasks else {}
    return [
        timeline_row(each, tries.get(each.run_id, ()), has_run=each.run_id in runs)
        for each in views
    ]


def timeline_row(view: TransactionView, tries: Sequence[TaskBar], *, has_run: bool) -> TimelineRow:
    """Describe one transaction.

    :param tries: of the tasks of its run; none where the viewer may not read them.
    """
    attempts = attempt_bars(view)
    tasks = task_bars(own_tries(tries, view), attempts)
    attempts = [replace(each, failed_at=_failed_at(each, tasks)) for each in attempts]
    # The bars of a failed transaction end when it failed.
    stopped = attempts[-1].failed_at if attempts and view.failed else None
    return TimelineRow(
        txid=view.txid,
        run_id=view.run_id,
        phase=Phase.FAILED.value if view.failed else view.status,
        open=view.open,
        attempt=view.attempt,
        attempts=attempts,
        tasks=tasks,
        waiting=_waiting(view, stopped),
        commit=_commit(view, stopped),
        rows=view.rows,
        batch_name=view.batch or None,
        waiting_for=view.waiting_for,
        blocked=view.blocked,
        error=view.error,
        to_skip=view.open and view.skip is not None,
        restates=view.restates,
        restated_by=view.restated_by,
        to_restate=view.restates is None and view.restate is not None,
        lane=view.lane,
        has_run=has_run,
        rejected=view.rejected,
        warnings=view.warnings,
    )


def attempt_bars(view: TransactionView) -> list[AttemptBar]:
    """List the remembered attempts of a transaction."""
    bars = []
    begun = view.created
    for replay in view.replays:
        ended = moment(replay["when"])
        bars.append(
            AttemptBar(
                attempt=replay["attempt"],
                begun_at=begun,
                ended_at=ended,
                outcome="replayed",
                why=replay["why"],
            )
        )
        begun = ended
    if view.attempt:
        newest = view.began or begun
        bars.append(
            AttemptBar(
                attempt=view.attempt,
                begun_at=newest,
                ended_at=view.ended,
                outcome=view.status,
                why=view.error,
            )
        )
    return bars


def own_tries(tries: Sequence[TaskBar], view: TransactionView) -> Sequence[TaskBar]:
    """Choose the tries of a transaction: a run that is restated, or re-admitted, also has tries of other transactions.

    Each transaction of a run begins in a try of `begin`.
    """
    begins = sorted((each for each in tries if each.operator == BEGIN and each.start), key=_start)
    created = view.created or view.began
    own = [each for each in begins if created is not None and _start(each) <= created]
    first = _FIRST
    if own and any(each.end and each.end <= _start(own[-1]) and _made(each) for each in own[:-1]):
        first = _start(own[-1])
    ended = view.ended or _LAST
    last = min((_start(each) for each in begins if _start(each) > ended), default=_LAST)
    return [each for each in tries if not each.start or first <= each.start < last]


def _start(each: TaskBar) -> datetime:
    return each.start or _LAST


def _made(begin: TaskBar) -> bool:
    """Whether a try of `begin` may have made a transaction, or an attempt."""
    return begin.state not in ("failed", "up_for_retry", "up_for_reschedule")


def task_bars(tries: Sequence[TaskBar], attempts: Sequence[AttemptBar]) -> list[TaskBar]:
    """List the tries of tasks by the time when they started; tries that never started are last."""
    ordered = sorted(
        tries,
        key=lambda each: (
            each.start or _LAST,
            each.task_id,
            each.map_index,
            each.try_number,
        ),
    )
    return [
        replace(
            each,
            attempt=_attempt_at(each.end if each.operator == BEGIN else each.start, attempts),
        )
        for each in ordered
    ]


def _failed_at(attempt: AttemptBar, tasks: Sequence[TaskBar]) -> datetime | None:
    ends = [
        each.end for each in tasks if each.attempt == attempt.attempt and each.state == "failed"
    ]
    return max((end for end in ends if end is not None), default=None)


def _attempt_at(start: datetime | None, attempts: Sequence[AttemptBar]) -> int | None:
    """Find the attempt in which a try of a task began; of `begin`, which makes the attempt, in which it ended."""
    if not attempts:
        return None
    if start is None:
        return attempts[-1].attempt
    for each in attempts:
        if each.ended_at is None or start < each.ended_at:
            return each.attempt
    return attempts[-1].attempt


def _waiting(view: TransactionView, stopped: datetime | None) -> WaitBar | None:
    start = view.processed
    if start is None or (view.failed and stopped is None):
        return None
    end = view.granted or view.ended or stopped
    return WaitBar(start=start, end=end, waiting_for=view.waiting_for if end is None else None)


def _commit(view: TransactionView, stopped: datetime | None) -> CommitBar | None:
    start = view.granted
    if start is None or (view.failed and stopped is None):
        return None
    return CommitBar(start=start, end=view.ended or stopped)


def _within(snapshot: TopologySnapshot, window: TimelineWindow) -> Sequence[int]:
    first = 0 if window.since is None else snapshot.first_since(window.since)
    txids = [*snapshot.final[first:], *snapshot.open_by_txid]
    if window.until is None:
        return txids
    until = window.until

    def began_later(txid: int) -> bool:
        found = snapshot.open_by_txid.get(txid) or snapshot.final_view(txid)
        begun = None if found is None else begun_at(found)
        return begun is not None and begun >= until

    # They begin in order, too.
    return txids[: bisect_left(txids, True, key=began_later)]
