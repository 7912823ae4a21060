"""Words that are sent through queues. A worker dies after it has counted words but before it has acked them.

Another worker fails a word, and `begin` dies. Then workers ack manually, and one of them dies with words that it has
added up.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_tx.ledger.api import Store
from airflow_tx.testing.airflow import LocalAirflow
from airflow_tx.testing.eventually import eventually
from examples.example import Example, differences
from examples.ledger import history
from examples.sentences import counted, write_sentences
from examples.servers import database
from examples.stored import rows
from examples.word_workers import ONCE
from tests.servers.redis import REDIS_PASSWORD, LocalRedis

FILES = 4
HELD = 50
_PROGRAM = Path(__file__).with_name("word_workers.py")
_TIMEOUT = 300


class QueuedWords(Example):
    """Counts the words of a few files in worker processes outside Airflow."""

    name = "queued_words"
    files = ("queued_words.py",)

    def prepare(self) -> None:
        """Write one file for each transaction."""
        write_sentences(self.folder / "queued", FILES)

    def drive(self, airflow: LocalAirflow, store: Store) -> None:
        """Kill a worker in transactions 1 and 4, kill `begin` in transaction 2, and fail a word in transaction 3."""
        with LocalRedis() as redis:
            redis_of = {"conn_type": "redis", "host": "127.0.0.1", "port": redis.port, "password": REDIS_PASSWORD}
            airflow.call("POST", "connections", json={"connection_id": "tx_queues", **redis_of})
            airflow.wait_dag(self.name)
            with _worker(redis, "split"):
                self._count_until_killed(airflow, redis, "r1", "count")
                with _worker(redis, "count"), _worker(redis, "count"):
                    self._committed_after_failure(airflow, "r1")
                    killed = self.failpoints.arm("begin.before_open", "kill", topology=self.name, txid=2)
                    airflow.trigger(self.name, "r2")
                    airflow.wait_run(self.name, "r2")
                    assert killed.reached
                    self.say(
                        "`begin` of transaction 2 was killed after its write to the ledger and before its write to "
                        "the ackers"
                    )
                    redis.client().set(ONCE, "1")
                    airflow.trigger(self.name, "r3")
                    self._committed_after_failure(airflow, "r3")
            self.say("from now on, the workers ack by hand")
            with _worker(redis, "split_by_hand"), _worker(redis, "count_sums"):
                self._count_until_killed(airflow, redis, "r4", "add_by_hand")
                with _worker(redis, "add_by_hand"), _worker(redis, "add_by_hand"):
                    self._committed_after_failure(airflow, "r4")
            for entry in history(store, self.paths):
                self.say(f"transaction {entry.txid}: run {entry.run_id}, attempts {entry.attempt}")

    def wrong(self) -> list[str]:
        """Compare the counts with the files."""
        found: dict[object, object] = {word: int(count) for word, count in self._stored()}
        expected = dict[object, object]()
        expected.update(self._expected())
        return differences(expected, found)

    def verdict(self) -> str:
        """Return the verdict with its figures, in one line."""
        total = sum(self._expected().values())
        return f"{total} of {total} words counted once, by workers outside of Airflow"

    def _count_until_killed(self, airflow: LocalAirflow, redis: LocalRedis, run_id: str, bolt: str) -> None:
        redis.client().delete("held")
        with _worker(redis, bolt, str(HELD)):
            airflow.trigger(self.name, run_id)
            eventually(lambda: redis.client().get("held"), _TIMEOUT, f"a worker has taken {HELD} words")
        self.say(f"worker {bolt} is killed: it has taken {HELD} words, and no acker knows")

    def _committed_after_failure(self, airflow: LocalAirflow, run_id: str) -> None:
        airflow.wait_run(self.name, run_id, state="failed")
        self.say(f"run {run_id} has failed, and all its tasks are cleared")
        airflow.clear_run(self.name, run_id)
        airflow.wait_run(self.name, run_id)

    def _expected(self) -> Counter[str]:
        return sum(counted(self.folder / "queued"), Counter[str]())

    def _stored(self) -> list[tuple[str, int]]:
        return [(row[0], row[1]) for row in rows(database(self.folder), "SELECT word, count FROM queued_words")]


@contextmanager
def _worker(redis: LocalRedis, *arguments: str) -> Iterator[None]:
    """Run a worker process until the `with` block ends, then kill it."""
    command = [sys.executable, str(_PROGRAM), *arguments]
    with subprocess.Popen(command, env={**os.environ, "QUEUES": redis.url()}) as process:
        try:
            yield
        finally:
            process.kill()
