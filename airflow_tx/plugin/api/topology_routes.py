"""The routes that read. Blocking calls are made in plain functions, which FastAPI calls in threads."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request, Response, status
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from airflow_tx.actions.ledger_places import ledger_places
from airflow_tx.plugin.api.access import SEE_TASKS, Access, AccessDep, Name
from airflow_tx.plugin.api.activity import Activity, activity
from airflow_tx.plugin.api.figures import Figures, FigureSpan, figures
from airflow_tx.plugin.api.jobs import Jobs, jobs_of
from airflow_tx.plugin.api.lag_board import lag_board
from airflow_tx.plugin.api.ledger_snapshots import TopologySnapshot, ledger_snapshots
from airflow_tx.plugin.api.row_filter import RowFilterDep
from airflow_tx.plugin.api.run_answer import RunAnswer, run_answer
from airflow_tx.plugin.api.search import (
    SearchAnswer,
    SearchOfAllAnswer,
    searched,
    searched_all,
)
from airflow_tx.plugin.api.timeline import Timeline, TimelineWindow, timeline
from airflow_tx.plugin.api.topology_lines import (
    OverviewPart,
    TopologyList,
    TopologyPage,
    overview,
    topology_page,
)
from airflow_tx.plugin.api.transaction_page import TransactionPage, transaction_page
from airflow_tx.protocol.health import HealthCode
from airflow_tx.protocol.person import Words


@dataclass(frozen=True, kw_only=True)
class DagAnswer:
    """Which topology a DAG has.

    :param topology: null: it is transactional, and none of its runs has begun a transaction yet.
    :param role: `transactions`: its runs are the transactions; `coordinator`: it starts and replays them.
    """

    dag_id: str
    topology: str | None
    role: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why there is no answer, in one sentence."""

    detail: Words


_TIMELINE = TypeAdapter(Timeline)
_ACTIVITY = TypeAdapter(Activity)
_FIGURES = TypeAdapter(Figures)
_JOBS = TypeAdapter(Jobs)
PROBLEMS = {code: {"model": Problem} for code in (401, 404, 503)}
PROBLEMS_OF_SEARCHES: dict[int | str, dict[str, Any]] = {
    code: {"model": Problem} for code in (409, 429, 504)
}
MOST_LINES = 200
MOST_ROWS = 1000


class TaggedRoute(APIRoute):
    """A route whose answers have an ETag, and belong to the user who asked.

    A viewer who has the answer already gets only a confirmation.
    """

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        answer = super().get_route_handler()

        async def tagged(request: Request) -> Response:
            response = await answer(request)
            # Weak: what is sent may be compressed.
            tag = f'W/"{hashlib.sha256(bytes(response.body)).hexdigest()[:32]}"'
            headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=status.HTTP_304_NOT_MODIFIED, headers=headers)
            response.headers.update(headers)
            return response

        return tagged


topology_router = APIRouter(prefix="/api/v1", route_class=TaggedRoute, responses=PROBLEMS)  # type: ignore[arg-type]


def no_such(what: str) -> HTTPException:
    """Make the one answer for what does not exist and for what the user may not see. It repeats no name."""
    return HTTPException(status.HTTP_404_NOT_FOUND, f"There is no {what}.")


def topology_for(access: Access, name: str) -> TopologySnapshot:
    """Find a topology that the user may see.

    :raises HTTPException: 404: there is none, for this user.
    """
    dag_id = ledger_places().elsewhere().get(name)
    if dag_id is not None and not access.may_read(dag_id):
        raise no_such("such topology")  # also while its ledger is away
    found = ledger_snapshots().find(name)
    if found is None or not access.may_read(found.record.dag_id):
        raise no_such("such topology")
    return found


@topology_router.get("/topologies")
def list_topologies(
    access: AccessDep,
    state: Annotated[list[HealthCode] | None, Query(max_length=len(HealthCode))] = None,
    text: Annotated[str, Query(max_length=200)] = "",
    limit: Annotated[int, Query(ge=1, le=MOST_LINES)] = 100,
    offset: Annotated[int, Query(ge=0)] = 0,
) -> TopologyList:
    """List the topologies whose DAG the user may read: the most urgent first, then by name."""
    part = OverviewPart(frozenset(state or ()), text, limit, offset)
    return overview(_readable_topologies(access), part, access)


def _readable_topologies(access: Access) -> list[TopologySnapshot]:
    every = ledger_snapshots().all()
    readable = access.readable(each.record.dag_id for each in every)
    return [each for each in every if each.record.dag_id in readable]


@topology_router.get("/search", responses=PROBLEMS_OF_SEARCHES)
def search_topologies(
    access: AccessDep,
    what: Annotated[str, Query(min_length=1, max_length=200)],
    state: Annotated[list[HealthCode] | None, Query(max_length=len(HealthCode))] = None,
    text: Annotated[str, Query(max_length=200)] = "",
) -> SearchOfAllAnswer:
    """Find the transactions of topologies that have a text: a file, a run, a txid, a date or an error.

    `state` and `text` choose topologies, as in the list of topologies.
    """
    if not what.strip():
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "Say what to look for.")
    part = OverviewPart(frozenset(state or ()), text, limit=sys.maxsize)
    return searched_all(part.select(_readable_topologies(access)).some, what)


