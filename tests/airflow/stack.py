"""The servers of these tests, and what tests ask them."""

from __future__ import annotations

import json
import shlex
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import NoNodeError  # type: ignore[import-untyped]
from sqlalchemy import URL, create_engine, text

from airflow_tx.base.remedy import Remedy
from airflow_tx.testing.airflow import connection
from airflow_tx.testing.deadline import run_command
from airflow_tx.testing.failpoints import Failpoints
from airflow_tx.testing.servers.server import free_ports
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from examples.servers import spark_environment
from tests.airflow.client import TriedAirflow
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER, LocalPostgres

DAGS = Path(__file__).parent / "dags"
SIZE = 10
FILES, NUMBERS_A_FILE = 2, 100


@dataclass
class Signal:
    """A file that a run's `count` looks at: to go on, or to fail."""

    path: Path

    def give(self) -> None:
        """Make the file."""
        self.path.touch()

    def take_back(self) -> None:
        """Remove the file."""
        self.path.unlink()


@dataclass
class Stack:
    """The servers, and what the tests ask them; the ledger is read raw, not through the code under test."""

    folder: Path
    airflow: TriedAirflow
    zookeeper: LocalZooKeeper
    failpoints: Failpoints

    @property
    def warehouse(self) -> str:
        """The URL of a PostgreSQL database beside Airflow's own."""
        told = json.loads(self.airflow.environment["AIRFLOW_CONN_WAREHOUSE"])
        place = told["login"], told["password"], told["host"], told["port"], told["schema"]
        return URL.create("postgresql+psycopg2", *place).render_as_string(hide_password=False)

    @property
    def airflow_dags(self) -> Path:
        """The folder of the DAG files; what is added is found within seconds."""
        return self.folder / "dags"

    def connect(self, conn_id: str, **told: Any) -> None:
        """Make a connection, or change it."""
        known = self.airflow.call("GET", "connections", params={"limit": 1000})["connections"]
        body = {"connection_id": conn_id, **told}
        if conn_id in [each["connection_id"] for each in known]:
            self.airflow.call("PATCH", f"connections/{conn_id}", json=body)
        else:
            self.airflow.call("POST", "connections", json=body)

    def signal(self) -> Signal:
        """A new file that does not exist yet."""
        return Signal(self.folder / "signals" / uuid.uuid4().hex)

    def start(self, dag_id: str, run_id: str, **conf: Any) -> None:
        """Trigger a run of a DAG, which is known by then.

        :param conf: `hold` and `fail_while` may be a Signal.
        """
        self.airflow.wait_dag(dag_id)
        plain = {name: str(value.path) if isinstance(value, Signal) else value for name, value in conf.items()}
        self.airflow.trigger(dag_id, run_id, plain)

    def begun(self, dag_id: str, run_id: str) -> None:
        """Wait until `begin` of a run has a transaction."""
        self.airflow.wait_task(dag_id, run_id, "begin", "success")

    def start_early(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Let Airflow start a task whatever comes before it, as it does if it schedules the task during a clear."""
        engine = create_engine(self.airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
        with engine.begin() as connection:
            connection.execute(
                text(
                    "UPDATE task_instance SET state = 'scheduled', try_number = try_number + 1 "
                    "WHERE dag_id = :dag_id AND run_id = :run_id AND task_id = :task_id"
                ),
                {"dag_id": dag_id, "run_id": run_id, "task_id": task_id},
            )
        engine.dispose()

    def commit_runs(self, dag_id: str, *run_ids: str) -> None:
        """Start runs and wait until all of them have succeeded."""
        for run_id in run_ids:
            self.start(dag_id, run_id)
        for run_id in run_ids:
            self.airflow.wait_run(dag_id, run_id)

    def ledger(self, topology: str, root: str = "/airflow_tx") -> RawLedger:
        """What ZooKeeper holds of a topology."""
        return RawLedger(self.zookeeper.hosts, topology, root)

    def receipts(self, topology: str) -> list[dict[str, Any]]:
        """The receipts of a topology that `airflow tx verify` has just found to be whole."""
        verified = self.tx("verify", topology)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        return self.tx_rows("receipts", topology)

    def skip(self, topology: str, txid: int) -> None:
        """Skip a transaction, as a person does."""
        skipped = self.tx("skip", topology, str(txid), "--why", "its file is broken", "--yes")
        assert skipped.returncode == 0, skipped.stdout + skipped.stderr

    def tx(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `airflow tx` as a person does, whatever it ends with."""
        command = [sys.executable, "-m", "airflow", "tx", *arguments]
        return run_command(command, env=self.airflow.environment, capture_output=True, timeout=300)

    def tx_rows(self, *arguments: str) -> list[dict[str, Any]]:
        """Run `airflow tx` as a program does, and return the rows that it prints; it must succeed."""
        done = self.tx(*arguments, "--output", "json")
        assert done.returncode == 0, done.stdout + done.stderr
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows

    def totals(self, table: str, database: str = "state.db") -> dict[str, tuple[int, int]]:
        """Per parity, how many numbers the state holds, and their sum."""
        path = self.folder / database
        if not path.exists():
            return {}
        handle = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            rows = handle.execute(f"SELECT parity, numbers, total FROM {table}").fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):
                raise
            return {}
        finally:
            handle.close()
        return {str(parity): (int(numbers), int(total)) for parity, numbers, total in rows}

    def assert_counted_once(self, table: str, numbers: int, database: str = "state.db") -> None:
        """The state holds exactly the numbers 0 to `numbers` - 1, each once."""
        assert self.totals(table, database) == expected(numbers)


