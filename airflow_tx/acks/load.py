"""How much the ackers of a topology have to do, from one look at them after another: for metrics and the board."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from airflow_tx.acks.api import AckerStore
from airflow_tx.acks.reference import Origin
from airflow_tx.errors import StaleMessage, UnknownMessage
from airflow_tx.inquiry import Inquiry
from airflow_tx.protocol.records import Phase, TransactionRecord


@dataclass(frozen=True)
class AckerLoad:
    """The load of the ackers of all open transactions.

    :param trees: of messages, that are not complete.
    :param acks_a_second: messages that were acked since the look before, in each tree that they stand in; None: this
        is the first look.
    """

    trees: int
    acks_a_second: float | None


class AckerWatch(Inquiry[AckerLoad]):
    """Looks at the ackers of one topology now and then."""

    def __init__(self, topology: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(f"ackers of {topology}", clock=clock)
        self._topology = topology
        self._acked: Mapping[Origin, int] = {}
        self._looked_at: float | None = None

    def ask_ackers(
        self,
        connect: Callable[[], AbstractContextManager[AckerStore]],
        opened: Mapping[int, TransactionRecord],
        incarnation: str,
    ) -> None:
        """Look in a thread, unless one still waits for an answer.

        :param connect: to the ackers, as long as the block.
        :param incarnation: of the topology.
        """

        def question() -> AckerLoad:
            with connect() as store:
                return self.look(store, opened, incarnation)

        self.ask(lambda: question)

    def look(
        self, store: AckerStore, opened: Mapping[int, TransactionRecord], incarnation: str
    ) -> AckerLoad:
        """Ask for the transactions that still wait for messages.

        :raises AckersUnavailable: they do not answer.
        """
        trees = 0
        acked = dict[Origin, int]()
        for txid, record in opened.items():
            if record.phase is not Phase.PROCESSING:
                continue
            origin = Origin(self._topology, txid, record.attempt, incarnation)
            with suppress(StaleMessage, UnknownMessage):  # it has just begun, or ended
                report = store.report(origin)
                trees += sum(report.open.values())
                acked[origin] = report.acked
        return AckerLoad(trees, self._acks_a_second(acked))

    def _acks_a_second(self, acked: Mapping[Origin, int]) -> float | None:
        now = self._clock()
        before = self._looked_at
        self._looked_at = self._clock()
        grown = sum(max(count - self._acked.get(origin, 0), 0) for origin, count in acked.items())
        self._acked = acked
        return None if before is None else grown / max(now - before, 0.001)
