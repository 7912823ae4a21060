"""Triggers, which run in the triggerer and wait for events in a ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.triggers.base import (
        LedgerTrigger as LedgerTrigger,
        WaitTrigger as WaitTrigger,
        until as until,
    )
    from airflow_tx.triggers.order import OrderTrigger as OrderTrigger, ReadyTrigger as ReadyTrigger
    from airflow_tx.triggers.sensor import (
        CommittedTrigger as CommittedTrigger,
        commit_of as commit_of,
        missing_topology as missing_topology,
    )
    from airflow_tx.triggers.turn import (
        MessagesTrigger as MessagesTrigger,
        TurnTrigger as TurnTrigger,
    )
    from airflow_tx.triggers.watcher import (
        CommitsTrigger as CommitsTrigger,
        committed_asset as committed_asset,
    )

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
