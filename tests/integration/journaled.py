"""A topology whose commits leave an entry in the journal of its DAG, so that they can be restated."""

from __future__ import annotations

import time

from airflow_tx.ledger.answers import Begun, Granted
from airflow_tx.ledger.steps.commit import AcquireRequest, acquire
from airflow_tx.outputs.journal import Entry, JournalArea
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.state import Sum
from airflow_tx.state.aggregators import Columns
from tests.integration.pipeline import Pipeline

COLUMNS = {name: Columns(f"tx_state.{name}", ("key",), {"n": Sum()}, {}) for name in ("one", "two")}


class Journaled(Pipeline):
    """A pipeline whose commits leave an entry in the journal of the DAG."""

    area: StagingArea

    def commit(self, run: str) -> Begun:
        begun = self.begin(run)
        incarnation = self.ledger.incarnation()
        journal = JournalArea(self.area, incarnation)
        day = time.strftime("%Y-%m-%d", time.gmtime())
        rows = [{"key": "total", "n": 1}]
        entry = Entry(
            "flights",
            incarnation,
            begun.txid,
            attempt=1,
            birth=begun.attempt.birth,
            key=run,
            run_id=run,
            began=day,
            written=f"{day}T00:00:00",
            metadata=begun.metadata,
            source=("source", {}),
            contributions={
                f"tx_state.{name}": journal.contribution(columns, rows, day=day) for name, columns in COLUMNS.items()
            },
        )
        epoch = self.process(begun).epoch
        names = tuple(state.name for state in self.states)
        request = AcquireRequest(
            begun.attempt,
            epoch,
            begun.rows_digest,
            states=names,
            metadata=begun.metadata,
            position=begun.position,
            **self.made_by,
            journal=journal.write(entry),
        )
        granted = self.ledger.run(acquire, request)
        assert isinstance(granted, Granted)
        self.write(granted.grant, 1)
        self.mark(granted.grant)
        return begun
