"""Open transactions whose runs are over, as Airflow knows: a killed run leaves no note in the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_tx import compat
from airflow_tx.protocol.status import with_run_end
from airflow_tx.protocol.view import TopologyView


def with_run_ends(views: Sequence[TopologyView]) -> list[TopologyView]:
    """Say of the open transactions of topologies how their runs ended, with one question for all.

    A view without ended runs is returned unchanged, so that its caller can keep everything derived from it.
    """
    ends = compat.run_ends(
        {
            (view.record.dag_id, each.run_id)
            for view in views
            for each in view.opened
            if each.needs_run
        }
    )
    return [_with_run_ends(view, ends) for view in views]


def _with_run_ends(view: TopologyView, ends: Mapping[tuple[str, str], str | None]) -> TopologyView:
    dag_id = view.record.dag_id
    ended = {
        each.txid: with_run_end(view.name, each, ends[dag_id, each.run_id])
        for each in view.opened
        if each.needs_run and (dag_id, each.run_id) in ends
    }
    if not ended:
        return view
    return replace(
        view, transactions=tuple(ended.get(each.txid, each) for each in view.transactions)
    )
