"""The commands of the first page, as a reader types them: from an installed package to words that are counted."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest

from airflow_tx.testing.deadline import run_command
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.processes import ProcessFamily
from airflow_tx.testing.servers.server import free_ports

PAGE = Path(__file__).parents[2] / "docs" / "start.md"
SERVERS = ("python -m airflow_tx.testing.servers.zookeeper", "airflow standalone")
"""Commands that run until they are ended."""


def commands(*, zookeeper: int) -> list[str]:
    """Give the shell commands of the page after the installation, in order, on a free port."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    typed = [line for line in lines if re.match(r"(python -m|airflow|export|mkdir|echo) ", line) and "venv" not in line]
    return [line.replace("--data ~", f"--port {zookeeper} --data ~").replace("2181", str(zookeeper)) for line in typed]


@pytest.mark.long
@pytest.mark.alone
def test_each_command_of_the_start_page_does_what_the_page_says(tmp_path: Path) -> None:
    api, worker_log, trigger_log, zookeeper = free_ports(4)
    url = f"http://127.0.0.1:{api}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    env = {
        **kept,
        "HOME": str(tmp_path),
        "PATH": path,
        "AIRFLOW__API__PORT": str(api),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_log),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_log),
    }
    (code, _) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    dags = tmp_path / "airflow" / "dags"
    dags.mkdir(parents=True)
    (dags / "text_words.py").write_text(code)
    family, exported, told = ProcessFamily(), list[str](), dict[str, str]()
    typed = commands(zookeeper=zookeeper)
    assert len(typed) == 13
    started = time.monotonic()

    def shell(command: str) -> str:
        """Type a command in a new shell with the exports of the page."""
        script = "\n".join([*exported, command])
        done = run_command(["bash", "-c", script], env=env, cwd=tmp_path, capture_output=True, timeout=120)
        return done.stdout + done.stderr

    def ends_well(command: str, wanted: str) -> None:
        def again() -> bool:
            told[command] = shell(command)
            return wanted in told[command]

        eventually(again, 180, f"{command} says {wanted!r}", interval=1, explain=lambda: told[command][-3000:])

    try:
        for command in typed:
            if command.startswith("export"):
                exported.append(command)
            elif command.startswith(SERVERS):
                script = "\n".join([*exported, f"exec {command}"])
                family.spawn(["bash", "-c", script], env=env, log=tmp_path / "servers.log", cwd=tmp_path)
            else:
                ends_well(command, WANTED.get(command.split(" --")[0].strip(), ""))
            print(f"{time.monotonic() - started:5.1f} s  {command}")
    finally:
        family.end()


WANTED = {
    "airflow tx list": "No data found",
    "airflow dags test text_words": "State tx_state.words: 4 keys would be written.",
    "airflow dags unpause text_words": "| True",
    "airflow tx list text_words": "COMMITTED",
    "airflow tx state get text_words tx_state.words": "the  | 2",
}
"""What the output has, once the command has done its work."""
