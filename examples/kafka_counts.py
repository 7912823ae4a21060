"""Events from a Kafka topic. The broker stops while batches are processed, and events are added to the topic."""

from __future__ import annotations

import json
import random
from collections import Counter

from airflow_tx.ledger.api import Store
from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.airflow_client import AirflowClient
from examples.cluster_airflow import ClusterAirflow
from examples.example import Example, differences
from examples.ledger import history
from examples.servers import database
from examples.stored import rows
from tests.servers.jars import kafka_connector_jars
from tests.servers.kafka import LocalKafka

TOPIC = "events"
USERS = ("ann", "bob", "cleo", "dan", "eve")
RUNS = 5


class KafkaCounts(Example):
    """Counts events, and adds up their amounts, per user."""

    name = "kafka_counts"
    files = ("kafka_counts.py",)

    def prepare(self) -> None:
        """Write no events, since Kafka is not running yet."""
        self._random = random.Random(1)
        self._events: Counter[object] = Counter()
        self._amounts: Counter[object] = Counter()
        self._shared = (self.folder / "spark").exists()

    def drive(self, airflow: LocalAirflow | ClusterAirflow, store: Store) -> None:
        """Stop the broker during two transactions, restart it, and add events to the topic."""
        self.add_connector()
        self.say("starting Kafka")
        with self.broker() as kafka:
            kafka.create_topic(TOPIC, 2)
            self._write(kafka, 4000)
            known = connection("kafka", extra=json.dumps(kafka.client_config()))
            airflow.command("connections", "add", "kafka_default", "--conn-json", known)
            airflow.wait_dag(self.name)
            runs = [f"r{number}" for number in range(1, RUNS + 1)]
            for run_id in runs[:2]:
                airflow.trigger(self.name, run_id)
            for run_id in runs[:2]:
                airflow.wait_task(self.name, run_id, "begin", "success")
            kafka.stop()
            self.say("the broker is stopped; two transactions have their offsets, but have not read their rows")
            airflow.trigger(self.name, "r3")
            airflow.wait_task(self.name, "r3", "begin", ("up_for_retry", "failed"))
            kafka.start()
            kafka.add_partitions(TOPIC, 4)
            self._write(kafka, 2500)
            self.say("the broker runs again, with two more partitions and 2,500 more events")
            for run_id in runs[3:]:
                airflow.trigger(self.name, run_id)
            for run_id in runs:
                self._ended(airflow, run_id)
        for entry in history(store, self.paths):
            self.say(f"transaction {entry.txid}: run {entry.run_id}, attempts {entry.attempt}, {entry.status}")

    def add_connector(self) -> None:
        """Add the Kafka connector to Spark's settings."""
        if not self._shared:  # Otherwise the running server has the jars.
            jars = ",".join(map(str, kafka_connector_jars()))
            with (self.folder / "spark" / "spark-defaults.conf").open("a") as defaults:
                defaults.write(f"spark.jars {jars}\n")

    def broker(self) -> LocalKafka:
        """Create the Kafka broker that the example starts and stops."""
        return LocalKafka()

    def wrong(self) -> list[str]:
        """Compare the counts with the written events."""
        found = rows(database(self.folder), 'SELECT "user", events, amount FROM user_events')
        expected: dict[object, object] = {user: (self._events[user], self._amounts[user]) for user in self._events}
        return differences(expected, {user: (int(events), int(amount)) for user, events, amount in found})

    def verdict(self) -> str:
        """Return the verdict with its figures, in one line."""
        total = sum(self._events.values())
        return f"{total} of {total} events counted once"

    def _write(self, kafka: LocalKafka, count: int) -> None:
        written = []
        for _ in range(count):
            user, amount = self._random.choice(USERS), self._random.randint(1, 99)
            self._events[user] += 1
            self._amounts[user] += amount
            written.append((user, json.dumps({"user": user, "amount": amount})))
        kafka.produce(TOPIC, written)

    def _ended(self, airflow: AirflowClient, run_id: str) -> None:
        """Wait until a run has succeeded. If its retries failed before the broker was running again, clear it once."""
        if airflow.wait_run(self.name, run_id, state=None, timeout=300)["state"] != "success":
            self.say(f"run {run_id} has failed and is cleared")
            airflow.clear_run(self.name, run_id, only_failed=True)
            airflow.wait_run(self.name, run_id, timeout=300)
