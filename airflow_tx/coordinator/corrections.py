"""Find corrections of the upstream topology that are due. The ledgers are compared only if one of them has changed."""

from __future__ import annotations

import logging
from datetime import datetime, timezone

from airflow_tx.base.errors import TxError
from airflow_tx.coordinator.plan import LedgerSnapshot
from airflow_tx.ledger import Corrections, ReadOnlyLedger
from airflow_tx.sources import Source

log = logging.getLogger(__name__)


class CorrectionWatch:
    """Compares the upstream transactions that a topology has read with the ones that count now.

    :param source: the source of the downstream topology.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._compared: object = None
        self._said = ""

    def is_due(self, ledger: ReadOnlyLedger, look: LedgerSnapshot) -> bool:
        """Return whether a correction of the upstream topology needs an action now."""
        watched = self._source.watched(ledger.paths.root)
        if not watched or not look.exists:
            return False
        nodes = [ledger.store.get(path) for path in watched]
        versions = [None if node is None else node.data for node in nodes]
        wishes = [wish.op for wish in look.wishes]
        now = (versions, look.current, sorted(look.opened), wishes)
        if now == self._compared:
            return False
        found = None
        try:
            found = self.read(ledger)
        except TxError as error:
            self._say(str(error))
        if found is None:
            self._compared = now
            return False
        # A postponed correction becomes due without a change in a ledger.
        self._compared = None if found.is_due or found.postponed else now
        return found.is_due

    def _say(self, problem: str) -> None:
        if problem != self._said:
            log.warning(
                "%s Until this is corrected, no upstream correction starts a restatement.", problem
            )
        self._said = problem

    def read(self, ledger: ReadOnlyLedger) -> Corrections | None:
        """Compare the two ledgers. Return None without an upstream topology, or if no batch has an upstream
        transaction.

        :raises TxError: a restored backup lacks transactions of the upstream topology, or its ledger cannot be read.
        """
        return self._source.corrections(ledger, datetime.now(timezone.utc))
