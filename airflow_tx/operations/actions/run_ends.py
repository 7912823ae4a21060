"""Read from Airflow how the runs of open transactions ended. A killed run leaves no note in the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_tx.base import compat
from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger import TopologyView, TransactionView, with_run_end


def with_run_ends(views: Sequence[TopologyView]) -> list[TopologyView]:
    """Add the final run states to open transactions, with one query for all topologies.

    A view without an ended run is returned as the same object, so that callers can reuse values computed from it.
    """
    ends = compat.run_ends(
        {
            (view.record.dag_id, each.document.run_id)
            for view in views
            for each in view.opened
            if each.needs_run
        }
    )
    return [_with_run_ends(view, ends) for view in views]


def _with_run_ends(view: TopologyView, ends: Mapping[tuple[str, str], str | None]) -> TopologyView:
    dag_id = view.record.dag_id
    ended = {
        each.txid: _with_state(view, each, ends[dag_id, each.document.run_id])
        for each in view.opened
        if each.needs_run and (dag_id, each.document.run_id) in ends
    }
    if not ended:
        return view
    return replace(
        view, transactions=tuple(ended.get(each.txid, each) for each in view.transactions)
    )


def _with_state(view: TopologyView, opened: TransactionView, state: str | None) -> TransactionView:
    if state == compat.DAG_PAUSED:
        to_do = Remedy((f"airflow dags unpause {view.record.dag_id}",))
        return replace(opened, waits=f"its run, which is {state}", to_do=to_do)
    return with_run_end(view.name, opened, state, strands=state == compat.STRANDED)
