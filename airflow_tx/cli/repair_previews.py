"""What `airflow tx repair | state rename | state forget` would do.

The step of the repair itself decides, and its multi is not sent: the preview and the repair cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_tx.actions.preview import EffectLine, PreviewAnswer
from airflow_tx.errors import UnreadableRecord
from airflow_tx.protocol.api import Create, Delete, Put, Write
from airflow_tx.protocol.records import Binding, Phase, TransactionRecord, decode
from airflow_tx.protocol.view import open_records

if TYPE_CHECKING:
    from airflow_tx.protocol.answers import Repaired
    from airflow_tx.protocol.ledger import Ledger
    from airflow_tx.protocol.step import Decision

_OUTRANKED = "its grant is outranked; its commit begins again under a new one"


def of_kept(
    ledger: Ledger, planned: Decision[Repaired], sentence: str, *more: str
) -> PreviewAnswer:
    """Preview a repair that leaves open transactions open.

    :param more: what it does beside the ledger.
    """
    opened = open_records(ledger.store, ledger.paths)
    granted = {txid: record for txid, record in opened.items() if record.phase is Phase.COMMITTING}
    outranked = [EffectLine(txid, record.run_id, _OUTRANKED) for txid, record in granted.items()]
    return _preview(planned, sentence, more, outranked)


def of_rebuilt(
    ledger: Ledger, planned: Decision[Repaired], fences: Mapping[str, Any]
) -> PreviewAnswer:
    """Preview a rebuilt ledger.

    :param fences: by state.
    """
    what = f"{ledger.paths.topology} ({_in_words(fences)}): {planned.result.summary}"
    opened = open_records(ledger.store, ledger.paths)
    effects = [
        EffectLine(txid, record.run_id, _becomes(ledger, planned.writes, txid, record))
        for txid, record in opened.items()
    ]
    return _preview(planned, f"Rebuild the ledger of topology {what}.", (), effects)


def of_reset(
    ledger: Ledger, planned: Decision[Repaired], fences: Mapping[str, Any]
) -> PreviewAnswer:
    """Preview a reset.

    :param fences: by state.
    """
    try:
        opened = open_records(ledger.store, ledger.paths)
    except UnreadableRecord:
        opened = {}  # a reset removes what cannot be read, too
    what = (
        f"all transactions of topology {ledger.paths.topology} and DELETE ALL VALUES of its states"
    )
    deleted = [
        f"state {name}: all of its values are deleted ({_in_words({name: fences[name]})})"
        for name in sorted(fences)
    ]
    forgotten = [
        EffectLine(txid, record.run_id, "forgotten: its run begins again, with other rows")
        for txid, record in opened.items()
    ]
    return _preview(
        planned,
        f"Forget {what}: {', '.join(sorted(fences)) or 'none'}.",
        deleted,
        forgotten,
    )


def _becomes(ledger: Ledger, writes: Iterable[Write], txid: int, record: TransactionRecord) -> str:
    """Say what a rebuilt ledger makes of an open transaction: its multi removes the record, and may unbind the run."""
    path = ledger.paths.run(record.key)
    last = next((each for each in writes if each.path == path), None)
    if isinstance(last, Delete):
        return "forgotten: its run begins again when it is cleared"
    if isinstance(last, Put | Create) and (bound := decode(Binding, path, last.data).txid) != txid:
        return f"forgotten: its rows belong to skipped transaction {bound} again"
    return "closed: the states say that it was committed"


def _preview(
    planned: Decision[Repaired],
    sentence: str,
    more: Iterable[str],
    opened: Iterable[EffectLine],
) -> PreviewAnswer:
    done = planned.result
    noted = f"{done.summary}; generation {done.generation}; transaction {done.current} commits next"
    effects = [EffectLine(None, None, each) for each in (noted, *more)]
    return PreviewAnswer("", sentence, (*effects, *opened), refused=(), needs_reason=False)


def _in_words(found: Mapping[str, Any]) -> str:
    """Describe the fences of states in one line, for the question before a repair."""
    notes = (
        f"{name}: no fence"
        if fence is None
        else f"{name}: {'' if fence.applied else 'in '}transaction {fence.token.txid}"
        for name, fence in sorted(found.items())
    )
    return "; ".join(notes)
