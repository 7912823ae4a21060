"""`airflow tx skip | readmit | replay | accept-loss | accept-change`, in Airflow's audit log."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_tx.cli import render
from airflow_tx.cli.context import (
    action,
    audit_of,
    check_why,
    conn_id_of,
    dag_of,
    is_shown,
    ledger_on,
    paths_of,
    root_of,
    store_of,
    wrong_usage,
)
from airflow_tx.errors import typed
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.json_text import dumps
from airflow_tx.protocol.view import topology_record

if TYPE_CHECKING:
    from airflow_tx.actions.action import ActionTarget, PersonalAction
    from airflow_tx.actions.preview import EffectLine
    from airflow_tx.protocol.batch import Loss


@action
def skip(args: Namespace) -> None:
    """`airflow tx skip TOPOLOGY TXID --why TEXT`."""
    _act(args, "skip", [args.txid], confirmed=True)


@action
def readmit(args: Namespace) -> None:
    """`airflow tx readmit TOPOLOGY TXID --why TEXT`."""
    _act(args, "readmit", [args.txid], confirmed=True)


@action
def replay(args: Namespace) -> None:
    """`airflow tx replay TOPOLOGY (TXID [TXID ...] [--force] [--changed-rows --why TEXT] | --failed)`."""
    if bool(args.txids) == args.failed:
        wrong_usage("Give either the txids to replay, or --failed.")
    if args.failed and args.force:
        wrong_usage(
            "--force is for transactions that are named; --failed leaves alone what is queued or runs."
        )
    if args.changed_rows and args.failed:
        wrong_usage("--changed-rows is for transactions that are named.")
    if args.failed:
        _act(args, "replay-failed")
    else:
        _act(args, "replay", args.txids, force=args.force, changed_rows=args.changed_rows)


def _act(
    args: Namespace,
    name: str,
    txids: Sequence[int] = (),
    *,
    confirmed: bool = False,
    **options: bool,
) -> None:
    """Do what the board does for the same request."""
    from airflow_tx.actions.request import ActionName, ActionRequest

    request = ActionRequest(
        topology=args.topology,
        conn_id=conn_id_of(args),
        root=root_of(args),
        coordinator="",
        name=ActionName(name),
        txids=tuple(txids),
        force=options.get("force", False),
        changed_rows=options.get("changed_rows", False),
    )
    if request.needs_reason:
        changed = ["--changed-rows"] if request.changed_rows else []
        check_reason(args, " ".join([name, args.topology, *map(str, txids), *changed]))
    with store_of(args) as store:
        do(request.action(target_of(store, args)), args, confirmed=confirmed)


@action
def accept_loss(args: Namespace) -> None:
    """`airflow tx accept-loss TOPOLOGY --why TEXT`."""
    from airflow_tx.actions.loss import LossAcceptance

    check_reason(args, f"accept-loss {args.topology}")
    with store_of(args) as store:
        acceptance = LossAcceptance(target_of(store, args))
        if not is_previewed(acceptance, args, confirmed=True):
            list(acceptance.execute(audit_of(args)))
            rows = [_loss_line(loss) for loss in acceptance.losses]
            render.print_rows(rows, args.output)


@action
def accept_change(args: Namespace) -> None:
    """`airflow tx accept-change TOPOLOGY --state STATE --why TEXT`."""
    from airflow_tx.actions.changed_values import ChangeAcceptance

    check_reason(args, f"accept-change {args.topology} --state {args.state}")
    with store_of(args) as store:
        do(ChangeAcceptance(target_of(store, args), args.state), args, confirmed=True)


def target_of(store: Store, args: Namespace) -> ActionTarget:
    """:raises UnknownTransaction: there is no such topology."""
    from airflow_tx.actions.action import ActionTarget

    record = topology_record(store, paths_of(args))
    return ActionTarget(ledger_on(store, args), record, lambda: dag_of(args, record.dag_id))


def do(chosen: PersonalAction, args: Namespace, *, confirmed: bool = False) -> None:
    """Do it, once a person has confirmed it if need be; with `--dry-run` say what would be done."""
    if not is_previewed(chosen, args, confirmed=confirmed):
        show_effects(chosen.execute(audit_of(args)), args)


def is_previewed(chosen: PersonalAction, args: Namespace, *, confirmed: bool) -> bool:
    """Print the preview if only the preview is wanted; otherwise ask for a confirmation."""
    if not args.dry_run and not confirmed:
        return False
    return is_shown(args, chosen.preview())


def show_effects(effects: Iterable[EffectLine], args: Namespace) -> None:
    """Print what was done, also if what comes after it fails."""
    rows: list[render.TableRow] = []
    try:
        for each in effects:
            rows.append(render.effect(replace(each, what=typed(each.what, args.topology))))
    except BaseException:
        if rows:
            render.print_rows(rows, args.output)
        raise
    render.print_rows(rows, args.output)


def check_reason(args: Namespace, command: str) -> None:
    if not args.dry_run:  # which keeps nothing
        check_why(args, command)


def _loss_line(accepted: Loss) -> render.TableRow:
    return {
        "partition": accepted.partition or None,
        "lost": accepted.description,
        "goes_on_at": dumps(accepted.resume_at),
    }
