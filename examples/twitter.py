"""The Twitter analytics of the Storm book. Both Redis servers are killed while tweets are written and counted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_tx.ledger import TransactionRecord
from airflow_tx.ledger.api import Paths, Store
from airflow_tx.state import RedisState, Sum
from airflow_tx.testing.airflow import LocalAirflow
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from examples.example import Example
from examples.ledger import history
from examples.servers import ROOT
from examples.twitter_tweets import Counts, TweetWriter, guarded
from tests.servers.redis import REDIS_PASSWORD, LocalRedis

_TIMEOUT = 300


@dataclass(frozen=True)
class Part:
    """A topology, and the fault that it must survive.

    :param databases: the numbers of the databases that contain its tweets.
    :param kept: the prefix of the hashes that contain its counts.
    :param killed: the server that is killed, "tweets" or "counts".
    :param at: the failpoint at which a task pauses while the server is killed.
    """

    topology: str
    databases: Sequence[int]
    kept: str
    killed: str
    at: str


PARTS = (
    Part("twitter", [0], "twitter", "tweets", "process.after_start"),
    Part("twitter_partitioned", [1, 2, 3, 4], "partitioned", "counts", "commit.after_acquire"),
    Part("twitter_opaque", [5, 6, 7, 8], "opaque", "counts", "commit.before_mark"),
    Part("twitter_tasks", [9], "tasks", "tweets", "process.after_start"),
)
_MEETS_IT = ("process.after_start", "commit.after_acquire")
"""The failpoints after which the paused task needs the killed server."""


class Twitter(Example):
    """Counts tweets in three topologies, one after the other."""

    name = "twitter"
    files = ("twitter.py",)

    def prepare(self) -> None:
        """Do nothing, since tweets are written while they are counted."""

    def drive(self, airflow: LocalAirflow, store: Store) -> None:
        """Start the coordinators, and kill the source before a read, and the state before and after a write."""
        self._airflow, self._store = airflow, store
        with LocalRedis(persistence="aof") as tweets, LocalRedis(persistence="aof") as counts:
            self._servers = {"tweets": tweets, "counts": counts}
            self._writers = {part.topology: TweetWriter(tweets, part.databases) for part in PARTS}
            with LocalSparkConnect(self.folder / "connect") as spark:
                self._connect(spark)
                for part in PARTS:
                    self._run(part)
            self._found = [line for part in PARTS for line in self._differences(part)]

    def wrong(self) -> list[str]:
        """Return the differences from a direct count of all written tweets."""
        return self._found

    def verdict(self) -> str:
        """Return the verdict with its figures, in one line."""
        tweets = sum(len(texts) for writer in self._writers.values() for texts in writer.written.values())
        return f"{tweets} of {tweets} tweets counted once, in {len(PARTS)} topologies"

    def _run(self, part: Part) -> None:
        """Write tweets, kill the server, and wait for three more commits.

        Then stop writing, and wait until all are counted.
        """
        name, writer = part.topology, self._writers[part.topology]
        writer.write(40)
        writer.go_on(2, every=0.5)
        try:
            self._airflow.wait_dag(name)
            self.say(f"{name} counts tweets while {len(part.databases)} Redis database(s) receive more tweets")
            self._kill(part)
            enough = len(self._history(name)) + 3
            what = "three more transactions are committed"
            eventually(lambda: len(self._history(name)) >= enough, _TIMEOUT, what, interval=0.5)
        finally:
            writer.stop()
        self.say(f"{name}: the writers have stopped; {sum(map(len, writer.written.values()))} tweets are in Redis")

        def told() -> str:
            return "\n".join(self._differences(part)[:10])

        eventually(lambda: not self._differences(part), _TIMEOUT, "all tweets are counted", interval=0.5, explain=told)
        eventually(lambda: self._idle(name), _TIMEOUT, "no run is left", interval=0.5)
        entries = self._history(name)
        again = [f"{entry.txid} ({entry.attempt} attempts)" for entry in entries if entry.attempt > 1]
        self.say(
            f"{name}: {len(entries)} transactions committed, {self._tries(name)} tries of tasks failed"
            + (f", replayed: {', '.join(again)}" if again else "")
        )

    def _connect(self, spark: LocalSparkConnect) -> None:
        def redis(server: LocalRedis) -> dict[str, object]:
            return {"conn_type": "redis", "host": "127.0.0.1", "port": server.port, "password": REDIS_PASSWORD}

        connections = self.folder / "connections.json"
        connections.touch(mode=0o600)
        connect = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": spark.port}
        found = {f"redis_{name}": redis(server) for name, server in self._servers.items()}
        connections.write_text(json.dumps({**found, "spark_connect_default": connect}))
        self._airflow.command("connections", "import", str(connections))
        connections.unlink()

    def _kill(self, part: Part) -> None:
        """Kill a server while a task is paused at a failpoint. Restart it after a task has failed without it."""
        name, server = part.topology, self._servers[part.killed]
        paused = self.failpoints.arm(part.at, "pause", topology=name)
        eventually(lambda: paused.reached, _TIMEOUT, f"a task of {name} is at {part.at}")
        failed = self._tries(name)
        server.kill()
        paused.release()
        self.say(f"{name}: the Redis of the {part.killed} is killed while a task is at {part.at}")
        if part.at in _MEETS_IT:
            eventually(
                lambda: self._tries(name) > failed,
                _TIMEOUT,
                f"a task of {name} has failed without the server",
                interval=0.5,
            )
        server.start()
        self.say(f"the Redis of the {part.killed} was started again")

    def _tries(self, topology: str) -> int:
        """Return the number of tries of tasks that have failed."""
        tasks = self._airflow.task_instances(topology, "~")
        again = sum(max(int(task["try_number"]) - 1, 0) for task in tasks)
        return again + sum(task["state"] in ("failed", "up_for_retry") for task in tasks)

    def _idle(self, topology: str) -> bool:
        return all(run["state"] in ("success", "failed") for run in self._airflow.runs(topology))

    def _history(self, topology: str) -> list[TransactionRecord]:
        return history(self._store, Paths(ROOT, topology))

    def _differences(self, part: Part) -> list[str]:
        expected, found = self._writers[part.topology].counts(), self._counts(part)
        return [
            f"{part.topology} {name} {field}: expected {fields[field]}, found {found[name][field]}"
            for name, fields in expected.items()
            for field in sorted(fields | found[name])
            if fields[field] != found[name][field]
        ]

    def _counts(self, part: Part) -> Counts:
        if part.topology != "twitter_opaque":
            return guarded(self._servers["counts"], part.kept)
        state = RedisState.from_url(
            self._servers["counts"].url(), prefix=part.kept, keys=["hash", "field"], values={"n": Sum()}, kind="opaque"
        )
        counts: Counts = {name: Counter() for name in ("users", "hashtags", "users_hashtags")}
        for row in state.read():
            counts[row["hash"]][row["field"]] = int(row["n"])
        return counts
