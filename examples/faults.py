"""The three faults of the demo, all outside user code, and checks that each has happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_tx.testing.airflow_client import AirflowClient
from airflow_tx.testing.failpoints import Armed, Failpoints

FAILING_APP = 3
KILLED_COMMITTER = 5


@dataclass
class Faults:
    """Causes faults during the runs. The demo calls `step` repeatedly.

    :param say: a function that prints one line of progress.
    """

    airflow: AirflowClient
    dag_id: str
    say: Callable[[str], None]
    cleared: str | None = None
    _armed: dict[str, Armed] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    def arm(self, failpoints: Failpoints) -> None:
        """Arm the failpoints for the faults in the processes."""
        app = f"the Spark application of transaction {FAILING_APP} fails once"
        committer = (
            f"the committer of transaction {KILLED_COMMITTER} gets SIGKILL after its write and before it records the "
            "commit"
        )
        self._armed[app] = failpoints.arm("spark.batch", "raise", txid=FAILING_APP)
        self._armed[committer] = failpoints.arm("commit.before_mark", "kill", txid=KILLED_COMMITTER)

    def step(self, committed: dict[int, str]) -> None:
        """Print the faults that have happened, and clear one run whose transaction is committed.

        :param committed: the run_ids of committed transactions, by txid.
        """
        for what, armed in self._armed.items():
            if armed.reached and what not in self._told:
                self._told.add(what)
                self.say(f"fault: {what}")
        if self.cleared is None and len(committed) >= 2:
            txid, run_id = min(committed.items())
            if self.airflow.run(self.dag_id, run_id)["state"] == "success":
                self.airflow.clear_run(self.dag_id, run_id)
                self.cleared = run_id
                self.say(f"fault: run {run_id}, committed as transaction {txid}, is cleared as a whole")

    def missing(self) -> list[str]:
        """Return the faults that have not happened yet."""
        missing = [what for what, armed in self._armed.items() if not armed.reached]
        if self.cleared is None:
            missing.append("all tasks of a committed run are cleared")
        return missing
