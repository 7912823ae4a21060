"""Where an action is done: here, or, if it needs the source or the states, in the process that runs DAG files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from pydantic import TypeAdapter

from airflow_tx.actions.action import ActionTarget, PersonalAction
from airflow_tx.actions.preview import EffectLine, PreviewAnswer
from airflow_tx.actions.request import ActionRequest
from airflow_tx.config import Settings
from airflow_tx.plugin.api.dag_process import dag_process
from airflow_tx.plugin.api.ledger_client import ledger_client
from airflow_tx.protocol.api import SystemClock, SystemIds
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.records import TopologyRecord
from airflow_tx.protocol.step import Audit

_PREVIEW_WITHIN = 60.0
_DONE_WITHIN = 300.0
_PREVIEW = TypeAdapter(PreviewAnswer)
_EFFECTS = TypeAdapter(list[EffectLine])


def previewed(request: ActionRequest, record: TopologyRecord) -> PreviewAnswer:
    """Preview an action. Raises as `PersonalAction.preview`."""
    if request.needs_dag:
        question = {"what": "preview", "request": request.to_json()}
        return _PREVIEW.validate_python(dag_process().ask(question, seconds=_PREVIEW_WITHIN))
    return _action(request, record).preview()


def executed(
    request: ActionRequest, record: TopologyRecord, *, version: str, who: str, why: str
) -> Sequence[EffectLine]:
    """Do what was previewed. Raises as `PersonalAction.execute`, unless something was done before."""
    if request.needs_dag:
        question = {"what": "execute", "request": request.to_json(), "version": version, "who": who, "why": why}
        return _EFFECTS.validate_python(dag_process().ask(question, seconds=_DONE_WITHIN))
    return _action(request, record).effects(Audit(who, why), version)


def _action(request: ActionRequest, record: TopologyRecord) -> PersonalAction:
    settings = Settings.load()
    store, paths = ledger_client(request.conn_id).store_of_steps(), Paths(request.root, request.topology)
    ledger = Ledger(store, paths, clock=SystemClock(), ids=SystemIds(), history=settings.history)
    return request.action(ActionTarget(ledger, record, _no_dag, request.may_create))


def _no_dag() -> NoReturn:
    raise AssertionError("an action that needs the DAG is done where its code runs")
