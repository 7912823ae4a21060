"""Which transaction has what a person looks for: asked of the source, in the process that runs DAG files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_tx.plugin.api.access import Access
from airflow_tx.plugin.api.dag_process import dag_process
from airflow_tx.plugin.api.ledger_snapshots import TopologySnapshot
from airflow_tx.plugin.api.questions import questions
from airflow_tx.plugin.api.redaction import BatchName
from airflow_tx.protocol.status import TransactionView

_WITHIN = 60.0


@dataclass(frozen=True, kw_only=True)
class FoundLine:
    """A transaction that has what was looked for.

    :param phase: as in the timeline; null: it is forgotten by now.
    :param restates: the transaction that it restates; `restated_by`: the one that counts instead of it.
    """

    txid: int
    run_id: str | None
    phase: str | None
    batch_name: BatchName | None
    restates: int | None
    restated_by: int | None


@dataclass(frozen=True, kw_only=True)
class SearchAnswer:
    """The result, the newest transaction first.

    :param looked: how many transactions were looked through, down to `oldest`; null: there is none.
    :param unknown: of how many of them the source cannot tell.
    :param complete: whether these are all transactions of the ledger.
    """

    found: list[FoundLine]
    looked: int
    oldest: int | None
    unknown: int
    complete: bool


def searched(snapshot: TopologySnapshot, what: str, access: Access) -> SearchAnswer:
    """Look for a file, an offset, an id or a date.

    :raises Busy: there are too many questions.
    :raises NotAnsweredThere: the source does not answer.
    """
    place = snapshot.place
    question = {
        "find": (
            snapshot.record.dag_id,
            place.conn_id,
            place.paths.root,
            place.paths.topology,
        ),
        "what": what,
    }
    with questions().asked("a search", snapshot, access):
        found: dict[str, Any] = dag_process().ask(question, seconds=_WITHIN)
    txids = found.pop("txids")
    views = {each.txid: each for each in snapshot.transaction_views(txids)}
    return SearchAnswer(**found, found=[_line(txid, views.get(txid)) for txid in txids])


def _line(txid: int, view: TransactionView | None) -> FoundLine:
    if view is None:
        return FoundLine(
            txid=txid,
            run_id=None,
            phase=None,
            batch_name=None,
            restates=None,
            restated_by=None,
        )
    return FoundLine(
        txid=txid,
        run_id=view.run_id,
        phase=view.status,
        batch_name=view.batch or None,
        restates=view.restates,
        restated_by=view.restated_by,
    )
