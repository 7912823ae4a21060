"""The raised alerts of a topology. If several processes detect the same problem, only one raises the alert."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_tx.ledger.answers import AlarmNoted
from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import AlarmNote, RaisedAlarms, encode
from airflow_tx.ledger.steps.step import Decision, Stamp, put_or_create


def raised_alarms(read: Reader, paths: Paths) -> Mapping[str, AlarmNote]:
    """Read the raised alerts of the topology, by kind."""
    return (read.peek_if_any(RaisedAlarms, paths.alarms) or RaisedAlarms()).raised


def note_alarm(
    read: Reader, stamp: Stamp, paths: Paths, kind: str, note: AlarmNote | None
) -> Decision[AlarmNoted]:
    """Record that an alert of this kind is raised for a subject.

    If several processes do this, only the first one records it.

    :param note: the subject of the alert. None if the alert has ended.
    """
    record = read.find(RaisedAlarms, paths.alarms) or RaisedAlarms()
    before = record.raised.get(kind)
    if (before and before.of) == (note and note.of):
        return Decision(AlarmNoted(first=False))
    raised = {name: each for name, each in record.raised.items() if name != kind}
    if note is not None:
        raised[kind] = replace(note, when=stamp.now)
    write = put_or_create(read, paths.alarms, encode(replace(record, raised=raised, op=stamp.op)))
    return Decision(AlarmNoted(first=True), (write,), paths.alarms)
