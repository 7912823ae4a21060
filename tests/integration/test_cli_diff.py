"""`airflow tx diff` as a person types it, on states in SQLite that DAG files name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_tx.state import Avg, SqlState, Sum
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.suites.state_tools import Grants, batch_of
from tests.integration.commands import USAGE, Commands

_DAG = """
from airflow.sdk import DAG, task
from airflow_tx import CommitOperator, Transaction, persistent_aggregate
from airflow_tx.sources.files.source import FileSource
from airflow_tx.state import Avg, SqlState, Sum

def made(dag_id, *tables):
    with DAG(dag_id, schedule=None, max_active_runs=16):
        with Transaction(source=FileSource("/nowhere/*.csv")):
            @task
            def count():
                return []
            counted = count()
            CommitOperator(task_id="commit", updates=[
                persistent_aggregate(counted, state=SqlState(
                    "tx_state", table=table, keys=["carrier", "origin"], values={"n": Sum(), "mean": Avg()}))
                for table in tables])

made("flights", "totals")
made("flights_v2", "totals_v2")
made("two", "one", "other")
"""
_OLD, _NEW = "flights:tx_state.totals", "flights_v2"


@pytest.fixture(scope="module")
def airflow(commands: Commands) -> Commands:
    commands.begin({"the_dags.py": _DAG})
    return commands


class _Table:
    def __init__(self, airflow: Commands, table: str) -> None:
        self.state = SqlState.from_url(
            f"sqlite:///{airflow.database}",
            table=table,
            keys=["carrier", "origin"],
            values={"n": Sum(), "mean": Avg()},
            label="tx_state",
        )
        self._grants, self._txid = Grants(), 0

    def commit(self, position: int, **flights: int) -> None:
        self._txid += 1
        grant = replace(self._grants(self._txid), batch=batch_of(position={"offset": position}))
        rows = [{"carrier": carrier, "origin": "JFK", "n": n, "mean": 0.5} for carrier, n in flights.items()]
        self.state.raise_and_write(grant, rows)
        self._grants.final(grant, self.state)


@pytest.fixture
def tables(airflow: Commands) -> Iterator[tuple[_Table, _Table]]:
    """The states of both DAGs, at one position, with equal values."""
    old, new = _Table(airflow, "totals"), _Table(airflow, "totals_v2")
    old.commit(1, AA=1)
    old.commit(2, UA=2)
    new.commit(2, AA=1, UA=2)
    yield old, new
    old.state.clear()
    new.state.clear()


def _diff(airflow: Commands, *arguments: str) -> tuple[int, str, str]:
    code, output, told = airflow._answer(("tx", "diff", *arguments), "/unused")
    return code or 0, output, told


def test_diff_of_equal_states_ends_with_exit_code_0(airflow: Commands, tables: tuple[_Table, _Table]) -> None:
    code, output, _ = _diff(airflow, _OLD, _NEW)
    assert code == 0
    assert output.splitlines() == [
        "tx_state.totals (transaction 2) and tx_state.totals_v2 (transaction 1) are at the same position.",
        "Keys: 2 equal, 0 only in tx_state.totals, 0 only in tx_state.totals_v2, 0 different.",
    ]


def test_diff_prints_differing_keys_and_ends_with_exit_code_1(airflow: Commands, tables: tuple[_Table, _Table]) -> None:
    old, new = tables
    old.commit(3, AA=1, B6=4)
    new.commit(3, DL=5)
    code, output, _ = _diff(airflow, _OLD, _NEW)
    assert code == 1
    assert "1 equal, 1 only in tx_state.totals, 1 only in tx_state.totals_v2, 1 different." in output
    assert '["AA","JFK"]' in output
    code, output, _ = _diff(airflow, _OLD, _NEW, "--output", "json")
    (found,) = json.loads(output)
    assert code == 1
    assert (found["first"], found["second"], found["transactions"]) == (
        "tx_state.totals",
        "tx_state.totals_v2",
        [3, 2],
    )
    key = {"carrier": "AA", "origin": "JFK"}
    (different,) = found["different"]["keys"]
    assert (different["key"], different["first"]["n"], different["second"]["n"]) == (key, 2, 1)
    assert [each["key"]["carrier"] for each in found["only_first"]["keys"]] == ["B6"]
    assert [each["second"]["n"] for each in found["only_second"]["keys"]] == [5]
    code, output, _ = _diff(airflow, _OLD, _NEW, "--output", "json", "--limit", "0")
    assert json.loads(output)[0]["different"] == {"count": 1, "keys": []}


def test_diff_of_states_at_different_positions_fails_with_one_line_and_exit_code_2(
    airflow: Commands, tables: tuple[_Table, _Table]
) -> None:
    tables[0].commit(3, AA=1)
    code, output, told = _diff(airflow, _OLD, _NEW)
    assert (code, output, len(told.splitlines())) == (USAGE, "", 1)
    assert told.startswith(
        "tx_state.totals and tx_state.totals_v2 cannot be compared now: transaction 3 of tx_state.totals and "
        "transaction 1 of tx_state.totals_v2 end at different positions of their sources. Repeat the command"
    )


# In place of each pause, the command waits for a file, once it has said that it pauses.
_PAUSE = """
import time
from pathlib import Path
from types import SimpleNamespace
from airflow_tx.operations.cli import comparison

