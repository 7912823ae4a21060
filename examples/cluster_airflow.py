"""Access to the Airflow, the ledger and the states of the cluster, and a function that empties them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from airflow_tx.ledger.api import Store
from airflow_tx.testing.airflow_client import AIRFLOW_PATIENCE, RUN_ENDED, AirflowClient, run_path
from airflow_tx.testing.eventually import eventually

ADDRESS = "http://api-server:8080"
LOGIN = "admin"


class ClusterAirflow(AirflowClient):
    """A client of the cluster's Airflow, for a container with the environment of a worker.

    :param environ: the environment of this process, which contains the password.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(ADDRESS, LOGIN, environ["AIRFLOW_PASSWORD"])

    def command(self, *arguments: str, timeout: float = 300) -> str:
        """Run `airflow` with these arguments, and return its output.

        :raises AssertionError: the exit code is not 0.
        """
        done = subprocess.run(["airflow", *arguments], capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode:
            raise AssertionError(f"airflow {' '.join(arguments)} ended with {done.returncode}\n{done.stderr}")
        return done.stdout

    def wait_known(self, dag_id: str) -> None:
        """Wait until Airflow has a DAG, paused or not."""

        def known() -> bool:
            return dag_id in {dag["dag_id"] for dag in self.listed("dags", "dags")}

        errors = self.import_errors
        eventually(known, AIRFLOW_PATIENCE, f"DAG {dag_id} is known", interval=1, explain=lambda: str(errors()))

    def forget(self, dag_id: str) -> None:
        """Pause a DAG, then end and delete all its runs."""
        self.pause(dag_id)
        for run in self.runs(dag_id):
            if run["state"] not in RUN_ENDED:
                self.call("PATCH", run_path(dag_id, run["dag_run_id"]), json={"state": "failed"})
        eventually(lambda: not self._busy(dag_id), AIRFLOW_PATIENCE, f"no task of {dag_id} is running")
        for run in self.runs(dag_id):
            self.call("DELETE", run_path(dag_id, run["dag_run_id"]))

    def _busy(self, dag_id: str) -> bool:
        return any(task["state"] == "running" for task in self.task_instances(dag_id, "~"))


@contextmanager
def ledger() -> Iterator[Store]:
    """Connect to the store of the ledger through the workers' connection."""
    from airflow_tx.hooks.zookeeper import ZooKeeperHook

    with ZooKeeperHook().store() as store:
        yield store


def state_url() -> str:
    """Return the URL of the database for states, including its password."""
    from airflow_tx.base.connections.sql import url_of_connection

    return url_of_connection("tx_state").render_as_string(hide_password=False)


def clear_ledger_and_states() -> None:
    """Remove all transactions and all totals. No run may be queued or running."""
    import sqlalchemy as sa

    from airflow_tx.hooks.zookeeper import ZooKeeperHook
    from airflow_tx.ledger.store.client import disconnect

    hook = ZooKeeperHook()
    client = hook.get_conn()
    try:
        client.delete(hook.settings.root, recursive=True)
    finally:
        disconnect(client)
    engine = sa.create_engine(state_url(), poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        connection.execute(sa.text("CREATE SCHEMA public"))
