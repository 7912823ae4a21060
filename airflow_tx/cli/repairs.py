"""`airflow tx repair`: a state, or ZooKeeper, went back in time."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

from airflow_tx.cli import render, repair_previews
from airflow_tx.cli.context import (
    action,
    audit_of,
    check_why,
    conn_id_of,
    is_shown,
    ledger_on,
    paths_of,
    print_done,
    staging_of,
    store_of,
    wrong_usage,
)
from airflow_tx.errors import RepairRefused, UnreadableRecord
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import TopologyRecord
from airflow_tx.protocol.view import topology_record
from airflow_tx.state.api import FencedState


@action
def repair(args: Namespace) -> None:
    """`airflow tx repair TOPOLOGY (--roll-forward [STATE ...] | --state-lost STATE | --ledger-lost | --reset)`."""
    kinds = {"state_lost": _state_lost, "ledger_lost": _ledger_lost, "reset": _reset}
    chosen = [name for name in kinds if getattr(args, name)]
    chosen += ["roll_forward"] if args.roll_forward is not None else []
    if len(chosen) != 1:
        wrong_usage(
            "Give exactly one of --roll-forward [STATE ...], --state-lost STATE, --ledger-lost and --reset."
        )
    if args.roll_forward is None and (args.until is not None or args.changed):
        wrong_usage("--until and --changed are for --roll-forward.")
    if args.reset and not args.dry_run:
        check_why(args, f"repair {args.topology} --reset")
    with store_of(args) as store:
        {**kinds, "roll_forward": _roll_forward}[chosen[0]](args, store)


def _state_lost(args: Namespace, store: Store) -> None:
    from airflow_tx.protocol.repair import state_lost

    ledger = ledger_on(store, args)
    audit = audit_of(args)
    sentence = f"Accept what state {args.state_lost} of topology {args.topology} holds; what it lost stays lost."
    planned = ledger.preview(state_lost, args.state_lost, audit)
    if not is_shown(args, repair_previews.of_kept(ledger, planned, sentence)):
        print_done("Repaired", ledger.run(state_lost, args.state_lost, audit))


def _ledger_lost(args: Namespace, store: Store) -> None:
    from airflow_tx.protocol.rebuild_plan import LEDGER_LOST, HeldState
    from airflow_tx.protocol.repair import Repairs, incarnation_of
    from airflow_tx.state.api import StateKind

    request, states = _dag(args, store, LEDGER_LOST)
    found = {name: state.fence() for name, state in states.items()}
    held = [
        HeldState.of(
            name,
            undoable=states[name].kind is StateKind.OPAQUE,
            fence=fence,
            holds=states[name].holds,
            receipts=states[name].receipts(),
        )
        for name, fence in found.items()
        if fence is not None
    ]
    ledger = ledger_on(store, args)
    audit = audit_of(args)
    planned = Repairs(ledger).preview_ledger_lost(held, request, audit)
    made_anew = incarnation_of(Reader(store), ledger.paths)
    if is_shown(args, repair_previews.of_rebuilt(ledger, planned, found)):
        return
    for incarnation in {fence.incarnation for fence in found.values() if fence is not None}:
        if made_anew not in ("", incarnation):
            staging_of(args).adopt_taken(made_anew, incarnation)
    print_done("Repaired", Repairs(ledger).ledger_lost(held, request, audit))


def _reset(args: Namespace, store: Store) -> None:
    from airflow_tx.protocol.repair import RESET, Repairs, incarnation_of, reset

    request, states = _dag(args, store, RESET)
    refused = partial(RepairRefused, what=RESET, topology=args.topology)
    fences = {name: _clearable(name, state, refused) for name, state in states.items()}
    ledger = ledger_on(store, args)
    audit = audit_of(args)
    incarnation = incarnation_of(Reader(store), ledger.paths)
    planned = ledger.preview(reset, request, audit)
    if is_shown(args, repair_previews.of_reset(ledger, planned, fences)):
        return

    def clear() -> None:
        for state in states.values():
            state.clear()
        if incarnation:
            staging_of(args).forget(incarnation)

    print_done("Repaired", Repairs(ledger).reset(request, audit, clear=clear))


def _clearable(name: str, state: FencedState, refused: Callable[..., RepairRefused]) -> Any:
    """Read the fence of a state that can be emptied: once the ledger is emptied, what it held is lost.

    :raises RepairRefused: the state cannot be emptied, or not be read.
    """
    from airflow_tx.protocol.repair import reason_of

    if not state.can_clear:
        raise refused(
            problem=f"state {name!r} ({type(state).__name__}) cannot be emptied",
            remedy="Empty it by hand, take it out of the DAG, and repeat.",
        )
    try:
        return state.fence()
    except Exception as error:
        raise refused(
            problem=f"state {name!r} cannot be read ({reason_of(error)})",
            remedy="Let it be reached, or take it out of the DAG, and repeat.",
        ) from error


def _dag(args: Namespace, store: Store, what: str) -> tuple[Any, dict[str, Any]]:
    """The DAG's description of its topology, and its states by name."""
    from airflow_tx.actions.dags import elsewhere, transactional_dag
    from airflow_tx.protocol.repair import RESET

    paths = paths_of(args)
    spec, states = transactional_dag(args.dag_id or _dag_id(store, paths) or args.topology)
    if problem := elsewhere(spec, paths, conn_id_of(args)):
        raise RepairRefused(
            what=what,
            topology=args.topology,
            problem=problem,
            remedy=f"Repeat: airflow tx repair {spec.topology} --{what} --dag-id {spec.dag_id} "
            f"--conn-id {spec.conn_id} --root {spec.paths.root}{' --why TEXT' if what == RESET else ''}",
        )
    return spec.request, states


def _dag_id(store: Store, paths: Paths) -> str | None:
    try:
        record = Reader(store).peek_if_any(TopologyRecord, paths.record)
    except UnreadableRecord:
        return None  # the repair will report the error, or repair it
    return None if record is None else record.dag_id


def _roll_forward(args: Namespace, store: Store) -> None:
    """Write the missing transactions of states again; exit code 1 if a state cannot be written."""
    from airflow_tx.actions.dags import checked_dag
    from airflow_tx.actions.roll_forward import RollForwardRepair
    from airflow_tx.journal.area import JournalArea

    record = topology_record(store, paths_of(args))
    _, states = checked_dag(args.dag_id or record.dag_id, paths_of(args), conn_id_of(args))
    area = staging_of(args)
    repair = RollForwardRepair(
        ledger_on(store, args),
        states,
        JournalArea(area, record.incarnation),
        area.of_topology(record.incarnation),
        chosen=args.roll_forward,
        until=args.until,
        changed=args.changed,
    )
    preview = repair.preview()
    if not args.dry_run and args.output == "table" and not args.yes:
        render.print_rows([render.effect(each, "") for each in preview.effects], args.output)
    if not is_shown(args, preview):
        done = repair.execute(audit_of(args))
        if done is not None:
            print_done("Repaired", done)
        elif not repair.refused:
            print(preview.sentence)
    if repair.refused:
        raise SystemExit("\n".join(str(each.what) for each in repair.refused))
