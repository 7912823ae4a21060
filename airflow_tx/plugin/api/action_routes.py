"""The routes that act: a preview, and then the action itself, refused if something has changed in between."""

from __future__ import annotations

from fastapi import APIRouter, Depends, HTTPException, status

from airflow_tx.actions.request import ActionName
from airflow_tx.plugin.api.access import Access, AccessDep, check_same_origin
from airflow_tx.plugin.api.action_models import ActionAnswer, ActionBody, PreviewAnswer, PreviewBody
from airflow_tx.plugin.api.models import Problem
from airflow_tx.plugin.api.topology_routes import topology_for

PROBLEMS_OF_ACTIONS = {code: {"model": Problem} for code in (401, 403, 404, 409, 415, 503)}

action_router = APIRouter(
    prefix="/api/v1/topologies/{topology:path}/actions",
    dependencies=[Depends(check_same_origin)],
    responses=PROBLEMS_OF_ACTIONS,  # type: ignore[arg-type]
)


def _check(access: Access, topology: str) -> None:
    snapshot = topology_for(access, topology)
    if not access.may_act(snapshot.record.dag_id):
        raise HTTPException(status.HTTP_403_FORBIDDEN, f"You may not edit the runs of DAG {snapshot.record.dag_id}.")


@action_router.post("/{action}/preview")
def preview_action(access: AccessDep, topology: str, action: ActionName, body: PreviewBody) -> PreviewAnswer:
    """Say what an action would do, and change nothing."""
    _check(access, topology)
    raise HTTPException(status.HTTP_501_NOT_IMPLEMENTED, "Not yet.")


@action_router.post("/{action}")
def execute_action(access: AccessDep, topology: str, action: ActionName, body: ActionBody) -> ActionAnswer:
    """Do what was previewed; 409 if something has changed since, or it is refused."""
    _check(access, topology)
    raise HTTPException(status.HTTP_501_NOT_IMPLEMENTED, "Not yet.")
