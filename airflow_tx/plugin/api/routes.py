"""The read-only routes. All blocking calls are in plain functions, which FastAPI runs in threads."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, TypeVar

from airflow.utils.state import State
from fastapi import APIRouter, HTTPException, Query, Request, Response, status
from fastapi.routing import APIRoute

from airflow_tx.base import compat
from airflow_tx.base.errors import TxError
from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger import (
    Begun,
    Binding,
    HealthCode,
    ReadOnlyLedger,
    Store,
    TransactionAttempt,
    TransactionRecord,
    TransactionView,
    Words,
    counted,
    whole_record,
)
from airflow_tx.operations import (
    BEGIN,
    MOST_FOUND,
    MatchedPart,
    SearchedLedger,
    TextFound,
    TextMatch,
    WantedText,
    ledger_places,
)
from airflow_tx.plugin.api.access import (
    SEE_TASKS,
    SEE_XCOMS,
    Access,
    AccessDep,
    Name,
    Visit,
    VisitDep,
    answer_of,
    body,
    sent,
)
from airflow_tx.plugin.api.advice import NO_ADVICE, Advice, log_link, said_advice, waited_for
from airflow_tx.plugin.api.airflow_runs import Jobs, TaskBar, jobs_of, task_tries, xcoms
from airflow_tx.plugin.api.dag_process import dag_process, lag_board
from airflow_tx.plugin.api.figures import Figures, FigureSpan, figures
from airflow_tx.plugin.api.questions import questions, searches
from airflow_tx.plugin.api.redaction import BatchName, fit, redacted, without_credentials
from airflow_tx.plugin.api.snapshots import SILENT, LedgerAway, TopologySnapshot, ledger_snapshots
from airflow_tx.plugin.api.timeline import (
    Activity,
    RowFilterDep,
    Timeline,
    TimelineWindow,
    activity,
    timeline,
)
from airflow_tx.plugin.api.topologies import (
    OverviewPart,
    TopologyList,
    TopologyPage,
    overview,
    topology_page,
)
from airflow_tx.plugin.api.transaction_page import (
    RejectedAnswer,
    TransactionPage,
    rejected_answer,
    transaction_page,
)
from airflow_tx.transaction import WHY_NOT

# --- search -------------------------------------------------------------------------------------------------------
# Find the transactions that match a search text. For one topology, the process that runs DAG files
# queries the source. For all topologies, the search reads their ledgers.


T = TypeVar("T")
MOST_TOPOLOGIES = 200
"""The maximum number of topologies that one search reads."""
ENOUGH = 4 * MOST_FOUND
"""The number of matches after which a search of several topologies ends. It returns the best of them."""
MOST_SEARCHED = 5000
"""The maximum number of transactions that one search of several topologies reads."""
ALL_WITHIN = 10.0
"""The maximum duration of a search of several topologies, in seconds. It then returns the matches found so far."""


@dataclass(frozen=True, kw_only=True)
class FoundLine:
    """A transaction that matches the search.

    :param phase: the phase as in the timeline, or null if the ledger has forgotten the transaction.
    :param restates: the transaction that this one restates.
    :param restated_by: the transaction that counts instead of this one.
    """

    txid: int
    run_id: str | None
    phase: str | None
    batch_name: BatchName | None
    restates: int | None
    restated_by: int | None


@dataclass(frozen=True, kw_only=True)
class SearchAnswer:
    """The result of a search in one topology. The newest transaction is first.

    :param looked: the number of transactions that were searched.
    :param oldest: the oldest transaction that was searched, or null if no transaction was searched.
    :param unknown: the number of transactions whose rows the source cannot compare.
    :param complete: whether all transactions in the ledger were searched.
    """

    found: list[FoundLine]
    looked: int
    oldest: int | None
    unknown: int
    complete: bool


def searched(snapshot: TopologySnapshot, what: str, access: Access, visit: Visit) -> SearchAnswer:
    """Search the transactions for a file, an offset, an id or a date.

    :param visit: the request of the browser. When the browser disconnects, the search ends.
    :raises Busy: too many slow requests are running.
    :raises NotAnsweredThere: the process that runs the code of DAG files hung or ended.
    """
    question = {"find": snapshot.as_asked, "what": what, "search": visit.name}
    visit.on_leave(lambda: dag_process().end_search(visit.name))
    with questions.asked("a search", snapshot, access):
        found: dict[str, Any] = dag_process().ask(question)
    txids = found.pop("txids")
    views = {each.txid: each for each in snapshot.transaction_views(txids)}
    return SearchAnswer(**found, found=[_line(txid, views.get(txid)) for txid in txids])


def _line(txid: int, view: TransactionView | None) -> FoundLine:
    if view is None:
        return FoundLine(
            txid=txid,
            run_id=None,
            phase=None,
            batch_name=None,
            restates=None,
            restated_by=None,
        )
    return answer_of(FoundLine, view, phase=view.status, batch_name=view.batch or None)


# --- all topologies ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FoundAnywhere(FoundLine):
    """A transaction of any topology that contains the search text.

    :param matched: the part of the transaction that contains the search text.
    :param text: the whole text of this part, as users see it.
    """

    topology: str
    matched: MatchedPart
    text: str


@dataclass(frozen=True, kw_only=True)
class SearchOfAllAnswer:
    """The result of a search in several topologies.

    Matches of a txid or run come before matches in a batch. Matches of a complete name come before matches of a part.
    Among equal matches, the most urgent topology is first, and then the newest transaction.

    :param topologies: the number of the user's topologies that match the filter.
    :param looked: the number of topologies whose transactions were searched.
    :param transactions: the number of transactions that were searched.
    :param partly: the number of topologies of which only the newest transactions were searched.
    :param unknown: the number of transactions whose batch is only a digest in the ledger.
    :param unread: the names of the topologies whose ledger could not be read.
    :param complete: whether all transactions were searched, and the result has every match.
    """

    found: list[FoundAnywhere]
    topologies: int
    looked: int
    transactions: int
    partly: int
    unknown: int
    unread: list[str]
    complete: bool


def searched_all(
    snapshots: Sequence[TopologySnapshot],
    what: str,
    *,
    person: str = "",
    has_left: Callable[[], bool] = lambda: False,
) -> SearchOfAllAnswer:
    """Search for a text in the records of topologies that the user may see. No source is queried.

    :param snapshots: the topologies, in the order of the search.
    :param what: the search text.
    :param person: the user, who can run one search at a time.
    :param has_left: a function that returns whether the browser has disconnected, which ends the search
    :raises SearchBusy: another search of this user is running, or too many searches are running.
    """
    # The page hides parts of errors that belong to connections. A search must not match them.
    wanted = WantedText(what.strip(), without_credentials, redacted)
    some = snapshots[:MOST_TOPOLOGIES]
    with searches.under_way(person):
        search = _SearchOfAll(wanted, some, time.monotonic() + ALL_WITHIN, has_left)
        search.run()
        return search.answer(len(snapshots))


class _SearchOfAll:
    """One search of several topologies.

    :param until: when the search must end, by the monotonic clock.
    """

    def __init__(
        self,
        wanted: WantedText,
        snapshots: Sequence[TopologySnapshot],
        until: float,
        has_left: Callable[[], bool],
    ) -> None:
        self._wanted = wanted
        self._snapshots = snapshots
        self._until = until
        self._has_left = has_left
        self._found: dict[tuple[str, int], TextMatch] = {}
        self._looked: list[TextFound] = []
        self._unread: list[str] = []
        self._away: set[str] = set()

    def run(self) -> None:
        """Search for a txid or a run that equals the text, then search the newest transactions."""
        for snapshot in self._snapshots:
            if not self._is_over():
                self._look_up(snapshot)
        for index, snapshot in enumerate(self._snapshots):
            if not self._is_over() and self._named < ENOUGH:
                self._look(snapshot, len(self._snapshots) - index)

    def _is_over(self) -> bool:
        """Return whether the time limit is exceeded, or the browser has disconnected."""
        return time.monotonic() > self._until or self._has_left()

    @property
    def _named(self) -> int:
        return sum(each.is_named for each in self._found.values())

    def _look_up(self, snapshot: TopologySnapshot) -> None:
        """Find the transactions whose txid or run is the search text, regardless of their age."""
        for each in self._asked(snapshot, lambda ledger: ledger.named(self._wanted)) or ():
            self._found[snapshot.name, each.view.txid] = each

    def _look(self, snapshot: TopologySnapshot, left: int) -> None:
        """Search the newest transactions of one topology.

        :param left: the number of topologies that share the rest of `MOST_SEARCHED`.
        """
        read = sum(each.looked for each in self._looked)
        most = (MOST_SEARCHED - read) // left
        found = self._asked(
            snapshot,
            lambda ledger: ledger.look(
                self._wanted,
                most=most,
                most_found=ENOUGH - self._named,
                until=self._until,
                has_left=self._has_left,
            ),
        )
        if found is None:
            self._unread.append(snapshot.name)
            return
        self._looked.append(found)
        for each in found.matches:
            self._found.setdefault((snapshot.name, each.view.txid), each)

    def _asked(
        self, snapshot: TopologySnapshot, question: Callable[[SearchedLedger], T]
    ) -> T | None:
        """Query a topology's ledger, or return None if it cannot be read.

        A ZooKeeper that did not respond is not queried a second time.
        """

        def asked(store: Store) -> T:
            ledger = SearchedLedger(
                store,
                snapshot.paths,
                snapshot.record.zone,
                snapshot.opened,
                snapshot.final,
                snapshot.quotes,
            )
            return question(ledger)

        conn_id = snapshot.place.conn_id
        if snapshot.view is None or conn_id in self._away:
            return None
        try:
            return ledger_snapshots().unremembered(snapshot, asked)
        except LedgerAway:
            self._away.add(conn_id)
        except TxError:
            pass  # Other ledgers may be readable.
        return None

    def answer(self, topologies: int) -> SearchOfAllAnswer:
        """Return the search result.

        :param topologies: the number of topologies that match the filter.
        """
        partly = sum(not each.complete for each in self._looked)
        order = {each.name: index for index, each in enumerate(self._snapshots)}
        ranked = sorted(
            self._found.items(), key=lambda each: (each[1].rank, order[each[0][0]], -each[0][1])
        )
        return SearchOfAllAnswer(
            found=[_match_line(name, each) for (name, _), each in ranked[:MOST_FOUND]],
            topologies=topologies,
            looked=len(self._looked),
            transactions=sum(each.looked for each in self._looked),
            partly=partly,
            unknown=sum(each.unknown for each in self._looked),
            unread=self._unread,
            complete=len(self._looked) == topologies and partly == 0 and len(ranked) <= MOST_FOUND,
        )


def _match_line(topology: str, match: TextMatch) -> FoundAnywhere:
    return answer_of(
        FoundAnywhere,
        match.view,
        phase=match.view.status,
        batch_name=match.batch or None,
        topology=topology,
        matched=match.part,
        text=match.text,
    )


# --- run answer ---------------------------------------------------------------------------------------------------
# The transaction of a run, or the reason why the run has no transaction.


class WhyCode(str, Enum):
    """The reason why a run has no transaction."""

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


_SAID = frozenset({WhyCode.FAILED, WhyCode.SOURCE})
"""Reasons that are errors of `begin`. For these, the log of `begin` has more details."""


@dataclass(frozen=True, kw_only=True)
class WhyNot:
    code: WhyCode
    sentence: Words
    advice: Advice = NO_ADVICE


@dataclass(frozen=True, kw_only=True)
class RunAnswer:
    """The transaction of a run.

    :param txid: the transaction, or null if the run has no transaction for the reason in `why`.
    :param why: the reason why the run has no transaction.
    """

    dag_id: str
    run_id: str
    topology: str | None
    txid: int | None
    why: WhyNot | None = None


def run_answer(
    snapshots: Sequence[TopologySnapshot], dag_id: str, run_id: str, access: Access
) -> RunAnswer | None:
    """Return the transaction of a run, or the reason why the run has none.

    :param snapshots: the topologies of the DAG. The topology that the DAG file names is first. Empty if no run has
        begun a transaction.
    :param access: the rights of the user, who may read the runs of the DAG.
    :return: None if the run does not exist and never had a transaction.
    """
    for snapshot in snapshots:
        txid = _bound(snapshot, run_id)
        if txid is not None:
            return RunAnswer(dag_id=dag_id, run_id=run_id, topology=snapshot.name, txid=txid)
    run_state = compat.runs_of(dag_id, [run_id]).get(run_id)
    if run_state is None:
        return None
    tries = task_tries(dag_id, [run_id]).get(run_id, [])
    begin = max(
        (each for each in tries if each.operator == BEGIN),
        key=lambda each: each.try_number,
        default=None,
    )
    said = (
        {}
        if begin is None
        else {key: value for _, key, value in xcoms(dag_id, run_id, [begin.task_id])}
    )
    begun = _begun(said)
    for snapshot in snapshots:
        if begun is not None and _has(snapshot, begun, run_id):
            return RunAnswer(dag_id=dag_id, run_id=run_id, topology=snapshot.name, txid=begun.txid)
    own = snapshots[0] if snapshots else None
    why_not = said.get(WHY_NOT) if access.may(SEE_XCOMS, dag_id) else None
    shown = why_not if isinstance(why_not, dict) else {}  # Any task may write an XCom.
    to_do = Remedy.from_stored(shown.get("advice") or ())
    may_see = access.may(SEE_TASKS, dag_id)
    why = (
        _why(own, run_id, run_state, begin, Remedy.behind(shown.get("problem"), to_do))
        if may_see
        else _unseen()
    )
    if may_see and own is not None and begin is not None and why.code in _SAID:
        log = log_link(dag_id, run_id, begin) if access.with_logs([dag_id]) else None
        why = replace(why, advice=said_advice(own, to_do, access, log))
    return RunAnswer(
        dag_id=dag_id,
        run_id=run_id,
        topology=None if own is None else own.name,
        txid=None,
        why=why,
    )


def _bound(snapshot: TopologySnapshot, run_id: str) -> int | None:
    for each in reversed(snapshot.opened):
        if each.document.run_id == run_id:
            return each.txid
    if snapshot.store is None:
        raise LedgerAway(reason=SILENT)

    def bound(store: Store) -> Binding | None:
        return ReadOnlyLedger(store, snapshot.paths).binding(run_id)

    binding = ledger_snapshots().unremembered(snapshot, bound)
    return None if binding is None else binding.txid


def _begun(said: Mapping[str, Any]) -> TransactionAttempt | None:
    """Return the transaction in the output of `begin`. The key of a binding is not always a run_id."""
    found = said.get("return_value")
    if not isinstance(found, dict) or "incarnation" not in found:
        return None
    return Begun.from_json(found).attempt


def _has(snapshot: TopologySnapshot, begun: TransactionAttempt, run_id: str) -> bool:
    """Return whether the run began this transaction in this topology. Other topologies can have the same txids."""

    def found(store: Store) -> TransactionRecord | None:
        ledger = ReadOnlyLedger(store, snapshot.paths)
        return ledger.status(begun.txid) or ledger.outcome(begun.txid)

    record = ledger_snapshots().unremembered(snapshot, found)
    if record is None:
        return False
    return record.birth == begun.birth if record.birth and begun.birth else record.run_id == run_id


def _unseen() -> WhyNot:
    return WhyNot(
        code=WhyCode.UNKNOWN,
        sentence="The logs of the run's tasks give the reason, but you may not read the task instances of this DAG.",
    )


def _why(
    snapshot: TopologySnapshot | None,
    run_id: str,
    run_state: str,
    begin: TaskBar | None,
    said: str | None,
) -> WhyNot:
    """Return the reason why a run has no transaction.

    :param said: the error of the last try of `begin`.
    """
    yielded = None if snapshot is None else snapshot.record.yielded.get(run_id)
    if yielded is not None:
        sentence = f"The run gave its run slot to transaction {yielded.blocking}, and starts again after it."
        return WhyNot(
            code=WhyCode.YIELDED,
            sentence=sentence,
            advice=_waits_for(snapshot, yielded.blocking),
        )
    if begin is None or begin.state is None:
        if run_state in State.unfinished_dr_states:
            return WhyNot(
                code=WhyCode.QUEUED, sentence="Airflow has not started the task begin yet."
            )
        return WhyNot(
            code=WhyCode.ENDED,
            sentence=f"The run ended as {run_state} before its task begin started.",
        )
    if begin.state == "skipped":
        sentence = "The source had no rows for another transaction, or was not ready, so the run was skipped."
        return WhyNot(code=WhyCode.NO_DATA, sentence=sentence)
    if begin.state in State.failed_states:
        sentence = f"The task begin has failed{_quoted(said)} Clear the task to begin again."
        return WhyNot(code=WhyCode.FAILED, sentence=sentence)
    if begin.state == "up_for_retry":
        sentence = f"The source was not ready, or the ledger did not answer{_quoted(said)} Airflow retries the task."
        return WhyNot(code=WhyCode.SOURCE, sentence=sentence)
    if begin.state == "deferred":
        return _deferred(snapshot)
    if run_state in State.unfinished_dr_states:
        return WhyNot(
            code=WhyCode.BEGINS,
            sentence="The task begin is about to begin a transaction.",
        )
    return WhyNot(
        code=WhyCode.UNKNOWN,
        sentence=f"The run ended as {run_state} without a transaction.",
    )


def _waits_for(snapshot: TopologySnapshot | None, txid: int) -> Advice:
    return NO_ADVICE if snapshot is None else replace(NO_ADVICE, cause=waited_for(snapshot, txid))


def _quoted(said: str | None) -> str:
    return f": {said}" if said else "; the log of the task begin gives the reason."


def _deferred(snapshot: TopologySnapshot | None) -> WhyNot:
    view = None if snapshot is None else snapshot.view
    if (
        snapshot is not None
        and view is not None
        and view.allocated + 1 >= view.current + view.record.max_pending
    ):
        first = next((each for each in snapshot.opened if each.txid == view.current), None)
        why = "" if first is None or first.waits is None else f"; that one waits for {first.waits}"
        are = "is" if len(snapshot.opened) == 1 else "are"
        sentence = (
            f"The limit max_pending is reached: {len(snapshot.opened)} of "
            f"{counted(view.record.max_pending, 'transactions')} {are} open. "
            f"The run begins a transaction once transaction {view.current} is final{why}."
        )
        return WhyNot(
            code=WhyCode.WINDOW_FULL,
            sentence=sentence,
            advice=_waits_for(snapshot, view.current),
        )
    sentence = "The run waits for the run of an earlier data interval, or is about to begin."
    return WhyNot(code=WhyCode.ORDER, sentence=sentence)


# --- topology routes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DagAnswer:
    """The topology of a DAG.

    :param topology: the name of the topology, or null if no run of the DAG has begun a transaction.
    :param role: `transactions` if the runs of the DAG are transactions, `coordinator` if the DAG starts and replays
        them.
    """

    dag_id: str
    topology: str | None
    role: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The reason for a refusal or an error, in one sentence."""

    detail: Words


