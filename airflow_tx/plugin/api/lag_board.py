"""How far sources are ahead: asked in the background, so that nobody waits for a source."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_tx.plugin.api.ledger_snapshots import TopologySnapshot
from airflow_tx.plugin.api.models import LagLine, SourceLine


def lag_line(snapshot: TopologySnapshot) -> LagLine:
    return LagLine(why="It was not asked for yet.")


def source_line(snapshot: TopologySnapshot) -> SourceLine:
    record = snapshot.record
    return SourceLine(kind=record.source_kind, partitioned=record.partitioned)


def ask_for(snapshots: Sequence[TopologySnapshot]) -> None:
    """Let the lags of these topologies be asked for, unless that is under way."""
