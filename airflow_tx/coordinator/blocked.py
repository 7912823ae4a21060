"""The task that fails while a topology is blocked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException

from airflow_tx.operators import RetriedOperator
from airflow_tx.transaction import AlarmKind, TransactionSpec

if TYPE_CHECKING:
    from airflow.sdk import Context


def blocked_dag_id(coordinator: str) -> str:
    """Return the dag_id of the DAG whose run fails while the topology of a coordinator is blocked."""
    return f"{coordinator}_blocked"


class BlockedOperator(RetriedOperator):
    """The task that fails while a topology is blocked, and succeeds otherwise. `coordinator_dag` creates it.

    If two coordinators find the topology blocked, only the run that the ledger names fails.

    :param transaction: the `Transaction` block of the topology.
    """

    ui_color = "#fdebd0"

    def __init__(self, *, transaction: TransactionSpec, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.transaction = transaction

    def execute(self, context: Context) -> None:
        """Fail if the ledger marks the topology as blocked. Otherwise, succeed.

        :raises AirflowFailException: the topology is blocked for the reason that started this run.
        """
        from datetime import datetime, timezone

        spec = self.transaction
        with spec.store() as store:
            ledger = spec.ledger(store)
            opened = ledger.open_records()
            blocked = ledger.topology().blocked
            shown = ledger.raised_alarms().get(AlarmKind.BLOCKED.value)
        found = spec.alarm_topology.find(opened, blocked=blocked, now=datetime.now(timezone.utc))
        wanted = (context["dag_run"].conf or {}).get("of")
        due = (one for one in found if one.kind is AlarmKind.BLOCKED and wanted in (None, one.of))
        alarm = next(due, None)
        if alarm is None:
            self.log.info("Topology %s is not blocked", spec.topology)
        elif shown is not None and shown.of == alarm.of and shown.dag_id not in ("", self.dag_id):
            self.log.info(
                "Run %s of DAG %s already reports this alert: %s",
                shown.run_id,
                shown.dag_id,
                alarm.text,
            )
        else:
            raise AirflowFailException(alarm.text)
