"""`airflow tx rename | delete`: rename a topology, move it to another DAG, or delete it.

Each call is in the audit log.
"""

from __future__ import annotations

import sys
from argparse import Namespace

from airflow_tx.base import compat
from airflow_tx.base.errors import (
    ConfigError,
    MoveRefused,
)
from airflow_tx.base.remedy import Command, Remedy, without_controls
from airflow_tx.ledger import (
    Mover,
    Paths,
    ReadOnlyLedger,
    Store,
    TopologyRecord,
    TransactionRecord,
    dumps,
    readers_in_words,
)
from airflow_tx.operations.actions.action import ParsedDag, live_runs
from airflow_tx.operations.actions.dags import elsewhere, transactional_dag
from airflow_tx.operations.cli import render
from airflow_tx.operations.cli.context import (
    action,
    audit_of,
    check_reason,
    confirm,
    conn_id_of,
    ledger_at,
    paths_of,
    staging_of,
    store_of,
)
from airflow_tx.state import FencedState


@action
def rename(args: Namespace) -> None:
    """`airflow tx rename TOPOLOGY [NEW] --why TEXT`."""
    old = paths_of(args)
    new = paths_of(args, args.new or args.topology)
    check_reason(args, "rename", *([args.new] if args.new else []))
    with store_of(args) as store:
        mover = Mover(ledger_at(store, paths_of(args)))
        record = mover.record()
        spec, states = _spec(args, new.topology, args.dag_id or new.topology)
        dag_id = spec.dag_id
        missing = ", ".join(sorted(set(record.states) - set(states)))
        _check_runs(store, old, record.dag_id)
        if new != old and not mover.is_at(new, record):
            mover.check_name(new)
            _check_runs(store, new, dag_id)
        what = f"Rename topology {old.topology} of DAG {record.dag_id} to topology {new.topology} of DAG {dag_id}"
        lost = f", which has no state {missing}" if missing else ""
        opened = ReadOnlyLedger(store, old).open_records()
        then = "Then: " + Command.of("replay", new.topology, "--failed") + "."
        after = f"{_txids(opened)} {then}" if opened else ""
        if new != old:
            goes_on = f"Set UpstreamSource(..., topology={new.topology!r}) in their DAGs."
            after = f"{after} {readers_in_words(ReadOnlyLedger(store, old), goes_on)}".strip()
        if _is_dry(args, f"{what}{lost}. {after}"):
            return
        confirm(args, f"{what}{lost}.")
        done = (
            mover.claim(dag_id, audit_of(args))
            if new == old
            else mover.rename(new, dag_id, audit_of(args))
        )
        if new != old:
            _forget_output(args, old, record.incarnation)
    what = f"Renamed: {done.summary}. Transaction {done.current} commits next. {after}".strip()
    _print_done(args, what)


@action
def delete(args: Namespace) -> None:
    """`airflow tx delete TOPOLOGY [--release-states] --why TEXT`."""
    check_reason(args, "delete")
    paths = paths_of(args)
    with store_of(args) as store:
        mover = Mover(ledger_at(store, paths_of(args)))
        record = mover.record()
        allocated = mover.allocated()
        _check_runs(store, paths, record.dag_id)
        states = _releasable(args, record) if args.release_states else {}
        what = f"Delete ledger and journal of topology {args.topology} of DAG {record.dag_id}"
        what += _left(store, paths)
        if states:
            what += f", and release {', '.join(sorted(states))}: the values stay, and another topology may use them"
        elif record.states:
            held = "; ".join(
                f"{name}: transaction {txid}" for name, txid in sorted(record.states.items())
            )
            what += f". Its states stay fenced, so that no other topology can use them ({held})"
        read = readers_in_words(ReadOnlyLedger(store, paths), "They cannot continue: reset them.")
        what = f"{what}. {read}".strip() if read else f"{what}."
        if _is_dry(args, what):
            return
        confirm(args, what)
        mover.close_for_deletion(allocated)
        for state in states.values():
            state.release()
        staging_of(args).forget(record.incarnation)
        mover.delete()
    _print_done(args, f"Deleted: topology {args.topology}. Its states: {dumps(record.states)}")


