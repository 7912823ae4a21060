"""The part of `compat` that is about data intervals: which ones a schedule has, and the runs that stand for them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

# Within so many lengths of an interval before it its schedule is searched for the one before.
_REACHES = (2, 16, 128)


def previous_end(dag: Any, start: datetime, end: datetime) -> datetime | None:
    """End of the last data interval that the schedule of a DAG has before the interval from `start` to `end`.

    None: the schedule has none near it, or the task's Airflow cannot tell.
    """
    try:
        import pendulum
        from airflow.serialization.encoders import coerce_to_core_timetable
        from airflow.timetables.base import TimeRestriction
    except ImportError:  # a worker with the task SDK alone
        return None
    timetable: Any = coerce_to_core_timetable(dag.timetable)
    for reach in _REACHES:
        earliest = pendulum.instance(start - reach * (end - start))
        restriction = TimeRestriction(earliest, pendulum.instance(start), catchup=True)
        info, found = None, None
        while (
            info := timetable.next_dagrun_info_v2(last_dagrun_info=info, restriction=restriction)
        ) and info.data_interval.end <= start:
            found = info.data_interval.end
        if found is not None:
            return datetime.fromisoformat(found.isoformat())
    return None