def expected(numbers: int) -> dict[str, tuple[int, int]]:
    """What `Stack.totals` gives when 0 to `numbers` - 1 were counted once."""
    parts = {"even": range(0, numbers, 2), "odd": range(1, numbers, 2)}
    return {name: (len(part), sum(part)) for name, part in parts.items() if part}


@dataclass(frozen=True)
class Final:
    """A transaction's entry in the history."""

    txid: int
    attempts: int
    run_id: str
    outcome: str
    began: datetime
    processed: datetime
    granted: datetime
    ended: datetime


class RawLedger:
    """The znodes of a topology as they are."""

    def __init__(self, hosts: str, topology: str, root: str = "/airflow_tx") -> None:
        self._hosts = hosts
        self._base = f"{root}/{topology}"

    def read(self, path: str) -> Any:
        """The JSON of a znode below the topology; None if there is none."""
        with connected(self._hosts) as client:
            try:
                return json.loads(client.get(f"{self._base}/{path}")[0] or b"null")
            except NoNodeError:
                return None

    def advised(self, txid: int, verb: str) -> list[str]:
        """What a person types behind `airflow tx`, by what an open transaction's error says to do, and then why."""
        remedy = Remedy.from_stored(self.read(f"coordinator/transactions/{txid}")["remedy"])
        (command,) = (each for each in remedy.commands if each.verb == verb)
        typed = shlex.split(str(command))
        assert typed[-2:] == ["--why", "TEXT"]
        return typed[2:-1]

    def names(self, path: str) -> list[str]:
        """The names below a znode."""
        with connected(self._hosts) as client:
            try:
                return sorted(client.get_children(f"{self._base}/{path}"))
            except NoNodeError:
                return []

    def tree(self, path: str = "") -> dict[str, Any]:
        """The JSON of every znode of the topology, by path."""
        found = {path: self.read(path)} if path else {}
        for name in self.names(path):
            found.update(self.tree(f"{path}/{name}" if path else name))
        return found

    @property
    def allocated(self) -> int:
        """The last txid handed out; 0: none."""
        counter = self.read("coordinator/allocated")
        return counter["txid"] if counter else 0

    def history(self) -> list[Final]:
        """What became of the final transactions, by txid."""
        entries = [self.read(f"history/{name}") for name in self.names("history")]
        return [_final(entry) for entry in sorted(entries, key=lambda entry: entry["txid"])]

    def of_run(self, run_id: str) -> Final:
        """The final transaction of a run."""
        return next(entry for entry in self.history() if entry.run_id == run_id)


def _final(entry: dict[str, Any]) -> Final:
    end = entry["end"]
    ended = datetime.fromisoformat(end["when"])
    began, processed, granted = (
        datetime.fromisoformat(entry.get(name) or end["when"]) for name in ("began", "processed", "granted_at")
    )
    return Final(entry["txid"], entry["attempt"], entry["run_id"], end["outcome"], began, processed, granted, ended)


@contextmanager
def connected(hosts: str) -> Iterator[KazooClient]:
    """A client of its own: the server may have been restarted since the last question."""
    client = KazooClient(hosts=hosts, timeout=60)
    client.start(timeout=240)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def environment(folder: Path, hosts: str) -> dict[str, str]:
    """Connections and settings of every Airflow process."""
    (nobody,) = free_ports(1)
    return {
        "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=hosts),
        "AIRFLOW_CONN_ZOOKEEPER_AWAY": connection("zookeeper", host=f"127.0.0.1:{nobody}"),
        "AIRFLOW_CONN_TX_STATE": connection("sqlite", host=str(folder / "state.db")),
        "AIRFLOW_CONN_TX_STATE_2": connection("sqlite", host=str(folder / "state_2.db")),
        "AIRFLOW_CONN_STATE_AWAY": connection("sqlite", host=str(folder / "away" / "state.db")),
        "AIRFLOW_CONN_SPARK_DEFAULT": connection("spark", host="local[1]"),
        # For the board, which shows a viewer no buttons.
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,viewer:viewer",
        "AIRFLOW__TX__STAGING": (folder / "staging").as_uri(),
        # On a busy machine a server that is there answers late.
        "AIRFLOW__TX__CONNECT_TIMEOUT": "240",
        "AIRFLOW__TX__PRELOAD": "auto, colorsys",
        # A waiting run holds a slot, and many tests wait; each waiting task is a process of 150 MB.
        "AIRFLOW__CORE__PARALLELISM": "10",
        # A scheduler that has nothing to do asks the database: five times a second, by the default of a `LocalAirflow`.
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
        # A file that changes is parsed at once; all of them again and again would keep a core busy.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "900",
        "AIRFLOW_TX_DATA": str(folder),
        **spark_environment(folder / "spark"),
    }


def warehouse(server: LocalPostgres) -> str:
    """The connection of a new database."""
    login = {"login": POSTGRES_USER, "password": POSTGRES_PASSWORD}
    return connection("postgres", host="127.0.0.1", port=server.port, schema=server.new_database(), **login)


def write_numbers(folder: Path) -> None:
    """FILES csv files with the numbers from 0 on, NUMBERS_A_FILE in each."""
    folder.mkdir()
    for index in range(FILES):
        numbers = range(index * NUMBERS_A_FILE, (index + 1) * NUMBERS_A_FILE)
        (folder / f"{index}.csv").write_text("\n".join(["number", *map(str, numbers), ""]))


def parent(pid: int) -> int:
    """The process that started another one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
