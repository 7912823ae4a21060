"""`airflow tx repair --roll-forward`."""

from __future__ import annotations

from argparse import Namespace

from airflow_tx.cli import render
from airflow_tx.cli.context import (
    audit_of,
    conn_id_of,
    is_shown,
    ledger_on,
    paths_of,
    print_done,
    staging_of,
)
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.view import topology_record


def roll_forward(args: Namespace, store: Store) -> None:
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
