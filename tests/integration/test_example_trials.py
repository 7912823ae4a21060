"""The example DAGs, each tried out: their quickest test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

from airflow_tx.base.errors import TrialRefused
from airflow_tx.testing.dag_trial import trial
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from tests.servers.memcached import LocalMemcached

ROOT = Path(__file__).resolve().parents[2]
SENTENCES = [{"sentence": "the cat jumped"}, {"sentence": "the dog"}]
FLIGHTS = [
    {"carrier": "UA", "origin": "EWR", "dep_delay": "5"},
    {"carrier": "UA", "origin": "EWR", "dep_delay": "NA"},
    {"carrier": "AA", "origin": "JFK", "dep_delay": "7"},
]


@pytest.fixture(autouse=True)
def connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a task asks for by itself; no source and no state has a connection."""
    monkeypatch.setenv("AIRFLOW_TX_DATA", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    monkeypatch.setenv("AIRFLOW_CONN_TX_STATE", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "state.db")}))
    monkeypatch.syspath_prepend(str(ROOT / "dags"))
    monkeypatch.chdir(ROOT)


def example(dag_id: str, file: str = "") -> DAG:
    bag = DagBag(dag_folder=str(ROOT / "dags" / f"{file or dag_id}.py"))
    assert bag.import_errors == {}
    return bag.dags[dag_id]


def test_every_example_dag_has_a_trial_test() -> None:
    bag = DagBag(dag_folder=str(ROOT / "dags"))
    examples = {each.partition("_coordinator")[0] for each in bag.dags}
    text = Path(__file__).read_text()
    assert examples, bag.import_errors
    assert [each for each in sorted(examples) if f'"{each}"' not in text] == []


@pytest.mark.lead
@pytest.mark.worth("a trial as a new user runs it")
def test_the_trial_of_daily_orders_adds_up_the_orders_of_a_day() -> None:
    rows = [{"product": "tea", "amount": 3}, {"product": "tea", "amount": 4}]
    result = trial(example("daily_orders"), rows=rows)
    assert result.states["tx_state.daily_orders"].read() == [{"product": "tea", "orders": 2, "amount": 7}]


DAYS = [
    {"day": "01", "product": "tea", "amount": "3"},
    {"day": "01", "product": "tea", "amount": "4"},
    {"day": "01", "product": "tea", "amount": "unknown"},
]
CLEANED = [{**row, "amount": int(row["amount"])} for row in DAYS if row["amount"].isdecimal()]


@pytest.mark.parametrize(
    ("dag_id", "rows", "given"),
    [
        ("chain_orders", DAYS, DAYS),
        ("chain_cleaned", DAYS, CLEANED),
        ("chain_totals", CLEANED, [{"day": "01", "orders": 2, "amount": 7}]),
        ("chain_largest", CLEANED, [{"product": "tea", "amount": 4}]),
    ],
)
def test_each_topology_of_a_chain_can_be_tried_out_alone(dag_id: str, rows: Any, given: Any) -> None:
    result = trial(example(dag_id, "chain"), rows=rows)
    assert result.state == "success", result.text()
    (state,) = result.states.values()
    found: Any = state
    assert (found.read() if dag_id in ("chain_totals", "chain_largest") else list(found.rows)) == given


def test_the_trial_counts_each_word_in_the_database_that_stores_the_word() -> None:
    result = trial(example("words"), rows=SENTENCES)
    found = [row for name in (0, 1) for row in result.states[f"tx_words_{name}.word_counts"].read()]
    assert {row["word"]: row["count"] for row in found} == {"the": 2, "cat": 1, "dog": 1, "jumped": 1}


def test_the_trial_counts_tweets_by_url_and_by_domain() -> None:
    result = trial(example("tweeted_urls"), rows=[{"text": "http://a.b/c http://a.b/d http://a.b/c"}])
    assert result.states["tx_domains.tweeted_domains"].read() == [{"domain": "a.b", "tweets": 1}]
    assert len(result.states["tx_urls.tweeted_urls"].read()) == 2


def test_the_trial_adds_the_tuples_of_a_batch_to_the_global_count() -> None:
    result = trial(example("global_count"), states={"tx_state.global_count": [{"tuples": 100}]})
    assert result.states["tx_state.global_count"].read() == [{"tuples": 109}]


def test_the_trial_adds_up_orders_by_region_and_product() -> None:
    rows = [{"region": "north", "product": "tea", "amount": "3"}, {"region": "north", "product": "tea", "amount": "4"}]
    result = trial(example("orders"), rows=rows)
    wanted = [{"region": "north", "product": "tea", "orders": 2, "amount": 7}]
    assert result.states["tx_state.order_totals"].read() == wanted


def test_the_trial_adds_orders_and_totals_and_shows_the_rows_for_the_summary() -> None:
    rows = [{"product": "tea", "amount": "3"}, {"product": "tea", "amount": "4"}]
    result = trial(example("order_summary"), rows=rows)
    assert result.state == "success", result.text()
    wanted = [{"product": "tea", "orders": 2, "amount": 7}]
    assert result.states["tx_state.summed_totals"].read() == wanted
    appended, summary = (result.states[name].rows for name in ("tx_state.summed_orders", "tx_state.order_summary"))  # type: ignore[union-attr]
    assert [row["amount"] for row in appended] == [3, 4]
    assert summary == wanted


def test_the_trial_shows_the_rows_for_the_locations_database() -> None:
    result = trial(example("locations"), rows=[{"user": "7", "location": "Rome"}])
    assert result.state == "success", result.text()
    (state,) = result.states.values()
    assert [row["location"] for row in state.rows] == ["Rome"]  # type: ignore[union-attr]


