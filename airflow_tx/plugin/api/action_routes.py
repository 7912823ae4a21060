"""The routes for actions: a preview, and the action itself.

The action is refused if something has changed since the preview.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

from fastapi import APIRouter, Depends, HTTPException, status
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter
from sqlalchemy.exc import DBAPIError

from airflow_tx.base import compat
from airflow_tx.base.config import Settings
from airflow_tx.base.errors import (
    Refused,
    TxError,
    UnreadableRecord,
)
from airflow_tx.base.remedy import without_controls
from airflow_tx.ledger import Audit, Ledger, Paths, TopologyRecord
from airflow_tx.operations import (
    ActionName,
    ActionRequest,
    ActionTarget,
    EffectLine,
    PersonalAction,
    PreviewAnswer,
    ledger_places,
)
from airflow_tx.plugin.api.access import (
    CREATE_RUNS,
    PAUSE,
    SEE_AUDIT,
    Access,
    AccessDep,
    Name,
    check_same_origin,
)
from airflow_tx.plugin.api.dag_process import dag_process
from airflow_tx.plugin.api.questions import questions
from airflow_tx.plugin.api.redaction import fit
from airflow_tx.plugin.api.routes import Problem, topology_for
from airflow_tx.plugin.api.snapshots import TopologySnapshot, ledger_client, ledger_snapshots

log = logging.getLogger(__name__)

MOST_TXIDS = 100
"""The maximum number of transactions in one action, since each is read separately. `replay-failed` has no limit."""
MOST_NAMES = 100


def _printable(name: str) -> str:
    if without_controls(name) != name or "\n" in name:
        raise ValueError("a name cannot contain control characters")
    return name


Txid = Annotated[int, Field(ge=1)]
CheckOrState = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_printable)]


class PreviewBody(BaseModel):
    """The action to preview.

    :param txids: the transactions. Replay, restate and withdraw accept any number. Skip, readmit, accept-check and the
        repair back accept one.
    :param names: for accept-check, the checks. For state-rename, the old name and the new name. For other actions, the
        states.
    :param repair: for repair, the kind of the repair, such as `state-lost`.
    :param restate: for the repair roll-forward, whether to restate transactions whose rows the journal lacks.
    :param follow: for restate, whether to restate all transactions that are behind an upstream correction. It replaces
        txids.
    :param stale: for restate, whether to restate all stale transactions. It replaces txids.
    :param force: for replay, whether to include transactions whose run is queued or running.
    :param changed_rows: for replay and restate, whether to read the current rows of the source.
    :param first: for restate, the first day or time. It replaces txids.
    :param last: for restate, the last day or time. It replaces txids.
    """

    model_config = ConfigDict(extra="forbid")

    txids: list[Txid] = Field(default=[], max_length=MOST_TXIDS)
    force: bool = False
    changed_rows: bool = False
    first: str = Field(default="", max_length=40)
    last: str = Field(default="", max_length=40)
    names: list[CheckOrState] = Field(default=[], max_length=MOST_NAMES)
    repair: str = Field(default="", max_length=40)
    restate: bool = False
    follow: bool = False
    stale: bool = False


class ActionBody(PreviewBody):
    """The action to do, and the version of its preview.

    :param version: the version of the preview. If something has changed since the preview, the action is refused.
    :param why: the reason for the action, if the action requires a reason.
    """

    version: str = Field(max_length=200)
    why: str = Field(default="", max_length=2000)


@dataclass(frozen=True, kw_only=True)
class ActionAnswer:
    """The result of an action."""

    done: Sequence[EffectLine]


PROBLEMS_OF_ACTIONS = {
    code: {"model": Problem} for code in (401, 403, 404, 409, 415, 429, 503, 504)
}
_OF_COORDINATOR = frozenset({ActionName.PAUSE, ActionName.UNPAUSE})

_PREVIEW_WITHIN = 60.0
_DONE_WITHIN = 300.0
_PREVIEW = TypeAdapter(PreviewAnswer)
_EFFECTS = TypeAdapter(list[EffectLine])

action_router = APIRouter(
    prefix="/api/v1/topologies/{topology:path}/actions",
    dependencies=[Depends(check_same_origin)],
    responses=PROBLEMS_OF_ACTIONS,  # type: ignore[arg-type]
)


@action_router.post("/{action}/preview")
def preview_action(
    access: AccessDep, topology: Name, action: ActionName, body: PreviewBody
) -> PreviewAnswer:
    """Describe the effects of an action without doing it."""
    snapshot = _checked(access, topology, action)
    request = _request(access, snapshot, action, body)
    what = f"a preview of {action.value}"
    with (
        questions.asked(what, snapshot, access, needs_dag=request.needs_dag),
        _while_there(access, topology),
    ):
        return fit(_previewed(request, snapshot.record))


@action_router.post("/{action}")
def execute_action(
    access: AccessDep, topology: Name, action: ActionName, body: ActionBody
) -> ActionAnswer:
    """Do an action that was previewed.

    Return 409 if something has changed since the preview, or the action is refused.
    """
    snapshot = _checked(access, topology, action)
    request = _request(access, snapshot, action, body)
    if request.needs_reason and not without_controls(body.why).strip():
        raise HTTPException(
            status.HTTP_422_UNPROCESSABLE_CONTENT, "Enter a reason. The ledger keeps it."
        )
    audit = Audit(access.name, body.why)
    with questions.asked(action.value, snapshot, access, needs_dag=request.needs_dag):
        return _executed_and_logged(access, snapshot, request, audit, body.version)


def _executed_and_logged(
    access: Access,
    snapshot: TopologySnapshot,
    request: ActionRequest,
    audit: Audit,
    version: str,
) -> ActionAnswer:
    try:
        with _while_there(access, snapshot.name):
            done = _executed(
                request, snapshot.record, version=version, who=audit.who, why=audit.why
            )
    except Refused as error:
        _log("refused", request, snapshot, audit, [_nothing_done(error)])
        raise
    except (TxError, DBAPIError) as error:
        # The process has not responded, but it may have done the action.
        _log("failed", request, snapshot, audit, [_nothing_done(error)])
        raise
    _log("", request, snapshot, audit, done)
    ledger_snapshots().forget(snapshot.name)
    return fit(ActionAnswer(done=done))


def _log(
    outcome: str,
    request: ActionRequest,
    snapshot: TopologySnapshot,
    audit: Audit,
    done: Iterable[EffectLine],
) -> None:
    """Write the result of an action to Airflow's audit log, with one entry per run."""
    asked = {**request.to_json(), "why": audit.reason}
    entries = [(each.run_id, {**asked, "txid": each.txid, "outcome": each.what}) for each in done]
    event = f"tx {request.name.value} {outcome}".rstrip()
    try:
        compat.log_action(event, who=audit.who, dag_id=snapshot.record.dag_id, entries=entries)
    except DBAPIError as error:
        # Do not fail: the answer must say that the action was done.
        log.error("Airflow's audit log has no entry for %s by %s: %s", event, audit.who, error.orig)


