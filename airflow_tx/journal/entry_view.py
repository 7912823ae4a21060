"""A transaction that the history of its ledger has forgotten, read from the journal."""

from __future__ import annotations

from airflow_tx.journal.area import JournalArea
from airflow_tx.journal.entry import Entry
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.person import moment
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Binding, Metadata, Outcome
from airflow_tx.protocol.status import TransactionView
from airflow_tx.protocol.view import TransactionDetails, with_restatements


def forgotten_details(
    store: Store, paths: Paths, journal: JournalArea, txid: int
) -> TransactionDetails | None:
    """Describe a committed transaction by its entry; None: its binding names none.

    :raises JournalError, StagingUnreachable: the journal cannot be read.
    """
    for name in journal.names(txid):
        entry = journal.read(name)
        binding = Reader(store).peek_if_any(Binding, paths.run(entry.key))
        if binding is not None and _stands_for(journal, binding.entry, name):
            (view,) = with_restatements(store, paths, [_view(entry)])
            return TransactionDetails(view, Metadata(0, entry.metadata, None))
    return None


def _stands_for(journal: JournalArea, counts: str, name: str) -> bool:
    """Ask whether an entry is the one that counts, or one that it replaces. Any other counted for nothing."""
    while counts and counts != name:
        replaces = journal.read(counts).replaces
        counts = "" if replaces is None else replaces["entry"]
    return counts == name


def _view(entry: Entry) -> TransactionView:
    return TransactionView(
        txid=entry.txid,
        attempt=entry.attempt,
        status=Outcome.COMMITTED.value,
        run_id=entry.run_id,
        began=moment(entry.began),
        processed=None,
        granted=None,
        ended=None,
        rows=None,
        ack_val="",
        failures=0,
        error=None,
        waiting_for=None,
        open=False,
        restates=None if entry.replaces is None else entry.replaces["txid"],
        key=entry.key,
    )
