"""Why a task failed, as the ledger keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException

from airflow_tx import compat
from airflow_tx.errors import TxError

if TYPE_CHECKING:
    from airflow.sdk import Context


def failure_reason(context: Context) -> str:
    """Name the task and its error, for the ledger; of an error in the JVM its root cause."""
    from airflow_tx.spark.failure import jvm_cause

    task = f"task {context['ti'].task_id}"
    error = context.get("exception")
    if not isinstance(error, BaseException):
        return compat.masked(f"{task}: {type(error).__name__}: {error}") if error else task
    return compat.masked(f"{task}: {jvm_cause(error) or f'{type(error).__name__}: {error}'}")


def noted_reason(context: Context, refusal: TxError | None) -> str:
    """Give the reason that the ledger keeps: a refusal that only a person can end has its own words."""
    if refusal is not None and refusal.for_good:
        return compat.masked(str(refusal))
    return failure_reason(context)


def refusal_of(context: Context) -> TxError | None:
    """Give the refusal that a task failed by; None: it failed by another error."""
    error = context.get("exception")
    # A refusal that another try would meet again was raised as Airflow's own exception.
    refusal = error.__context__ if isinstance(error, AirflowFailException) else error
    return refusal if isinstance(refusal, TxError) else None


def advice_of(refusal: TxError | None) -> str | None:
    """Give what a refusal says to do, for the ledger; None: nothing, or it was another error."""
    return None if refusal is None or refusal.advice is None else compat.masked(refusal.advice)
