"""Who may: every route asks Airflow's auth manager. What a user may not see does not exist for that user."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Request, status

FORGERY_HEADER = "X-Requested-With"
"""A header that no page of another origin can send unless this server lets it."""
FORGERY_MARK = "airflow_tx"


class Access:
    """What one user may do.

    :param user: as the auth manager knows the user.
    """

    def __init__(self, user: BaseUser) -> None:
        self.user = user
        self._teams: dict[str, str | None] = {}

    @property
    def name(self) -> str:
        """Name the user for the audit."""
        return self.user.get_name()

    def know(self, dag_ids: Iterable[str]) -> None:
        """Look up the teams of these DAGs, all of them at once."""
        wanted = sorted(set(dag_ids) - self._teams.keys())
        if wanted:
            found = DagModel.get_dag_id_to_team_name_mapping(wanted)
            self._teams.update({dag_id: found.get(dag_id) for dag_id in wanted})

    def may_read(self, dag_id: str) -> bool:
        """Ask whether the user may read the runs of a DAG."""
        return self._may("GET", dag_id, DagAccessEntity.RUN)

    def may_act(self, dag_id: str) -> bool:
        """Ask whether the user may edit the runs of a DAG."""
        return self.may_read(dag_id) and self._may("PUT", dag_id, DagAccessEntity.RUN)

    def may_pause(self, dag_id: str) -> bool:
        """Ask whether the user may edit a DAG itself."""
        return self.may_read(dag_id) and self._may("PUT", dag_id, None)

    def _may(self, method: ResourceMethod, dag_id: str, entity: DagAccessEntity | None) -> bool:
        self.know([dag_id])
        details = DagDetails(id=dag_id, team_name=self._teams[dag_id])
        return get_auth_manager().is_authorized_dag(
            method=method, access_entity=entity, details=details, user=self.user
        )


def access_of(user: GetUserDep) -> Access:
    """Make the access of the user who is logged in.

    :raises HTTPException: 401: nobody is.
    """
    return Access(user)


AccessDep = Annotated[Access, Depends(access_of)]


def _own_hosts(request: Request) -> set[str]:
    """Name the hosts under which a browser may know this server; a proxy may have rewritten the header Host."""
    proxied = request.headers.get("x-forwarded-host", "").split(",")
    base = urlsplit(conf.get("api", "base_url", fallback="") or "").netloc
    return {request.headers.get("host", ""), base, *(each.strip() for each in proxied)} - {""}


def check_same_origin(request: Request) -> None:
    """Refuse a request that a page of another origin may have sent with the cookie of a user.

    :raises HTTPException: 415: it is no JSON; 403: it does not come from the board.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(status.HTTP_415_UNSUPPORTED_MEDIA_TYPE, "Send application/json.")
    if request.headers.get(FORGERY_HEADER) != FORGERY_MARK:
        raise HTTPException(status.HTTP_403_FORBIDDEN, f"Send the header {FORGERY_HEADER}: {FORGERY_MARK}.")
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        same = site == "same-origin"
    else:
        same = origin is None or urlsplit(origin).netloc in _own_hosts(request)
    if not same:
        raise HTTPException(status.HTTP_403_FORBIDDEN, "This request comes from another site.")