PROBLEMS = {code: {"model": Problem} for code in (401, 404, 503)}
PROBLEMS_OF_SEARCHES: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem} for code in (409, 429, 504)
}
MOST_LINES = 200
MOST_ROWS = 1000


class TaggedRoute(APIRoute):
    """A route whose responses have an ETag and are private to the user.

    If the browser already has the response, the route sends only 304.
    """

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        answer = super().get_route_handler()

        async def tagged(request: Request) -> Response:
            response = await answer(request)
            # The tag is weak, because a proxy may compress the body.
            tag = f'W/"{hashlib.sha256(bytes(response.body)).hexdigest()[:32]}"'
            headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=status.HTTP_304_NOT_MODIFIED, headers=headers)
            response.headers.update(headers)
            return response

        return tagged


topology_router = APIRouter(prefix="/api/v1", route_class=TaggedRoute, responses=PROBLEMS)  # type: ignore[arg-type]


def no_such(what: str) -> HTTPException:
    """Return a 404 for an object that does not exist, or that the user may not see, without any name."""
    return HTTPException(status.HTTP_404_NOT_FOUND, f"There is no {what}.")


def topology_for(access: Access, name: str) -> TopologySnapshot:
    """Return a topology that the user may see.

    :raises HTTPException: 404 if the topology does not exist, or the user may not see it.
    """
    dag_id = ledger_places().elsewhere().get(name)
    if dag_id is not None and not access.may_read(dag_id):
        # The response stays the same while the ledger cannot be read.
        raise no_such("such topology")
    found = ledger_snapshots().find(name)
    if found is None or not access.may_read(found.record.dag_id):
        raise no_such("such topology")
    return _as_seen(access, [found])[0]


