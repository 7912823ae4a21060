"""Arguments of the sources of Redis, and what their partitions are called; no server."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from airflow_tx import RedisListSource, RedisNumberedSource, RedisStreamSource
from airflow_tx.base.errors import ConfigError
from airflow_tx.sources.api import SourceKind, rebuild
from airflow_tx.sources.redis.source import spelled


@pytest.mark.parametrize(
    ("source", "shown", "partitions"),
    [
        (RedisNumberedSource(), "RedisNumberedSource('redis_default')", ["redis_default"]),
        (
            RedisNumberedSource("tweets", databases=[0, 3], max_rows_per_batch=50, move_cursor=True),
            "RedisNumberedSource('tweets', move_cursor=True, databases=[0, 3], max_rows_per_batch=50)",
            ["tweets/0", "tweets/3"],
        ),
        (
            RedisListSource(["a", "b"], lists=["x", "y"], kind="opaque", schema="n INT"),
            "RedisListSource(['a', 'b'], lists=['x', 'y'], schema='n INT', kind='opaque')",
            ["a:x", "a:y", "b:x", "b:y"],
        ),
        (
            RedisStreamSource("events", "orders", databases=[7], target_seconds=5),
            "RedisStreamSource('events', streams=['orders'], databases=[7], target_seconds=5)",
            ["events/7:orders"],
        ),
    ],
)
def test_every_combination_of_connection_and_database_and_key_is_a_partition(
    source: RedisListSource | RedisNumberedSource | RedisStreamSource, shown: str, partitions: list[str]
) -> None:
    assert (repr(source), source.partitions()) == (shown, partitions)
    again = rebuild(*json.loads(json.dumps(source.serialize())))
    assert (repr(again), again.kind, again.serialize()) == (shown, source.kind, source.serialize())


def test_a_redis_source_names_the_connections_that_a_spark_driver_needs() -> None:
    assert RedisNumberedSource(["a", "b"], databases=[0, 1]).connections() == {"a": "redis", "b": "redis"}
    assert RedisStreamSource("a", "s", kind="opaque").kind is SourceKind.OPAQUE


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: RedisNumberedSource(""), r"conn_id of RedisNumberedSource = '' .*Name an Airflow connection"),
        (
            lambda: RedisNumberedSource(databases=cast("Any", ["0"])),
            r"databases of RedisNumberedSource = \['0'\] .*numbers of databases",
        ),
        (lambda: RedisNumberedSource(databases=[-1]), r"databases of RedisNumberedSource = \[-1\]"),
        (lambda: RedisNumberedSource(databases=[1, 1]), r"partitions of RedisNumberedSource .*once"),
        (lambda: RedisNumberedSource(kind="exact"), r"kind of RedisNumberedSource = 'exact'"),
        (lambda: RedisNumberedSource(max_rows_per_batch=0), r"max_rows_per_batch of RedisNumberedSource = 0"),
        (lambda: RedisListSource("a"), r"lists of RedisListSource = \(\) .*Name a list"),
        (lambda: RedisStreamSource("a"), r"streams of RedisStreamSource = \(\) .*Name a stream"),
        (lambda: RedisStreamSource("a", ["s", ""]), r"streams of RedisStreamSource"),
    ],
)
def test_the_error_for_invalid_arguments_of_a_redis_source_names_them(make: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refusal:
        make()
    assert "\n" not in str(refusal.value)


def test_the_error_for_a_missing_connection_or_one_of_another_type_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_TX_CONN_tweets", json.dumps({"conn_type": "http"}))
    with pytest.raises(
        ConfigError, match="'tweets', conn_type = 'http' .*RedisNumberedSource needs a connection of type"
    ):
        RedisNumberedSource("tweets").backlog(None)


def test_numbers_in_an_error_are_written_as_ranges() -> None:
    assert spelled([3]) == "3"
    assert spelled([1, 2, 3, 7, 9, 10]) == "1 to 3, 7, 9 to 10"
    assert spelled(range(0, 100, 2)).endswith("16, 18 ...")
