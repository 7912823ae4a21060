"""How far sources are ahead: each is asked now and then in the background, and no viewer waits for an answer."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_tx.base.errors import TxError
from airflow_tx.ledger.status import Words
from airflow_tx.plugin.api.dag_process import DagProcess, dag_process
from airflow_tx.plugin.api.snapshots import TopologySnapshot
from airflow_tx.transaction.alarms import AlarmLimits


@dataclass(frozen=True, kw_only=True)
class SourceLine:
    """The source of a topology.

    :param kind: transactional, opaque or non-transactional.
    :param description: the source as its DAG file names it; null as long as that was not read.
    """

    kind: str
    partitioned: bool
    description: Words | None = None


@dataclass(frozen=True, kw_only=True)
class LagLine:
    """How much data a source has that no transaction has taken.

    :param value: null: it is not known, `why` says why.
    :param at: when the source was asked.
    """

    value: int | None = None
    unit: str | None = None
    at: datetime | None = None
    why: Words | None = None


@dataclass(frozen=True, kw_only=True)
class AckersLine:
    """The ackers of a topology whose tasks emit messages.

    :param trees: of messages, that are not complete.
    :param acks_a_second: messages that were acked lately; null: they were asked once only.
    :param at: when they were asked.
    """

    trees: int
    acks_a_second: float | None
    at: datetime


EVERY = 15.0
"""Seconds between two questions to a source."""
_PATIENCE = 60.0
_MOST_SEEN = 240
_Key = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class LagPoint:
    """The lag of the source when it was asked."""

    at: datetime
    value: int


class LagBoard:
    """The last answers of all sources."""

    def __init__(self, process: DagProcess | None = None) -> None:
        self._process = process or dag_process()
        self._lock = threading.Lock()
        self._asked_at: dict[_Key, float] = {}
        self._found: dict[_Key, tuple[datetime, Mapping[str, Any]]] = {}
        self._seen: dict[_Key, deque[LagPoint]] = {}
        self._thread: threading.Thread | None = None

    def lag_line(self, snapshot: TopologySnapshot) -> LagLine:
        """Say how far the source of a topology is ahead, as far as is known, and when that was asked."""
        if _key(snapshot) not in self._found:
            return LagLine(why="Its source has not answered yet.")
        at, found = self._found[_key(snapshot)]
        if "count" in found:
            return LagLine(value=found["count"], unit=found["unit"], at=at)
        return LagLine(at=at, why=found["why"])

    def ackers_line(self, snapshot: TopologySnapshot) -> AckersLine | None:
        """Say what the ackers of a topology do, as far as is known."""
        at, found = self._found.get(_key(snapshot), (None, {}))
        load = found.get("ackers")
        return None if at is None or load is None else AckersLine(**load, at=at)

    def seen(self, snapshot: TopologySnapshot) -> Sequence[LagPoint]:
        """Give the lags that this api-server has seen, the oldest first: it asks while a person looks."""
        return tuple(self._seen.get(_key(snapshot), ()))

    def limits(self, snapshot: TopologySnapshot) -> AlarmLimits:
        """Say when a topology is late, as its DAG file says it; no limits as long as that was not read."""
        _, found = self._found.get(_key(snapshot), (None, {}))
        return AlarmLimits(**found.get("limits", {}))

    def source_line(self, snapshot: TopologySnapshot) -> SourceLine:
        """Say what a topology reads."""
        _, found = self._found.get(_key(snapshot), (None, {}))
        record = snapshot.record
        return SourceLine(
            kind=record.source_kind,
            partitioned=record.partitioned,
            description=found.get("description"),
        )

    def ask_for(self, snapshots: Sequence[TopologySnapshot]) -> None:
        """Ask for the lags of these topologies, if the last answer is old."""
        now = time.monotonic()
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            due = [
                each
                for each in snapshots
                if now - self._asked_at.get(_key(each), float("-inf")) >= EVERY
            ]
            if not due:
                return
            self._asked_at.update({_key(each): now for each in due})
            self._thread = threading.Thread(
                target=self._ask, args=(due,), name="airflow_tx-lags", daemon=True
            )
            self._thread.start()

    def _ask(self, due: Sequence[TopologySnapshot]) -> None:
        asked = [
            (
                each.name,
                each.record.dag_id,
                each.place.conn_id,
                each.paths.root,
                each.paths.topology,
            )
            for each in due
        ]
        try:
            found = self._process.ask({"lags": asked}, seconds=_PATIENCE)
        except TxError as error:
            found = {each.name: {"why": str(error)} for each in due}
        now = datetime.now(timezone.utc)
        for each in due:
            answer = found[each.name]
            at = now - timedelta(seconds=answer.get("age", 0.0))
            self._found[_key(each)] = (at, answer)
            if "count" in answer:
                self._seen.setdefault(_key(each), deque(maxlen=_MOST_SEEN)).append(
                    LagPoint(at=at, value=answer["count"])
                )


def _key(snapshot: TopologySnapshot) -> _Key:
    """Give what a lag is known by: another DAG of the topology has another source."""
    return snapshot.name, snapshot.record.dag_id


_lag_board = LagBoard()


def lag_board() -> LagBoard:
    """Return the one of this process."""
    return _lag_board
