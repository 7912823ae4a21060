"""Advice for a person: the actions for which the page has buttons, the log to read, the command, and the cause."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger import (
    HealthCode,
    Phase,
    TransactionView,
    Words,
    topology_health,
    transaction_remedy,
)
from airflow_tx.operations import ActionName
from airflow_tx.plugin.api.access import Access
from airflow_tx.plugin.api.airflow_runs import COMMIT, TaskBar, failed_tasks
from airflow_tx.plugin.api.snapshots import TopologySnapshot


@dataclass(frozen=True, kw_only=True)
class AdvisedAction:
    """An action that helps.

    :param txids: the transactions that it is about; none: the topology.
    :param changed_rows: with the current rows of the source.
    """

    action: ActionName
    txids: list[int]
    changed_rows: bool = False


@dataclass(frozen=True, kw_only=True)
class LogLink:
    """The log of one try of a task.

    :param map_index: -1: it is not mapped.
    :param path: within Airflow's UI, below its base URL.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    path: str


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The transaction that another one waits for, and how that one is."""

    txid: int
    sentence: Words


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Help for a person who sees to a topology, a transaction or a run.

    :param remedy: in words; null: nothing needs to be done, or the actions say the same.
    :param command: the first command that helps; null: there is none.
    :param actions: that help, and that the user may do.
    :param log: of the task that failed; null: none did, or the user may not read it.
    :param cause: the transaction that is waited for; null: there is none.
    """

    remedy: Words | None = None
    command: Words | None = None
    actions: list[AdvisedAction]
    log: LogLink | None = None
    cause: Cause | None = None


NO_ADVICE = Advice(actions=[])

_VERBS = {
    "replay": ActionName.REPLAY,
    "skip": ActionName.SKIP,
    "readmit": ActionName.READMIT,
    "restate": ActionName.RESTATE,
    "accept-loss": ActionName.ACCEPT_LOSS,
}
_OF_TOPOLOGY = frozenset({ActionName.ACCEPT_LOSS, ActionName.REPLAY_FAILED})


def topology_advice(snapshots: Sequence[TopologySnapshot], access: Access) -> Mapping[str, Advice]:
    """Say by name what a person can do about topologies, with a few requests for all of them."""
    in_trouble = {each.name: _first(each) for each in snapshots}
    runs = {
        (each.record.dag_id, view.run_id)
        for each in snapshots
        if (view := in_trouble[each.name]) is not None and view.run_id
    }
    seen = access.with_logs({dag_id for dag_id, _ in runs})
    failed = failed_tasks({(dag_id, run_id) for dag_id, run_id in runs if dag_id in seen})
    found = {}
    for each in snapshots:
        view = in_trouble[each.name]
        tries = () if view is None else failed.get((each.record.dag_id, view.run_id), ())
        found[each.name] = _advised(
            each,
            each.health.remedy,
            access,
            about=view,
            log=None if view is None else failed_log(each.record.dag_id, view.run_id, tries),
        )
    return found


def transaction_advice(
    snapshot: TopologySnapshot,
    view: TransactionView,
    access: Access,
    tries: Sequence[TaskBar] = (),
) -> Advice:
    """Say what a person can do about a transaction.

    :param tries: of the tasks of its newest attempt whose logs the user may read.
    """
    remedy = transaction_remedy(snapshot.name, view) if view.open else None
    is_failed = view.failed or view.blocked is not None or view.stale
    failed = [each for each in tries if each.state == "failed"]
    advice = _advised(
        snapshot,
        remedy,
        access,
        about=view if is_failed else None,
        log=failed_log(snapshot.record.dag_id, view.run_id, failed) if view.open else None,
    )
    return replace(advice, cause=None if is_failed else _cause(snapshot, view))


def said_advice(
    snapshot: TopologySnapshot, said: Remedy | None, access: Access, log: LogLink | None
) -> Advice:
    """Say what a person can do about a run, which its `begin` said last, and which is shown beside it."""
    return replace(_advised(snapshot, said, access, log=log), remedy=None)


def waited_for(snapshot: TopologySnapshot, txid: int) -> Cause | None:
    """Say how a transaction is that a run waits for; None: it is not open any more."""
    if snapshot.view is None or txid not in snapshot.open_by_txid:
        return None
    alone = replace(snapshot.view, name=snapshot.name, transactions=(snapshot.open_by_txid[txid],))
    return Cause(txid=txid, sentence=topology_health(alone).sentence)


