"""`airflow tx repair`: a state, or ZooKeeper, went back in time."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from airflow_tx.base.errors import RepairRefused, UnreadableRecord, without_controls
from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger import LEDGER_LOST, RESET, STATE_LOST, ReadOnlyLedger, Store, TopologyRecord
from airflow_tx.operations.actions.action import ActionTarget
from airflow_tx.operations.cli import render
from airflow_tx.operations.cli.actions import target_of
from airflow_tx.operations.cli.context import (
    action,
    audit_of,
    check_why,
    conn_id_of,
    is_shown,
    ledger_on,
    paths_of,
    store_of,
    wrong_usage,
)

if TYPE_CHECKING:
    from airflow_tx.operations.actions.action import EffectLine, ParsedDag
    from airflow_tx.operations.actions.repair import LedgerRepair


@action
def repair(args: Namespace) -> None:
    """`airflow tx repair TOPOLOGY (--roll-forward [STATE ...] | --state-lost STATE | --back TXID | ...)`."""
    chosen = [bool(args.state_lost), args.ledger_lost, args.reset]
    chosen += [args.roll_forward is not None, args.back is not None]
    if sum(chosen) != 1:
        wrong_usage(
            "Give exactly one of --roll-forward [STATE ...], --state-lost STATE, --back TXID, --ledger-lost, --reset."
        )
    of_roll_forward = (args.until is not None, args.changed, args.unchanged, args.restate)
    if args.roll_forward is None and any(of_roll_forward):
        wrong_usage("--restate, --until, --changed and --unchanged are for --roll-forward.")
    if args.unseen and not args.state_lost:
        wrong_usage("--unseen is for --state-lost.")
    if args.reset and not args.dry_run:
        check_why(args, "repair", "--reset")
    with store_of(args) as store:
        if args.roll_forward is not None:
            _roll_forward(args, store)
        else:
            do_repair(_chosen(args, store), args, "Repaired")


def do_repair(chosen: LedgerRepair, args: Namespace, told: str) -> None:
    """Do a repair, once a person has confirmed it; with `--dry-run` say what it would do."""
    preview = chosen.preview()
    if is_shown(args, preview):
        return
    done, *more = effects = list(chosen.execute(audit_of(args), preview.version))
    if args.output != "table":
        render.print_rows(list(map(render.effect, effects)), args.output)
        return
    print(f"{told}: {done.what}")
    for each in more:
        print(f"Transaction {each.txid}: {each.what}")


def _end_refused(refused: Sequence[EffectLine]) -> None:
    """End with exit code 1 if a state is refused."""
    if refused:
        raise SystemExit(without_controls("\n".join(str(each.what) for each in refused)))


def _chosen(args: Namespace, store: Store) -> LedgerRepair:
    from airflow_tx.operations.actions.repair import (
        LostLedger,
        LostState,
        ReturnToTransaction,
        TopologyReset,
    )

    if args.state_lost:
        return LostState(_target(args, store, STATE_LOST), args.state_lost, unseen=args.unseen)
    if args.back is not None:
        return ReturnToTransaction(_target(args, store, "back"), args.back)
    if args.ledger_lost:
        return LostLedger(_target(args, store, LEDGER_LOST, is_lost=True))
    return TopologyReset(_target(args, store, RESET, is_lost=True))


def _target(args: Namespace, store: Store, what: str, *, is_lost: bool = False) -> ActionTarget:
    """Find the topology.

    :param is_lost: whether its record may be lost: then its DAG says what it was.
    """
    record = (
        _record(args, store)
        if is_lost
        else ReadOnlyLedger(store, paths_of(args)).existing_topology()
    )

    @cache
    def dag() -> ParsedDag:
        return _dag(args, record, what)

    return ActionTarget(ledger_on(store, args), record or dag()[0].request.made(""), dag)


def _record(args: Namespace, store: Store) -> TopologyRecord | None:
    try:
        return ReadOnlyLedger(store, paths_of(args)).topology_if_any()
    except UnreadableRecord:
        return None  # the repair will report the error, or repair it


def _dag(args: Namespace, record: TopologyRecord | None, what: str) -> ParsedDag:
    """Find what the DAG says of the topology, and its states by name.

    :raises RepairRefused: the DAG keeps another topology.
    """
    from airflow_tx.operations.actions.dags import elsewhere, transactional_dag

    known = args.topology if record is None else record.dag_id
    spec, states = transactional_dag(args.dag_id or known)
    if problem := elsewhere(spec, paths_of(args), conn_id_of(args)):
        value = args.state_lost if args.back is None else args.back
        again = Remedy.of(
            f"Repeat: <airflow tx repair {{topology}} --{what} {{value}} --dag-id {{dag_id}} --conn-id {{conn_id}} "
            "--root {root} {why}>",
            topology=spec.topology,
            value=[] if value is None else [value],
            dag_id=spec.dag_id,
            conn_id=spec.conn_id,
            root=spec.paths.root,
            why=["--why", "TEXT"] if what == RESET else [],
        )
        raise RepairRefused(what=what, topology=args.topology, problem=problem, remedy=again)
    return spec, states


def _roll_forward(args: Namespace, store: Store) -> None:
    """Write the missing transactions of states again; exit code 1 if a state cannot be written."""
    from airflow_tx.operations.actions.repair import StateRollForward

    rolling = StateRollForward(
        target_of(store, args),
        args.roll_forward,
        restate=args.restate,
        until=args.until,
        changed=args.changed,
        unchanged=args.unchanged,
    )
    preview = rolling.preview()
    if not args.dry_run and args.output == "table" and not args.yes:
        render.print_rows([render.effect(each, "") for each in preview.effects], args.output)
    if is_shown(args, preview, refusable=False):
        _end_refused(preview.refused)
        return
    done = list(rolling.execute(audit_of(args)))
    if args.output != "table":
        render.print_rows(list(map(render.effect, done)), args.output)
        done = []
    told = [str(each.what) for each in done if each not in rolling.repair.refused]
    for place, each in enumerate(told):
        print(each if place else f"Repaired: {each}")
    _end_refused(rolling.repair.refused)
    if not told and args.output == "table":
        print(preview.sentence)
