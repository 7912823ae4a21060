"""A ledger of some transactions with two states, and what `verify` says of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from airflow_tx.ledger.api import Put
from airflow_tx.ledger.audit.chain import LedgerEvidence, StateEvidence, ledger_evidence
from airflow_tx.ledger.audit.verification import Verified, verified
from airflow_tx.ledger.receipt import Receipt
from airflow_tx.ledger.records import TransactionRecord, decode
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.state import Sum
from airflow_tx.state.memory import MemoryState
from tests.integration.pipeline import Pipeline


class Books:
    """A ledger of some transactions and two states, and what `verify` says of them."""

    def __init__(self, history: int = 1000, **how: Any) -> None:
        self.store = MemoryStore()
        self.states = [MemoryState(f"s{number}", values={"n": Sum()}) for number in range(2)]
        self.pipeline = Pipeline(self.store, "/tx", self.states, history=history, **how)
        self.store.ensure("/tx")
        self.ran = 0

    def run(self, times: int = 1) -> Books:
        for _ in range(times):
            self.ran += 1
            self.pipeline.run(f"run {self.ran}")
        return self

    def skip(self) -> None:
        self.ran += 1
        self.pipeline.skip(self.pipeline.begin(f"run {self.ran}").attempt.txid)

    @property
    def ledger(self) -> LedgerEvidence:
        return ledger_evidence(self.store, self.pipeline.paths, partly=True)

    @property
    def evidence(self) -> list[StateEvidence]:
        return [StateEvidence(each.name, each.fence(), each.receipts()) for each in self.states]

    def verify(self, **wanted: int) -> Verified:
        return verified(self.ledger, self.evidence, **wanted)

    def change(self, path: str, change: Callable[[dict[str, Any]], Any]) -> None:
        """Change one record behind everybody's back."""
        node = self.store.get(path)
        assert node is not None
        value = json.loads(node.data)
        change(value)
        self.store.multi([], [Put(path, json.dumps(value).encode())])

    def history(self, txid: int) -> str:
        return self.pipeline.paths.history(txid)

    def receipt(self, txid: int) -> Receipt:
        node = self.store.get(self.history(txid))
        assert node is not None
        return Receipt.from_json(decode(TransactionRecord, "", node.data).receipt)
