"""The commands in the advice of a source can be copied."""

from __future__ import annotations

from pathlib import Path

import airflow_tx.sources
from airflow_tx import MemorySource
from airflow_tx.sources import api


def test_a_recommended_command_contains_the_topology_and_the_transaction() -> None:
    source = MemorySource({"a": []}).named("flights")
    assert str(source.command("accept-loss")) == "airflow tx accept-loss flights --why TEXT"
    command = source.command("replay", 7, "--changed-rows")
    assert str(command) == "airflow tx replay flights 7 --changed-rows --why TEXT"


def test_no_recommended_command_contains_a_placeholder() -> None:
    folder = Path(airflow_tx.sources.__file__).parent
    found = {file.name for file in folder.rglob("*.py") for word in ("TOPOLOGY", "TXID") if word in file.read_text()}
    assert found == {Path(api.__file__).name}  # of a source that has not been named
