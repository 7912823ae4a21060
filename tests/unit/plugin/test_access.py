"""Who may: how few requests are made of the auth manager, and what they find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.models.batch_apis import IsAuthorizedDagRequest
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.dag import DagModel

from airflow_tx.plugin.api import access as room
from airflow_tx.plugin.api.access import CREATE_RUNS, PAUSE, SEE_AUDIT, SEE_TASKS, SEE_XCOMS, Access

DAGS = [f"dag{number:03}" for number in range(200)]
UNSEEN, RUNS_UNREAD, NOT_EDITED = "dag007", "dag100", "dag150"


class Counted(SimpleAuthManager):
    """Counts requests, each of which goes to another server in an auth manager of a company."""

    def __init__(self, *, denies: bool) -> None:
        self.denies = denies
        self.requests = 0

    def is_authorized_dag(
        self, *, method: Any, user: Any, access_entity: Any = None, details: DagDetails | None = None
    ) -> bool:
        assert details is not None
        if not self.denies:
            return True
        if details.id == RUNS_UNREAD and access_entity is DagAccessEntity.RUN:
            return False
        return details.id != UNSEEN and (method == "GET" or details.id != NOT_EDITED)

    def batch_is_authorized_dag(
        self, requests: Sequence[IsAuthorizedDagRequest], *, user: SimpleAuthManagerUser
    ) -> bool:
        self.requests += 1
        return super().batch_is_authorized_dag(requests, user=user)

    def filter_authorized_dag_ids(
        self, *, dag_ids: set[str], user: Any, method: Any = "GET", team_name: str | None = None
    ) -> set[str]:
        self.requests += 1
        return super().filter_authorized_dag_ids(dag_ids=dag_ids, user=user, method=method, team_name=team_name)


def asked(monkeypatch: pytest.MonkeyPatch, *, denies: bool) -> tuple[Access, Counted]:
    manager = Counted(denies=denies)
    monkeypatch.setattr(room, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(DagModel, "get_dag_id_to_team_name_mapping", lambda dag_ids: {})
    return Access(SimpleAuthManagerUser(username="vera", role="viewer")), manager


def test_the_rights_of_a_user_on_many_dags_need_three_requests_to_the_auth_manager(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    access, manager = asked(monkeypatch, denies=False)
    assert access.readable(DAGS) == access.editable(DAGS) == set(DAGS)
    assert manager.requests == 3
    assert all(access.may_act(dag_id) for dag_id in DAGS)
    assert manager.requests == 3


def test_the_rights_on_many_dags_that_are_queried_together_equal_the_rights_on_each_dag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    access, manager = asked(monkeypatch, denies=True)
    readable = access.readable(DAGS)
    assert set(DAGS) - readable == {UNSEEN, RUNS_UNREAD}
    assert readable - access.editable(DAGS) == {NOT_EDITED}
    assert manager.requests < len(DAGS) / 2
    each, _ = asked(monkeypatch, denies=True)
    assert {dag_id for dag_id in DAGS if each.may_read(dag_id)} == readable
    assert {dag_id for dag_id in DAGS if each.may_act(dag_id)} == access.editable(DAGS)


def test_a_user_who_may_not_see_a_dag_has_no_right_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    access, _ = asked(monkeypatch, denies=True)
    assert (access.may_act("dag000"), access.may_act(UNSEEN)) == (True, False)
    for right in (CREATE_RUNS, PAUSE, SEE_TASKS, SEE_XCOMS, SEE_AUDIT):
        assert (access.may(right, "dag000"), access.may(right, UNSEEN)) == (True, False)
