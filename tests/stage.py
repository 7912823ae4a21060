"""A stage for tests: a topology on a store, whose runs go through the operators' code without Airflow's servers."""

from __future__ import annotations

from typing import Any

from airflow_tx.processing.begin import ask
from airflow_tx.protocol.answers import Begun
from airflow_tx.sources.api import Source
from airflow_tx.spec import TransactionSpec
from tests.unit.bench import CountingStore, FakeTi, MemorySpec, Numbers, run_of


def begin_run(spec: TransactionSpec, run_id: str, **more: Any) -> Any:
    """Do what the first task of a run does, and return its answer."""
    options = {"retry": False, **more}
    return ask(spec, FakeTi(spec.begin, run_id, dag_id=spec.dag_id), run_of(run_id), **options)


class Stage:
    """A topology with one processing task, `count`, unless its fields say otherwise.

    :param store: of its ledger; default: a new one in memory.
    :param fields: of its `MemorySpec`.
    """

    def __init__(
        self, store: Any = None, source: Source | None = None, *, name: str = "numbers", **fields: Any
    ) -> None:
        self.store = CountingStore() if store is None else store
        fields = {"max_pending": 8, "tasks": ("count",), **fields}
        self.spec = MemorySpec(name, name, source or Numbers(), memory=self.store, **fields)

    def begin(self, *run_ids: str) -> list[Begun]:
        """Begin runs, each of which gets a transaction."""
        answers = [begin_run(self.spec, run_id) for run_id in run_ids]
        assert all(isinstance(answer, Begun) for answer in answers), answers
        return answers
