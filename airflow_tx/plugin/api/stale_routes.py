"""The route that compares the transactions of a topology with its DAG file on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from fastapi import APIRouter

from airflow_tx.plugin.api.access import AccessDep, Name
from airflow_tx.plugin.api.dag_process import dag_process
from airflow_tx.plugin.api.questions import questions
from airflow_tx.plugin.api.redaction import fit
from airflow_tx.plugin.api.routes import PROBLEMS_OF_SEARCHES, TaggedRoute, topology_for

stale_router = APIRouter(
    prefix="/api/v1/topologies/{topology:path}",
    route_class=TaggedRoute,
    responses=PROBLEMS_OF_SEARCHES,
)


@dataclass(frozen=True, kw_only=True)
class StaleGroupLine:
    """Transactions that are stale for the same reason, or an interval without a transaction.

    :param txids: the transactions, in order.
    :param transactions: the transactions as a short text, such as 1-3, 5.
    :param reason: code, correction or interval.
    :param what: the reason as text.
    :param since: when the reason arose, or null if it is unknown.
    :param restatement: the open transaction that restates them, or 0 if a restatement is only requested, or null if
        neither.
    """

    txids: Sequence[int]
    transactions: str
    reason: str
    what: str
    since: str | None
    restatement: int | None


@dataclass(frozen=True, kw_only=True)
class StaleAnswer:
    """The stale transactions of a topology.

    :param compared: the number of compared transactions.
    :param unknown: the number of transactions whose code cannot be compared, by reason.
    """

    groups: Sequence[StaleGroupLine]
    compared: int
    unknown: Mapping[str, int]


@stale_router.get("/stale")
def get_stale(access: AccessDep, topology: Name) -> StaleAnswer:
    """Return the transactions that the current DAG would make differently, like `airflow tx stale`."""
    snapshot = topology_for(access, topology)
    with questions.asked("a comparison with the DAG file", snapshot, access):
        found = dag_process().ask({"stale": snapshot.as_asked})
    return fit(msgspec.convert(found, StaleAnswer))
