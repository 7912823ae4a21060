"""Search for transactions, either by their batches through the source, or by a text in the ledger's records."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from functools import cached_property
from itertools import takewhile
from typing import Any, TypeAlias

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
from airflow_tx.sources import Source, Span, interval_of_key, span_of

# --- search -------------------------------------------------------------------------------------------------------


MOST_LOOKED_THROUGH = 1000
"""Maximum number of transactions in one search, which starts with the newest."""
MOST_FOUND = 50


@dataclass(frozen=True)
class Found:
    """The result of a search.

    :param txids: matching transactions, the newest first, at most `MOST_FOUND`.
    :param looked: number of searched transactions.
    :param oldest: oldest searched transaction, or null if none was searched.
    :param unknown: number of transactions for which the source cannot tell.
    :param complete: whether all transactions were searched, and `txids` has every match.
    """

    txids: tuple[int, ...]
    looked: int
    oldest: int | None
    unknown: int
    complete: bool


def contains(source: Source, metadata: Any, what: str) -> bool | None:
    """Return whether a batch contains the search text. Return None if its source cannot tell.

    :param metadata: metadata of the batch in the ledger or a receipt.
    :param what: the text.
    """
    if is_shortened(metadata):
        return None
    try:
        return metadata is not None and source.contains(metadata, what)
    except Exception:  # noqa: BLE001  # the metadata may be from an earlier source of the topology
        return None


def key_names(source: Source, key: str, what: str) -> bool | None:
    """Return whether a forgotten run's key contains the text. Return None if its batch may contain it."""
    interval = interval_of_key(key)
    if interval is None or key == what:
        return True if key == what else None
    start, end = interval
    return contains(source, {"from": start.isoformat(), "to": end.isoformat()}, what)


def _has(source: Source, view: TransactionView | None, metadata: Any, what: str) -> bool | None:
    is_forgotten = view is not None and not view.is_unreadable and view.document.receipt is None
    if view is None or not is_forgotten:
        return contains(source, metadata, what)
    return key_names(source, view.document.key, what)


def search_ledger(
    ledger: Ledger,
    source: Source,
    what: str,
    *,
    seconds: float,
    has_left: Callable[[], bool] = lambda: False,
) -> Found:
    """Search the newest transactions, both open and final, for a text.

    :param what: text to find.
    :param seconds: time limit, after which the search returns its matches so far.
    :param has_left: function that returns whether the browser has disconnected. The search then ends.
    """
    view = LedgerView(ledger.store, ledger.paths)
    topology = ledger.topology()
    every = sorted(
        {*view.open_txids(), *view.final_txids(book=topology.book)},
        reverse=True,
    )
    source = source.in_zone(topology.zone)
    until = time.monotonic() + seconds
    some = takewhile(
        lambda _: time.monotonic() <= until and not has_left(), every[:MOST_LOOKED_THROUGH]
    )
    looked = [(txid, _has(source, *view.searched(txid), what)) for txid in some]
    txids = [txid for txid, has in looked if has]
    return Found(
        tuple(txids[:MOST_FOUND]),
        len(looked),
        looked[-1][0] if looked else None,
        sum(has is None for _, has in looked),
        len(looked) == len(every) and len(txids) <= MOST_FOUND,
    )


# --- text search --------------------------------------------------------------------------------------------------
# Search for a text in the records of a ledger. It queries no source, so it works for every
# topology.


class MatchedPart(str, Enum):
    """The part of a transaction that matches. The most common search targets come first."""

    TXID = "txid"
    RUN = "run"
    BATCH = "batch"
    DATE = "date"
    STATUS = "status"
    ERROR = "error"
    DETAIL = "detail"
    """The kind of match in a digest or in column names."""


_PARTS = [*MatchedPart]
_Part: TypeAlias = tuple[MatchedPart, str, bool]
"""A part, its complete text, and whether the search text equals it."""
_MOST_DIGITS = 19
_LONGEST_RUN = 250
"""Maximum number of characters of a run_id in Airflow."""


