"""A trial of a DAG in pytest, without a scheduler, ZooKeeper or state databases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow_tx.base import compat
from airflow_tx.operators.trial import Trial, TrialResult, check_date

if TYPE_CHECKING:
    from airflow.sdk import DAG


def trial(
    dag: DAG,
    *,
    rows: Any = None,
    states: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    logical_date: datetime | None = None,
) -> TrialResult:
    """Run all tasks of a DAG once. Return their output, and the values that the states would have after the run.

        result = trial(dag, rows=[{"word": "cat"}, {"word": "cat"}])
        assert result.states["tx_state.words"].read() == [{"word": "cat", "count": 2}]

    `DAG.test` needs Airflow's own database. If it is an SQLite database without tables, this function creates them.

    :param dag: the DAG, as its file defines it.
    :param rows: the rows of the batch as dicts or a frame, or None for the first batch of the DAG's source.
    :param states: the rows of each state before the run, by name. All other states are empty.
    :param logical_date: the logical date of the run, or None for the current time.
    :raises TrialRefused: the DAG cannot run as a trial.
    """
    compat.prepare_test(dag)
    if logical_date is not None:
        check_date(dag, logical_date)
    made = Trial(dag, rows=rows, states=states or {})
    with made.running():
        return made.result(
            type(dag).test(dag, logical_date=logical_date or datetime.now(timezone.utc))
        )