def test_the_trial_counts_words_and_letters_and_does_not_change_memcached(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalMemcached() as server:
        connection = {"conn_type": "memcached", "host": "127.0.0.1", "port": server.port}
        monkeypatch.setenv("AIRFLOW_CONN_TX_CACHE", json.dumps(connection))
        result = trial(example("memcached_words"), rows=SENTENCES)
    words, letters = result.states.values()
    assert result.state == "success", result.text()
    assert {change.key["word"]: change.after for change in result.changes(words.name)}["the"] == 2
    assert {change.key["letter"]: change.after for change in result.changes(letters.name)}["t"] == 3
    assert result.outputs["seen"] == 0, "Memcached holds something that the trial has counted."


def test_a_trial_of_a_dag_that_sends_messages_to_workers_is_refused() -> None:
    with pytest.raises(TrialRefused, match="queued_words.*cannot be tried out: its messages leave the DAG"):
        trial(example("queued_words"), rows=SENTENCES)


@pytest.mark.long
@pytest.mark.spark
def test_the_trial_counts_flights_in_an_application_run_by_spark_submit() -> None:
    result = trial(example("flights"), rows=FLIGHTS)
    assert result.states["tx_state.flight_totals"].read() == [
        {"carrier": "AA", "origin": "JFK", "flights": 1, "dep_delay": 7},
        {"carrier": "UA", "origin": "EWR", "flights": 2, "dep_delay": 5},
    ]
    assert result.states["tx_state.flights_overall"].read() == [{"flights": 3}]


@pytest.mark.long
@pytest.mark.spark
def test_the_trial_counts_the_events_of_a_topic_by_user() -> None:
    rows = [{"value": {"user": user, "amount": amount}} for user, amount in (("ann", 3), ("ann", 4), ("bob", 5))]
    result = trial(example("kafka_counts"), rows=rows)
    assert result.states["tx_state.user_events"].read() == [
        {"user": "ann", "events": 2, "amount": 7},
        {"user": "bob", "events": 1, "amount": 5},
    ]


@pytest.fixture
def connect(spark_connect: LocalSparkConnect, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": spark_connect.port}
    for name in ("SHOP_SPARK", "SPARK_CONNECT_DEFAULT"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("connect")
@pytest.mark.parametrize("topology", ["twitter", "twitter_partitioned", "twitter_opaque", "twitter_tasks"])
def test_the_trial_counts_the_users_and_hashtags_of_tweets(topology: str) -> None:
    rows = [{"partition": "0", "number": 1, "message": "@ann likes #tea"}]
    result = trial(example(topology, "twitter"), rows=rows)
    assert result.state == "success", result.text()
    (state,) = result.states.values()
    given = state.read() if topology == "twitter_opaque" else state.rows  # type: ignore[union-attr]
    assert sorted((row["hash"], row["field"], row["n"]) for row in given) == [
        ("hashtags", "#tea", 1),
        ("users", "@ann", 1),
        ("users_hashtags", "@ann:#tea", 1),
    ]


def test_the_trial_shows_flights_that_polars_cannot_read_as_rejected_rows() -> None:
    row = {"month": 1, "carrier": "UA", "flight": 7, "origin": "EWR", "dest": "IAH", "distance": "1400"}
    rows = [{**row, "dep_delay": delay} for delay in ("16", "2 min", *["NA"] * 30)]
    result = trial(example("quality"), rows=rows)
    assert result.state == "success", result.text()
    rejected: Any = result.states["tx_state.quality_aside"]
    assert [(each["tx_task"], each["tx_reason"]) for each in rejected.rows] == [("clean", "dep_delay is no number")]
    assert result.states["tx_state.quality_totals"].read() == [{"carrier": "UA", "flights": 31, "delay": 16}]
    assert {name: each["passed"] for name, each in result.checks.items()} == {
        "some flights": True,
        "positive distance": True,
        "rejected": True,
    }


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("connect")
def test_the_trial_counts_orders_in_an_application_run_by_spark_connect() -> None:
    rows = [{"id": 1, "product": "tea", "amount": 3}, {"id": 2, "product": "tea", "amount": 4}]
    result = trial(example("sql_orders"), rows=rows)
    assert result.states["shop_db.order_totals"].read() == [{"product": "tea", "orders": 2, "amount": 7}]


@pytest.mark.long
@pytest.mark.spark
def test_the_trial_shows_the_appended_flights_and_creates_no_table() -> None:
    row = {"month": 1, "day": 2, "carrier": "UA", "flight": 7, "origin": "EWR", "dest": "IAH", "dep_delay": "16"}
    dag = example("lake")
    result = trial(dag, rows=[row])
    assert result.state == "success", result.text()
    (table,) = (each for name, each in result.states.items() if name.startswith("delta."))
    assert [(each["route"], each["late"]) for each in table.rows] == [("EWR-IAH", True)]  # type: ignore[union-attr]
    assert result.states["tx_state.lake_totals"].read() == [{"carrier": "UA", "flights": 1, "delayed": 1}]
    assert not Path(table.name.removeprefix("delta.")).exists()


@pytest.mark.long
@pytest.mark.spark
def test_a_later_task_in_the_commit_phase_of_a_trial_reads_the_new_values_of_the_state() -> None:
    result = trial(example("trident_words"), rows=SENTENCES, states={"tx_state.trident_words": [_count("dog", 41)]})
    assert result.outputs["commit_phase.commonest"] == "dog"
    assert _count("the", 2) in result.states["tx_state.trident_words"].read()


def _count(word: str, count: int) -> dict[str, Any]:
    return {"word": word, "count": count}
