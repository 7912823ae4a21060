"""A connection that Airflow has and cannot read: a command says so, and what it advises helps."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable

import pytest
from cryptography.fernet import Fernet

from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.integration.commands import Commands

Typed = Callable[..., "subprocess.CompletedProcess[str]"]
OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))


@pytest.fixture
def typed(commands: Commands) -> Typed:
    """Type a command of Airflow, in a process with this Fernet key."""
    commands.begin({})

    def run(key: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        own = {"AIRFLOW__CORE__FERNET_KEY": key, "AIRFLOW__TX__ZOOKEEPER_CONN_ID": "locked"}
        command = [sys.executable, "-m", "airflow", *arguments]
        return subprocess.run(command, env={**commands.environment, **own}, capture_output=True, text=True, check=False)

    return run


def test_a_connection_encrypted_with_another_fernet_key_is_reported_as_unreadable(
    typed: Typed, zookeeper: LocalZooKeeper
) -> None:
    described = json.dumps({"conn_type": "zookeeper", "host": zookeeper.hosts, "extra": {"chroot": "/locked"}})
    typed(OLD, "connections", "add", "locked", "--conn-json", described).check_returncode()
    refused = typed(NEW, "tx", "list")
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert "Airflow cannot read it (MetastoreBackend: InvalidToken)." in line
    assert typed(f"{NEW},{OLD}", "tx", "list").returncode == 0
    advised = line.partition("create the connection again: ")[2].split(" && ")
    for each in advised:
        words = shlex.split(each)[1:]
        typed(NEW, *(described if word.startswith("{") else word for word in words)).check_returncode()
    assert typed(NEW, "tx", "list").returncode == 0