def _sent(access: Access, snapshot: TopologySnapshot, answer: Any) -> Response:
    """Return a response about a topology, with only the parts that the user may read."""
    return sent(body(answer, access.parts(snapshot.record.dag_id)))


def _shared(
    access: Access, snapshot: TopologySnapshot, key: Hashable, answer: Callable[[], Any]
) -> Response:
    """Return a response that all viewers with the same rights share."""
    rights = access.parts(snapshot.record.dag_id)
    found = ledger_snapshots().shared(snapshot, (key, rights), lambda: body(answer(), rights))
    return sent(found)


@topology_router.get("/topologies", response_model=TopologyList)
def list_topologies(
    access: AccessDep,
    *,
    state: Annotated[list[HealthCode] | None, Query(max_length=len(HealthCode))] = None,
    text: Annotated[str, Query(max_length=200)] = "",
    limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 100,
    offset: Annotated[int, Query(ge=0)] = 0,
    grouped: bool = False,
    cause: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Return the topologies whose DAG the user may read: the most urgent first, then by name.

    With `grouped`, topologies that fail for the same cause share a line. With `cause`, only the topologies of one cause
    are returned.
    """
    part = OverviewPart(frozenset(state or ()), text, limit, offset, grouped, cause)
    return sent(body(overview(_readable_topologies(access), part, access), frozenset()))


def _readable_topologies(access: Access) -> list[TopologySnapshot]:
    every = ledger_snapshots().all()
    readable = access.readable(each.record.dag_id for each in every)
    return _as_seen(access, [each for each in every if each.record.dag_id in readable])


def _as_seen(access: Access, readable: Sequence[TopologySnapshot]) -> list[TopologySnapshot]:
    """Hide errors of tasks whose logs the user may not read."""
    logs = access.with_logs(each.record.dag_id for each in readable)
    return [each if each.record.dag_id in logs else each.without_errors() for each in readable]


WantedQuery = Annotated[str, Query(min_length=1, max_length=200)]


def _wanted(what: str) -> str:
    """Return the search text without surrounding spaces.

    :raises HTTPException: 422 if the text has only spaces.
    """
    if not what.strip():
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "Enter a text to search for.")
    return what.strip()


@topology_router.get("/search", responses=PROBLEMS_OF_SEARCHES)
def search_topologies(
    access: AccessDep,
    what: WantedQuery,
    visit: VisitDep,
    state: Annotated[list[HealthCode] | None, Query(max_length=len(HealthCode))] = None,
    text: Annotated[str, Query(max_length=200)] = "",
) -> SearchOfAllAnswer:
    """Find the transactions that contain a text: a file, a run, a txid, a date or an error.

    `state` and `text` select topologies, as in the list of topologies.
    """
    part = OverviewPart(frozenset(state or ()), text, limit=sys.maxsize)
    wanted = _wanted(what)
    some = part.select(_readable_topologies(access)).some
    return fit(searched_all(some, wanted, person=access.person, has_left=visit.has_left))


@topology_router.get(
    "/topologies/{topology:path}/transactions/{txid}", response_model=TransactionPage
)
def get_transaction(access: AccessDep, topology: Name, txid: int) -> Response:
    """Return all facts of one transaction."""
    snapshot = topology_for(access, topology)
    found = ledger_snapshots().transaction(snapshot, txid)
    if found is None:
        raise no_such("such transaction")
    paths = snapshot.paths
    is_open = found.transaction.open
    with whole_record(paths.transaction(txid) if is_open else paths.history(txid)):
        return _sent(access, snapshot, transaction_page(snapshot, found, access))


@topology_router.get(
    "/topologies/{topology:path}/transactions/{txid}/rejected", responses=PROBLEMS_OF_SEARCHES
)
def get_rejected(access: AccessDep, topology: Name, txid: int) -> RejectedAnswer:
    """Return some rejected rows and their reasons. This requires the right to read the tasks' logs."""
    snapshot = topology_for(access, topology)
    if not access.with_logs([snapshot.record.dag_id]):
        raise no_such("rejected row that you may see")
    return fit(rejected_answer(snapshot, txid, access))


@topology_router.get("/topologies/{topology:path}/transactions", response_model=Timeline)
def list_transactions_of(
    *,
    access: AccessDep,
    topology: Name,
    since: datetime | None = None,
    until: datetime | None = None,
    before: Annotated[int | None, Query(ge=1)] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 100,
    wanted: RowFilterDep,
    earlier: bool = False,
) -> Response:
    """Return the transactions that ended at `since` or later and began before `until`, newest first.

    A filter is applied only to the newest 1,000 of them.
    """
    _check_zones(since, until)
    snapshot = topology_for(access, topology)
    window = TimelineWindow(since, until, before, limit).rounded()
    with_tasks = access.may(SEE_TASKS, snapshot.record.dag_id)

    def answer() -> Timeline:
        return timeline(snapshot, window, wanted, with_tasks=with_tasks, with_earlier=earlier)

    return _shared(access, snapshot, ("timeline", window, wanted, earlier), answer)


@topology_router.get("/topologies/{topology:path}/activity", response_model=Activity)
def get_activity(access: AccessDep, topology: Name) -> Response:
    """Return the number of transactions over the entire time that the ledger covers."""
    snapshot = topology_for(access, topology)
    return _shared(access, snapshot, "activity", lambda: activity(snapshot))


@topology_router.get("/topologies/{topology:path}/figures", response_model=Figures)
def get_figures(
    access: AccessDep,
    topology: Name,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Response:
    """Return throughput, durations, sizes and failures over time, for the time that the history covers."""
    _check_zones(since, until)
    snapshot = topology_for(access, topology)
    lag_board().ask_for([snapshot])
    window = TimelineWindow(since, until).rounded()

    def answer() -> Figures:
        board = lag_board()
        return figures(
            snapshot,
            FigureSpan.of(window),
            board.seen(snapshot),
            lag_unit=board.lag_line(snapshot).unit,
            limits=board.limits(snapshot),
        )

    return _shared(access, snapshot, ("figures", window), answer)


@topology_router.get("/topologies/{topology:path}/jobs", response_model=Jobs)
def get_jobs(access: AccessDep, topology: Name) -> Response:
    """Return the jobs of a topology with their progress.

    Each job is a restatement or a backfill of many transactions.
    """
    snapshot = topology_for(access, topology)
    return _shared(access, snapshot, "jobs", lambda: jobs_of(snapshot))


@topology_router.get("/topologies/{topology:path}/search", responses=PROBLEMS_OF_SEARCHES)
def search_transactions(
    access: AccessDep,
    topology: Name,
    what: WantedQuery,
    visit: VisitDep,
) -> SearchAnswer:
    """Find the transactions that contain a file, an offset, an id or a date, like `airflow tx find`."""
    return fit(searched(topology_for(access, topology), _wanted(what), access, visit))


def _check_zones(*moments: datetime | None) -> None:
    if any(moment is not None and moment.tzinfo is None for moment in moments):
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "Add a time zone to each time.")


@topology_router.get("/topologies/{topology:path}", response_model=TopologyPage)
def get_topology(access: AccessDep, topology: Name) -> Response:
    """Return one topology."""
    found = topology_for(access, topology)
    lag_board().ask_for([found])
    return _sent(access, found, topology_page(found, access))


@topology_router.get("/dags/{dag_id}")
def get_dag(access: AccessDep, dag_id: Name) -> DagAnswer:
    """Return the topology of a transactional DAG or of a coordinator, according to the current DAG file."""
    found = _dag_answer(access, dag_id) if access.may_read(dag_id) else None
    if found is None:
        raise no_such("topology of this DAG")
    return fit(found)


def _dag_answer(access: Access, dag_id: str) -> DagAnswer | None:
    own = ledger_places().begun_by(dag_id)
    if own is not None:
        snapshot = ledger_snapshots().find(own.name)
        is_its_own = snapshot is not None and snapshot.record.dag_id == dag_id
        return DagAnswer(
            dag_id=dag_id, topology=own.name if is_its_own else None, role="transactions"
        )
    coordinated = ledger_places().coordinated_by(dag_id)
    if coordinated is not None:
        snapshot = ledger_snapshots().find(coordinated.name)
        if snapshot is None or not access.may_read(snapshot.record.dag_id):
            return None
        return DagAnswer(dag_id=dag_id, topology=coordinated.name, role="coordinator")
    # Airflow no longer has the DAG, or its file no longer has a transaction.
    earlier = ledger_snapshots().of_dag(dag_id)
    return (
        DagAnswer(dag_id=dag_id, topology=earlier[0].name, role="transactions") if earlier else None
    )


@topology_router.get("/dags/{dag_id}/runs/{run_id:path}")
def get_run(access: AccessDep, dag_id: Name, run_id: Name) -> RunAnswer:
    """Return the transaction of a run, or the reason why the run has no transaction."""
    if access.may_read(dag_id):
        snapshots = _as_seen(access, ledger_snapshots().of_dag(dag_id))
        found = run_answer(snapshots, dag_id, run_id, access)
        if found is not None:
            return fit(found)
    raise no_such("transaction of this run")
