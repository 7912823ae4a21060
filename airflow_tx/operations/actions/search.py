"""Which transaction has a file, an offset, an id or a date: the source of the topology tells, by the metadata."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_tx.ledger import (
    Ledger,
    LedgerView,
    Paths,
    Store,
    TransactionView,
    batch_in_words,
    batch_texts,
    is_shortened,
)
from airflow_tx.sources import Span, span_of

if TYPE_CHECKING:
    from airflow_tx.sources import Source


# --- search -------------------------------------------------------------------------------------------------------


MOST_LOOKED_THROUGH = 1000
"""Transactions that one search looks through at most: the newest ones."""
MOST_FOUND = 50


@dataclass(frozen=True)
class Found:
    """The result of a search.

    :param txids: the newest first, at most `MOST_FOUND`.
    :param looked: how many transactions it has looked through, down to `oldest`; null: there is none.
    :param unknown: of how many of them the source cannot tell.
    :param complete: whether it has searched all transactions of the ledger.
    """

    txids: tuple[int, ...]
    looked: int
    oldest: int | None
    unknown: int
    complete: bool


def contains(source: Source, metadata: Any, what: str) -> bool | None:
    """Ask whether a batch has what a person looks for; None: its source cannot tell.

    :param metadata: as the ledger or a receipt keeps it.
    """
    if is_shortened(metadata):
        return None
    try:
        return metadata is not None and source.contains(metadata, what)
    except Exception:  # noqa: BLE001  # it may be metadata of the source that the topology had before
        return None


def search_ledger(ledger: Ledger, source: Source, what: str, *, seconds: float) -> Found:
    """Look through the newest transactions, open and final.

    :param seconds: after which it ends with what it has found.
    """
    view = LedgerView(ledger.store, ledger.paths)
    every = sorted(
        {*view.open_txids(), *view.final_txids()},
        reverse=True,
    )
    source = source.in_zone(ledger.topology().zone)
    until = time.monotonic() + seconds
    looked = list(_looked(view, source, what, every[:MOST_LOOKED_THROUGH], until))
    txids = [txid for txid, has in looked if has]
    return Found(
        tuple(txids[:MOST_FOUND]),
        len(looked),
        looked[-1][0] if looked else None,
        sum(has is None for _, has in looked),
        len(looked) == len(every) and len(txids) <= MOST_FOUND,
    )


def _looked(
    view: LedgerView, source: Source, what: str, txids: Iterable[int], until: float
) -> Iterator[tuple[int, bool | None]]:
    for txid in txids:
        if time.monotonic() > until:
            return
        yield txid, contains(source, view.searched(txid)[1], what)


# --- text search --------------------------------------------------------------------------------------------------
# Which transactions have a text, by the records of their ledger alone: no source is asked, so any topology can be.


class MatchedPart(str, Enum):
    """The part of a transaction that has a text."""

    TXID = "txid"
    BATCH = "batch"
    DATE = "date"
    RUN = "run"
    ERROR = "error"


@dataclass(frozen=True)
class TextMatch:
    """A transaction that has a text.

    :param batch: the name of its batch, see `batch_in_words`.
    :param text: the whole text of the part.
    """

    view: TransactionView
    batch: str
    part: MatchedPart
    text: str


@dataclass(frozen=True)
class TextFound:
    """The result of a search in one ledger.

    :param matches: the newest first.
    :param looked: how many transactions it has looked at.
    :param unknown: how many of them have a batch of which the ledger keeps a digest alone.
    :param complete: whether it has looked at all of them, and all matches are given.
    """

    matches: tuple[TextMatch, ...] = ()
    looked: int = 0
    unknown: int = 0
    complete: bool = True


@dataclass(frozen=True)
class WantedText:
    """The text that a person looks for, in upper or lower case: a part of a name, a txid, or a date.

    :param hide_name: leaves secrets out of the name of a batch, and `hide_error` out of an error. A search does not
        find hidden text.
    """

    what: str
    hide_name: Callable[[str], str] = str
    hide_error: Callable[[str], str] = str

    def match(self, view: TransactionView, metadata: Any, zone: str) -> TextMatch | None:
        """Find the part of a transaction that has the text; None: no part has.

        :param metadata: of its batch; None: it is not known.
        """
        for part, text in self._parts(view, metadata, zone):
            return TextMatch(view, batch_in_words(metadata), part, text)
        return None

    def _parts(
        self, view: TransactionView, metadata: Any, zone: str
    ) -> Iterator[tuple[MatchedPart, str]]:
        if str(view.txid) == self.what:
            yield MatchedPart.TXID, str(view.txid)
        names = map(self.hide_name, batch_texts(metadata, self._folded))
        yield from ((MatchedPart.BATCH, each) for each in names if self._is_in(each))
        if self._is_dated(metadata, zone):
            yield MatchedPart.DATE, self.hide_name(batch_in_words(metadata))
        if self._is_in(view.run_id):
            yield MatchedPart.RUN, view.run_id
        errors = (self.hide_error(each) for each in _errors(view))
        yield from ((MatchedPart.ERROR, each) for each in errors if self._is_in(each))

    def _is_in(self, text: str) -> bool:
        return self._folded in text.casefold()

    @cached_property
    def _folded(self) -> str:
        return self.what.casefold()

    def _is_dated(self, metadata: Any, zone: str) -> bool:
        """Ask whether the interval of a batch has the date, or the date of its partition is the same."""
        span = self._span(zone)
        if span is None or not isinstance(metadata, Mapping):
            return False
        start = _moment(metadata.get("from", metadata.get("partition")))
        end = _moment(metadata.get("to")) if "from" in metadata else start
        if start is None or end is None:
            return False
        return start <= span.last and (span.start < end or span.start <= start)

    def _span(self, zone: str) -> Span | None:
        if self.what[:4].isdigit() and self.what[4:5] == "-":
            try:
                return span_of(self.what, zone)
            except (ValueError, OverflowError):
                return None
        return None


def _errors(view: TransactionView) -> Iterator[str]:
    """List why a transaction, or an earlier attempt of it, has failed."""
    yield from filter(None, (view.said, view.blocked))
    yield from (str(each["why"]) for each in view.replays)


def _moment(text: Any) -> datetime | None:
    try:
        found = (
            datetime.fromisoformat(text.replace("Z", "+00:00")) if isinstance(text, str) else None
        )
    except ValueError:
        return None
    return None if found is None or found.tzinfo is None else found


@dataclass(frozen=True)
class SearchedLedger:
    """The transactions of one ledger.

    :param zone: of the schedule, in which a date is a day.
    :param opened: the open transactions; `final`: the txids of the final ones.
    :param quotes: whether the person may read what errors said; the open transactions are as the person sees them.
    """

    store: Store
    paths: Paths
    zone: str
    opened: Sequence[TransactionView]
    final: Sequence[int]
    quotes: bool = True

    def look(
        self,
        wanted: WantedText,
        *,
        most: int,
        most_found: int = sys.maxsize,
        until: float = math.inf,
    ) -> TextFound:
        """Look at the newest transactions.

        :param most: how many to look at, of which `most_found` may be found.
        :param until: the moment of `time.monotonic` at which it ends with what it has found.
        :raises StoreError: the ledger cannot be read.
        """
        total = len(self.opened) + len(self.final)
        found: list[TextMatch] = []
        looked = unknown = 0
        for view, metadata in self._newest_first():
            if looked == most or len(found) > most_found or time.monotonic() > until:
                break
            looked += 1
            unknown += is_shortened(metadata)
            shown = view if view is None or self.quotes else view.without_errors()
            match = None if shown is None else wanted.match(shown, metadata, self.zone)
            if match is not None:
                found.append(match)
        is_whole = looked == total and len(found) <= most_found
        return TextFound(self._restated(found[:most_found]), looked, unknown, is_whole)

    def _newest_first(self) -> Iterator[tuple[TransactionView | None, Any]]:
        """Give each transaction with the metadata of its batch; None: the ledger has forgotten it since."""
        ledger = LedgerView(self.store, self.paths)
        for view in sorted(self.opened, key=lambda each: -each.txid):
            yield view, ledger.searched(view.txid)[1]
        yield from map(ledger.searched, reversed(self.final))

    def _restated(self, found: Sequence[TextMatch]) -> tuple[TextMatch, ...]:
        views = LedgerView(self.store, self.paths).with_restatements([each.view for each in found])
        return tuple(
            TextMatch(view, each.batch, each.part, each.text)
            for view, each in zip(views, found, strict=True)
        )
