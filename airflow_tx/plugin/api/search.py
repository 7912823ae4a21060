"""Which transaction has what a person looks for.

Of one topology the source is asked, in the process that runs DAG files. Of all topologies the ledgers are read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_tx.actions.search import MOST_FOUND, MOST_LOOKED_THROUGH
from airflow_tx.actions.text_search import (
    MatchedPart,
    SearchedLedger,
    TextFound,
    TextMatch,
    WantedText,
)
from airflow_tx.errors import Refused, TxError
from airflow_tx.plugin.api.access import Access
from airflow_tx.plugin.api.dag_process import dag_process
from airflow_tx.plugin.api.ledger_snapshots import TopologySnapshot, ledger_snapshots
from airflow_tx.plugin.api.questions import questions
from airflow_tx.plugin.api.redaction import BatchName, redacted, without_credentials
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.status import TransactionView

_WITHIN = 60.0
MOST_TOPOLOGIES = 200
"""That one search looks at."""
MOST_SEARCHED = 5000
"""Transactions that one search of several topologies looks at."""
ALL_WITHIN = 10.0
"""Seconds after which a search of several topologies ends with what it has found."""
_ALL_AT_ONCE = threading.BoundedSemaphore(2)
"""Searches of several topologies, of all viewers together."""


class SearchBusy(Refused):
    """A search that was not begun."""

    template = "Other searches are under way. Try again in a few seconds."


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


# --- all topologies ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FoundAnywhere(FoundLine):
    """A transaction of any topology that has the text.

    :param matched: the part that has it; `text`: the whole text of this part, as users see it.
    """

    topology: str
    matched: MatchedPart
    text: str


@dataclass(frozen=True, kw_only=True)
class SearchOfAllAnswer:
    """The result: by topology, the most urgent first, and the newest transaction first.

    :param topologies: how many topologies of the user were to be searched, and `looked` how many were.
    :param transactions: how many transactions were looked at.
    :param partly: of how many topologies only the newest transactions were looked at.
    :param unknown: of how many transactions the ledger keeps a digest of the batch alone.
    :param unread: the topologies whose ledger could not be read.
    :param complete: whether all transactions were looked at, and every match is given.
    """

    found: list[FoundAnywhere]
    topologies: int
    looked: int
    transactions: int
    partly: int
    unknown: int
    unread: list[str]
    complete: bool


def searched_all(snapshots: Sequence[TopologySnapshot], what: str) -> SearchOfAllAnswer:
    """Look for a text in the records of topologies that the user may see. No source is asked, and nothing is kept.

    :param snapshots: in the order in which they are searched.
    :raises SearchBusy: there are too many searches.
    """
    # An error is shown to users with what belongs to connections left out: what is hidden cannot be found.
    wanted = WantedText(what.strip(), without_credentials, redacted)
    if not _ALL_AT_ONCE.acquire(blocking=False):
        raise SearchBusy
    try:
        search = _SearchOfAll(wanted, time.monotonic() + ALL_WITHIN)
        for index, snapshot in enumerate(snapshots[:MOST_TOPOLOGIES]):
            if not search.is_over:
                search.look(snapshot, min(len(snapshots), MOST_TOPOLOGIES) - index)
    finally:
        _ALL_AT_ONCE.release()
    return search.answer(len(snapshots))


class _SearchOfAll:
    """One search of several topologies.

    :param until: the moment at which it ends.
    """

    def __init__(self, wanted: WantedText, until: float) -> None:
        self._wanted = wanted
        self._until = until
        self._found: list[FoundAnywhere] = []
        self._looked: list[TextFound] = []
        self._unread: list[str] = []

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be found."""
        return time.monotonic() > self._until or len(self._found) >= MOST_FOUND

    def look(self, snapshot: TopologySnapshot, left: int) -> None:
        """Look at one topology.

        :param left: how many topologies share what may still be read.
        """
        read = sum(each.looked for each in self._looked)
        most = min((MOST_SEARCHED - read) // left, MOST_LOOKED_THROUGH)

        def question(store: Store) -> TextFound:
            ledger = SearchedLedger(
                store, snapshot.paths, snapshot.record.zone, snapshot.opened, snapshot.final
            )
            most_found = MOST_FOUND - len(self._found)
            return ledger.look(self._wanted, most=most, most_found=most_found, until=self._until)

        try:
            found = (
                None
                if snapshot.view is None
                else ledger_snapshots().unremembered(snapshot, question)
            )
        except TxError:
            found = None
        if found is None:
            self._unread.append(snapshot.name)
            return
        self._looked.append(found)
        self._found += [_match_line(snapshot.name, each) for each in found.matches]

    def answer(self, topologies: int) -> SearchOfAllAnswer:
        """Give the answer; `topologies`: how many were to be searched."""
        partly = sum(not each.complete for each in self._looked)
        return SearchOfAllAnswer(
            found=self._found,
            topologies=topologies,
            looked=len(self._looked),
            transactions=sum(each.looked for each in self._looked),
            partly=partly,
            unknown=sum(each.unknown for each in self._looked),
            unread=self._unread,
            complete=len(self._looked) == topologies and partly == 0,
        )


def _match_line(topology: str, match: TextMatch) -> FoundAnywhere:
    line = vars(_line(match.view.txid, match.view))
    return FoundAnywhere(
        **{**line, "batch_name": match.batch or None},
        topology=topology,
        matched=match.part,
        text=match.text,
    )
