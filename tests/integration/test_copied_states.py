"""Values with the txids of another ledger, whose fence did not come along: a copy, a dump under another name."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import write_deltalake

from airflow_tx.base.errors import StateDiffers
from airflow_tx.state import DeltaTable, SqlGuard, SqlState, SqlTable, Sum
from airflow_tx.testing.suites.state_tools import Grants
from tests.integration.databases import query
from tests.lake import read_back, staged

Make = Callable[[str, str], Any]
REFUSED = "it has values of transaction 2 and no fence.*Nothing was written"


def _state(kind: str) -> Make:
    return lambda url, name: SqlState.from_url(url, table=name, keys=["id"], values={"n": Sum()}, kind=kind)


def _guard(url: str, name: str) -> SqlGuard:
    return SqlGuard.from_url(url, name=name, statements=[f"INSERT INTO {name}_log VALUES (:txid, :n)"])


KINDS: Mapping[str, Make] = {
    "SqlTable": lambda url, name: SqlTable.from_url(url, table=name),
    "SqlState, opaque": _state("opaque"),
    "SqlState, transactional": _state("transactional"),
    "SqlGuard": _guard,
}


@pytest.fixture(params=list(KINDS))
def copied(request: pytest.FixtureRequest, url: str, table: str) -> Any:
    """A state of each kind with values of transactions 1 and 2 of another ledger, and without a fence."""
    make = KINDS[request.param]
    for name in (table, f"{table}_new"):
        query(url, f"CREATE TABLE {name}_log (txid BIGINT, n BIGINT)")
    grants = Grants()
    for txid in (1, 2):
        grants.commit_rows(txid, make(url, table), [{"id": txid, "n": 10}])
    if request.param == "SqlGuard":
        note = f"SELECT '{table}_new', txid FROM airflow_tx_guard WHERE guard = '{table}'"
        query(url, f"INSERT INTO airflow_tx_guard {note}")
    else:
        query(url, f"ALTER TABLE {table} RENAME TO {table}_new")
    return make(url, f"{table}_new")


def values(url: str, state: Any) -> list[tuple[Any, ...]]:
    name = f"{state.guard}_log" if isinstance(state, SqlGuard) else state.table
    return sorted(query(url, f"SELECT n FROM {name}"))


def test_values_of_another_ledger_are_refused_until_they_are_released(url: str, copied: Any, grants: Grants) -> None:
    before = values(url, copied)
    with pytest.raises(StateDiffers, match=REFUSED) as refused:
        grants.commit_rows(1, copied, [{"id": 9, "n": 1}])
    assert copied.fence() is None
    assert values(url, copied) == before
    query(url, str(refused.value).rpartition("commit task: ")[2])
    for txid in (1, 2):
        grants.commit_rows(txid, copied, [{"id": 8 + txid, "n": txid}])
    assert values(url, copied) == sorted([*before, (1,), (2,)])


def test_values_that_a_repair_has_accepted_belong_to_the_state(copied: Any, grants: Grants) -> None:
    grant = replace(grants(3), accepted={copied.name: {"generation": 1, "fence": None}})
    copied.raise_and_write(grant, [{"id": 9, "n": 1}])
    assert copied.holds(3)


def test_rows_of_another_ledger_in_a_delta_table_are_refused_until_they_are_released(
    tmp_path: Path, grants: Grants
) -> None:
    table = DeltaTable(tmp_path / "it's a copy")
    write_deltalake(table.uri, pa.table({"n": [1, 2, 3], "tx_txid": pa.array([1, 2, None], pa.int64())}))
    rows = staged(table, grants(1).attempt, pa.table({"n": [9]}))
    with pytest.raises(StateDiffers, match=REFUSED) as refused:
        table.raise_and_write(grants(1), rows)
    _, *typed = shlex.split(str(refused.value).rpartition("commit task: ")[2])
    subprocess.run([sys.executable, *typed], check=True)
    table.raise_and_write(grants(1), rows)
    found = sorted((row["n"], row["tx_txid"]) for row in read_back(table.uri))
    assert found == [(1, None), (2, None), (3, None), (9, 1)]


def test_rows_with_txids_after_the_fence_are_refused_until_a_person_releases_them(
    url: str, table: str, grants: Grants
) -> None:
    state = SqlTable.from_url(url, table=table)
    grants.commit_rows(1, state, [{"n": 1}])
    query(url, f"INSERT INTO {table} (tx_txid, tx_row, n) VALUES (2, 0, 7), (3, 0, 8), (-2, 0, 9)")
    with pytest.raises(StateDiffers, match="it has values of transaction 3 and its fence says 1") as refused:
        grants.commit_rows(2, state, [{"n": 2}])
    assert values(url, state) == [(1,), (7,), (8,), (9,)]
    query(url, str(refused.value).rpartition("commit task: ")[2])
    grants.commit_rows(2, state, [{"n": 2}])
    assert state.rows_by_txid() == {None: 3, 1: 1, 2: 1}