def _rank(part: _Part) -> tuple[bool, bool, int]:
    """Return the sort key of a part. Names precede details.

    Equal texts precede texts that only contain the wanted text.
    """
    return part[0] is MatchedPart.DETAIL, not part[2], _PARTS.index(part[0])


@dataclass(frozen=True)
class TextMatch:
    """A transaction that matches a search.

    :param batch: name of its batch. See `batch_in_words`.
    :param part: part in which the text was found.
    :param text: complete text of the part.
    :param is_exact: whether the search text equals the part, or a file name.
    """

    view: TransactionView
    batch: str
    part: MatchedPart
    text: str
    is_exact: bool = False

    @property
    def is_named(self) -> bool:
        """Return whether the text is in a name, such as the run id, rather than in a detail of the batch."""
        return self.part is not MatchedPart.DETAIL

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Return the sort key of the match."""
        return _rank((self.part, self.text, self.is_exact))


@dataclass(frozen=True)
class TextFound:
    """The result of a search in one ledger.

    :param matches: matches in the order of their rank. Matches of equal rank are sorted newest first.
    :param looked: number of searched transactions.
    :param unknown: number of searched transactions for which the ledger keeps only a digest of the batch.
    :param complete: whether all transactions were searched, and `matches` has every match.
    """

    matches: tuple[TextMatch, ...] = ()
    looked: int = 0
    unknown: int = 0
    complete: bool = True


@dataclass(frozen=True)
class WantedText:
    """The search text: a part of a name, a txid, or a date. The search ignores case.

    :param what: the text.
    :param hide_name: function that hides the secrets in a batch name. A search does not find hidden text.
    :param hide_error: function that hides the secrets in an error.
    """

    what: str
    hide_name: Callable[[str], str] = str
    hide_error: Callable[[str], str] = str

    @property
    def txid(self) -> int | None:
        """Return the text as a txid, or None if it cannot be one."""
        is_number = self.what.isascii() and self.what.isdigit() and len(self.what) < _MOST_DIGITS
        return int(self.what) if is_number else None

    @property
    def run(self) -> str | None:
        """Return the text as a run_id, or None if it cannot be one."""
        return self.what if self.what.isprintable() and len(self.what) <= _LONGEST_RUN else None

    def match(self, view: TransactionView, metadata: Any, zone: str) -> TextMatch | None:
        """Find the highest-ranked part of a transaction that contains the text. Return None if no part does.

        :param metadata: metadata of the batch, or None if it is unknown.
        :param zone: time zone of the schedule, in which a date is a day.
        """
        named = min(self._names(view, metadata, zone), key=_rank, default=None)
        # Errors and details take longer to search, and have a lower rank.
        found = named or next(self._others(view, metadata), None)
        return None if found is None else TextMatch(view, batch_in_words(metadata), *found)

    def _names(self, view: TransactionView, metadata: Any, zone: str) -> Iterator[_Part]:
        if str(view.txid) == self.what:
            yield MatchedPart.TXID, str(view.txid), True
        for text in filter(self._is_in, (view.document.run_id, view.document.key)):
            yield MatchedPart.RUN, text, text.casefold() == self._folded
        for whole, name in batch_texts(metadata, self._folded):
            for text in self._shown((whole,), self.hide_name):
                yield MatchedPart.BATCH, text, self._is_whole(text, name)
        if self._is_dated(metadata, zone):
            yield MatchedPart.DATE, self.hide_name(batch_in_words(metadata)), False
        if view.status.casefold() == self._folded:
            yield MatchedPart.STATUS, view.status, False

    def _others(self, view: TransactionView, metadata: Any) -> Iterator[_Part]:
        for text in self._shown(_errors(view), self.hide_error):
            yield MatchedPart.ERROR, text, False
        details = (text for text, _ in batch_texts(metadata, self._folded, details=True))
        for text in self._shown(details, self.hide_name):
            yield MatchedPart.DETAIL, text, False
        if view.is_unreadable:  # its record cannot be searched, so the batch may match
            yield MatchedPart.DETAIL, self.hide_error(view.document.error or ""), False

    def _shown(self, texts: Iterable[str], hide: Callable[[str], str]) -> Iterator[str]:
        """Hide the secrets in some texts. Return the texts that still contain the search text.

        Only matching texts are processed, since hiding is slow.
        """
        return filter(self._is_in, map(hide, filter(self._is_in, texts)))

    def _is_whole(self, text: str, name: str) -> bool:
        """Return whether the text equals a name. It may omit a file's folder or a batch's range."""
        whole = text.casefold()
        return self._folded in (whole, whole.rpartition("/")[2], name.casefold())

    def _is_in(self, text: str) -> bool:
        return self._folded in text.casefold()

    @cached_property
    def _folded(self) -> str:
        return self.what.casefold()

    def _is_dated(self, metadata: Any, zone: str) -> bool:
        """Return whether the text is a date in the batch's data interval, or its partition's date."""
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
    """Yield the errors of a transaction and its earlier attempts."""
    yield from filter(None, (view.said, view.blocked))
    yield from (each.why for each in view.document.replays)


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
    """The transactions of one ledger, which a search reads.

    :param zone: time zone of the schedule, in which a date is a day.
    :param opened: open transactions, reduced to the parts that the user may see.
    :param final: txids of the final transactions.
    :param quotes: whether the user may read error texts.
    """

    store: Store
    paths: Paths
    zone: str
    opened: Sequence[TransactionView]
    final: Sequence[int]
    quotes: bool = True

    def named(self, wanted: WantedText) -> tuple[TextMatch, ...]:
        """Search transactions of any age whose txid or run id equals the text.

        :raises StoreError: the ledger cannot be read.
        """
        ledger = LedgerView(self.store, self.paths)
        bound = None if wanted.run is None else ledger.binding(wanted.run)
        txids = {*self.final, *self._opened} & {wanted.txid, None if bound is None else bound.txid}
        read = self._read(ledger, sorted(filter(None, txids), reverse=True))
        found = (wanted.match(view, rows, self.zone) for view, rows in read if view is not None)
        return self._restated([each for each in found if each is not None and each.is_exact])

    def look(
        self,
        wanted: WantedText,
        *,
        most: int,
        most_found: int = sys.maxsize,
        until: float = math.inf,
        has_left: Callable[[], bool] = lambda: False,
    ) -> TextFound:
        """Search the newest transactions.

        :param most: number of transactions to search, at most `MOST_LOOKED_THROUGH`.
        :param most_found: maximum number of matches to return.
        :param until: value of `time.monotonic` at which the search ends. It then returns its matches so far.
        :param has_left: function that returns whether the browser has disconnected. The search then ends.
        :raises StoreError: the ledger cannot be read.
        """
        ledger = LedgerView(self.store, self.paths)
        newest = [*sorted(self._opened, reverse=True), *reversed(self.final)]
        found: list[TextMatch] = []
        looked = unknown = named = 0
        for view, metadata in self._read(ledger, newest[: min(most, MOST_LOOKED_THROUGH)]):
            if named > most_found or time.monotonic() > until or has_left():
                break
            looked += 1
            unknown += is_shortened(metadata)
            match = None if view is None else wanted.match(view, metadata, self.zone)
            if match is not None:
                found.append(match)
                named += match.is_named
        ranked = sorted(found, key=lambda each: each.rank)
        is_whole = looked == len(newest) and len(found) <= most_found
        return TextFound(self._restated(ranked[:most_found]), looked, unknown, is_whole)

    @cached_property
    def _opened(self) -> Mapping[int, TransactionView]:
        return {each.txid: each for each in self.opened}

    def _read(
        self, ledger: LedgerView, txids: Iterable[int]
    ) -> Iterator[tuple[TransactionView | None, Any]]:
        """Yield each transaction with the metadata of its batch.

        The metadata is None if the ledger has forgotten the transaction.
        """
        for txid in txids:
            final, metadata = ledger.searched(txid)
            view = self._opened.get(txid, final)
            yield view if view is None or self.quotes else view.without_errors(), metadata

    def _restated(self, found: Sequence[TextMatch]) -> tuple[TextMatch, ...]:
        views = LedgerView(self.store, self.paths).with_restatements([each.view for each in found])
        return tuple(replace(each, view=view) for view, each in zip(views, found, strict=True))
