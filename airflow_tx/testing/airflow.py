"""A local Airflow for tests and the demo, with SQLite, the LocalExecutor, free ports and short intervals."""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from airflow_tx.testing.airflow_client import (
    AIRFLOW_PATIENCE,
    AirflowAnswer,
    AirflowClient,
    JsonObject,
)
from airflow_tx.testing.deadline import run_command
from airflow_tx.testing.eventually import Hopeless, eventually
from airflow_tx.testing.processes import ProcessFamily, signal_process
from airflow_tx.testing.servers.server import free_ports

if TYPE_CHECKING:
    from typing_extensions import Self

COMPONENTS = ("api-server", "scheduler", "dag-processor", "triggerer")
USER = "admin"
_START_TIMEOUT = 120
_GRACE = 4


def connection(conn_type: str, **fields: object) -> str:
    """Return the value of an AIRFLOW_CONN_<ID> variable.

    :param conn_type: the type of the connection.
    :param fields: the other fields of the connection, such as `host`.
    """
    return json.dumps({"conn_type": conn_type, **fields})


class LocalAirflow(AirflowClient):
    """Runs api-server, scheduler, dag-processor and triggerer. They end when the parent ends, even if it is killed.

        with LocalAirflow("airflow", "dags", {"AIRFLOW_CONN_SPARK_DEFAULT": ...}) as airflow:
            airflow.wait_dag("flights")
            airflow.trigger("flights", "r1")
            airflow.wait_run("flights", "r1")

    After `stop`, `start` continues with the same database. The processes do not inherit the parent's AIRFLOW*
    variables.

    :param home: the folder AIRFLOW_HOME. It is created if it does not exist.
    :param dags_folder: the folder of the DAG files.
    :param env: additional environment variables for every process. They override the settings of this class.
    :param password: the password of the only user, or None for a random password.
    """

    def __init__(
        self,
        home: Path | str,
        dags_folder: Path | str,
        env: Mapping[str, str] | None = None,
        *,
        password: str | None = None,
    ) -> None:
        port, *log_ports = free_ports(3)
        super().__init__(f"http://127.0.0.1:{port}", USER, password or secrets.token_urlsafe(9))
        self.home = Path(home).resolve()
        self.logs = self.home / "components"
        self._family = ProcessFamily()
        self._components: dict[str, subprocess.Popen[bytes]] = {}
        self._env = _environment(self.home, Path(dags_folder).resolve(), port, log_ports)
        self._env.update(env or {})

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of the processes, for `airflow` commands in a test."""
        return dict(self._env)

    @property
    def mark(self) -> str:
        """Return the mark of all processes of this Airflow, see `processes.marked`."""
        return self._family.mark

    def start(self) -> Self:
        """Start all components, and wait until they are healthy.

        :raises AssertionError: a component does not start. The error contains the last log lines.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        passwords = self.home / "passwords.json"
        passwords.write_text(json.dumps({USER: self.password}))
        passwords.chmod(0o600)
        try:
            self._run_to_end("db", "migrate")
            for component in COMPONENTS:
                self.start_component(component)
            eventually(
                self._healthy,
                _START_TIMEOUT,
                "Airflow is healthy",
                interval=0.3,
                explain=self.component_logs,
            )
        except BaseException:
            self.stop(grace=0)
            raise
        return self

    def command(self, *arguments: str, timeout: float = AIRFLOW_PATIENCE) -> str:
        """Run `airflow` with these arguments, and return its output.

        :param timeout: the longest time that the command may take, in seconds.
        :raises AssertionError: the exit code is not 0.
        :raises subprocess.TimeoutExpired: the command did not finish in time.
        """
        done = run_command(
            [sys.executable, "-m", "airflow", *arguments],
            timeout=timeout,
            env=self._env,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode:
            raise AssertionError(
                f"airflow {' '.join(arguments)} ended with {done.returncode}\n{done.stdout}"
            )
        return done.stdout

    def backfill(
        self,
        dag_id: str,
        first: datetime,
        last: datetime,
        *,
        reprocess: str = "none",
        backwards: bool = False,
        max_active_runs: int = 10,
    ) -> None:
        """Run `airflow backfill create` with the arguments of `create_backfill`, and unpause the DAG.

        :raises AssertionError: Airflow refuses, for example because another backfill of the DAG has not ended.
        """
        dates = ["--from-date", first.isoformat(), "--to-date", last.isoformat()]
        options = ["--reprocess-behavior", reprocess, "--max-active-runs", str(max_active_runs)]
        if backwards:
            options.append("--run-backwards")
        # On SQLite, the runs appear one by one. They are deleted again if another process writes at
        # the wrong moment, which would crash a scheduler that has started one of them. While the
        # DAG is paused, no run starts.
        self.pause(dag_id)
        try:
            self.command("backfill", "create", "--dag-id", dag_id, *dates, *options)
        except AssertionError as error:
            if "database is locked" not in str(error):
                raise

            def again() -> bool:
                self.end_backfills(dag_id)
                self.create_backfill(
                    dag_id,
                    first,
                    last,
                    reprocess=reprocess,
                    backwards=backwards,
                    max_active_runs=max_active_runs,
                )
                return True

            eventually(
                again,
                60,
                f"{dag_id} is backfilled while other processes write to the database",
                interval=0.5,
            )
        finally:
            self.pause(dag_id, False)

    def create_backfill(
        self,
        dag_id: str,
        first: datetime,
        last: datetime,
        *,
        reprocess: str = "none",
        backwards: bool = False,
        max_active_runs: int = 10,
    ) -> None:
        """Backfill a DAG from `first` to `last`, inclusive, through the REST API.

        :param reprocess: the existing runs to run again: none, failed or completed.
        :param backwards: whether the last date runs first.
        """
        body: JsonObject = {
            "dag_id": dag_id,
            "from_date": first.isoformat(),
            "to_date": last.isoformat(),
            "reprocess_behavior": reprocess,
            "run_backwards": backwards,
            "max_active_runs": max_active_runs,
        }
        self.call("POST", "backfills", json=body)

    def end_backfills(self, dag_id: str) -> None:
        """End a DAG's backfills whose runs have ended.

        Airflow does this only every 30 s, and refuses new backfills until then.
        """
        for backfill in self.call("GET", "backfills", params={"dag_id": dag_id})["backfills"]:
            if backfill["completed_at"] is None:
                try:
                    self.call("PUT", f"backfills/{backfill['id']}/cancel")
                except AirflowAnswer as answer:
                    if "already completed" not in str(answer):
                        raise

    def start_component(self, name: str) -> None:
        """Start one of COMPONENTS, for example after `kill`, or another component, such as "celery worker"."""
        self._components[name] = self._spawn(name, name.split())

    def kill_component(self, name: str) -> None:
        """Kill one of COMPONENTS with SIGKILL, like the kernel when memory is exhausted."""
        process = self._components[name]
        process.kill()
        process.wait()

    def stop(self, grace: float = _GRACE) -> None:
        """End all processes, and check that none is left.

        :param grace: seconds until SIGKILL is sent.
        :raises NotInTime: a process is still running.
        """
        for process in self._components.values():
            signal_process(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        for process in self._components.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
        self._components.clear()
        self._family.end()

    def processes(self) -> list[int]:
        """Return the pids of all processes of this Airflow, including tasks and Spark drivers."""
        return self._family.members()

    def component_logs(self, lines: int = 30) -> str:
        """Return the last log lines of each component."""
        tails = [
            (log.name, log.read_text(errors="replace").splitlines()[-lines:])
            for log in sorted(self.logs.glob("*.log"))
        ]
        return "\n".join("\n".join([f"--- {name}", *tail]) for name, tail in tails)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _spawn(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "airflow", *arguments]
        return self._family.spawn(
            command, env=self._env, log=self.logs / f"{name}.log", cwd=self.home
        )

    def _run_to_end(self, *arguments: str) -> None:
        name = "-".join(arguments)
        status = self._spawn(name, list(arguments)).wait(_START_TIMEOUT)
        if status:
            raise AssertionError(
                f"airflow {' '.join(arguments)} ended with {status}\n{self.component_logs()}"
            )

    def _healthy(self) -> bool:
        for name, process in self._components.items():
            if process.poll() is not None:
                raise Hopeless(f"{name} ended with {process.returncode}")
        health = self.call("GET", "monitor/health")
        return all(part["status"] == "healthy" for part in health.values())


def _environment(home: Path, dags_folder: Path, port: int, log_ports: list[int]) -> dict[str, str]:
    """Return the environment variables of all processes."""
    address = f"http://127.0.0.1:{port}"
    settings = {
        "CORE__DAGS_FOLDER": str(dags_folder),
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": "4",
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
        "CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "1",
        "API__HOST": "127.0.0.1",
        "API__PORT": str(port),
        "API__BASE_URL": address,
        "API__WORKERS": "1",
        "API__SECRET_KEY": secrets.token_hex(16),
        "API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "LOGGING__WORKER_LOG_SERVER_PORT": str(log_ports[0]),
        "LOGGING__TRIGGER_LOG_SERVER_PORT": str(log_ports[1]),
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        "SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        "SCHEDULER__USE_JOB_SCHEDULE": "True",
        "DAG_PROCESSOR__REFRESH_INTERVAL": "3",
        "DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
        "USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    env.update({f"AIRFLOW__{name}": value for name, value in settings.items()})
    env["AIRFLOW_HOME"] = str(home)
    # spark-submit is in the same folder as this interpreter.
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    # All servers are on this machine, so no proxy is used.
    env["NO_PROXY"] = env["no_proxy"] = "127.0.0.1,localhost"
    return env
