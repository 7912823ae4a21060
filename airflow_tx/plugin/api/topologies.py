"""The lines of the overview, and the page of one topology, created from a snapshot of the ledger."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property

from airflow_tx.ledger import (
    HealthCode,
    Outcome,
    TopologyState,
    TransactionView,
    WaitingRun,
    Words,
    digest,
)
from airflow_tx.operations import ledger_places
from airflow_tx.plugin.api.access import (
    Access,
    DeedLine,
    LossLine,
    RepairLine,
    answer_of,
    deed_line,
    repair_line,
)
from airflow_tx.plugin.api.advice import Advice, topology_advice
from airflow_tx.plugin.api.airflow_runs import paused_dags
from airflow_tx.plugin.api.dag_process import AckersLine, LagLine, SourceLine, lag_board
from airflow_tx.plugin.api.redaction import redacted
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

    :param paused: whether the DAG is paused, or null if Airflow does not have the DAG.
    :param open: the number of open transactions.
    :param max_pending: the maximum number of open transactions.
    :param turn: the txid that has the turn to commit.
    :param allocated: the last allocated txid.
    :param commits_per_hour: the number of transactions that became final in each of the last 24 hours, the oldest hour
        first.
    :param may_act: whether the user may act on the transactions.
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
    """Several topologies that fail for the same cause, shown as one line of the overview.

    :param cause: a key for these topologies. It stays the same if a topology joins or leaves.
    :param topologies: the number of these topologies.
    :param sentence: the problem. Names and numbers that differ between the topologies are replaced by `…`.
    :param since: when the first of them failed, or null if it is unknown.
    :param place: the number of topologies before this line in this part.
    """

    cause: str
    code: HealthCode
    topologies: int
    sentence: Words
    since: datetime | None
    place: int


@dataclass(frozen=True, kw_only=True)
class TopologyList:
    """A part of the overview. Topologies are sorted by urgency, then by name.

    :param causes: the causes in this part, if the request groups topologies.
    :param total: the number of topologies that contain the requested text and have one of the requested states.
    :param lines: the number of topologies and causes in all parts, to which `limit` and `offset` refer.
    :param counts: the number of topologies that contain the requested text, by state.
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

    :param last_txid: the last final transaction whose grant has raised the fence of the state.
    """

    name: str
    last_txid: int


@dataclass(frozen=True, kw_only=True)
class SkippedLine:
    """A skipped transaction that can be readmitted, since the ledger has its rows."""

    txid: int
    run_id: str
    skip: DeedLine
    readmit: DeedLine | None


@dataclass(frozen=True, kw_only=True)
class TopologyPage(TopologyLine):
    """All facts of one topology.

    :param ackers: the load of the ackers. It is null if the tasks emit no messages, or the ackers have not responded.
    :param upstream: the topology whose table the source reads, or "" if there is none.
    :param behind: txids of the transactions that lack corrections of the upstream topology.
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
    upstream: str
    behind: list[int]


@dataclass(frozen=True, kw_only=True)
class TransactionCause:
    """Open transactions of a topology that fail for the same cause, see `CauseLine`."""

    sentence: Words
    txids: list[int]


