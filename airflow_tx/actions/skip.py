"""Skip by a person, and the way back: a batch is taken out of the way at its turn, and re-admitted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_tx.actions.action import ActionTarget, PersonalAction
from airflow_tx.actions.preview import Effect, Preview
from airflow_tx.actions.runs import Restarts
from airflow_tx.actions.skips import Skips
from airflow_tx.errors import Refused
from airflow_tx.protocol.batch_words import batch_in_words
from airflow_tx.protocol.records import Metadata, Skipped, TransactionRecord, dumps
from airflow_tx.protocol.skip import check_skipped, note_readmission
from airflow_tx.protocol.step import Audit
from airflow_tx.protocol.view import transaction_details

_ROWS_SHOWN = 500


class TransactionSkip(PersonalAction):
    """Takes a transaction out of the way at its turn."""

    needs_reason = True

    def __init__(self, target: ActionTarget, txid: int) -> None:
        super().__init__(target)
        self.txid = txid
        restarts = Restarts.of(target)
        self._skips = Skips(target.ledger, restarts, lambda: target.dag()[1])

    def preview(self) -> Preview:
        version = self.target.version([self.txid])
        record = self.target.opened([self.txid])[self.txid]
        if isinstance(record, Refused):
            return Preview(version, str(record), (), (Effect(self.txid, "", str(record)),), True)
        try:
            self._skips.check(self.txid, record)
        except Refused as refused:
            return Preview(version, str(refused), (), (Effect(self.txid, record.run_id, str(refused)),), True)
        details = transaction_details(self.target.ledger.store, self.target.ledger.paths, self.txid)
        outlook = self._skips.outlook(self.txid, is_stale=details.transaction.stale)
        sentence = self._sentence(record, details.batch)
        return Preview(version, sentence, (Effect(self.txid, record.run_id, outlook),), needs_reason=True)

    def execute(self, audit: Audit, version: str | None = None) -> Iterator[Effect]:
        record = self.target.ledger.status(self.txid)
        if record is not None:  # else the ledger says what became of it
            self._skips.check(self.txid, record)
        self.target.take([self.txid], version)
        yield from self._skips.note(self.txid, audit)

    def _sentence(self, record: TransactionRecord, batch: Metadata | None) -> str:
        rows = "unknown rows" if batch is None else _shown(batch.rows)
        return (
            f"Skip transaction {self.txid}.{record.attempt} of topology {self.target.topology} (run {record.run_id}, "
            f"{record.phase.value}), and count its rows nowhere: {rows}."
        )


class Readmission(PersonalAction):
    """Processes the rows of a skipped transaction, as a new one."""

    needs_reason = True

    def __init__(self, target: ActionTarget, txid: int) -> None:
        super().__init__(target)
        self.txid = txid
        self._runs = Restarts.of(target).runs

    def preview(self) -> Preview:
        version = self.target.version([self.txid])
        try:
            skipped = self.target.ledger.run(check_skipped, self.txid)
            self._runs.check([skipped.run_id])
        except Refused as refused:
            return Preview(version, str(refused), (), (Effect(self.txid, "", str(refused)),), True)
        how = "is cleared" if self._runs.state(skipped.run_id) is not None else "is made anew"
        done = f"its run {how}, and takes the rows of the same place, as they are then, as a new transaction"
        effect = Effect(self.txid, skipped.run_id, done)
        return Preview(version, self._sentence(skipped), (effect,), needs_reason=True)

    def execute(self, audit: Audit, version: str | None = None) -> Iterator[Effect]:
        self._runs.check([self.target.ledger.run(check_skipped, self.txid).run_id])
        self.target.take([self.txid], version)
        skipped = self.target.ledger.run(check_skipped, self.txid)
        self.target.ledger.run(note_readmission, self.txid, audit)
        how = self._runs.start(skipped.run_id, skipped.key)
        done = f"re-admitted: {how}, and takes the rows of the same place, as they are now, as a new transaction"
        yield Effect(self.txid, skipped.run_id, done)

    def _sentence(self, skipped: Skipped) -> str:
        who = f"skipped by {skipped.skip['who']}: {skipped.skip['why']}"
        return (
            f"Process the rows of transaction {self.txid} of topology {self.target.topology} ({who}) as a new "
            f"transaction, in run {skipped.run_id}: {_shown(skipped.rows)}."
        )


def _shown(rows: Any) -> str:
    if name := batch_in_words(rows):
        return name
    text = dumps(rows)
    return text if len(text) <= _ROWS_SHOWN else f"{text[:_ROWS_SHOWN]} ..."
