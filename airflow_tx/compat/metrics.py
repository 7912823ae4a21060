"""Metrics, as Airflow's own are sent."""

from __future__ import annotations

from collections.abc import Mapping


def sends_metrics() -> bool:
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

    return get_stats_factory() is not NoStatsLogger


def send_gauge(name: str, value: float, *, tags: Mapping[str, str], named: str) -> None:
    """Send a gauge as Airflow sends its own: with tags, and, for servers without them, with one of them in its name.

    :param named: the tag that is part of the name of the second one, which option legacy_names_on of [metrics] allows.
    """
    from airflow.sdk.configuration import conf
    from airflow.sdk.observability import stats

    stats.gauge(name, value, tags=dict(tags))
    if conf.getboolean("metrics", "legacy_names_on", fallback=True):
        # A point would be another level of the name.
        last = stats.normalize_name_for_stats(tags[named].replace(".", "__"), log_warning=False)
        stats.gauge(f"{name}.{last}", value, tags={tag: text for tag, text in tags.items() if tag != named})