@dataclass(frozen=True)
class OverviewPart:
    """The filter of an overview, and the part that is requested.

    :param states: return only topologies in one of these states. If it is empty, return topologies in every state.
    :param text: return only topologies whose name, DAG or sentence contains this text, regardless of case.
    :param limit: the maximum number of lines.
    :param offset: the number of lines before this part.
    :param grouped: whether topologies that fail for the same cause share a line.
    :param cause: return only topologies that fail for this cause, or all topologies if it is "".
    """

    states: frozenset[HealthCode] = frozenset()
    text: str = ""
    limit: int = 100
    offset: int = 0
    grouped: bool = False
    cause: str = ""

    def select(self, snapshots: Sequence[TopologySnapshot]) -> OverviewSelection:
        """Select the topologies of this part, sorted by urgency, then by name."""
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

    :param some: the topologies of this part.
    :param total: the number of topologies that contain the text and have one of the states.
    :param counts: the number of topologies that contain the text, by state.
    :param lines: the topologies and causes of this part, in order.
    :param total_lines: the number of lines in all parts.
    """

    some: Sequence[TopologySnapshot]
    total: int
    counts: Mapping[HealthCode, int]
    lines: Sequence[TopologySnapshot | SharedCause]
    total_lines: int


def overview(
    snapshots: Sequence[TopologySnapshot], part: OverviewPart, access: Access
) -> TopologyList:
    """Return a part of the overview of topologies that the user may see."""
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
    # A search must not match text that the response hides.
    words = (snapshot.name, snapshot.record.dag_id, redacted(snapshot.health.sentence))
    return any(text in each.casefold() for each in words)


def topology_lines(snapshots: Sequence[TopologySnapshot], access: Access) -> list[TopologyLine]:
    """Return the lines of topologies that the user may see."""
    coordinator = ledger_places().coordinator
    names = {name for each in snapshots for name in (each.record.dag_id, coordinator(each.place))}
    paused = paused_dags(names)
    access.readable(names)
    access.editable(each.record.dag_id for each in snapshots)
    advice = topology_advice(snapshots, access)
    return [_line(each, access, paused, advice[each.name]) for each in snapshots]


def topology_page(snapshot: TopologySnapshot, access: Access) -> TopologyPage:
    """Return all facts of one topology."""
    record = snapshot.record
    view = snapshot.view
    paused = paused_dags([record.dag_id, ledger_places().coordinator(snapshot.place)])
    skipped = [] if view is None else [each for each in view.transactions if each.can_be_readmitted]
    return answer_of(
        TopologyPage,
        record,
        **vars(_line(snapshot, access, paused, topology_advice([snapshot], access)[snapshot.name])),
        ackers=lag_board().ackers_line(snapshot),
        states=[
            StateLine(name=name, last_txid=txid) for name, txid in sorted(record.states.items())
        ],
        losses=[] if view is None else [LossLine(**vars(each)) for each in view.losses],
        skipped=[
            SkippedLine(
                txid=each.txid,
                run_id=each.document.run_id,
                skip=skip,
                readmit=deed_line(each.readmit),
            )
            for each in skipped
            if (skip := deed_line(each.skip)) is not None
        ],
        repairs=[] if view is None else [repair_line(each) for each in view.repairs],
        waiting_runs=[] if view is None else view.waiting_runs,
        causes=transaction_causes(snapshot),
        behind=[] if view is None else [each.txid for each in view.behind],
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
# Topologies or transactions that fail for the same cause are shown as one line.


LEAST_SHARED = 3
"""The minimum size of a group of topologies or transactions. Smaller groups keep separate lines, with buttons."""
_URGENT = (HealthCode.BLOCKED, HealthCode.UNREADABLE, HealthCode.FAILED)
_OWN_NAME = "\x00"
"""The placeholder for the name of the topology or of the run in a text."""
# In a refusal, only counts differ. The names of states and connections in it are part of the cause.
_COUNTS = re.compile(r"[\x00…]|(?<![\w.:/-])\d+(?:\.\d+)?(?![\w:/-]|\.\d)")
# In any other error, every name and number may differ: quoted text, and each word with a digit or a
# slash.
_BREAK = r"\s'\"`()\[\]{},;="
_NAMES = re.compile(
    r"[\x00…]|(?<!\w)(?:'[^'\n]{0,300}'|\"[^\"\n]{0,300}\"|`[^`\n]{0,300}`)(?!\w)"
    rf"|(?<![^{_BREAK}])(?=[^{_BREAK}\d/]{{0,300}}[\d/])[^{_BREAK}]{{1,300}}(?<![.:!?])"
)


@dataclass(frozen=True)
class FailureCause:
    """The cause of a failure. Two causes are equal if their texts differ only in names and numbers.

    :param kind: `stale`, `refusal` or `error`.
    :param words: the parts of the text that equal causes have in common.
    :param names: the names and numbers between these parts.
    """

    kind: str
    words: tuple[str, ...]
    names: tuple[str, ...] = field(compare=False)

    @classmethod
    def of(cls, view: TransactionView, own: Sequence[str]) -> FailureCause:
        """Return the cause of the failure of an open transaction.

        :param own: the names of the topology and of the DAG.
        """
        if view.stale:
            return cls(
                "stale",
                ("the transaction before it did not end at the position where its batch starts",),
                (),
            )
        # The name of the failed task is not part of the cause.
        text = view.document.error or view.run_end or view.blocked or ""
        # Only a refusal has a remedy. An error of a task's own code has none.
        is_refusal = view.refused or view.document.remedy is not None or view.document.error is None
        return cls.read(text, (*own, view.document.run_id), is_refusal=is_refusal)

    @classmethod
    def read(cls, text: str, own: Sequence[str], *, is_refusal: bool) -> FailureCause:
        """Split a text into common words, and the names and numbers between them."""
        rest = text
        for each in sorted(filter(None, own), key=len, reverse=True):
            if each in rest:
                rest = re.sub(rf"(?<!\w){re.escape(each)}(?!\w)", _OWN_NAME, rest)
        pattern = _COUNTS if is_refusal else _NAMES
        kind = "refusal" if is_refusal else "error"
        return cls(kind, tuple(pattern.split(rest)), tuple(pattern.findall(rest)))

    def sentence(self, others: Iterable[FailureCause]) -> str:
        """Return the text of the cause, with `…` for names that differ between these causes."""
        names = [self.names, *(each.names for each in others)]
        same = [
            each[0] if len(set(each)) == 1 and _OWN_NAME not in each[0] else "…"
            for each in zip(*names, strict=True)
        ]
        between = "".join(f"{name}{word}" for name, word in zip(same, self.words[1:], strict=True))
        return f"{self.words[0]}{between}".strip()


@dataclass(frozen=True)
class SharedCause:
    """Topologies that fail for the same cause.

    :param of: the topologies, in the order of the overview.
    """

    code: HealthCode
    is_refusal: bool
    sentence: str
    of: Sequence[TopologySnapshot]

    @cached_property
    def key(self) -> str:
        """Return the key of the cause: a digest of the visible words only, so that it does not reveal hidden ones."""
        shown = FailureCause.read(redacted(self.sentence), (), is_refusal=self.is_refusal)
        return digest([self.code.value, shown.kind, *shown.words])[:16]


def shared_causes(snapshots: Iterable[TopologySnapshot]) -> list[SharedCause]:
    """Return the causes that several of these topologies share."""
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
        made = SharedCause(code, cause.kind != "error", sentence, of)
        known = shared.setdefault(made.key, made)
        if known is not made:  # The causes differ only in hidden words.
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
    """Replace the topologies that share a cause with one line, at the position of the first of them."""
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
    """Return the causes that several open transactions of a topology share."""
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
