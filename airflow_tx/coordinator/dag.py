"""`coordinator_dag`: the DAG that starts the runs of another one, and replays them, without a person."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from airflow.sdk import DAG

from airflow_tx.config import Settings
from airflow_tx.coordinator.blocked import BlockedOperator, blocked_dag_id
from airflow_tx.coordinator.lane_plan import GoesByRuns, LanePlan, lane_plan
from airflow_tx.coordinator.operator import CoordinateOperator
from airflow_tx.spec import TransactionSpec, coordinator_id
from airflow_tx.topology.transaction import Transaction, defined

log = logging.getLogger(__name__)

# @continuous wants one; any in the past does.
_EVER = datetime(2024, 1, 1, tzinfo=timezone.utc)


def coordinator_dag(
    transaction: str | Transaction,
    *,
    dag_id: str | None = None,
    max_replays: int | None = None,
    replay_backoff: float | None = None,
    poll: float | None = None,
    linger: float | None = None,
    lane: bool | None = None,
    **dag_options: Any,
) -> DAG:
    """Make the DAG `<topology>_coordinator`, whose one task runs for ever, and one that is red while it is blocked.

        with DAG("flights", schedule=None, max_active_runs=8):
            with Transaction(source=FileSource("data/flights/*.csv"), max_pending=4):
                ...

        coordinator_dag("flights")

    It starts a run for each batch as soon as the source has one and `max_pending` allows, and replays transactions
    whose run failed, was deleted, takes longer than `message_timeout`, or starts where the one before it does not end
    any more; after `max_replays` in a row it marks the topology as blocked and says why. Manually triggered and
    scheduled runs still work next to it. Of a source whose batch is the run's own it only replays, unless it has a
    lane: that takes the data intervals of the schedule one after the other, with ``DataIntervalSource(in_order=True)``.

    :param transaction: name of the topology, whose DAG stands above in the same file; or its `Transaction`.
    :param dag_id: default: `<topology>_coordinator`. The other DAG is called `<dag_id>_blocked`: a run of it fails when
        the topology is blocked, and is green once the way is free, see `docs/alarms.md`.
    :param max_replays: how many automatic replays in a row; default: `[tx] max_replays`.
    :param replay_backoff: seconds before the first replay; default: `[tx] replay_backoff`.
    :param poll: seconds between two looks; default: `[tx] coordinator_poll`.
    :param linger: seconds that it stays in its worker after it did something; default: `[tx] coordinator_linger`.
    :param lane: whether it processes and commits transactions itself, in its own worker, and makes runs of those alone
        that go wrong there, see `docs/lane.md`; default: `[tx] lane`. Where a task needs a run, all of them are runs.
    :param dag_options: of the DAG, such as `tags` or `default_args`.
    :raises TransactionDefinitionError: there is no such transaction above.
    """
    spec, of = defined(
        transaction.topology if isinstance(transaction, Transaction) else transaction
    )
    spec = replace(spec, coordinated=True)
    begin: Any = of.get_task(spec.begin)
    begin.transaction = spec
    plan, note = _plan(spec, of, Settings.load().lane if lane is None else lane)
    spec = spec if plan is None else plan.spec
    does = "Starts and replays" if spec.allocates else "Replays, but does not start,"
    options: dict[str, Any] = {
        "start_date": _EVER,
        "description": f"{does} the transactions of {spec.topology}{note}",
        **dag_options,
        "schedule": "@continuous",
        "max_active_runs": 1,
        "catchup": False,
    }
    options.setdefault("is_paused_upon_creation", False)
    name = dag_id or coordinator_id(spec.topology)
    with DAG(name, **options) as dag:
        CoordinateOperator(
            task_id="coordinate",
            transaction=spec,
            max_replays=max_replays,
            replay_backoff=replay_backoff,
            poll=poll,
            linger=linger,
            lane=plan,
        )
    description = f"Fails while {spec.topology} is blocked; {name} starts its runs"
    shown = {"schedule": None, "description": description, "is_paused_upon_creation": False}
    with DAG(blocked_dag_id(name), **{**options, **shown}):
        BlockedOperator(task_id="blocked", transaction=spec)
    return dag


def _plan(spec: TransactionSpec, dag: DAG, wanted: bool) -> tuple[LanePlan | None, str]:
    """Give the plan of a lane; without one, the note that says why."""
    if not wanted:
        return None, ""
    try:
        return lane_plan(spec, dag), ", undisturbed ones in its lane"
    except GoesByRuns as error:
        log.warning("%s", error)
        return None, f". {error}"
