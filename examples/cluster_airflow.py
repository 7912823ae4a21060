"""The Airflow of the cluster, and what else its users need to know of it: the ledger, the states, a fresh start."""

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
    """Airflow as a container beside it sees it, with the environment of a worker.

    :param environ: of this process, with the password.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        super().__init__(ADDRESS, LOGIN, environ["AIRFLOW_PASSWORD"])

    def command(self, *arguments: str, timeout: float = 300) -> str:
        """Run `airflow` with these arguments and return what it said.

        :raises AssertionError: it did not end with 0.
        """
        done = subprocess.run(["airflow", *arguments], capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode:
            raise AssertionError(f"airflow {' '.join(arguments)} ended with {done.returncode}\n{done.stderr}")
        return done.stdout

    def wait_known(self, dag_id: str) -> None:
        """Wait until the scheduler knows a DAG, paused or not."""

        def known() -> bool:
            return dag_id in {dag["dag_id"] for dag in self.listed("dags", "dags")}

        errors = self.import_errors
        eventually(known, AIRFLOW_PATIENCE, f"DAG {dag_id} is known", interval=1, explain=lambda: str(errors()))

    def forget(self, dag_id: str) -> None:
        """End and delete all runs of a DAG, which is paused afterwards."""
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
    """The ledger's store, by the connection that the workers have."""
    from airflow_tx.hooks.zookeeper import ZooKeeperHook

    with ZooKeeperHook().store() as store:
        yield store


def state_url() -> str:
    """The database of the states, with its password."""
    from airflow_tx.base.connections.sql import url_of_connection

    return url_of_connection("tx_state").render_as_string(hide_password=False)


def clear_ledger_and_states() -> None:
    """Remove every transaction and every total; nothing may be running."""
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
