"""What the processes under fire do: the operators of a task, a coordinator with its lane, or an action of a person.

Each is a process of its own, forked from one in which everything is imported. What Airflow would answer a task, the
little scheduler answers.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import datetime, timezone
from multiprocessing.connection import Client
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import kazoo.client  # type: ignore[import-untyped]  # noqa: F401 - loaded once, for all of them
import psycopg2  # type: ignore[import-untyped]  # noqa: F401
import redis  # noqa: F401
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_tx.base import compat
from airflow_tx.base.errors import FailedBatch, RestateRefused
from airflow_tx.coordinator.lane import Lane, NoLane
from airflow_tx.coordinator.plan import CoordinatorMemory, Rules
from airflow_tx.coordinator.worker import Coordination, Pace
from airflow_tx.ledger import Store
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.audit.stage import StageAudit
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.reading import LedgerReader, Reader
from airflow_tx.ledger.records import Binding
from airflow_tx.ledger.steps.replay import WishRequest, most_restated, want, wishes, wishes_to_start, withdraw
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.operations.actions.action import ActionTarget
from airflow_tx.operations.actions.correction import CorrectionRestatement
from airflow_tx.operations.actions.readmission import Readmission
from airflow_tx.operations.actions.replay import FailedReplay, NamedReplay
from airflow_tx.operations.actions.skip import TransactionSkip
from airflow_tx.operators.commit import note_commit_failure
from airflow_tx.outputs.journal import JournalArea
from airflow_tx.transaction.processing.task import Processing, after_task, before_task, task_ended, task_failed
from tests.chaos.bug import CHANGING, NUMBERED, RIGHT, correct, is_corrected, mend, numbers_of
from tests.chaos.dags.under_fire import number_of
from tests.chaos.little_task import LittleTi, TasksSkipped, answered
from tests.chaos.stacks import tell_stacks
from tests.chaos.topology import REAL, UPSTREAM, FiredTopology

AUDIT = Audit("ada", "chaos")
# As long as a person would look at it.
_IMPATIENT = 0.3


def execute(topology: FiredTopology, ti: LittleTi) -> str:
    """One try of a task; how it ended."""
    task = topology.dag.get_task(ti.task_id)
    start, end = (None, None) if ti.interval is None else map(datetime.fromisoformat, ti.interval)
    run = SimpleNamespace(
        run_id=ti.run_id,
        run_type="manual" if start is None else "backfill",
        data_interval_start=start,
        data_interval_end=end,
        logical_date=start,
        partition_key=None,
        partition_date=None,
        conf=ti.conf,
        start_date=None,
    )
    context: Any = {"ti": ti, "dag": topology.dag, "dag_run": run, "task": task}
    ti.task = task
    body = _count if ti.task_id == "count" and hasattr(task, "python_callable") else task.execute
    failed = task_failed if ti.task_id == "count" else note_commit_failure if ti.task_id == "commit" else None
    try:
        value = body(context)
    except TasksSkipped:
        return "skips all"
    except AirflowSkipException as skipped:
        logging.info("%s", skipped)
        if ti.task_id == "count":
            task_ended(context)
        return "skipped"
    except TaskDeferred:
        return "deferred"
    except AirflowRescheduleException:
        return "up_for_reschedule"
    except Exception as error:
        logging.info("%s of %s: %s", ti.task_id, ti.run_id, error, exc_info=True)
        context["exception"] = error
        final = isinstance(error, (AirflowFailException, FailedBatch))
        if failed is not None and (final or ti.is_last):
            failed(context)
        return "failed" if final or ti.is_last else "up_for_retry"
    if value is not None:
        ti.xcom_push("return_value", value)
    return "success"


def _count(context: Any) -> Any:
    before_task(context)
    with Processing.of(context).as_current():
        value = context["task"].python_callable()
    after_task(context, value)
    return value


def coordinate(topology: FiredTopology, ti: LittleTi) -> str:
    """As the operator of a coordinator, until there is nothing to do for a moment."""
    spec = topology.spec
    rules = Rules(max_pending=spec.window, max_replays=10_000, backoff=_IMPATIENT, message_timeout=spec.timeout)
    log = logging.getLogger(f"coordinator of {topology.name}")
    with spec.store() as store:
        plan = topology.lane
        lane = NoLane() if plan is None else Lane(plan, store, ti, log, patience=10)
        pace = Pace(rules, poll=_IMPATIENT, linger=2.0, hold=1.0)
        with lane.opened():
            Coordination(spec, pace, store, ti, log, memory=CoordinatorMemory(), lane=lane).work_until_idle()
    return "success"


def act(topology: FiredTopology, ti: LittleTi) -> str:
    """As `airflow tx` of a person: skip, readmit, replay (--force, --failed), restate, restate --follow, backfill."""
    what, txid = ti.conf["action"], int(ti.conf["txid"] or 0)
    with topology.spec.store() as store:
        ledger = topology.spec.ledger(store)
        if what == "backfill":
            return _backfill(topology, ledger, *map(datetime.fromisoformat, ti.conf["dates"]))
        target = ActionTarget(ledger, ledger.topology(), lambda: (topology.spec, topology.states))
        if what in ("restate", "withdraw"):
            return RESTATING[what](topology, target, ti.conf)
        if what == "skip":
            effects = TransactionSkip(target, txid).execute(AUDIT)
        elif what == "readmit":
            effects = Readmission(target, txid).execute(AUDIT)
        elif what == "failed":
            effects = FailedReplay(target).execute(AUDIT)
        elif what == "follow":
            effects = CorrectionRestatement(target).execute(AUDIT)
        else:
            effects = NamedReplay(target, [txid], force=what == "replay --force", changed_rows=False).execute(AUDIT)
        for effect in effects:
            logging.info("%s %s: %s", what, effect.txid, effect.what)
    return "success"


def _restate(topology: FiredTopology, target: ActionTarget, conf: Mapping[str, Any]) -> str:
    """Want what counts now of these transactions restated, mended; then start the runs of all that is wanted."""
    ledger, spec = target.ledger, topology.spec
    for txid in conf["txids"]:
        request = _wish_for(topology, ledger, txid)
        if request is None:
            continue
        try:
            ledger.preview(want, request, AUDIT)
            _mend(topology, ledger, request, corrects=conf["corrects"])
            ledger.run(want, request, AUDIT)
            logging.info("transaction %s is wanted restated", request.txid)
        except RestateRefused as refused:
            logging.info("%s", refused)
    found = wishes(ledger.store, ledger.paths)
    reading = LedgerReader(ledger.store, ledger.paths).read()
    opened = reading.opened if reading else {}
    states = compat.runs_of(target.record.dag_id, [wish.run_id for wish in found])
    known = {wish.run_id: states.get(wish.run_id) for wish in found}
    for wish in wishes_to_start(found, opened, known, limit=most_restated(spec.window)):
        logging.info(
            "restate %s: %s", wish.txid, target.runs.start(wish.run_id, wish.key, past_limit=True, latest=True)
        )
    return "success"


def _wish_for(topology: FiredTopology, ledger: Ledger, txid: int) -> WishRequest | None:
    """Ask for what counts now of the run of a transaction; None: it was never committed."""
    journal = JournalArea(topology.spec.staging(), ledger.incarnation())
    names = journal.names(txid)
    if not names:
        return None
    entry = journal.read(names[0])
    binding = Reader(ledger.store).peek_if_any(Binding, ledger.paths.run(entry.key))
    if binding is None or not binding.entry:
        return None
    now = journal.read(binding.entry)
    return WishRequest(now.txid, now.key, now.run_id, tuple(now.contributions), topology.name == CHANGING)


def _mend(topology: FiredTopology, ledger: Ledger, request: WishRequest, *, corrects: bool) -> None:
    """Mend the output of a transaction for later ones; and correct its files, if they are restated as they are now."""
    if topology.name in RIGHT:
        return
    journal = JournalArea(topology.spec.staging(), ledger.incarnation())
    binding = Reader(ledger.store).peek(Binding, ledger.paths.run(request.key))
    metadata = journal.read(binding.entry).metadata
    if request.changed_rows:
        files = [file["name"] for file in metadata["files"]] if metadata else []
        mend(topology.name, request.txid, [number for file in files for number in numbers_of(file)])
        for file in files if corrects else ():
            correct(file)
        return
    source = topology.spec.named_source.for_key(request.key)
    rows: Any = source.emit_batch(TransactionAttempt(1, 1), metadata) if metadata else ()
    mend(topology.name, request.txid, [number_of(row) for row in rows])


def _withdraw(topology: FiredTopology, target: ActionTarget, conf: Mapping[str, Any]) -> str:
    for txid in conf["txids"]:
        try:
            target.ledger.run(withdraw, txid)
            logging.info("the wish for transaction %s is withdrawn", txid)
        except RestateRefused as refused:
            logging.info("%s", refused)
    return "success"


RESTATING: Mapping[str, Callable[[FiredTopology, ActionTarget, Mapping[str, Any]], str]] = {
    "restate": _restate,
    "withdraw": _withdraw,
}


def _backfill(topology: FiredTopology, ledger: Ledger, first: datetime, last: datetime) -> str:
    from airflow_tx.operations.cli.backfill import BackfilledDates, left_to_do
    from airflow_tx.operations.cli.progress import Progress

    dates = BackfilledDates(topology.spec, ledger, first, last)
    dates.check_order(note=True)
    for line in left_to_do(topology.spec, Progress(dates, topology.spec.window).follow()):
        logging.info("%s", line)
    return "success"


def verify(topology: FiredTopology, ti: LittleTi) -> str:
    """As `airflow tx verify --values --chain`; raises if there is a finding."""
    from airflow_tx.ledger.audit.chain import ledger_evidence
    from airflow_tx.ledger.audit.verification import verified
    from airflow_tx.operations.actions.evidence import evidence_of

    with topology.spec.store() as store:
        ledger = ledger_evidence(store, topology.spec.paths)
        states = evidence_of(topology.states, values=True)
        read = _stage_findings(topology, store) if topology.name in UPSTREAM else []
    found = verified(ledger, states, first=1, last=None)
    ti.xcom_push("findings", [*found.findings, *read])
    return "success"


def _stage_findings(topology: FiredTopology, store: Store) -> list[str]:
    """As `airflow tx verify --chain`."""
    source = topology.spec.named_source
    audit = StageAudit(topology.spec.ledger(store), source.upstream_table, source.rows_upstream)
    audit.compare()
    return audit.findings


def lacking(topology: FiredTopology, ti: LittleTi) -> str:
    """Find what a topology has still to take from the one that it reads, and which of its own are behind that one."""
    source = topology.spec.named_source
    with topology.spec.store() as store:
        ledger = topology.spec.ledger(store)
        batch = source.decide(TransactionAttempt(1, 1), ledger.position())
        corrections = source.corrections(ledger, datetime.now(timezone.utc))
    behind = [] if corrections is None else [each.reason for each in corrections.behind]
    ti.xcom_push("transactions", [*behind, *([] if batch is None else [batch.reason])])
    return "success"


def read(topology: FiredTopology, ti: LittleTi) -> str:
    """Read all states of the topology."""
    ti.xcom_push("states", json.loads(json.dumps(topology.rows(), default=int)))
    return "success"


def skipped(topology: FiredTopology, ti: LittleTi) -> str:
    """Read, from the source, the numbers of batches."""
    found = list[int]()
    for metadata in filter(None, ti.conf["batches"]):
        found += _numbers(topology, metadata)
    ti.xcom_push("numbers", found)
    return "success"


def _numbers(topology: FiredTopology, metadata: Any) -> list[int]:
    """Read the numbers of a batch; from a table of another topology, as that one counts them now."""
    source, attempt = topology.spec.named_source, TransactionAttempt(1, 1)
    if topology.name not in UPSTREAM:
        rows: Any = source.emit_batch(attempt, metadata)
        return [number_of(row) for row in rows]
    now: Any = source.decide_again(attempt, metadata)
    keys: list[str] = source.emit_arrow(attempt, now.metadata).read_all()["key"].to_pylist()
    return [int(key[1:]) for key in keys if key[0] in NUMBERED]


def corrected(topology: FiredTopology, ti: LittleTi) -> str:
    """Find, of each transaction that counts, the numbers that it had from a corrected file."""
    found: dict[int, list[int]] = {}
    with topology.spec.store() as store:
        ledger = topology.spec.ledger(store)
        journal = JournalArea(topology.spec.staging(), ledger.incarnation())
        for name in ti.conf["entries"]:
            entry = journal.read(name)
            files = [
                file for file in (entry.metadata or {"files": []})["files"] if is_corrected(file["name"], file["size"])
            ]
            found[entry.txid] = [number for file in files for number in numbers_of(file["name"])]
    ti.xcom_push("numbers", found)
    return "success"


PROGRAMS: Mapping[str, Callable[[FiredTopology, LittleTi], str]] = {
    each.__name__: each for each in (execute, coordinate, act, verify, lacking, read, skipped, corrected)
}


def main(address: str, program: str, name: str, task: dict[str, Any], log: str) -> None:
    """Run one program as a new process, and tell how it ended."""
    output = open(log, "a", buffering=1)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    form = f"%(asctime)s {os.getpid()} {program} {task['run_id']} {task['task_id']} %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=form, force=True)
    logging.getLogger("kazoo").setLevel(logging.ERROR)
    logging.getLogger("airflow_tx.ledger.store").setLevel(logging.ERROR)
    tell_stacks(output)
    connection = Client(address, "AF_UNIX")
    ti = LittleTi(connection, **task)
    with nullcontext() if REAL in os.environ else patch.multiple(compat, **answered(ti)):
        try:
            ended = PROGRAMS[program](FiredTopology(name), ti)
        except Exception:
            logging.exception("%s of %s ended", program, name)
            ended = "failed"
    ti.asks("ended", str(ti.id), ended)
    # Whatever thread still waits for a server is in nobody's way.
    logging.shutdown()
    os._exit(0)