def failed_log(dag_id: str, run_id: str, failed: Collection[TaskBar]) -> LogLink | None:
    """Choose the log to read: of the last task that failed; a committer may have failed since another task did."""
    if not failed:
        return None
    last = max(
        failed,
        key=lambda each: (
            each.operator != COMMIT,
            each.end.timestamp() if each.end else 0.0,
            each.try_number,
        ),
    )
    return log_link(dag_id, run_id, last)


def log_link(dag_id: str, run_id: str, task: TaskBar) -> LogLink:
    """Link to the log of one try of a task, as Airflow's own pages do."""
    path = task_page(dag_id, run_id, task.task_id)
    mapped = f"/mapped/{task.map_index}" if task.map_index >= 0 else ""
    return LogLink(
        dag_id=dag_id,
        run_id=run_id,
        task_id=task.task_id,
        map_index=task.map_index,
        try_number=task.try_number,
        path=f"{path}{mapped}?try_number={task.try_number}",
    )


def task_page(dag_id: str, run_id: str, task_id: str) -> str:
    """Give the path of a task of a run within Airflow's UI."""
    run = f"dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"
    return f"{run}/tasks/{quote(task_id, safe='')}"


def _first(snapshot: TopologySnapshot) -> TransactionView | None:
    """Find the transaction that is to be seen to; None: there is none."""
    health = snapshot.health
    if health.code not in (HealthCode.BLOCKED, HealthCode.FAILED) or health.txid is None:
        return None
    return snapshot.open_by_txid.get(health.txid)


def _cause(snapshot: TopologySnapshot, view: TransactionView) -> Cause | None:
    """Find the transaction that a transaction waits for, which is the first open one, or the one that it yielded to."""
    if not view.open or snapshot.view is None:
        return None
    if view.yielded is not None:
        return waited_for(snapshot, view.yielded)
    first = min(snapshot.open_by_txid, default=view.txid)
    if first >= view.txid or (view.status != Phase.PROCESSED.value and view.skip is None):
        return None
    return waited_for(snapshot, first)


def _advised(
    snapshot: TopologySnapshot,
    remedy: Remedy | None,
    access: Access,
    *,
    about: TransactionView | None = None,
    log: LogLink | None = None,
) -> Advice:
    """Make the advice of a remedy.

    :param about: the transaction that has failed; None: none has.
    """
    may_act = access.may_act(snapshot.record.dag_id)
    if remedy is not None:
        remedy = remedy.named(snapshot.paths.topology, snapshot.name)
    commands = () if remedy is None else remedy.commands
    actions = [found for each in commands if (found := _action(each)) is not None]
    is_general = about is not None and about.remedy is None
    if about is not None:
        can_skip = about.skip is None
        names = [ActionName.REPLAY, *([ActionName.SKIP] if can_skip else [])]
        known = {(each.action, *each.txids) for each in actions}
        actions += [
            AdvisedAction(action=name, txids=[about.txid])
            for name in names
            if (name, about.txid) not in known
        ]
    return Advice(
        remedy=None if remedy is None or (may_act and is_general) else str(remedy),
        command=str(commands[0]) if commands else None,
        actions=actions if may_act else [],
        log=log,
    )


def _action(command: Command) -> AdvisedAction | None:
    """Find the action that does the same as a command; None: there is no button for it."""
    action = _VERBS.get(command.verb)
    txids = [int(each) for each in command.arguments if each.isdigit()]
    if action is ActionName.RESTATE and "--withdraw" in command.options:
        action = ActionName.WITHDRAW
    if action is ActionName.REPLAY and "--failed" in command.options:
        action = ActionName.REPLAY_FAILED
    if action is None or (not txids and action not in _OF_TOPOLOGY):
        return None
    return AdvisedAction(
        action=action,
        txids=[] if action in _OF_TOPOLOGY else txids,
        changed_rows="--changed-rows" in command.options,
    )


def reason(view: TransactionView) -> str | None:
    """Say why a transaction has failed, if its sentence about waiting does not say it already; None: nothing to say."""
    why = view.cause
    return None if why is None or why in (view.waits or "") else why
