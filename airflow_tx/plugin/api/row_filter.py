"""Which rows of a timeline a viewer wants to see: chosen by the server, of a bounded number of transactions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from functools import lru_cache
from math import ceil
from typing import Annotated

from fastapi import Depends, Query

from airflow_tx.plugin.api.ledger_snapshots import TopologySnapshot
from airflow_tx.plugin.api.redaction import EVERY_SECONDS, redacted, without_credentials
from airflow_tx.protocol.records import Outcome, Phase
from airflow_tx.protocol.status import TransactionView

MOST_LOOKED = 1000
"""Transactions that one answer looks through at most: the newest ones."""
_LONGEST_TEXT = 200
_LONGEST_RUN_ID = 250
_SLOW = 0.95


class RowStatus(str, Enum):
    """The status of a row, as the timeline shows it."""

    PROCESSING = Phase.PROCESSING.value
    PROCESSED = Phase.PROCESSED.value
    COMMITTING = Phase.COMMITTING.value
    FAILED = Phase.FAILED.value
    BLOCKED = "BLOCKED"
    COMMITTED = Outcome.COMMITTED.value
    SKIPPED = Outcome.SKIPPED.value
    READMITTED = Outcome.READMITTED.value


class RowMark(str, Enum):
    """A property of a row that a viewer may ask for.

    A restated row restates another transaction, or was restated, or is to be restated. A replayed row has more than
    one attempt. A slow row takes longer than 95 of 100 committed transactions.
    """

    RESTATED = "restated"
    REPLAYED = "replayed"
    SLOW = "slow"


@dataclass(frozen=True)
class RowFilter:
    """The conditions that a row has to meet, all of them; an empty condition is met by every row.

    :param status: one of these.
    :param text: a part of its run id, of the name of its batch, or of an error, in upper or lower case.
    :param run: its run id.
    :param marks: each of these.
    """

    status: frozenset[RowStatus] = frozenset()
    text: str = ""
    run: str = ""
    marks: frozenset[RowMark] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether every row meets it."""
        return self == EVERY_ROW


EVERY_ROW = RowFilter()


def row_filter(
    status: Annotated[list[RowStatus] | None, Query(max_length=len(RowStatus))] = None,
    text: Annotated[str, Query(max_length=_LONGEST_TEXT)] = "",
    run: Annotated[str, Query(max_length=_LONGEST_RUN_ID)] = "",
    only: Annotated[list[RowMark] | None, Query(max_length=len(RowMark))] = None,
) -> RowFilter:
    """Read the filter of a request."""
    return RowFilter(frozenset(status or ()), text.strip().lower(), run, frozenset(only or ()))


RowFilterDep = Annotated[RowFilter, Depends(row_filter)]


@dataclass(frozen=True)
class ChosenRows:
    """The transactions that a filter lets through.

    :param txids: in order.
    :param oldest: the oldest transaction that was looked at; None: there is none that is older.
    :param slow: seconds beyond which a transaction is slow; None: that was not asked, or none is committed.
    """

    txids: Sequence[int]
    oldest: int | None
    slow: float | None


def chosen_rows(
    snapshot: TopologySnapshot, txids: Sequence[int], wanted: RowFilter, now: datetime | None = None
) -> ChosenRows:
    """Choose among the newest of these transactions."""
    looked = txids[-MOST_LOOKED:]
    at = now or datetime.now(timezone.utc)
    slow = slow_beyond(snapshot) if RowMark.SLOW in wanted.marks else None
    found = [
        view.txid
        for view in snapshot.transaction_views(looked)
        if _is_wanted(view, wanted) and _is_slow_enough(view, wanted, slow, at)
    ]
    return ChosenRows(found, looked[0] if len(looked) < len(txids) else None, slow)


def slow_beyond(snapshot: TopologySnapshot) -> float | None:
    """Find the seconds that 95 of 100 committed transactions do not exceed: of the newest ones of the history."""
    views = (snapshot.final_view(txid) for txid in snapshot.final[-MOST_LOOKED:])
    committed = (
        _seconds(view, view.ended)
        for view in views
        if view is not None and view.ended is not None and view.status == Outcome.COMMITTED.value
    )
    ordered = sorted(each for each in committed if each is not None)
    return ranked(ordered, _SLOW) if ordered else None


def ranked(ordered: Sequence[float], share: float) -> float:
    """Find the value that this share of values, of which there are some, does not exceed."""
    return ordered[ceil(share * len(ordered)) - 1]


def begun_at(view: TransactionView) -> datetime | None:
    """Say when a transaction began; None: that is forgotten."""
    return view.created or view.began


def _seconds(view: TransactionView, end: datetime) -> float | None:
    begun = begun_at(view)
    return None if begun is None else (end - begun).total_seconds()


def _is_wanted(view: TransactionView, wanted: RowFilter) -> bool:
    return (
        (not wanted.status or _status(view) in wanted.status)
        and (not wanted.run or view.run_id == wanted.run)
        and (RowMark.REPLAYED not in wanted.marks or view.attempt > 1)
        and (RowMark.RESTATED not in wanted.marks or _is_restated(view))
        and (not wanted.text or any(wanted.text in each.lower() for each in _texts(view)))
    )


def _is_slow_enough(
    view: TransactionView, wanted: RowFilter, slow: float | None, now: datetime
) -> bool:
    if RowMark.SLOW not in wanted.marks:
        return True
    seconds = _seconds(view, view.ended or now)
    return slow is not None and seconds is not None and seconds > slow


def _status(view: TransactionView) -> str:
    if view.open and view.blocked is not None:
        return RowStatus.BLOCKED.value
    return RowStatus.FAILED.value if view.failed else view.status


def _is_restated(view: TransactionView) -> bool:
    return (view.restates, view.restated_by, view.restate) != (None, None, None)


def _texts(view: TransactionView) -> Iterator[str]:
    """Give the texts of a row that the page shows: a search must not find a text that the page hides."""
    yield view.run_id
    yield without_credentials(view.batch)
    errors = (view.error, view.blocked, *(each["why"] for each in view.replays))
    period = time.monotonic() // EVERY_SECONDS
    yield from (_shown(each, period) for each in errors if each)


@lru_cache(maxsize=MOST_LOOKED)
def _shown(error: str, period: float) -> str:
    """Redact an error once in each period in which the connections are the same: viewers ask every two seconds.

    Do not search the stored error first to save time: then the time of an answer tells what the page hides.
    """
    return redacted(error)