@topology_router.get("/topologies/{topology:path}/transactions/{txid}")
def get_transaction(access: AccessDep, topology: Name, txid: int) -> TransactionPage:
    """Show one transaction, whole."""
    snapshot = topology_for(access, topology)
    found = ledger_snapshots().transaction(snapshot, txid)
    if found is None:
        raise no_such("such transaction")
    return transaction_page(snapshot, found, access)


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
    """List transactions, newest first: transactions that ended at `since` or later, and began before `until`.

    A filter chooses among the newest 1,000 of them.
    """
    _check_zones(since, until)
    snapshot = topology_for(access, topology)
    window = TimelineWindow(since, until, before, limit).rounded()
    with_tasks = access.may(SEE_TASKS, snapshot.record.dag_id)

    def answer() -> bytes:
        found = timeline(snapshot, window, wanted, with_tasks=with_tasks, with_earlier=earlier)
        return _TIMELINE.dump_json(found)

    # The same for everybody who may read as much of it.
    key = ("timeline", window, wanted, earlier, with_tasks)
    body = ledger_snapshots().shared(snapshot, key, answer)
    return Response(body, media_type="application/json")


@topology_router.get("/topologies/{topology:path}/activity", response_model=Activity)
def get_activity(access: AccessDep, topology: Name) -> Response:
    """Count the transactions over all the time that the ledger remembers."""
    snapshot = topology_for(access, topology)

    def answer() -> bytes:
        return _ACTIVITY.dump_json(activity(snapshot))

    body = ledger_snapshots().shared(snapshot, "activity", answer)
    return Response(body, media_type="application/json")


@topology_router.get("/topologies/{topology:path}/figures", response_model=Figures)
def get_figures(
    access: AccessDep,
    topology: Name,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Response:
    """Show throughput, seconds, sizes and failures over time, as far as the history goes back."""
    _check_zones(since, until)
    snapshot = topology_for(access, topology)
    lag_board().ask_for([snapshot])
    window = TimelineWindow(since, until).rounded()

    def answer() -> bytes:
        board = lag_board()
        found = figures(
            snapshot,
            FigureSpan.of(window),
            board.seen(snapshot),
            lag_unit=board.lag_line(snapshot).unit,
            limits=board.limits(snapshot),
        )
        return _FIGURES.dump_json(found)

    body = ledger_snapshots().shared(snapshot, ("figures", window), answer)
    return Response(body, media_type="application/json")


@topology_router.get("/topologies/{topology:path}/jobs", response_model=Jobs)
def get_jobs(access: AccessDep, topology: Name) -> Response:
    """List what persons wanted of many transactions at once, and what became of it: restatements and backfills."""
    snapshot = topology_for(access, topology)
    body = ledger_snapshots().shared(snapshot, "jobs", lambda: _JOBS.dump_json(jobs_of(snapshot)))
    return Response(body, media_type="application/json")


@topology_router.get("/topologies/{topology:path}/search", responses=PROBLEMS_OF_SEARCHES)
def search_transactions(
    access: AccessDep,
    topology: Name,
    what: Annotated[str, Query(min_length=1, max_length=200)],
) -> SearchAnswer:
    """Find the transactions that have a file, an offset, an id or a date, as `airflow tx find` does."""
    return searched(topology_for(access, topology), what, access)


def _check_zones(*moments: datetime | None) -> None:
    if any(moment is not None and moment.tzinfo is None for moment in moments):
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "Give times with their zone.")


@topology_router.get("/topologies/{topology:path}")
def get_topology(access: AccessDep, topology: Name) -> TopologyPage:
    """Show one topology."""
    found = topology_for(access, topology)
    lag_board().ask_for([found])
    return topology_page(found, access)


@topology_router.get("/dags/{dag_id}")
def get_dag(access: AccessDep, dag_id: Name) -> DagAnswer:
    """Tell which topology a DAG has, or coordinates: the current file decides."""
    found = _dag_answer(access, dag_id) if access.may_read(dag_id) else None
    if found is None:
        raise no_such("topology of this DAG")
    return found


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
    # Airflow knows the DAG no more, or its file has no transaction now.
    earlier = ledger_snapshots().of_dag(dag_id)
    return (
        DagAnswer(dag_id=dag_id, topology=earlier[0].name, role="transactions") if earlier else None
    )


@topology_router.get("/dags/{dag_id}/runs/{run_id:path}")
def get_run(access: AccessDep, dag_id: Name, run_id: Name) -> RunAnswer:
    """Tell which transaction a run is, or why it is none."""
    if access.may_read(dag_id):
        found = run_answer(ledger_snapshots().of_dag(dag_id), dag_id, run_id, access)
        if found is not None:
            return found
    raise no_such("transaction of this run")