pauses, goes_on = map(Path, arguments)

def sleep(seconds):
    pauses.touch()
    while not goes_on.exists():
        time.sleep(0.05)

comparison.time = SimpleNamespace(sleep=sleep)
"""
_NO_PAUSE = "import time; from airflow_tx.operations.cli import comparison; comparison.time = time"


@pytest.fixture
def pause(airflow: Commands, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """The file that says that the command pauses, and the one that lets it go on."""
    files = tmp_path / "pauses", tmp_path / "goes on"
    airflow.python(_PAUSE, *map(str, files))
    yield files
    airflow.python(_NO_PAUSE)


def test_diff_wait_waits_until_both_states_are_at_one_position(
    airflow: Commands, tables: tuple[_Table, _Table], pause: tuple[Path, Path], pool: ThreadPoolExecutor
) -> None:
    tables[0].commit(3, AA=1)
    waiting = pool.submit(_diff, airflow, _OLD, _NEW, "--wait")
    eventually(lambda: pause[0].exists() or waiting.done(), 300, "it pauses")
    tables[1].commit(3, AA=1)
    pause[1].touch()
    code, output, told = waiting.result()
    assert (code, told.count("Waiting: transaction 3 of tx_state.totals")) == (0, 1)
    assert "2 equal" in output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((_OLD, "nosuch"), "DAG:STATE = 'nosuch' cannot be used"),
        (
            (_OLD, "flights_v2:nosuch"),
            "DAG:STATE = 'flights_v2:nosuch' cannot be used. Use flights_v2:tx_state.totals_v2",
        ),
        ((_OLD, "two"), "DAG:STATE = 'two' cannot be used. Use one of two:tx_state.one, two:tx_state.other."),
        ((_OLD, _OLD), "tx_state.totals and tx_state.totals cannot be compared: they are the same state."),
        ((_OLD, _NEW, "--tolerance", "2"), "--tolerance = 2.0 cannot be used"),
        ((_OLD, _NEW, "--limit", "-1"), "--limit = -1 cannot be used"),
    ],
)
def test_diff_with_wrong_arguments_fails_with_one_line_and_exit_code_2(
    airflow: Commands, arguments: tuple[str, ...], said: str
) -> None:
    code, _, told = _diff(airflow, *arguments)
    assert (code, len(told.splitlines())) == (USAGE, 1), told
    assert told.startswith(said), told


def test_diff_reports_an_unreachable_database_as_an_error_and_not_as_a_difference(
    airflow: Commands, tables: tuple[_Table, _Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = json.dumps({"conn_type": "sqlite", "host": "/nowhere/state.db"})
    monkeypatch.setitem(airflow.environment, "AIRFLOW_CONN_TX_STATE", nowhere)
    code, _, told = _diff(airflow, _OLD, _NEW)
    assert code == USAGE
    assert "cannot be reached" in told
