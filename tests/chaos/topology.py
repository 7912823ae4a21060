"""A topology under fire, as its DAG file says it, in a process without Airflow's servers."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from airflow_tx.state import DeltaTable, SqlGuard, SqlTable
from airflow_tx.state.api import FencedState
from airflow_tx.transaction.commit.update import states_of
from airflow_tx.transaction.spec import TransactionSpec
from tests.chaos.mutant import VARIABLE, break_rule

DAGS = Path(__file__).parent / "dags"
ROOT = "/fire"
OPTIONAL = ("Kafka", "MariaDB", "Spark")
"""The servers that a world can be without, and without the topologies that use them."""
STORES = {
    "files": ("disk",),
    "dates": ("disk",),
    "late_files": ("PostgreSQL", "Redis"),
    "sums": ("PostgreSQL",),
    "rows": ("PostgreSQL",),
    "stream": ("Redis",),
    "events": ("Kafka", "MariaDB"),
    "sparked": ("Spark",),
}
"""The topologies, and what they use besides ZooKeeper."""
COORDINATED = ["late_files", "sums", "rows", "stream", "events", "sparked"]
LANED = ["sums", "rows", "stream", "events"]
UPSTREAM = {"sums": "late_files"}
"""By topology, the one whose table it reads."""
REAL = "AIRFLOW_TX_CHAOS_AIRFLOW"
"""Is set where there is a whole Airflow, and a person's commands ask its database."""
UNRESTATED = ("rows",)
"""Those with a state from which nothing can be taken back: a guard's statements."""
DATED = "dates"
"""The one over data intervals, which a person backfills."""
_LEFT_OUT = "AIRFLOW_TX_CHAOS_WITHOUT"


def leave_out(servers: Collection[str]) -> None:
    """Let the world, in this process and in those that it starts, be without servers of OPTIONAL."""
    os.environ[_LEFT_OUT] = ",".join(servers)
    for name in [name for name, stores in STORES.items() if not set(servers).isdisjoint(stores)]:
        del STORES[name]
        for names in (COORDINATED, LANED):
            if name in names:
                names.remove(name)


leave_out(os.environ.get(_LEFT_OUT, "").split(","))


def is_used(server: str) -> bool:
    """Whether one of the topologies uses a server."""
    return any(server in stores for stores in STORES.values())


@dataclass(frozen=True)
class FiredTopology:
    """One of STORES."""

    name: str

    @cached_property
    def dag(self) -> Any:
        return _module()[self.name]

    @cached_property
    def spec(self) -> TransactionSpec:
        found: TransactionSpec = self.dag.get_task("begin").transaction
        return found

    @property
    def states(self) -> dict[str, FencedState]:
        return states_of(self.dag)

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Read all states: of a guard what its statements have written, of a table the sums of the rows of a key."""
        return {name: _rows_of(state) for name, state in self.states.items()}

    @cached_property
    def lane(self) -> Any:
        """How a lane works on it; None: it has none."""
        from airflow_tx.coordinator.lane_plan import lane_plan

        return lane_plan(self.spec, self.dag) if self.name in LANED else None


def summed(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add up the rows of each key."""
    sums = dict[str, Counter[str]]()
    for row in rows:
        sums.setdefault(row["key"], Counter()).update({name: row[name] for name in ("n", "total", "txid")})
    return [{"key": key, **values} for key, values in sums.items()]


def _rows_of(state: Any) -> list[dict[str, Any]]:
    if isinstance(state, DeltaTable | SqlTable):
        return summed(state.read())
    if not isinstance(state, SqlGuard):
        return [dict(row) for row in state.read()]
    with state._store.transaction(reading=True) as connection:
        found = connection.execute(sa.text("SELECT key, n, total, txid FROM guarded_rows"))
        return [dict(row) for row in found.mappings()]


@lru_cache
def _module() -> dict[str, Any]:
    """Import the DAG file once a process, after the rule that a mutant lacks was taken out; its DAGs by id."""
    from airflow_tx.operators.transaction import defined

    break_rule(os.environ.get(VARIABLE, ""))
    found = importlib.util.spec_from_file_location("under_fire", DAGS / "under_fire.py")
    assert found is not None
    assert found.loader is not None
    found.loader.exec_module(importlib.util.module_from_spec(found))
    return {name: defined(name)[1] for name in STORES}
