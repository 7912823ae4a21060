"""Open transactions whose runs are over, as Airflow knows: a killed run leaves no note in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_tx import compat
from airflow_tx.protocol.status import with_run_end
from airflow_tx.protocol.view import TopologyView


def with_run_ends(views: Sequence[TopologyView]) -> list[TopologyView]:
    """Say of the open transactions of topologies how their runs ended, with one question for all."""
    ends = compat.run_ends(
        {
            (view.record.dag_id, each.run_id)
            for view in views
            for each in view.opened
            if each.needs_run
        }
    )
    return [
        replace(
            view,
            transactions=tuple(
                with_run_end(view.name, each, ends[view.record.dag_id, each.run_id])
                if each.needs_run and (view.record.dag_id, each.run_id) in ends
                else each
                for each in view.transactions
            ),
        )
        for view in views
    ]
