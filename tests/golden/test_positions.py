"""What the ledger keeps of a source: the metadata and the position of batches, and the losses that it lists."""

from __future__ import annotations

import json
import re
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from airflow_tx import (
    FileSource,
    KafkaSource,
    MemorySource,
    PartitionedFileSource,
    PartitionedSqlSource,
    RedisListSource,
    RedisNumberedSource,
    RedisStreamSource,
    SqlSource,
)
from airflow_tx.base.errors import SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch, Json, Source
from airflow_tx.sources.kafka import source as topics
from airflow_tx.sources.kafka.offsets import Extent, KafkaOffsets, LastMessage, OffsetsSnapshot, position_json
from airflow_tx.sources.redis.source import RedisDatabase
from airflow_tx.testing.airflow import connection
from tests.golden.fake_redis import FakeRedis
from tests.golden.written import check_golden


def decided(source: Source, position: Json, txid: int) -> Batch | None:
    batch = source.named("flights").with_limit([]).decide(TransactionAttempt(txid, 1), position)
    return None if batch is None else Batch(**json.loads(json.dumps(asdict(batch))))


def after(source: Source, position: Any, batch: Batch | None) -> Any:
    """Return the position that the ledger has after a batch: of each partition the newest one."""
    if batch is None:
        return position
    if not source.partitioned:
        return batch.position
    return {**(position or {}), **batch.position}  # type: ignore[dict-item]


def told(source: Source, position: Any, batches: int) -> tuple[dict[str, Any], Any]:
    """Decide batches one after another, and tell all that the source says of them."""
    found = []
    for txid in range(1, batches + 1):
        batch = decided(source, position, txid)
        position = after(source, position, batch)
        found.append(None if batch is None else asdict(batch))
    said = {"batches": found, "backlog": source.backlog(position), "unit": source.unit}
    return {**said, "losses": losses(source, position)}, position


def losses(source: Source, position: Any) -> list[Any]:
    return [structs.asdict(each) for each in source.losses(position)]


def refusal(source: Source, position: Json) -> str:
    """Return the problem that a source refuses to decide for."""
    with pytest.raises(SourceError) as refused:
        decided(source, position, 9)
    return str(refused.value.fields["problem"])


def test_the_positions_of_a_memory_source_match_the_golden_file() -> None:
    source = MemorySource({"a": [{"n": 1}, {"n": 2}, {"n": 3}], "b": [{"n": 4}]}, per_batch=2)
    check_golden("positions_memory", {"rows": told(source, None, 3)[0]})


# --- Redis


def numbered(client: FakeRedis, first: int, end: int) -> None:
    for number in range(first, end):
        client.values[str(number)] = b"tweet %d" % number
    client.values["NEXT_WRITE"] = str(end).encode()


def test_the_positions_and_losses_of_redis_sources_match_the_golden_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", connection("redis", host="nowhere"))
    clients = {name: FakeRedis() for name in ("shop/0", "shop/1")}
    monkeypatch.setattr(RedisDatabase, "client", lambda self: clients[self.partition.partition(":")[0]])
    limits: dict[str, Any] = {"databases": [0, 1], "max_rows_per_batch": 4}
    numbers = RedisNumberedSource("shop", move_cursor=True, **limits)
    lists = RedisListSource("shop", "web", max_bytes_per_batch=20, **limits)
    streams = RedisStreamSource("shop", "orders", kind="opaque", **limits)
    for client, count in zip(clients.values(), (3, 6), strict=True):
        numbered(client, 1, 1 + count)
        client.lists["web"] = [b"line %d" % number for number in range(count)]
        client.add("orders", [f"{number}-0" for number in range(1, 1 + count)])

    found: dict[str, Any] = {}
    positions: dict[str, Any] = {}
    sources = {"numbered": numbers, "lists": lists, "streams": streams}
    for name, source in sources.items():
        found[name], positions[name] = told(source, None, 3)

    one, other = clients.values()
    for client in (one, other):
        numbered(client, 1, 3)
        client.lists["web"] = [b"other"] * 9
        client.streams["orders"].added += 2
    numbered(other, 9, 12)
    for name, source in sources.items():
        lost = losses(source, positions[name])
        resumed = {**positions[name], **{each["partition"]: each["resume_at"] for each in lost}}
        found[f"{name}, lost"] = {"losses": lost, "refusal": refusal(source, positions[name])}
        found[f"{name}, accepted"] = told(source, resumed, 2)[0]
    check_golden("positions_redis", found)


# --- Kafka


