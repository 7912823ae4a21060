"""A topology in memory whose batches are days, which a lane takes by the schedule of the DAG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.sdk import CronDataIntervalTimetable

from airflow_tx.base.compat import RunInfo
from airflow_tx.sources.run.data_interval import DataIntervalSource
from airflow_tx.transaction.processing.begin import ask
from tests.unit.bench import FakeTi, run_of
from tests.unit.coordinator.lane_world import LaneWorld

FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)
DAY = timedelta(days=1)
DAILY = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")


def read(start: datetime, end: datetime, spark: object = None) -> Iterator[dict[str, int]]:
    """Ten numbers a day, from 0 on the first one."""
    day = (start - FIRST) // DAY
    return ({"number": number} for number in range(10 * day, 10 * ((end - FIRST) // DAY)))


def days(kind: str = "transactional") -> DataIntervalSource:
    return DataIntervalSource("tests.unit.coordinator.lane_days.read", kind=kind, in_order=True)


def name_of(day: int) -> str:
    """The run of a day as Airflow's scheduler names it."""
    return f"scheduled__{(FIRST + (day + 1) * DAY).isoformat()}"


@dataclass
class DayWorld(LaneWorld):
    """One topology of days.

    :param last: the last of them, from 0.
    :param dates: the data intervals of the runs, as Airflow has them.
    :param earlier: the date of a run that is queued or running.
    """

    source: Any = field(default_factory=days)
    last: int = 2
    schedule: Any = field(default_factory=lambda: DAILY)
    dates: dict[str, tuple[datetime, datetime]] = field(default_factory=dict)
    earlier: datetime | None = None

    def dag_options(self) -> dict[str, Any]:
        dates = {"start_date": FIRST, "end_date": FIRST + self.last * DAY}
        return {"schedule": self.schedule, "catchup": True, **dates}

    @property
    def count(self) -> int:
        return self.last + 1

    def run_info(self, run_id: str) -> RunInfo:
        start, end = self.dates[run_id]
        return replace(run_of(run_id), interval_start=start, interval_end=end, logical_date=start)

    def numbers(self, metadata: Any) -> Sequence[int]:
        start, end = (datetime.fromisoformat(metadata[name]) for name in ("from", "to"))
        return [row["number"] for row in read(start, end)]

    def earlier_live_run(self, dag_id: str, date: datetime) -> datetime | None:
        return self.earlier

    def start_run(self, dag_id: str, run_id: str, **options: Any) -> bool:
        interval = options.pop("interval", None)
        assert interval is not None, "it would have no dates"
        self.dates.setdefault(run_id, interval)
        return super().start_run(dag_id, run_id, **options)

    def run_of_day(self, day: int, run_id: str | None = None) -> str:
        """A run that Airflow has made for a day."""
        run_id = run_id or name_of(day)
        self.dates[run_id] = FIRST + day * DAY, FIRST + (day + 1) * DAY
        self.conf[run_id] = {}
        return run_id

    def ask(self, run_id: str) -> Any:
        """What `begin` of a run is answered."""
        return ask(self.spec, FakeTi("begin", run_id), self.run_info(run_id), retry=False, dag=self.dag)

    def days(self) -> list[datetime]:
        """The days in the order of their txids, by the names of their runs."""
        return [datetime.fromisoformat(entry.run_id.partition("__")[2]) - DAY for entry in self.history.values()]

    def assert_exact(self, transactions: int) -> None:
        super().assert_exact(transactions)
        assert self.days() == [FIRST + day * DAY for day in range(transactions)]


@dataclass
class OpaqueDayWorld(DayWorld):
    """The same, of an opaque source."""

    source: Any = field(default_factory=lambda: days("opaque"))
