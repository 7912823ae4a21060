"""Advice for users: the steps of a remedy with their commands and buttons, the log to read, and the cause."""

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
    to_continue,
    topology_health,
    transaction_remedy,
)
from airflow_tx.operations import ActionName
from airflow_tx.plugin.api.access import Access
from airflow_tx.plugin.api.airflow_runs import COMMIT, TaskBar, failed_tasks
from airflow_tx.plugin.api.snapshots import TopologySnapshot


@dataclass(frozen=True, kw_only=True)
class AdvisedAction:
    """An action that the page offers as a button.

    :param txids: the transactions of the action. It is empty if the action is about the topology.
    :param changed_rows: whether the transactions get the current rows of the source.
    :param names: the checks or states of the action. For a rename, the old name and the new name.
    :param repair: the kind of the repair, such as `state-lost`.
    :param restate: whether to restate transactions whose rows the journal lacks.
    """

    action: ActionName
    txids: list[int]
    changed_rows: bool = False
    names: list[str]
    repair: str = ""
    restate: bool = False


@dataclass(frozen=True, kw_only=True)
class AdvisedStep:
    """One step of a remedy.

    :param words: the instruction, or the purpose of the command. It is "" if the step is only a command.
    :param command: the command line to type, or null if the step has no command.
    :param action: the action that does the same as the command, or null if there is none or the user may not do it.
    """

    words: Words = ""
    command: Words | None = None
    action: AdvisedAction | None = None


@dataclass(frozen=True, kw_only=True)
class LogLink:
    """The log of one try of a task.

    :param map_index: the map index, or -1 if the task is not mapped.
    :param path: the path in Airflow's UI, below its base URL.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    path: str


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The transaction that another transaction is waiting for, and its problem.

    :param txid: the transaction that must commit first.
    :param sentence: the problem of this transaction, in one sentence.
    :param rest: the sentence without the name of the transaction, such as " has failed.".
    """

    txid: int
    sentence: Words
    rest: Words


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Advice for a topology, a transaction or a run.

    :param remedy: the steps as one text, or null if there is no step or the buttons show the same.
    :param steps: the steps in order. A skip is the last step.
    :param log: the log of the failed task, or null if no task has failed or the user may not read the log.
    :param cause: the transaction that needs help first or must commit first, or null if there is none.
    """

    remedy: Words | None = None
    steps: list[AdvisedStep]
    log: LogLink | None = None
    cause: Cause | None = None


NO_ADVICE = Advice(steps=[])


def topology_advice(snapshots: Sequence[TopologySnapshot], access: Access) -> Mapping[str, Advice]:
    """Return the advice for each topology, by name. A few queries are enough for all topologies."""
    in_trouble = {each.name: _first(each) for each in snapshots}
    runs = {
        (each.record.dag_id, view.document.run_id)
        for each in snapshots
        if (view := in_trouble[each.name]) is not None and view.document.run_id
    }
    seen = access.with_logs({dag_id for dag_id, _ in runs})
    failed = failed_tasks({(dag_id, run_id) for dag_id, run_id in runs if dag_id in seen})
    found = {}
    for each in snapshots:
        view = in_trouble[each.name]
        tries = () if view is None else failed.get((each.record.dag_id, view.document.run_id), ())
        found[each.name] = _advised(
            each,
            each.health.remedy,
            access,
            about=view,
            log=None
            if view is None
            else failed_log(each.record.dag_id, view.document.run_id, tries),
        )
    return found


def transaction_advice(
    snapshot: TopologySnapshot,
    view: TransactionView,
    access: Access,
    tries: Sequence[TaskBar] = (),
) -> Advice:
    """Return the advice for a transaction.

    :param tries: the tries of the newest attempt, if the user may read their logs.
    """
    is_failed = view.failed or view.blocked is not None or view.stale
    failed = [each for each in tries if each.state == "failed"]
    advice = _advised(
        snapshot,
        _remedy_behind(snapshot, view) if view.open else None,
        access,
        about=view if is_failed else None,
        log=failed_log(snapshot.record.dag_id, view.document.run_id, failed) if view.open else None,
    )
    return replace(advice, cause=_cause(snapshot, view))


def said_advice(
    snapshot: TopologySnapshot, said: Remedy | None, access: Access, log: LogLink | None
) -> Advice:
    """Return the advice for a run without a transaction. The page shows the error next to the advice.

    :param said: the remedy of the last error of the run's task `begin`.
    :param log: the log of `begin`.
    """
    advice = _advised(snapshot, said, access, log=log)
    cleared = AdvisedStep(words="Clear the task begin of the run")
    return replace(advice, remedy=None, steps=[*advice.steps, cleared] if said else [])


def waited_for(snapshot: TopologySnapshot, txid: int) -> Cause | None:
    """Describe the transaction that a run or a transaction is waiting for, or return None if it is no longer open."""
    if snapshot.view is None or txid not in snapshot.open_by_txid:
        return None
    alone = replace(snapshot.view, name=snapshot.name, transactions=(snapshot.open_by_txid[txid],))
    health = topology_health(alone)
    rest = health.rest or f": {health.sentence}"
    return Cause(txid=txid, sentence=health.sentence, rest=rest)


def failed_log(dag_id: str, run_id: str, failed: Collection[TaskBar]) -> LogLink | None:
    """Return the log of the task that failed last. A committer is chosen only if no other task failed."""
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
    """Return a link to the log of one try of a task, like the links on Airflow's own pages."""
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
    """Return the path of a task of a run in Airflow's UI."""
    run = f"dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"
    return f"{run}/tasks/{quote(task_id, safe='')}"


