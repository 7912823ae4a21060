"""The book's Twitter analytics while tweets are written, with both Redis servers killed in the worst moments."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack

from airflow_tx.local.example import Example
from airflow_tx.local.examples.twitter_tweets import Counts, TweetWriter, guarded
from airflow_tx.local.ledger import history
from airflow_tx.local.servers import ROOT
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.paths import Paths
from airflow_tx.state import Sum
from airflow_tx.state.backing.redis import RedisState
from airflow_tx.testing.airflow import LocalAirflow
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.redis import PASSWORD, LocalRedis
from airflow_tx.testing.spark_connect import LocalSparkConnect

TOPOLOGIES: dict[str, list[int]] = {
    "twitter": [0],
    "twitter_partitioned": [1, 2, 3, 4],
    "twitter_opaque": [1, 2, 3, 4],
}
"""Topology -> the databases that it reads."""
_TIMEOUT = 400


class Twitter(Example):
    """Counts tweets in three topologies, all at once."""

    name = "twitter"
    files = ("twitter.py",)

    def prepare(self) -> None:
        """Nothing: tweets are written while they are counted."""

    def drive(self, airflow: LocalAirflow, store: Store) -> None:
        """Let the coordinators count; kill the source before a read, the state before and after a write."""
        self._airflow, self._store = airflow, store
        with ExitStack() as servers:
            self._source, self._state = (servers.enter_context(LocalRedis(persistence="aof")) for _ in range(2))
            spark = servers.enter_context(LocalSparkConnect(self.folder / "connect"))
            self._writer = TweetWriter(self._source, range(5))
            self._writer.write(40)
            self._connect(spark)
            for name in TOPOLOGIES:
                airflow.wait_dag(name)
            self._writer.go_on(10, every=1.0)
            servers.callback(self._writer.stop)
            self.say("three topologies count, and tweets are written into five databases all the time")
            self._kill(self._source, "tweets", "process.after_start", "twitter")
            self._kill(self._state, "counts", "commit.after_acquire", "twitter_partitioned")
            self._kill(self._state, "counts", "commit.before_mark", "twitter_opaque")
            self._writer.stop()
            self.say(f"no more tweets are written: {sum(map(len, self._writer.written.values()))} are in Redis")
            eventually(lambda: not self._differences(), _TIMEOUT, "all is counted", explain=self._told)
            eventually(self._idle, _TIMEOUT, "no run is left", interval=1.0)
            self._found = self._differences()
            self._tell()

    def wrong(self) -> list[str]:
        """Compare with a count over everything that was ever written."""
        return self._found

    def verdict(self) -> str:
        """How many there were."""
        tweets = sum(len(self._writer.written[each]) for databases in TOPOLOGIES.values() for each in databases)
        return f"{tweets} of {tweets} tweets counted once, in {len(TOPOLOGIES)} topologies"

    def _connect(self, spark: LocalSparkConnect) -> None:
        def redis(server: LocalRedis) -> dict[str, object]:
            return {"conn_type": "redis", "host": "127.0.0.1", "port": server.port, "password": PASSWORD}

        connections = self.folder / "connections.json"
        connections.touch(mode=0o600)
        connect = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": spark.port}
        found = {"redis_tweets": redis(self._source), "redis_counts": redis(self._state)}
        connections.write_text(json.dumps({**found, "spark_connect_default": connect}))
        self._airflow.command("connections", "import", str(connections))
        connections.unlink()

    def _kill(self, server: LocalRedis, what: str, failpoint: str, topology: str) -> None:
        """Kill a server while a task of the topology stands at a failpoint, and start it when the task has met that."""
        paused = self.failpoints.arm(failpoint, "pause", topology=topology)
        eventually(lambda: paused.reached, _TIMEOUT, f"a task of {topology} is at {failpoint}")
        server.kill()
        paused.release()
        self.say(f"{topology}: the Redis of the {what} is killed at {failpoint}")
        if failpoint != "commit.before_mark":  # there, only the next transaction meets it
            before = self._tries(topology)
            eventually(
                lambda: self._tries(topology) > before, _TIMEOUT, f"a task of {topology} has met it", interval=0.5
            )
        server.start()
        self.say(f"the Redis of the {what} is back")

    def _tries(self, topology: str) -> int:
        """How many tries of tasks have failed."""
        tasks = self._airflow.task_instances(topology, "~")
        again = sum(max(int(task["try_number"]) - 1, 0) for task in tasks)
        return again + sum(task["state"] in ("failed", "up_for_retry") for task in tasks)

    def _idle(self) -> bool:
        runs = [run for name in TOPOLOGIES for run in self._airflow.runs(name)]
        return all(run["state"] in ("success", "failed") for run in runs)

    def _differences(self) -> list[str]:
        lines = []
        for topology, databases in TOPOLOGIES.items():
            expected, found = self._writer.counts(databases), self._counts(topology)
            for name, fields in expected.items():
                for field in sorted(fields | found[name]):
                    if fields[field] != found[name][field]:
                        lines.append(f"{topology} {name} {field}: expected {fields[field]}, found {found[name][field]}")
        return lines

    def _counts(self, topology: str) -> Counts:
        if topology != "twitter_opaque":
            return guarded(self._state, topology.removeprefix("twitter_"))
        state = RedisState.from_url(
            self._state.url(), prefix="opaque", keys=["hash", "field"], values={"n": Sum()}, kind="opaque"
        )
        counts: Counts = {name: Counter() for name in ("users", "hashtags", "users_hashtags")}
        for row in state.read():
            counts[row["hash"]][row["field"]] = int(row["n"])
        return counts

    def _told(self) -> str:
        return "\n".join(self._differences()[:10])

    def _tell(self) -> None:
        for topology in TOPOLOGIES:
            entries = history(self._store, Paths(ROOT, topology))
            again = [f"{entry.txid} ({entry.attempts} attempts)" for entry in entries if entry.attempts > 1]
            self.say(
                f"{topology}: {len(entries)} transactions committed, {self._tries(topology)} tries of tasks failed"
                + (f", replayed: {', '.join(again)}" if again else "")
            )
