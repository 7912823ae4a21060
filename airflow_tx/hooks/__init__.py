"""The ZooKeeper hook, and the ZooKeeper clients shared within a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.hooks.zookeeper import (
        KeptClient as KeptClient,
        ZooKeeperHook as ZooKeeperHook,
        shared_store as shared_store,
        shared_watched_store as shared_watched_store,
    )

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
