"""Parse typed dates. Convert data intervals to run keys and positions, and back."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo

Interval: TypeAlias = tuple[datetime, datetime]


class Span(NamedTuple):
    """The span of a date: a day from `start` to `end`, exclusive. For a moment, `start` equals `end`."""

    start: datetime
    end: datetime

    @property
    def last(self) -> datetime:
        """The last moment of the span."""
        return self.end if self.start == self.end else self.end - timedelta(microseconds=1)


def span_of(what: str, zone: str | None = "") -> Span:
    """Parse a date. A date without a time means the whole day.

    :param what: ISO date or time.
    :param zone: default time zone of the date, such as Europe/Berlin or an offset. "" means UTC. None adds no time
        zone.
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
    """Convert a local time as Airflow's schedules do. A time that occurs twice becomes the second one.

    A skipped time becomes one hour later.
    """
    both = (moment.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    return max(each.astimezone(timezone.utc) for each in both)


# --- data intervals -----------------------------------------------------------------------------------------------


def key_of_interval(interval: Interval) -> str:
    """Return the run key of a data interval."""
    return f"interval:{dates_of(interval)}"


def interval_of_key(key: str) -> Interval | None:
    """Return the data interval of a run key, or None if it has none."""
    kind, _, dates = key.partition(":")
    try:
        start, end = map(datetime.fromisoformat, dates.split("/"))
        return (start, end) if kind == "interval" else None
    except ValueError:
        return None


def order_end(position: Any) -> datetime:
    """Return the end of the last interval in the order of txids. The next interval begins there."""
    return max(datetime.fromisoformat(end) for _, end in position["intervals"])


def order_from(start: datetime) -> Any:
    """Return the position before the first transaction, if the order of txids starts at `start`."""
    return {"intervals": [[iso(start), iso(start)]]}


def iso(moment: datetime) -> str:
    """Format a moment as ISO text in UTC."""
    return moment.astimezone(timezone.utc).isoformat()


def dates_of(interval: Interval) -> str:
    """Format an interval as ISO text in UTC."""
    return f"{iso(interval[0])}/{iso(interval[1])}"
