"""`airflow tx stale`: list the committed transactions for which the current DAG would produce other output."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import asdict

from airflow_tx.base.remedy import Command
from airflow_tx.ledger import counted
from airflow_tx.operations.actions.stale import (
    Stale,
    StaleGroup,
    StaleReading,
    StaleReason,
    nothing_stale,
)
from airflow_tx.operations.cli import render
from airflow_tx.operations.cli.actions import target_of
from airflow_tx.operations.cli.context import beside_rows, command, store_of


@command
def stale(args: Namespace) -> None:
    """`airflow tx stale TOPOLOGY [--code TASK]`."""
    with store_of(args) as store:
        target = target_of(store, args)
        found = StaleReading(target.ledger, target.dag()).read(args.code)
    if args.output == "table":
        if found.lines:
            render.print_rows([_row(each) for each in found.groups], args.output)
    else:
        rows = [{**asdict(each), "reason": each.reason.value} for each in found.lines]
        render.print_rows(rows, args.output)
    for line in _told(target.topology, target.record.dag_id, found, args.code):
        print(line, file=beside_rows(args))


def _row(group: StaleGroup) -> render.TableRow:
    restatement = f"transaction {group.restatement}" if group.restatement else "requested"
    return {
        "transactions": group.transactions,
        "stale_because": group.what,
        "since": group.since,
        "restatement": None if group.restatement is None else restatement,
    }


def _told(topology: str, dag_id: str, found: Stale, task: str) -> Iterable[str]:
    """Yield the lines below the table: commands, and the numbers of stale and of uncompared transactions."""
    if found.txids:
        narrowed = ("--code", task) if task else ()
        restate = Command.of("restate", topology, "--stale", *narrowed, "--dry-run")
        many = f"{len(found.txids)} of {counted(found.compared, 'transactions')}"
        yield f"{many} of topology {topology} are stale. To see what a restatement would do: {restate}"
        if any(each.tasks for each in found.lines):
            accept = Command.of(
                "restate", topology, "--stale", *narrowed, "--accept", "--why", "TEXT"
            )
            yield f"To keep the results of the other code: {accept}"
    else:
        yield f"{nothing_stale(topology, found, task)}."
    for why, number in found.unknown.items():
        yield f"Not compared: {counted(number, 'transactions')}, since {why}."
    if any(each.reason is StaleReason.INTERVAL for each in found.lines):
        yield f"To create the missing runs: {Command.of('backfill', dag_id, '--from', 'DATE', '--to', 'DATE')}"
