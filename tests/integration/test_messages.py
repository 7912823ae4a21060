"""Messages with real workers, ackers and ledgers: whatever is killed, nothing is committed too early, or twice."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.base.errors import MessagesFailed, MessagesLost
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.outputs.messages.stores import open_ackers
from airflow_tx.state import Count, MemoryState
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.servers.redis import LocalRedis
from tests.unit.bench import Numbers
from tests.unit.commit.message_run import MessageRun, MessageSpec

ROOT = Path(__file__).parents[2]
MakeRun = Callable[..., MessageRun]


@pytest.fixture
def log() -> Any:
    lines: list[str] = []
    return SimpleNamespace(info=lambda text, *arguments: lines.append(text % arguments), lines=lines)


@pytest.fixture
def make_run(zookeeper: LocalZooKeeper, log: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeRun]:
    """Runs whose ledger is in ZooKeeper."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    client = connect(ClientConfig(zookeeper.hosts))
    store, root = ZooKeeperStore(client), f"/messages-{uuid.uuid4().hex[:8]}"
    state = MemoryState("words", keys=["word"], values={"count": Count()})

    def make(ackers: str, **options: Any) -> MessageRun:
        spec = MessageSpec(
            "numbers",
            "numbers",
            Numbers(),
            memory=store,
            make_ackers=lambda: open_ackers(ackers),
            broken=[],
            tasks=("count",),
            inside=("count", "commit"),
            ackers=2,
            root=root,
            **options,
        )
        return MessageRun(spec, state, log)

    yield make
    disconnect(client)


@pytest.fixture(params=["redis", pytest.param("zookeeper", marks=pytest.mark.lead)])
def ackers(request: pytest.FixtureRequest) -> str:
    """Where the ackers are: each kind in turn."""
    if request.param == "redis":
        redis: LocalRedis = request.getfixturevalue("redis")
        return redis.url()
    zookeeper: LocalZooKeeper = request.getfixturevalue("zookeeper")
    return f"zookeeper://{zookeeper.hosts}/ackers-{uuid.uuid4().hex[:8]}"


@contextmanager
def working(ackers: str, references: list[str], *, children: int, action: str) -> Iterator[list[str]]:
    """A worker that has processed messages: what it has emitted. At the end of the block it is killed."""
    command = [sys.executable, "-m", "tests.integration.message_worker", ackers, str(children), action]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n".join(references))
        process.stdin.close()
        lines = list(iter(process.stdout.readline, "done\n"))
        assert "" not in lines, "the worker has died"
        try:
            yield [line.strip() for line in lines]
        finally:
            process.kill()


def test_a_transaction_whose_messages_several_workers_have_processed_commits(make_run: MakeRun, ackers: str) -> None:
    run = make_run(ackers)
    run.begin()
    sentences = run.work(6)
    with (
        working(ackers, sentences[:3], children=4, action="flush") as first,
        working(ackers, sentences[3:], children=4, action="flush") as second,
    ):
        words = [*first, *second]
        assert len(words) == 24
        assert run.commit_now().messages
        with working(ackers, words, children=0, action="flush"):
            assert run.commit_now() is None
    assert run.count == 10


def test_a_worker_killed_before_it_reported_its_acks_prevents_the_commit_until_a_replay(
    make_run: MakeRun, ackers: str
) -> None:
    """All its messages are processed; but nobody knows, so the whole transaction is replayed."""
    run = make_run(ackers)
    run.begin()
    sentences = run.work(4)
    with working(ackers, sentences, children=3, action="hold") as words:
        pass
    with working(ackers, words, children=0, action="flush"):
        assert run.commit_now().messages
    run.spec = replace(run.spec, message_timeout=1e-6)
    with pytest.raises(MessagesFailed, match="of its 4 message trees, these are not complete: 4 of task"):
        run.commit_now()
    assert run.count == 0
    run.spec = replace(run.spec, message_timeout=None)
    assert run.begin().attempt.attempt == 2
    with working(ackers, run.work(4), children=3, action="flush") as words:
        with working(ackers, words, children=0, action="flush"):
            assert run.commit_now() is None
    assert run.count == 10


def test_ackers_that_lose_their_data_in_a_restart_prevent_the_commit_until_a_replay(make_run: MakeRun) -> None:
    with LocalRedis() as redis:
        run = make_run(redis.url())
        run.begin()
        sentences = run.work(2)
        with working(redis.url(), sentences, children=0, action="flush"):
            redis.kill()
            assert run.commit_now().messages
            assert "cannot be reached" in run.log.lines[-1]
            redis.start()
            with pytest.raises(MessagesLost, match="Their store was emptied"):
                run.commit_now()
        assert run.count == 0
        run.begin()
        with working(redis.url(), run.work(2), children=0, action="flush"):
            assert run.commit_now() is None
        assert run.count == 10


def test_ackers_that_keep_their_data_in_a_restart_continue_and_the_transaction_commits(make_run: MakeRun) -> None:
    with LocalRedis(persistence="aof") as redis:
        run = make_run(redis.url())
        run.begin()
        first, second = run.work(2)
        with working(redis.url(), [first], children=0, action="flush"):
            redis.restart()
        with working(redis.url(), [second], children=0, action="flush"):
            assert run.commit_now() is None


def test_a_tree_of_many_messages_uses_as_much_memory_as_a_single_message(make_run: MakeRun) -> None:
    with LocalRedis() as redis:
        run = make_run(redis.url())
        run.begin()
        waiting = run.work(1)

        def held() -> tuple[int, int]:
            """Bytes and fields of the ackers, without the numbers of the workers' streams."""
            keys = [key for key in redis.client().scan_iter() if redis.client().type(key) == b"hash"]
            fields = {name: value for key in keys for name, value in redis.client().hgetall(key).items()}
            kept = {name: value for name, value in fields.items() if not name.startswith(b"number:")}
            return sum(map(len, (*kept, *kept.values()))), len(kept)

        one = held()
        for _ in range(3):
            with working(redis.url(), waiting, children=20, action="flush") as further:
                waiting = further
                size, fields = held()
                assert fields == one[1]
                assert size <= one[0] + 8, "the digits of two counts: of messages, and of acks"
        assert len(waiting) == 8000
        with working(redis.url(), waiting, children=0, action="flush"):
            assert run.commit_now() is None
