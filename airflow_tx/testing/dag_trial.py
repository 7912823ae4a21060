"""A trial of a DAG in pytest: no scheduler, no ZooKeeper, no database of a state."""

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
    """Run all tasks of a DAG once, and return what they have made and what would have been written.

        result = trial(dag, rows=[{"word": "cat"}, {"word": "cat"}])
        assert result.states["tx_state.words"].read() == [{"word": "cat", "count": 2}]

    Airflow's own database must exist for `DAG.test`; an SQLite database without tables gets its tables here.

    :param dag: the DAG, as its file defines it.
    :param rows: the rows of the batch, dicts or a frame; None: the first ones that the source of the DAG has.
    :param states: per name the rows that a state holds before; a state that is not named is empty.
    :param logical_date: of the run; None: now.
    :raises TrialRefused: the DAG cannot be tried out.
    """
    compat.prepare_test(dag)
    if logical_date is not None:
        check_date(dag, logical_date)
    made = Trial(dag, rows=rows, states=states or {})
    with made.running():
        return made.result(
            type(dag).test(dag, logical_date=logical_date or datetime.now(timezone.utc))
        )
