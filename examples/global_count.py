"""A global count of three partitions.

A committer dies between its write and its mark, and a committed run is cleared.
"""

from __future__ import annotations

from airflow_tx.ledger.api import Store
from airflow_tx.testing.airflow import LocalAirflow
from examples.example import Example, differences
from examples.ledger import history
from examples.servers import database
from examples.stored import rows

# The number of tuples in the three partitions of the DAG file. A transaction reads at most three
# tuples per partition.
SIZES = (6, 4, 9)
RUNS = ("r1", "r2", "r3")


class GlobalCount(Example):
    """Counts the tuples of a MemorySource."""

    name = "global_count"
    files = ("global_count.py",)

    def prepare(self) -> None:
        """Do nothing, since the tuples are in the DAG file."""

    def drive(self, airflow: LocalAirflow, store: Store) -> None:
        """Count all tuples in three transactions. A fourth run finds no tuples."""
        airflow.wait_dag(self.name)
        killed = self.failpoints.arm("commit.before_mark", "kill", topology=self.name, txid=2)
        for run_id in RUNS:
            airflow.trigger(self.name, run_id)
        self.say(
            "three runs; the committer of transaction 2 is killed after its write and before it records the commit"
        )
        for run_id in RUNS:
            airflow.wait_run(self.name, run_id)
        assert killed.reached
        airflow.clear_run(self.name, "r1")
        airflow.wait_run(self.name, "r1")
        self.say("all tasks of a committed run were cleared")
        airflow.trigger(self.name, "r4")
        airflow.wait_run(self.name, "r4")
        self.say("a fourth run has found no more tuples")
        for entry in history(store, self.paths):
            self.say(f"transaction {entry.txid}: run {entry.run_id}, attempts {entry.attempt}, {entry.status}")

    def wrong(self) -> list[str]:
        """Compare the count with the number of tuples in the partitions."""
        found = rows(database(self.folder), "SELECT tuples FROM global_count")
        return differences({"tuples": sum(SIZES)}, {"tuples": int(found[0][0]) if found else 0})

    def verdict(self) -> str:
        """Return the verdict with its figures, in one line."""
        return f"{sum(SIZES)} of {sum(SIZES)} tuples counted once"
