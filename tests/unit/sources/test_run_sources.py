"""Sources whose batch is the run's own interval or partition: every interval once, and never two that overlap."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
from airflow.models.connection import Connection
from airflow.sdk import CronDataIntervalTimetable
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.base.compat import IntervalSchedule, RunInfo
from airflow_tx.base.connections.lookup import Endpoint, all_for_airflow, handed_over
from airflow_tx.base.errors import ConfigError, SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch, rebuild
from airflow_tx.sources.run.data_interval import DataIntervalSource, NextIntervalSource
from airflow_tx.sources.run.partition import RunPartitionSource

ATTEMPT = TransactionAttempt(1, 1)
FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)

READERS = """
def sales(start, end, spark=None, shop=None):
    return [{"from": start, "to": end, "shop": shop}]

def of_partition(partition, spark=None):
    return [{"partition": partition}]

def nothing(start, end, spark=None):
    pass

class Reader:
    def read(self, start, end, spark=None):
        return []
"""


@pytest.fixture(autouse=True)
def readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterable[ModuleType]:
    """A module that every process could import, if it has the folder on its path."""
    (tmp_path / "tx_unit_readers.py").write_text(READERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    import tx_unit_readers  # type: ignore[import-not-found]

    yield tx_unit_readers
    del sys.modules["tx_unit_readers"]


def run(start: datetime | None, length: timedelta | None = DAY, run_id: str = "r", **partition: Any) -> RunInfo:
    end = None if start is None or length is None else start + length
    key, date = partition.get("key"), partition.get("date")
    return RunInfo(run_id, "scheduled", start, end, start, key, date, {})


def by_hand(started: datetime) -> RunInfo:
    """A run by hand for the first day, which Airflow starts then."""
    return RunInfo("r", "manual", FIRST, FIRST + DAY, FIRST, None, None, {}, started)


def source(**arguments: Any) -> DataIntervalSource:
    return DataIntervalSource("tx_unit_readers.sales", **arguments)


def take(start: datetime, position: Any = None, length: timedelta = DAY) -> Batch:
    batch = source().for_run(run(start, length)).decide(ATTEMPT, position)
    return Batch(json.loads(json.dumps(batch.metadata)), json.loads(json.dumps(batch.position)))


def rows_of(source: Any, metadata: Any) -> list[Any]:
    return list(cast("Iterable[Any]", source.emit_batch(ATTEMPT, metadata)))


# --- intervals ---------------------------------------------------------------------------------------------------


def test_the_key_of_a_run_is_its_interval_no_matter_which_run_id_it_has() -> None:
    key = "interval:2026-01-01T00:00:00+00:00/2026-01-02T00:00:00+00:00"
    assert source().key(run(FIRST, run_id="scheduled__1")) == key
    berlin = FIRST.astimezone(timezone(timedelta(hours=1)))
    assert source().key(run(berlin, run_id="backfill__7")) == key


def test_pendulum_dates_from_airflow_are_accepted() -> None:
    pendulum = pytest.importorskip("pendulum")
    start = pendulum.datetime(2026, 3, 29, tz="Europe/Berlin")  # a day of 23 hours
    bound = source().for_run(run(start, start.add(days=1) - start))
    batch = bound.decide(ATTEMPT, None)
    assert batch.metadata == {"from": "2026-03-28T23:00:00+00:00", "to": "2026-03-29T22:00:00+00:00"}
    assert json.loads(json.dumps(batch.position)) == batch.position


def test_the_reader_receives_the_interval_in_utc_and_the_options() -> None:
    made = source(options={"shop": 7})
    batch = take(FIRST)
    assert batch.metadata == {"from": "2026-01-01T00:00:00+00:00", "to": "2026-01-02T00:00:00+00:00"}
    again = rebuild(*json.loads(json.dumps(made.serialize())))
    assert rows_of(again, batch.metadata) == [{"from": FIRST, "to": FIRST + DAY, "shop": 7}]


def test_a_source_that_is_bound_to_a_run_is_serialized_in_the_same_way_as_the_unbound_source() -> None:
    assert source().for_run(run(FIRST)).serialize() == source().serialize()
    assert source().serialize()[1] == {"reader": "tx_unit_readers.sales", "options": {}, "kind": "transactional"}
    with pytest.raises(SourceError, match=r"no run to decide a batch for\. Use source\.for_run\(run\)"):
        source().decide(ATTEMPT, None)


@given(days=st.permutations(range(8)))
def test_intervals_may_come_in_any_order_and_the_position_stays_small(days: list[int]) -> None:
    position = None
    for day in days:
        position = take(FIRST + day * DAY, position).position
    assert position == {"intervals": [["2026-01-01T00:00:00+00:00", "2026-01-09T00:00:00+00:00"]]}


def test_gaps_between_intervals_can_be_filled_later() -> None:
    position = take(FIRST + 4 * DAY, take(FIRST).position).position
    assert isinstance(position, dict)
    assert len(cast("list[Any]", position["intervals"])) == 2
    assert take(FIRST + 2 * DAY, position).metadata


@pytest.mark.parametrize(
    ("start", "length"), [(FIRST + HOUR, HOUR), (FIRST, DAY), (FIRST - HOUR, 2 * HOUR), (FIRST - DAY, 5 * DAY)]
)
def test_an_interval_that_overlaps_an_earlier_one_is_refused(start: datetime, length: timedelta) -> None:
    with pytest.raises(SourceError) as refusal:
        take(start, take(FIRST).position, length)
    said = str(refusal.value)
    for interval in (
        f"{start.isoformat()}/{(start + length).isoformat()}",
        f"{FIRST.isoformat()}/2026-01-02T00:00:00+00",
    ):
        assert interval in said
    assert (
        "would count twice. Nothing was allocated. If the schedule has changed, let the new schedule start at 2026"
        in said
    )


def test_an_interval_of_one_hour_after_daily_intervals_is_accepted() -> None:
    assert take(FIRST + DAY, take(FIRST).position, HOUR).metadata


@pytest.mark.parametrize("ask", [lambda made, each: made.key(each), lambda made, each: made.for_run(each)])
@pytest.mark.parametrize(
    ("each", "problem"),
    [
        (
            run(FIRST, timedelta(0)),
            r'empty data interval .*Use schedule=CronDataIntervalTimetable\("0 0 \* \* \*", tim',
        ),
        (run(None), r"run r has no data interval\. Give the DAG a schedule that has them"),
        (run(FIRST, None), r"run r has no data interval"),
        (run(FIRST, -DAY), r"has the data interval .*the earlier one first"),
        (run(FIRST.replace(tzinfo=None)), r"Let the timetable give dates with a time zone"),
    ],
)
def test_a_run_without_its_own_interval_is_refused(ask: Callable[..., Any], each: RunInfo, problem: str) -> None:
    with pytest.raises(SourceError, match=problem) as refusal:
        ask(source(), each)
    assert "\n" not in str(refusal.value)


# --- partitions of Airflow ---------------------------------------------------------------------------------------


def test_the_key_of_a_run_is_its_partition_date_or_otherwise_its_partition_key() -> None:
    made = RunPartitionSource("tx_unit_readers.of_partition")
    assert made.key(run(None, key="day one", date=FIRST)) == made.key(run(None, key="renamed", date=FIRST))
    assert made.key(run(None, date="2026-01-01T01:00:00+01:00")) == made.key(run(None, date="2026-01-01T00:00:00Z"))
    assert made.key(run(None, key="eu|2026")) == "partition-key:eu|2026"
    assert made.key(run(None, date=FIRST)) == "partition-date:2026-01-01T00:00:00+00:00"
    with pytest.raises(SourceError, match=r"run r has no partition date and no partition key\. Give the DAG"):
        made.for_run(run(FIRST))
    with pytest.raises(SourceError, match=r"has the partition date 'soon'"):
        made.key(run(None, date="soon"))


def test_a_partition_is_taken_once_and_its_name_is_passed_to_the_reader() -> None:
    made = RunPartitionSource("tx_unit_readers.of_partition")
    first = made.for_run(run(None, key="eu")).decide(ATTEMPT, None)
    second = made.for_run(run(None, date=FIRST)).decide(ATTEMPT, first.position)
    assert rows_of(made, first.metadata) == [{"partition": "eu"}]
    assert rows_of(made, second.metadata) == [{"partition": "2026-01-01T00:00:00+00:00"}]
    with pytest.raises(SourceError, match=r"partition eu of run r was already taken: its rows would count twice"):
        made.for_run(run(None, key="eu")).decide(ATTEMPT, second.position)


def test_the_position_of_another_source_is_refused() -> None:
    partitions = RunPartitionSource("tx_unit_readers.of_partition").for_run(run(None, key="eu"))
    for position in (7, {"taken": "x"}, {"intervals": "x"}, {"partitions": ["x"]}, {"partitions": "x"}):
        with pytest.raises(SourceError, match="The topology had another source before"):
            source().for_run(run(FIRST)).decide(ATTEMPT, cast("Any", position))
        with pytest.raises(SourceError, match="The topology had another source before"):
            partitions.decide(ATTEMPT, cast("Any", position))


# --- readers -----------------------------------------------------------------------------------------------------


def test_a_reader_function_is_stored_as_its_import_path(readers: ModuleType) -> None:
    assert DataIntervalSource(readers.sales).serialize() == source().serialize()


def test_a_reader_that_workers_cannot_import_is_refused(readers: ModuleType) -> None:
    def local(start: datetime, end: datetime, spark: Any = None) -> list[Any]:
        return []

    dag_file = ModuleType("unusual_prefix_ab12_sales_dag")
    exec(READERS, dag_file.__dict__)
    sys.modules[dag_file.__name__] = dag_file
    methods = [readers.Reader.read, readers.Reader().read, readers.Reader()]
    for reader in (local, lambda start, end, spark=None: [], dag_file.sales, "sales", "a.b-c", "", *methods, 7):
        with pytest.raises(ConfigError) as refusal:
            DataIntervalSource(cast("Any", reader))
        said = str(refusal.value)
        assert said.startswith("reader of DataIntervalSource = ")
        assert "Give a function at the top of a module, not of a DAG file. Workers and Spark drivers import" in said
        assert " at 0x" not in said
        assert "\n" not in said
    del sys.modules[dag_file.__name__]


@pytest.mark.parametrize(
    ("reader", "problem"),
    [
        ("no_such_module.sales", r"cannot be imported \(No module named 'no_such_module'\)\. Install its module"),
        ("tx_unit_readers.missing", r"cannot be imported \(module 'tx_unit_readers' has no attribute 'missing'\)"),
        (
            "tx_unit_readers.nothing",
            r"its reader returned a NoneType\. The reader must return a DataFrame, or rows as mappings",
        ),
    ],
)
def test_the_error_for_a_reader_that_fails_names_the_reader(reader: str, problem: str) -> None:
    with pytest.raises(SourceError, match=problem):
        rows_of(DataIntervalSource(reader), take(FIRST).metadata)


def test_options_that_are_not_json_and_an_invalid_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"options of DataIntervalSource = \['at'\] cannot be used\. They travel"):
        source(options={"at": FIRST})
    with pytest.raises(ConfigError, match="kind of DataIntervalSource = 'daily'"):
        source(kind="daily")


def test_every_form_of_a_source_names_the_connections_of_its_reader_and_airflow_finds_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = DataIntervalSource("package.reader", in_order=True, connections=["orders_db"])
    schedule = IntervalSchedule(CronDataIntervalTimetable("0 0 * * *", timezone="UTC"))
    of_partition = RunPartitionSource("package.reader", connections=["orders_db"])
    for each in (made, NextIntervalSource.of(made, schedule), of_partition):
        again = rebuild(*each.serialize())
        assert again.connections() == each.connections() == {"orders_db": "generic"}
    assert "connections" not in DataIntervalSource("package.reader").serialize()[1]
    with pytest.raises(ConfigError, match=r"connections=\['orders_db'\]"):
        DataIntervalSource("package.reader", connections="orders_db")

    endpoint = Endpoint(
        "orders_db", "postgres", "db.example", 5432, "ann", "secret", "orders", '{"sslmode": "require"}'
    )
    for name, value in handed_over(endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS_DB", "")
    monkeypatch.delenv("AIRFLOW_CONN_ORDERS_DB")
    all_for_airflow()
    found = Connection.from_json(os.environ["AIRFLOW_CONN_ORDERS_DB"], conn_id="orders_db")
    assert (found.host, found.port, found.password, found.schema) == ("db.example", 5432, "secret", "orders")
    assert found.extra_dejson == {"sslmode": "require"}


# --- without a reader --------------------------------------------------------------------------------------------


def test_an_interval_source_without_a_reader_decides_batches_and_has_no_rows() -> None:
    bare = DataIntervalSource(kind="opaque")
    again = rebuild(*json.loads(json.dumps(bare.serialize())))
    assert again.for_run(run(FIRST)).decide(ATTEMPT, None) == take(FIRST)
    with pytest.raises(SourceError, match=r"no reader that returns rows.*return current_batch\(\).stage\(rows\)"):
        rows_of(again, take(FIRST).metadata)


@pytest.mark.parametrize("too_early", [timedelta(minutes=2), DAY, 400 * DAY])
def test_a_run_that_is_started_by_hand_before_its_interval_has_ended_is_refused(too_early: timedelta) -> None:
    with pytest.raises(SourceError, match=r"run r had not ended .* Clear the run once its interval has ended"):
        source().for_run(by_hand(FIRST + DAY - too_early))


def test_a_run_is_accepted_although_the_clocks_of_airflow_differ_slightly() -> None:
    early = source().for_run(by_hand(FIRST + DAY - timedelta(seconds=20)))
    late = source().for_run(by_hand(FIRST + DAY))
    assert early.decide(ATTEMPT, None) == late.decide(ATTEMPT, None)