def _nothing_done(error: Exception) -> EffectLine:
    return EffectLine(None, None, str(error))


def _checked(access: Access, topology: str, action: ActionName) -> TopologySnapshot:
    """Return a topology that the user may act on.

    :raises HTTPException: 404 if the topology does not exist, or the user may not see it. 403 if the user may only read
        it.
    """
    snapshot = topology_for(access, topology)
    dag_id = snapshot.record.dag_id
    if not access.may_act(dag_id):
        raise HTTPException(
            status.HTTP_403_FORBIDDEN, f"You may not edit the runs of DAG {dag_id}."
        )
    coordinator = ledger_places().coordinator(snapshot.place)
    if action in _OF_COORDINATOR and not access.may(PAUSE, coordinator):
        raise HTTPException(status.HTTP_403_FORBIDDEN, f"You may not edit DAG {coordinator}.")
    return snapshot


@contextmanager
def _while_there(access: Access, topology: str) -> Iterator[None]:
    """Respond with 404 for a topology that has just been deleted, and that `_checked` may still find in the cache."""
    try:
        yield
    except UnreadableRecord:
        ledger_snapshots().forget(topology)
        topology_for(access, topology)
        raise


def _request(
    access: Access, snapshot: TopologySnapshot, action: ActionName, body: PreviewBody
) -> ActionRequest:
    place = snapshot.place
    return ActionRequest(
        topology=place.paths.topology,
        conn_id=place.conn_id,
        root=place.paths.root,
        coordinator=ledger_places().coordinator(place),
        name=action,
        txids=tuple(body.txids),
        names=tuple(body.names),
        **body.model_dump(exclude={"names", "txids", "version", "why"}),
        may_create=access.may(CREATE_RUNS, snapshot.record.dag_id),
        sees_audit=access.may(SEE_AUDIT, snapshot.record.dag_id),
    )


# --- actions here, or in the process of DAG files if they need the source or the states ----------------------------


def _previewed(request: ActionRequest, record: TopologyRecord) -> PreviewAnswer:
    """Return the preview of an action. Raise the errors of `PersonalAction.preview`."""
    if request.needs_dag:
        answer = _asked(request, _PREVIEW_WITHIN, what="preview")
        return _PREVIEW.validate_python(answer)
    return _action(request, record).preview()


def _executed(
    request: ActionRequest, record: TopologyRecord, *, version: str, who: str, why: str
) -> Sequence[EffectLine]:
    """Do the action. Raise the errors of `PersonalAction.execute`, except when a part was done before the error."""
    if request.needs_dag:
        answer = _asked(request, _DONE_WITHIN, what="execute", version=version, who=who, why=why)
        return _EFFECTS.validate_python(answer)
    return _action(request, record).effects(Audit(who, why), version)


def _asked(request: ActionRequest, seconds: float, **question: str) -> Any:
    """Send a request to the process that runs the code of DAG files."""
    return dag_process().ask({**question, "action": request.to_json()}, seconds=seconds)


def _action(request: ActionRequest, record: TopologyRecord) -> PersonalAction:
    settings = Settings.load()
    store = ledger_client(request.conn_id).store_of_steps()
    paths = Paths(request.root, request.topology)
    ledger = Ledger(store, paths, history=settings.history)
    target = ActionTarget(ledger, record, _no_dag, request.may_create, request.sees_audit)
    return request.action(target)


def _no_dag() -> NoReturn:
    raise AssertionError(
        "an action that needs the code of the DAG runs in the process of DAG files"
    )
