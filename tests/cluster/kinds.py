"""A worker's process whose topology has a state of each kind, under this release or an earlier one: see `runs`."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from tests.cluster.runs import Runs, serve

COUNTED = "INSERT INTO counted (word, n) VALUES (:word, :n)"


def states(url: str, table: str) -> list[Any]:
    """Make the states, in the words that each release has."""
    from airflow_tx.state import DeltaTable, SqlGuard, SqlState, Sum

    columns: dict[str, Any] = {"keys": ["word"], "values": {"n": Sum()}}
    return [
        SqlState.from_url(url, table="opaque", kind="opaque", **columns),
        SqlState.from_url(url, table="transactional", kind="transactional", **columns),
        DeltaTable(table),
        SqlGuard.from_url(url, name="guard", statements=[COUNTED]),
    ]


class Kinds(Runs):
    """Each commit updates the states that FIRE_STATES counts, from the first one on."""

    def __init__(self, url: str, topology: str) -> None:
        super().__init__(url, topology)
        self.states = states(url, os.environ["FIRE_TABLE"])[: int(os.environ["FIRE_STATES"])]
        self.state = self.states[0]
        try:
            case: Any = import_module("airflow_tx.transaction.commit.case")
        except ImportError:
            case = import_module("airflow_tx.commit.case")
        made = case.CommitCase

        def with_states(spec: Any, begun: Any, updates: Any, *rest: Any) -> Any:
            (given,) = updates
            return made(spec, begun, [type(given)(given.input, state) for state in self.states], *rest)

        case.CommitCase = with_states


if __name__ == "__main__":
    serve(Kinds)