def _print_done(args: Namespace, what: str) -> None:
    if args.output == "table":
        print(without_controls(what))
    else:
        render.print_rows([{"topology": args.topology, "done": what}], args.output)


def _forget_output(args: Namespace, paths: Paths, incarnation: str) -> None:
    """Remove the staged output under the old name. No task reads it, since open transactions begin again."""
    try:
        staging_of(args).of_topology(incarnation).sweep(paths.topology)
    except Exception as error:  # noqa: BLE001
        print(f"Staged output of {paths.topology} was not removed: {error}", file=sys.stderr)


def _is_dry(args: Namespace, what: str) -> bool:
    if args.dry_run:
        _print_done(args, f"Dry run: {what} Nothing was changed.")
    return bool(args.dry_run)


def _spec(args: Namespace, topology: str, dag_id: str) -> ParsedDag:
    """Return the `Transaction` of the DAG, and the states of the DAG by name.

    :raises ConfigError: the DAG has another topology, or names another ledger for it.
    """
    spec, states = transactional_dag(dag_id)
    if problem := elsewhere(spec, paths_of(args, topology), conn_id_of(args)):
        remedy = f"{problem}. Nothing was changed. Name the DAG whose topology is {topology!r}: --dag-id DAG_ID"
        raise ConfigError(option="--dag-id", value=dag_id, remedy=remedy)
    return spec, states


def _check_runs(store: Store, paths: Paths, dag_id: str) -> None:
    """Raise an error while a run of an open transaction is queued or running.

    :raises MoveRefused: such a run exists. The error names it.
    """
    if live := live_runs(ReadOnlyLedger(store, paths), dag_id):
        raise MoveRefused(
            topology=paths.topology,
            problem=live,
            remedy="Pause the DAG, end its runs, and repeat the command.",
        )


def _left(store: Store, paths: Paths) -> str:
    """Describe the transactions whose rows would no longer be counted after the deletion."""
    ledger = ReadOnlyLedger(store, paths)
    skipped = [txid for txid, each in ledger.all_skipped().items() if each.readmitted_as is None]
    current = ledger.current_if_any()
    what = "" if current is None else f", whose last final transaction is {current - 1}"
    opened = ledger.open_records()
    what += f". {_txids(opened)} Their rows will not be counted" if opened else ""
    return what + (
        f". Transactions that were skipped and not re-admitted: {', '.join(map(str, skipped))}"
        if skipped
        else ""
    )


def _txids(opened: dict[int, TransactionRecord]) -> str:
    return f"Open transactions: {', '.join(map(str, opened))}."


def _releasable(args: Namespace, record: TopologyRecord) -> dict[str, FencedState]:
    """Return the DAG's states that have a fence of this ledger.

    :raises MoveRefused: a state cannot be released, or the DAG is not paused. An active DAG could count all rows again.
    """
    _, states = _spec(args, args.topology, args.dag_id or record.dag_id)
    fences = {name: state.fence() for name, state in states.items()}
    own = {
        name: fence
        for name, fence in fences.items()
        if fence and fence.incarnation == record.incarnation
    }
    gone = sorted(set(record.states) - set(states))
    stuck = sorted(name for name in own if not states[name].can_release)
    halves = sorted(name for name, fence in own.items() if not fence.applied)
    problem = ""
    remedy: Remedy | str = ""
    if gone:
        problem = f"DAG {record.dag_id!r} has no state {', '.join(gone)}"
        remedy = "Restore it in the DAG, and repeat the command."
    elif stuck:
        problem = f"state {', '.join(stuck)} cannot be released"
        remedy = "Without --release-states, only the ledger is deleted. A new topology then needs a new state."
    elif halves:
        problem = f"state {', '.join(halves)} is in the middle of a transaction"
        remedy = "Replay or skip the transaction, which this command lists: " + Command.of(
            "list", args.topology
        )
    elif compat.is_paused_there(record.dag_id) is False:
        problem = f"DAG {record.dag_id!r} is not paused: its next run would count all rows again"
        remedy = f"Pause it: airflow dags pause {record.dag_id}"
    if problem:
        raise MoveRefused(topology=args.topology, problem=problem, remedy=remedy)
    return {name: states[name] for name in own}
