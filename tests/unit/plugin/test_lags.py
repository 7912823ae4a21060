"""The lags that an api-server has seen, by topology."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from airflow_tx.plugin.api.dag_process import LagBoard


class _Process:
    """Answers for the process of the DAG files."""

    def ask(self, question: Any) -> Any:
        return {name: {"count": 7, "unit": "files"} for name, *_ in question["lags"]}


def _snapshot(incarnation: str) -> Any:
    record = SimpleNamespace(dag_id="the_dag", incarnation=incarnation)
    paths = SimpleNamespace(root="/root", topology="flights")
    asked = ("the_dag", "zookeeper", "/root", "flights")
    return SimpleNamespace(name="flights", record=record, paths=paths, as_asked=asked)


def test_a_topology_that_was_created_again_does_not_show_the_lags_of_the_former_one() -> None:
    board = LagBoard(_Process())  # type: ignore[arg-type]
    board._ask([_snapshot("before")])
    assert [each.value for each in board.seen(_snapshot("before"))] == [7]
    assert board.seen(_snapshot("after")) == ()
