"""The committer's wait for its turn: in its worker on a watch while the turn is near, else given back to its caller."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_tx import compat
from airflow_tx.operators.committing import Commit, Completion
from airflow_tx.operators.turn import Line, Wait, decide, look, watched
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.reading import Reader


def commit_in_turn(
    commit: Commit, store: Store, *, patience: float, clock: Callable[[], float] = time.monotonic
) -> Line | None:
    """Commit when it is the turn.

    :param patience: seconds to wait in the worker at most.
    :return: None: it is committed; else the line in which to wait elsewhere.
    :raises Refused, StateError, StagingError: it cannot be committed as it is.
    """
    deadline = clock() + patience
    line: Line | None = None
    skipping = 0
    while (completion := commit.complete()) is not Completion.OVER:
        read = Reader(store)
        before, line = line, look(store, commit.spec.paths, commit.payload.txid, commit.spec.mapped, read)
        commit.ledger.remember(read)
        if before is not None and None is not line.op != before.op:
            commit.forget()  # a task of it works again, or it has failed, or there is a newer attempt
            continue
        if line.skip and skipping != line.current:
            skipping = line.current  # tried once: if it cannot be skipped now, it is waited for like any other
            commit.skip(line.current)
            continue
        wait = Wait.WARM if completion is Completion.NOT_YET else decide(line)
        if wait is Wait.DEFERRED or (wait is Wait.WARM and clock() >= deadline):
            _tell(commit, line)
            return line
        if completion is Completion.READY:
            commit.prepare()
            if wait is Wait.NOT and commit.commit():
                return None
        if wait is Wait.WARM:
            _watch(commit, store, line, deadline - clock())
    return None


def _watch(commit: Commit, store: Store, line: Line, seconds: float) -> None:
    spec = commit.spec
    with store.watch(*watched(spec.paths, line)) as watch:
        # What changed before the watches were set would never be told.
        if look(store, spec.paths, line.txid, spec.mapped) == line:
            commit.log.info("Transaction %s of %s waits: the turn is at %s", line.txid, spec.topology, line.current)
            watch.wait(max(seconds, 0.0))


def _tell(commit: Commit, line: Line) -> None:
    """Say for whom it waits, in what state that run is, and what to do."""
    first = line.earlier.get(line.current)
    if first is None:
        return
    spec = commit.spec
    state = compat.run_state(commit.ti, spec.dag_id, first.run_id)
    commit.log.info(
        "Transaction %s of %s waits for transaction %s (%s) of run %s, which %s. %s",
        line.txid,
        spec.topology,
        first.txid,
        first.phase.value,
        first.run_id,
        "was deleted" if state is None else f"is {state}",
        advice(spec.topology, first.txid, first.run_id, state),
    )


def advice(topology: str, txid: int, run_id: str, state: str | None) -> str:
    """What somebody who reads of a waiting transaction can do.

    :param state: of the run that it waits for.
    """
    if state == "running":
        return "There is nothing to do."
    if state == "queued":
        return "That run needs a run slot: one of the runs that wait makes room for it if it stays queued."
    again = f"start a run with the run id {run_id}" if state is None else "clear that run"
    return (
        f"To go on, {again}, or replay it: airflow tx replay {topology} {txid}; to go on without it: "
        f"airflow tx skip {topology} {txid} --why TEXT"
    )
