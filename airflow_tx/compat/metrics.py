"""The part of `compat` that is about metrics: they go where Airflow sends its own, by its section [metrics]."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import Enum

from airflow_tx.compat.tasks import is_test_run


class MetricKind(str, Enum):
    """How values of a metric become one."""

    COUNTER = "counter"
    GAUGE = "gauge"
    TIMER = "timer"


def sends_metrics() -> bool:
    from airflow.sdk._shared.observability.metrics import stats as own
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

    # Airflow has chosen it when the process began; to choose it reads the configuration.
    return (own._factory or get_stats_factory()) is not NoStatsLogger


def send_metric(
    kind: MetricKind, name: str, value: float, *, tags: Mapping[str, str], named: str
) -> None:
    """Send a value as Airflow sends its own: with tags, and, for servers without them, with one of them in its name.

    :param value: of a timer, seconds.
    :param named: the tag that is part of the name of the second one, which option legacy_names_on of [metrics] allows.
    """
    from airflow.sdk.configuration import conf
    from airflow.sdk.observability import stats

    if is_test_run():
        return  # a trial is no transaction that a dashboard should count
    _initialize()
    _send(kind, name, value, dict(tags))
    if conf.getboolean("metrics", "legacy_names_on", fallback=True):
        # A point would be another level of the name.
        last = stats.normalize_name_for_stats(tags[named].replace(".", "__"), log_warning=False)
        _send(
            kind, f"{name}.{last}", value, {tag: text for tag, text in tags.items() if tag != named}
        )


def _send(kind: MetricKind, name: str, value: float, tags: dict[str, str]) -> None:
    from airflow.sdk.observability import stats

    if kind is MetricKind.COUNTER:
        stats.incr(name, int(value), tags=tags)
    elif kind is MetricKind.TIMER:
        stats.timing(name, timedelta(seconds=value), tags=tags)
    else:
        stats.gauge(name, value, tags=tags)


def _initialize() -> None:
    """Let a process send metrics in which Airflow does not prepare it, as the triggerer and the command line."""
    from airflow.sdk._shared.observability.metrics import stats as own
    from airflow.sdk.configuration import conf
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

    if own._factory is None:
        legacy = conf.getboolean("metrics", "legacy_names_on", fallback=True)
        stats.initialize(factory=get_stats_factory(), export_legacy_names=legacy)
