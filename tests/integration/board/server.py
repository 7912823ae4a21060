"""An api-server with the board, on a real ZooKeeper: no scheduler, so that nothing goes on by itself."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from airflow_tx.testing.eventually import Hopeless, eventually
from airflow_tx.testing.servers.server import free_ports
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.integration.commands import Commands

STRANGER = "nils"
"""A user, who has no right to the DAG."""
OF_ONE_DAG = "otto"
"""A viewer, who may see `the_dag` alone."""
LIMITED = "lars"
"""A user who may read and edit runs, but reads neither tasks nor XComs nor the audit log, and creates no runs."""
USERS = {"vera": "viewer", "ulf": "user", "ada": "admin", STRANGER: "user", LIMITED: "user", OF_ONE_DAG: "viewer"}
_RIGHTS = f"""
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class Rights(SimpleAuthManager):
    def is_authorized_dag(self, *, method, user, access_entity=None, details=None):
        seen = {{"{STRANGER}": (), "{OF_ONE_DAG}": ("the_dag",)}}.get(user.get_name())
        if seen is not None and details is not None and details.id is not None and details.id not in seen:
            return False
        unread = access_entity is not None and access_entity.value in ("TASK_INSTANCE", "XCOM", "AUDIT_LOG")
        if user.get_name() == "{LIMITED}" and (unread or method == "POST"):
            return False
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
"""
ROOT = "/airflow_tx_board"
SAME_ORIGIN = {"X-Requested-With": "airflow_tx"}


class Board:
    """The api-server and its users; `dags` are its DAG files."""

    def __init__(self, home: Path, zookeeper: LocalZooKeeper, dags: Mapping[str, str], **connections: Any) -> None:
        self.commands = Commands(home, zookeeper)
        self.home = home
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        passwords, rights = home / "passwords.json", home / "config" / "board_rights.py"
        rights.parent.mkdir(exist_ok=True)
        rights.write_text(_RIGHTS)
        passwords.write_text(json.dumps(dict.fromkeys(USERS, "pw")))
        self.commands.environment.update(
            {
                "AIRFLOW__CORE__AUTH_MANAGER": "board_rights.Rights",
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in USERS.items()),
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
                "AIRFLOW__API__BASE_URL": self.url,
                "AIRFLOW__API__PORT": str(port),
                "AIRFLOW__API__HOST": "127.0.0.1",
                "AIRFLOW__API__WORKERS": "1",
                "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
                "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
                "AIRFLOW__TX__ROOT": ROOT,
                **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in connections.items()},
            }
        )
        self.commands.begin(dags, known=True)
        self.log = home / "api-server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._tokens: dict[str, str] = {}

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "airflow", "api-server", "--apps", "core"],
                env=self.commands.environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        eventually(self._answers, 240, "the api-server answers", interval=0.3, explain=self.log.read_text)
        # A question waits two seconds for the ledger: on a busy machine the first one does not outlast its connection.
        eventually(lambda: self.get("topologies"), 240, "the ledger is read", interval=0.3)

    def stop(self) -> None:
        """End it, with all that it started."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self.commands.end()

    @property
    def address(self) -> str:
        return self.url

    def client(self, user: str | None) -> httpx.Client:
        """A client of this user, logged in as a browser is: by cookie."""
        # Without certificates, which take longer to load than the answer takes.
        client = httpx.Client(base_url=f"{self.url}/tx", timeout=120, trust_env=False, verify=False)
        if user is not None:
            client.cookies.set("_token", self.token(user))
        return client

    def get(self, path: str, user: str = "vera", **params: Any) -> Any:
        """The answer to a question, which is given."""
        with self.client(user) as client:
            answer = client.get(f"/api/v1/{path}", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any, user: str = "ulf") -> httpx.Response:
        """What a button of the page sends."""
        with self.client(user) as client:
            return client.post(f"/api/v1/{path}", json=body, headers=SAME_ORIGIN)

    def end_dag_process(self) -> None:
        """Kill the process that runs DAG files, so that questions which hang are answered."""
        assert self._process is not None
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                parent = int(stat.read_text().rpartition(")")[2].split()[1])
                command = (stat.parent / "cmdline").read_bytes()
                if parent == self._process.pid and b"dag_server" in command:
                    os.kill(int(stat.parent.name), signal.SIGKILL)

    @property
    def processor_seconds(self) -> float:
        """How long the api-server has kept a processor busy, without the process that runs DAG files."""
        assert self._process is not None
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                command = (stat.parent / "cmdline").read_bytes()
                if int(fields[3]) == self._process.pid and b"dag_server" not in command:
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    @property
    def resident_bytes(self) -> int:
        """How much memory the api-server holds, without the processes that it starts."""
        assert self._process is not None
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def token(self, user: str) -> str:
        """What a browser of this user has as its cookie."""
        if user not in self._tokens:
            answer = httpx.post(
                f"{self.url}/auth/token", json={"username": user, "password": "pw"}, trust_env=False, timeout=240
            )
            self._tokens[user] = answer.json()["access_token"]
        return self._tokens[user]

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise Hopeless(f"it ended with {self._process.returncode}")
        try:
            return httpx.get(f"{self.url}/api/v2/monitor/health", trust_env=False, timeout=5).status_code == 200
        except httpx.HTTPError:
            return False