def _first(snapshot: TopologySnapshot) -> TransactionView | None:
    """Return the transaction that blocks or fails the topology and needs a user, or None if there is none."""
    health = snapshot.health
    if health.code not in (HealthCode.BLOCKED, HealthCode.FAILED) or health.txid is None:
        return None
    return snapshot.open_by_txid.get(health.txid)


def _cause(snapshot: TopologySnapshot, view: TransactionView) -> Cause | None:
    """Return the transaction that must commit first: the first open one, or the one that this run yielded to."""
    if not view.open or snapshot.view is None:
        return None
    if view.document.yielded is not None:
        return waited_for(snapshot, view.document.yielded)
    first = snapshot.opened[0] if snapshot.opened else view
    waits = view.status == Phase.PROCESSED.value or view.skip is not None
    if first.txid >= view.txid or not (waits or (_in_trouble(first) and _in_trouble(view))):
        return None
    return waited_for(snapshot, first.txid)


def _in_trouble(view: TransactionView) -> bool:
    return view.failed or view.stale or view.blocked is not None


def _remedy_behind(snapshot: TopologySnapshot, view: TransactionView) -> Remedy | None:
    """Return the remedy of a transaction, or how to continue if it shares a command with the first open transaction."""
    remedy = transaction_remedy(snapshot.paths.topology, view)
    first = snapshot.opened[0] if snapshot.opened else view
    shared = set() if first.document.remedy is None else set(first.document.remedy.commands)
    if (
        first.txid >= view.txid
        or view.document.remedy is None
        or not shared.intersection(view.document.remedy.commands)
    ):
        return remedy
    return to_continue(snapshot.paths.topology, view.txid)


def _advised(
    snapshot: TopologySnapshot,
    remedy: Remedy | None,
    access: Access,
    *,
    about: TransactionView | None = None,
    log: LogLink | None = None,
) -> Advice:
    """Create the advice from a remedy.

    :param about: the failed transaction, or None if no transaction has failed.
    :param log: the log of the failed task, or None.
    """
    may_act = access.may_act(snapshot.record.dag_id)
    remedy = (remedy or Remedy()).named(snapshot.paths.topology, snapshot.name)
    steps = _steps(remedy)
    is_general = about is not None and about.document.remedy is None
    if about is not None and about.skip is None:
        skip = Command("skip", snapshot.name, (str(about.txid),), ("--why", "TEXT"))
        # A skip gives up the rows, so it is the last step.
        steps = [
            *(each for each in steps if each[1] != skip),
            ("Or skip the transaction, so that its rows count nowhere", skip),
        ]
    return Advice(
        remedy=None if not remedy or (may_act and is_general) else str(remedy),
        steps=[
            AdvisedStep(
                words=words,
                command=None if command is None else str(command),
                action=_action(command, snapshot.record.states)
                if may_act and command is not None
                else None,
            )
            for words, command in steps
        ],
        log=log,
    )


_BETWEEN = " ,.;:()"


def _steps(remedy: Remedy) -> list[tuple[str, Command | None]]:
    """Split a remedy into steps. Each step is a command with the words before it.

    Words after the last command are a step of their own.
    """
    steps: list[tuple[str, Command | None]] = []
    words = ""
    for part in remedy.parts:
        if isinstance(part, Command):
            steps.append((words.strip(_BETWEEN), part))
            words = ""
        else:
            words += part
    end = words.strip(_BETWEEN)
    return [*steps, (end, None)] if end else steps


_ACTIONS = {each.value: each for each in ActionName}
_OF_PERSON = "STATE"
"""The placeholder for a state's name in a repair. The repair has no button unless a state has this name."""
_WITH_TXIDS = frozenset({"replay", "skip", "readmit", "restate", "withdraw", "accept-check"})


_OPTIONS = frozenset(("--withdraw", "--failed", "--changed-rows", "--state", "--restate", "--why"))
"""The command options that a button supports. A command with any other option has no button."""


def _action(command: Command, states: Collection[str]) -> AdvisedAction | None:
    """Return the action that is equivalent to a command, or None if the page has no button for it.

    :param states: names of the states of the topology.
    """
    options = command.options
    verb = command.verb.replace(" ", "-")
    if verb == "restate" and "--withdraw" in options:
        verb = "withdraw"
    if verb == "replay" and "--failed" in options:
        verb = "replay-failed"
    repair = options[0].removeprefix("--") if verb == "repair" and options else ""
    names = command.values("--state" if verb == "accept-change" else f"--{repair}")
    has_txids = verb in _WITH_TXIDS
    txids = [int(each) for each in command.arguments if has_txids and each.isdigit()]
    if verb in ("accept-check", "state-rename", "state-forget"):
        names = command.arguments[len(txids[:1]) :]
        txids = txids[:1]
    if repair == "back":
        has_txids = True
        txids = [int(each) for each in names if each.isdigit()]
        names = ()
    is_open = (has_txids and not txids) or (
        repair and _OF_PERSON in names and _OF_PERSON not in states
    )
    others = {each for each in options if each.startswith("--")} - {*_OPTIONS, f"--{repair}"}
    if verb not in _ACTIONS or is_open or others:
        return None
    return AdvisedAction(
        action=_ACTIONS[verb],
        txids=txids,
        changed_rows="--changed-rows" in options,
        names=list(names),
        repair=repair,
        restate=repair != "" and "--restate" in options,
    )


def reason(view: TransactionView) -> str | None:
    """Return the error of a transaction, or None if there is none or `waiting_for` already quotes it."""
    return None if view.cause == view.quoted else view.cause
