"""Parse dates that a person types, and read and write data intervals in run keys and positions."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo

Interval: TypeAlias = tuple[datetime, datetime]


class Span(NamedTuple):
    """The time that a date means: a day from `start` to `end`, exclusive, or a moment with `start` equal to `end`."""

    start: datetime
    end: datetime

    @property
    def last(self) -> datetime:
        """The last moment of the span."""
        return self.end if self.start == self.end else self.end - timedelta(microseconds=1)


def span_of(what: str, zone: str | None = "") -> Span:
    """Parse a date. A date without a time is the whole day.

    :param what: ISO date or time.
    :param zone: zone of a date without a zone, such as Europe/Berlin or an offset. "" is UTC; None adds no zone.
    :raises ValueError: the text is not a date.
    """
    moment = datetime.fromisoformat(f"{what[:-1]}+00:00" if what.endswith("Z") else what)
    end = moment + timedelta(days=1) if len(what) <= len("2013-05-04") else moment
    if zone is None or moment.tzinfo is not None:
        return Span(moment, end)
    where = _zone(zone)
    return Span(_in_utc(moment, where), _in_utc(end, where))


def _zone(zone: str) -> tzinfo:
    if zone[:1] in ("+", "-"):
        return datetime.strptime(zone, "%z").tzinfo or timezone.utc
    return ZoneInfo(zone) if zone else timezone.utc


def _in_utc(moment: datetime, zone: tzinfo) -> datetime:
    """Convert a time like Airflow's schedules. Of a repeated hour, use the second; for a skipped hour, the next."""
    both = (moment.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    return max(each.astimezone(timezone.utc) for each in both)


# --- data intervals -----------------------------------------------------------------------------------------------


def key_of_interval(interval: Interval) -> str:
    """Return the run key of an interval."""
    return f"interval:{dates_of(interval)}"


def interval_of_key(key: str) -> Interval | None:
    """Return the interval that a run key names; None if it names no interval."""
    kind, _, dates = key.partition(":")
    try:
        start, end = map(datetime.fromisoformat, dates.split("/"))
        return (start, end) if kind == "interval" else None
    except ValueError:
        return None


def order_end(position: Any) -> datetime:
    """Return the end of the last interval in the order of txids, where the next interval begins."""
    return max(datetime.fromisoformat(end) for _, end in position["intervals"])


def order_from(start: datetime) -> Any:
    """Return the position before the first transaction of an order that begins at `start`."""
    return {"intervals": [[iso(start), iso(start)]]}


def iso(moment: datetime) -> str:
    """Return a moment in UTC as ISO text."""
    return moment.astimezone(timezone.utc).isoformat()


def dates_of(interval: Interval) -> str:
    """Return an interval in UTC as ISO text."""
    return f"{iso(interval[0])}/{iso(interval[1])}"
