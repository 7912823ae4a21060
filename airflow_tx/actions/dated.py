"""The transactions of dates: a person names days, for the command and the board alike."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from airflow_tx import compat
from airflow_tx.errors import ConfigError
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Binding
from airflow_tx.sources.dates import Span, key_of_interval, span_of

if TYPE_CHECKING:
    from airflow_tx.actions.action import ActionTarget


def dated_transactions(target: ActionTarget, first: str, last: str) -> list[int]:
    """Find the transactions that count for the data intervals from one date to another.

    :raises ConfigError: one is no date, the runs have no dates, or no date has a transaction.
    """
    spec, _ = target.dag()
    if spec.source.dated is None:
        remedy = f"Its runs have no dates: airflow tx restate {target.topology} TXID ... --why TEXT"
        raise ConfigError(option="--from, --to", value=type(spec.source).__name__, remedy=remedy)
    intervals = compat.scheduled_intervals(spec.dag_id, *dates_between(first, last, spec.zone))
    read = Reader(target.ledger.store)
    found = [
        read.peek_if_any(Binding, target.ledger.paths.run(key_of_interval((each.start, each.end))))
        for each in intervals
    ]
    txids = [binding.txid for binding in found if binding is not None]
    if not txids:
        remedy = f"None of the {len(intervals)} intervals between these dates has a transaction."
        raise ConfigError(option="--from, --to", value=f"{first}, {last}", remedy=remedy)
    return txids


def dates_between(first: str, last: str, zone: str) -> tuple[datetime, datetime]:
    """Read `--from` and `--to`: the first and the last moment.

    :param zone: of the schedule, in which a date is a day.
    :raises ConfigError: one of them is no date.
    """
    return _span("--from", first, zone).start, _span("--to", last, zone).last


def _span(option: str, what: str, zone: str) -> Span:
    try:
        return span_of(what, zone)
    except ValueError:
        remedy = "Give a day such as 2026-01-31, or a time such as 2026-01-31T06:00:00+00:00."
        raise ConfigError(option=option, value=what, remedy=remedy) from None
