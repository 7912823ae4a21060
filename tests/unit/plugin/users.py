"""Users of the page who may read all."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from airflow_tx.plugin.api.access import Access, Right


class Anybody:
    """A user who may read all."""

    def __init__(self, *, acts: bool) -> None:
        self._acts = acts

    def may_act(self, dag_id: str) -> bool:
        return self._acts

    def having(self, right: Right, dag_ids: Collection[str]) -> set[str]:
        return set(dag_ids)


def user(*, acts: bool = True) -> Access:
    return cast(Access, Anybody(acts=acts))
