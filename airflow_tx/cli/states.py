"""`airflow tx state rename | forget`: what becomes of a state that the DAG no longer names. Source: protocol.md §7."""

from __future__ import annotations

from argparse import Namespace

from airflow_tx.cli.context import (
    action,
    audit_of,
    conn_id_of,
    is_shown,
    ledger_on,
    paths_of,
    print_done,
    store_of,
)
from airflow_tx.cli.repair_previews import of_kept
from airflow_tx.errors import RenameRefused
from airflow_tx.protocol import repair
from airflow_tx.protocol.records import TopologyRecord
from airflow_tx.protocol.view import topology_record
from airflow_tx.state.api import FencedState


@action
def rename(args: Namespace) -> None:
    """`airflow tx state rename TOPOLOGY OLD NEW`."""
    with store_of(args) as store:
        ledger = ledger_on(store, args)
        audit = audit_of(args)
        record = topology_record(store, paths_of(args))
        state = _renamed(args, record)
        planned = ledger.preview(repair.rename_state, args.old, args.new, audit=audit)
        moved = args.old in record.states and state.has_fence
        along = [_checked(args, record, state)] if moved else []
        sentence = f"Continue state {args.old} of topology {args.topology} as {args.new}."
        if is_shown(args, of_kept(ledger, planned, sentence, *along)):
            return
        if moved and state.fence() is None:
            state.take_over(args.old)
        print_done("Done", ledger.run(repair.rename_state, args.old, args.new, audit=audit))


@action
def forget(args: Namespace) -> None:
    """`airflow tx state forget TOPOLOGY OLD`."""
    with store_of(args) as store:
        ledger = ledger_on(store, args)
        audit = audit_of(args)
        sentence = f"Continue topology {args.topology} without state {args.old}. Another state may take its place."
        # If it ever comes back, what it holds then is accepted: the same as of a state that was lost.
        planned = ledger.preview(repair.state_lost, args.old, audit)
        if not is_shown(args, of_kept(ledger, planned, sentence)):
            print_done("Done", ledger.run(repair.state_lost, args.old, audit))


def _renamed(args: Namespace, record: TopologyRecord) -> FencedState:
    """The state as the DAG names it now."""
    from airflow_tx.actions.dags import elsewhere, transactional_dag

    spec, states = transactional_dag(args.dag_id or record.dag_id)
    if problem := elsewhere(spec, paths_of(args), conn_id_of(args)):
        remedy = (
            f"Repeat for {spec.topology} with --conn-id {spec.conn_id} --root {spec.paths.root}"
        )
    elif args.new not in states or args.old in states:
        problem = f"the DAG updates {', '.join(sorted(states)) or 'none'}"
        remedy = "Give the name that the ledger knows, and then the one that the DAG gives the state now."
    else:
        return states[args.new]
    raise RenameRefused(topology=args.topology, old=args.old, problem=problem, remedy=remedy)


def _checked(args: Namespace, record: TopologyRecord, state: FencedState) -> str:
    """Find out whether the fence to move belongs to the same state, and say what would move.

    :raises RenameRefused: it is not; :raises StateError: the values are not there.
    """
    fence = state.fence_of(args.old)
    last = record.states[args.old]
    if (
        fence is not None
        and fence.incarnation == record.incarnation
        and fence.token.txid in (last, last + 1)
    ):
        return f"state {args.new}: its fence comes along, at transaction {fence.token.txid}"
    found = "nothing" if fence is None else f"{fence.token.txid} of ledger {fence.incarnation}"
    raise RenameRefused(
        topology=args.topology,
        old=args.old,
        problem=f"it has transaction {last} of ledger {record.incarnation}, the fence of {args.new} says {found}",
        remedy=f"Move its values to {args.new} first, with their fence; or, if {args.new} is another state: "
        f"airflow tx state forget {args.topology} {args.old}",
    )
