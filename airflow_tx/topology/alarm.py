"""What a `Transaction` says of its alarms, checked when its file is parsed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow_tx.alarms import AlarmCallback, AlarmCallbacks, AlarmLimits
from airflow_tx.sources.api import Source
from airflow_tx.spec import TransactionSpec
from airflow_tx.topology.rules import refusal


def with_alarms(
    spec: TransactionSpec,
    on_blocked: AlarmCallback | Sequence[AlarmCallback],
    on_late: AlarmCallback | Sequence[AlarmCallback],
    late_after: timedelta | None,
    max_lag: int | None,
) -> TransactionSpec:
    """Give a transaction its alarms.

    :raises TransactionDefinitionError: they can never be raised, or nobody can be called.
    """
    callbacks = AlarmCallbacks(_callbacks(spec, "on_blocked", on_blocked), _callbacks(spec, "on_late", on_late))
    if callbacks.on_late and late_after is None and max_lag is None:
        raise refusal(spec, "on_late has no limit", "Add late_after=timedelta(hours=1), or max_lag=100_000.")
    if not callbacks.on_late and not (late_after is None and max_lag is None):
        limit = "max_lag" if late_after is None else "late_after"
        raise refusal(spec, f"{limit} has no on_late", "Say who is to be called: on_late=...")
    if late_after is not None and (not isinstance(late_after, timedelta) or late_after <= timedelta(0)):
        raise refusal(spec, f"late_after={late_after!r}", "Give a timedelta above 0: late_after=timedelta(hours=1).")
    if max_lag is not None:
        _check_lag(spec, max_lag)
    seconds = None if late_after is None else late_after.total_seconds()
    return replace(spec, callbacks=callbacks, limits=AlarmLimits(seconds, max_lag))


def _check_lag(spec: TransactionSpec, max_lag: Any) -> None:
    source = spec.source
    if isinstance(max_lag, bool) or not isinstance(max_lag, int) or max_lag < 0:
        raise refusal(spec, f"max_lag={max_lag!r}", "Give a whole number of rows, or files: max_lag=100_000.")
    if source.per_run or type(source).backlog is Source.backlog:
        problem = f"max_lag={max_lag} of source {type(source).__name__}, which has no lag"
        raise refusal(spec, problem, "Remove max_lag; late_after=timedelta(...) is for every source.")


def _callbacks(
    spec: TransactionSpec, name: str, given: AlarmCallback | Sequence[AlarmCallback]
) -> tuple[AlarmCallback, ...]:
    found = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    for each in found:
        if not callable(each):
            raise refusal(spec, f"{name}={each!r} cannot be called", "Give a function of one argument, or a notifier.")
    return found
