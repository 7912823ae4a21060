"""The transaction of a run; and of a run that is none yet, why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from airflow.utils.state import State

from airflow_tx import compat
from airflow_tx.actions.ledger_places import BEGIN
from airflow_tx.plugin.api.access import SEE_TASKS, SEE_XCOMS, Access
from airflow_tx.plugin.api.advice import NO_ADVICE, Advice, log_link, said_advice, waited_for
from airflow_tx.plugin.api.airflow_runs import TaskBar, task_tries, xcoms
from airflow_tx.plugin.api.ledger_client import SILENT, LedgerAway
from airflow_tx.plugin.api.ledger_snapshots import TopologySnapshot, ledger_snapshots
from airflow_tx.protocol.answers import Begun
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.batch_words import counted
from airflow_tx.protocol.person import Words
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Binding, History, TransactionRecord
from airflow_tx.spec import WHY_NOT


class WhyCode(str, Enum):
    """Why a run is no transaction, in one word."""

    QUEUED = "queued"
    WINDOW_FULL = "window_full"
    ORDER = "order"
    NO_DATA = "no_data"
    SOURCE = "source"
    YIELDED = "yielded"
    BEGINS = "begins"
    FAILED = "failed"
    ENDED = "ended"
    UNKNOWN = "unknown"


_SAID = frozenset({WhyCode.FAILED, WhyCode.SOURCE})
"""What `begin` has said, so that its log says more."""


@dataclass(frozen=True, kw_only=True)
class WhyNot:
    code: WhyCode
    sentence: Words
    advice: Advice = NO_ADVICE


@dataclass(frozen=True, kw_only=True)
class RunAnswer:
    """The transaction of a run.

    :param txid: null: it has none, `why` says why.
    """

    dag_id: str
    run_id: str
    topology: str | None
    txid: int | None
    why: WhyNot | None = None


def run_answer(
    snapshots: Sequence[TopologySnapshot], dag_id: str, run_id: str, access: Access
) -> RunAnswer | None:
    """Find the transaction of a run, or why it has none.

    :param snapshots: the topologies of its DAG, the one of its file first; none: it has none yet.
    :param access: of the user, who may read the runs of the DAG.
    :return: None: there is no such run, and there never was a transaction of it.
    """
    for snapshot in snapshots:
        txid = _bound(snapshot, run_id)
        if txid is not None:
            return RunAnswer(dag_id=dag_id, run_id=run_id, topology=snapshot.name, txid=txid)
    run_state = compat.runs_of(dag_id, [run_id]).get(run_id)
    if run_state is None:
        return None
    tries = task_tries(dag_id, [run_id]).get(run_id, [])
    begin = max(
        (each for each in tries if each.operator == BEGIN),
        key=lambda each: each.try_number,
        default=None,
    )
    said = (
        {}
        if begin is None
        else {key: value for _, key, value in xcoms(dag_id, run_id, [begin.task_id])}
    )
    begun = _begun(said)
    for snapshot in snapshots:
        if begun is not None and _has(snapshot, begun, run_id):
            return RunAnswer(dag_id=dag_id, run_id=run_id, topology=snapshot.name, txid=begun.txid)
    own = snapshots[0] if snapshots else None
    shown = said.get(WHY_NOT) if access.may(SEE_XCOMS, dag_id) else None
    may_see = access.may(SEE_TASKS, dag_id)
    why = _why(own, run_id, run_state, begin, shown) if may_see else _unseen()
    if may_see and own is not None and begin is not None and why.code in _SAID:
        log = log_link(dag_id, run_id, begin)
        why = replace(why, advice=said_advice(own, shown, access, log))
    return RunAnswer(
        dag_id=dag_id,
        run_id=run_id,
        topology=None if own is None else own.name,
        txid=None,
        why=why,
    )


def _bound(snapshot: TopologySnapshot, run_id: str) -> int | None:
    for each in reversed(snapshot.opened):
        if each.run_id == run_id:
            return each.txid
    if snapshot.store is None:
        raise LedgerAway(reason=SILENT)

    def bound(store: Store) -> Binding | None:
        return Reader(store).peek_if_any(Binding, snapshot.paths.run(run_id))

    binding = ledger_snapshots().unremembered(snapshot, bound)
    return None if binding is None else binding.txid


def _begun(said: Mapping[str, Any]) -> TransactionAttempt | None:
    """Read what `begin` has said to its tasks: a run may be known by its data interval, or its partition."""
    found = said.get("return_value")
    return Begun.from_json(found).attempt if isinstance(found, dict) and "txid" in found else None


def _has(snapshot: TopologySnapshot, begun: TransactionAttempt, run_id: str) -> bool:
    """Ask whether a transaction of this topology is the one that a run began: another topology has the same txids."""

    def found(store: Store) -> TransactionRecord | History | None:
        read = Reader(store)
        record = read.peek_if_any(TransactionRecord, snapshot.paths.transaction(begun.txid))
        return record or read.peek_if_any(History, snapshot.paths.history(begun.txid))

    record = ledger_snapshots().unremembered(snapshot, found)
    if record is None:
        return False
    return record.birth == begun.birth if record.birth and begun.birth else record.run_id == run_id


def _unseen() -> WhyNot:
    return WhyNot(
        code=WhyCode.UNKNOWN,
        sentence="Its tasks say why. You may not read the task instances of this DAG.",
    )


def _why(
    snapshot: TopologySnapshot | None,
    run_id: str,
    run_state: str,
    begin: TaskBar | None,
    said: str | None,
) -> WhyNot:
    """Say why a run has no transaction.

    :param said: by the last try of its `begin`.
    """
    yielded = None if snapshot is None else snapshot.record.yielded.get(run_id)
    if yielded is not None:
        sentence = f"It gave its run slot to transaction {yielded['blocking']}, and is started again after that one."
        return WhyNot(
            code=WhyCode.YIELDED,
            sentence=sentence,
            advice=_waits_for(snapshot, yielded["blocking"]),
        )
    if begin is None or begin.state is None:
        if run_state in State.unfinished_dr_states:
            return WhyNot(
                code=WhyCode.QUEUED, sentence="Airflow has not started its task begin yet."
            )
        return WhyNot(
            code=WhyCode.ENDED,
            sentence=f"The run ended as {run_state} before its task begin was started.",
        )
    if begin.state == "skipped":
        sentence = "The source had no rows for another transaction, or was not ready, so the run was skipped."
        return WhyNot(code=WhyCode.NO_DATA, sentence=sentence)
    if begin.state in State.failed_states:
        sentence = f"Its task begin has failed{_quoted(said)} Clear it to begin again."
        return WhyNot(code=WhyCode.FAILED, sentence=sentence)
    if begin.state == "up_for_retry":
        sentence = f"Its source was not ready, or the ledger could not be asked{_quoted(said)} It is tried again."
        return WhyNot(code=WhyCode.SOURCE, sentence=sentence)
    if begin.state == "deferred":
        return _deferred(snapshot)
    if run_state in State.unfinished_dr_states:
        return WhyNot(
            code=WhyCode.BEGINS,
            sentence="Its task begin is about to ask for a transaction.",
        )
    return WhyNot(
        code=WhyCode.UNKNOWN,
        sentence=f"The run ended as {run_state} without a transaction.",
    )


def _waits_for(snapshot: TopologySnapshot | None, txid: int) -> Advice:
    return NO_ADVICE if snapshot is None else replace(NO_ADVICE, cause=waited_for(snapshot, txid))


def _quoted(said: str | None) -> str:
    return f": {said}" if said else "; the log of its task begin says why."


def _deferred(snapshot: TopologySnapshot | None) -> WhyNot:
    view = None if snapshot is None else snapshot.view
    if (
        snapshot is not None
        and view is not None
        and view.allocated + 1 >= view.current + view.record.max_pending
    ):
        first = next((each for each in snapshot.opened if each.txid == view.current), None)
        why = "" if first is None or first.waits is None else f", which waits for {first.waits}"
        are = "is" if len(snapshot.opened) == 1 else "are"
        sentence = (
            f"The window is full: {len(snapshot.opened)} of {counted(view.record.max_pending, 'transactions')} {are} "
            f"open. It begins once transaction {view.current} is final{why}."
        )
        return WhyNot(
            code=WhyCode.WINDOW_FULL,
            sentence=sentence,
            advice=_waits_for(snapshot, view.current),
        )
    sentence = "It waits for the run of an earlier data interval, or is about to begin."
    return WhyNot(code=WhyCode.ORDER, sentence=sentence)
