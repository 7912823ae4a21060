"""The metric `airflow_tx.lag`, as a StatsD server gets it, and what it costs."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.base import compat
from airflow_tx.ledger.answers import Begun, NoData, WindowFull
from airflow_tx.sources.memory import MemorySource
from tests.stage import begin_run
from tests.unit.bench import CountingStore, MemorySpec, Numbers
from tests.unit.statsd import StatsD

ROWS = [{"n": number} for number in range(3)]


def begin(store: CountingStore, source: Any, run: str, log: Any, name: str = "numbers") -> Any:
    spec = MemorySpec(name, name, source, max_pending=2, memory=store, tasks=("first",))
    return begin_run(spec, run, log=log)


def test_begin_sends_a_metric_of_how_many_rows_of_the_source_are_not_committed(
    store: CountingStore, log: Any, statsd: StatsD
) -> None:
    source = MemorySource({"a": ROWS})
    sent = ["airflow.airflow_tx.lag:3|g", "airflow.airflow_tx.lag.numbers:3|g"]
    # The rows of an open transaction are not committed.
    for run, answer in (("r1", Begun), ("r2", Begun), ("r3", WindowFull)):
        assert isinstance(begin(store, source, run, log), answer)
        assert statsd.received() == sent
    assert log.lines == []


def test_a_source_without_rows_sends_a_lag_of_zero(store: CountingStore, log: Any, statsd: StatsD) -> None:
    assert isinstance(begin(store, MemorySource({"a": []}), "r1", log), NoData)
    assert statsd.received() == ["airflow.airflow_tx.lag:0|g", "airflow.airflow_tx.lag.numbers:0|g"]


def test_the_name_of_a_topology_is_one_part_of_a_metric_name(store: CountingStore, log: Any, statsd: StatsD) -> None:
    begin(store, MemorySource({"a": ROWS}), "r1", log, name="sales.eu/north")
    assert statsd.received()[1] == "airflow.airflow_tx.lag.sales__eu_north:3|g"


def test_metric_names_that_contain_the_topology_can_be_disabled(
    store: CountingStore, log: Any, statsd: StatsD, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__LEGACY_NAMES_ON", "False")
    begin(store, MemorySource({"a": ROWS}), "r1", log)
    assert statsd.received() == ["airflow.airflow_tx.lag:3|g"]


def test_a_metrics_server_that_supports_tags_receives_tags(
    store: CountingStore, log: Any, statsd: StatsD, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
    compat.prepare_metrics()
    begin(store, MemorySource({"a": ROWS}), "r1", log)
    assert statsd.received()[0] == "airflow.airflow_tx.lag,topology=numbers,root=/airflow_tx,unit=rows:3|g"


def test_a_source_that_cannot_measure_its_lag_sends_no_metric_and_causes_no_failure(
    store: CountingStore, log: Any, statsd: StatsD, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(begin(store, Numbers(), "r1", log), Begun)

    def fails(position: Any) -> int:
        raise OSError("it is away")

    broken = MemorySource({"a": ROWS})
    monkeypatch.setattr(broken, "backlog", fails)
    monkeypatch.setattr(broken, "limit_reason", lambda count, places: "")
    assert isinstance(begin(store, broken, "r1", log, name="other"), Begun)
    assert statsd.received() == []
    told = "The lag of topology '{}' is unknown: "
    assert log.lines[0].startswith(told.format("numbers"))
    assert log.lines[1] == told.format("other") + "OSError: it is away"


def test_the_lag_of_a_source_is_not_queried_if_metrics_are_disabled(
    store: CountingStore, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MemorySource({"a": ROWS})
    monkeypatch.setattr(source, "limit_reason", lambda count, places: "")
    monkeypatch.setattr(source, "backlog", pytest.fail)
    assert not compat.sends_metrics()
    begin(store, source, "r1", log)


def test_the_lag_metric_needs_no_request_to_the_ledger_after_a_committed_transaction(log: Any, statsd: StatsD) -> None:
    def requests(*runs: str) -> int:
        store = CountingStore()
        for run in runs:
            before = store.requests
            begin(store, MemorySource({"a": ROWS}), run, log)
        return store.requests - before

    with_metrics = [requests("r1"), requests("r1", "r2")]
    compat.prepare_metrics()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__METRICS__STATSD_ON", "False")
        without = [requests("r1"), requests("r1", "r2")]
    assert with_metrics == without
