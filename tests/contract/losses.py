"""A topology on a partitioned log whose rows disappear."""

from __future__ import annotations

import itertools
from typing import Any

from airflow_tx.base.errors import SourceError
from airflow_tx.ledger.answers import Begun, NoData
from airflow_tx.ledger.api import Store
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.batch import Batch, BeginRequest, Outside, TopologyRequest
from airflow_tx.ledger.records import Loss, TransactionRecord, decode
from airflow_tx.ledger.steps.step import Audit
from tests.integration.pipeline import Pipeline

AUDIT = Audit("ann", "the retention was too short")


SIZE = 10


class Log:
    """A numbered source that keeps the rows of `there`, by partition; "" is that of a source without any.

    It refuses to leave rows out by itself.
    """

    def __init__(self, **there: range) -> None:
        self.there: dict[str, range] = dict(there) or {"": range(1000)}
        self.asked: list[Any] = []

    @property
    def partitioned(self) -> bool:
        return "" not in self.there

    def losses(self, position: Any) -> list[Loss]:
        places = {"": position} if not self.partitioned else (position or {})
        return [
            Loss(name, place, self.there[name].start, f"rows {place} to {self.there[name].start - 1} of {name or 'it'}")
            for name, place in places.items()
            if place is not None and place < self.there[name].start
        ]

    def decide(self, attempt: TransactionAttempt, position: Any) -> Batch | None:
        self.asked.append(position)
        if lost := self.losses(position):
            raise SourceError(source="Log", problem=f"{lost[0].description} are lost", remedy="airflow tx accept-loss")
        places = {"": position} if not self.partitioned else (position or {})
        next_ones = {name: self._take(name, places.get(name)) for name in self.there}
        taken: Any = {name: rows for name, rows in next_ones.items() if rows}
        if not taken:
            return None
        after: Any = {name: rows[-1] for name, rows in taken.items()}
        size = (sum(end - start for start, end in taken.values()), "ten of each")
        return Batch(taken, after, *size) if self.partitioned else Batch(taken[""], after[""], *size)

    def _take(self, name: str, place: int | None) -> list[int] | None:
        start = self.there[name].start if place is None else place
        end = min(start + SIZE, self.there[name].stop)
        return [start, end] if end > start else None


class Topology(Pipeline):
    """A pipeline on a `Log`."""

    def __init__(self, store: Store, root: str, log: Log, kind: str) -> None:
        super().__init__(store, root, kind=kind)
        self.log = log
        self.request = TopologyRequest("dag", kind, 8, log.partitioned)
        self.numbers = itertools.count(1)

    def ask(self, run: str) -> Begun | NoData:
        request = BeginRequest(self.request, run, run, f"{next(self.numbers):06}", False, {"task0": "1"})
        answer = self.ledger.begin(request, Outside(decide=self.log.decide, run_state=lambda run_id: "failed"))
        assert isinstance(answer, (Begun, NoData))
        return answer

    def begin(self, run: str) -> Begun:
        answer = self.ask(run)
        assert isinstance(answer, Begun)
        return answer

    def finish(self, begun: Begun) -> None:
        self.mark(self.acquire(begun, self.process(begun)))

    def accept(self, position: Any) -> str:
        return self.ledger.accept_loss(self.log.losses(position), AUDIT).summary

    def record(self, txid: int) -> TransactionRecord:
        node = self.store.get(self.paths.transaction(txid))
        assert node is not None
        return decode(TransactionRecord, "", node.data)