def test_the_positions_and_losses_of_kafka_sources_match_the_golden_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", connection("kafka", extra={"bootstrap.servers": "nowhere:1"}))
    there = OffsetsSnapshot()
    last: dict[str, LastMessage] = {}
    monkeypatch.setattr(KafkaOffsets, "__init__", lambda self, *given: None)
    monkeypatch.setattr(KafkaOffsets, "snapshot", lambda self, names: there)
    monkeypatch.setattr(
        topics, "last_messages", lambda address, ranges, timeout: {n: last[n] for n in ranges if n in last}
    )
    source = KafkaSource("shop", topic="orders,returns", max_rows_per_batch=6)
    opaque = KafkaSource("shop", topic="orders,returns", kind="opaque")
    latest = KafkaSource("shop", topic="orders,returns", starting="latest")

    found: dict[str, Any] = {}
    extents = {"orders-0": Extent("o", 3, 9), "orders-1": Extent("o", 0, 2), "returns-0": Extent(None, 0, 4)}
    there = OffsetsSnapshot(extents, ids={"orders": "o", "returns": None})
    found["earliest"], position = told(source, None, 3)
    found["latest"], _ = told(latest, None, 2)

    extents = {"orders-0": Extent("o", 3, 12), "orders-2": Extent("o", 2, 5), "returns-0": Extent(None, 0, 4)}
    there = OffsetsSnapshot(extents, {"orders-1": "no leader"}, ids={"orders": "o", "returns": None})
    found["away"] = {"refusal": refusal(source, position), "losses": losses(source, position)}
    found["left out, and a partition that is new"], _ = told(opaque, position, 1)

    extents = {"orders-0": Extent("p", 11, 12), "returns-0": Extent(None, 0, 2)}
    there = OffsetsSnapshot(extents, ids={"orders": "p", "returns": None})
    lost = losses(source, position)
    found["lost"] = {"refusal": refusal(source, position), "losses": lost}
    found["lost, opaque"] = {"refusal": refusal(opaque, position)}
    resumed = {**position, **{each["partition"]: each["resume_at"] for each in lost}}
    found["accepted"], _ = told(opaque, resumed, 2)

    last = {"orders-0": LastMessage(11, "a1")}
    found["last message"], _ = told(source, {"returns-0": position_json(None, 2)}, 1)

    there = OffsetsSnapshot({}, missing=["orders"], ids={"returns": None})
    found["missing"] = {"refusal": refusal(source, None)}
    check_golden("positions_kafka", found)


# --- SQL


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sqlite3.Connection:
    """Two connections, each with a table of orders; `shop` is the first one."""
    for name, count in (("shop", 3), ("other", 5)):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", connection("sqlite", host=str(tmp_path / f"{name}.db")))
        with sqlite3.connect(tmp_path / f"{name}.db") as opened:
            opened.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, at TIMESTAMP NOT NULL, n INT)")
            for number in range(1, count + 1):
                opened.execute("INSERT INTO orders VALUES (?, ?, ?)", (number, f"2026-01-01 10:00:0{number}", number))
    return sqlite3.connect(tmp_path / "shop.db", isolation_level=None)


def test_the_positions_and_losses_of_sql_sources_match_the_golden_file(shop: sqlite3.Connection) -> None:
    found: dict[str, Any] = {}
    positions: dict[str, Any] = {}
    limits: dict[str, Any] = {"max_rows_per_batch": 2, "rows_per_read": 1}
    sources: dict[str, Source] = {
        "ids": SqlSource("shop", "orders", **limits),
        "times": SqlSource("shop", "orders", order_by=["at", "id"], **limits),
        "bytes": SqlSource("shop", "orders", max_bytes_per_batch=50),
        "unlimited": PartitionedSqlSource(["shop", "other"], "orders"),
        "tables": PartitionedSqlSource(["shop", "other"], "orders", **{**limits, "max_rows_per_batch": 4}),
    }
    for name, source in sources.items():
        found[name], positions[name] = told(source, None, 3)
    shop.execute("INSERT INTO orders VALUES (0, '2026-01-01 10:00:00', 0)")
    for name, source in sources.items():
        found[f"{name}, too late"] = {
            "refusal": refusal(source, positions[name]),
            "losses": losses(source, positions[name]),
        }
    shop.execute("DELETE FROM orders WHERE id > 0")
    for name in ("ids", "tables"):
        lost = losses(sources[name], positions[name])
        found[f"{name}, anew"] = {"refusal": refusal(sources[name], positions[name]), "losses": lost}
    check_golden("positions_sql", found)


# --- files


def test_the_positions_of_file_sources_match_the_golden_file(tmp_path: Path) -> None:
    for name in ("a/1.csv", "a/2.csv", "b/3.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"n\n{name}\n")
    sources = {
        "files": FileSource("*/*.csv", base=str(tmp_path), files_per_batch=2, options={"inferSchema": True}),
        "bytes": FileSource("*/*.csv", base=str(tmp_path), max_bytes_per_batch=21, schema="n STRING"),
        "opaque": FileSource("*/*.csv", base=str(tmp_path), kind="opaque", files_per_batch=2),
        "folders": PartitionedFileSource("*/*.csv", base=str(tmp_path), files_per_batch=1),
    }
    found = {name: told(source, None, 3)[0] for name, source in sources.items()}
    text = re.sub(r'"changed": \d+', '"changed": 17', json.dumps(found).replace(str(tmp_path), "/data"))
    check_golden("positions_files", json.loads(text))
