"""`airflow tx stale`: the committed transactions that today's DAG would make otherwise."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import count, groupby

from airflow_tx.base.remedy import Command
from airflow_tx.ledger import counted
from airflow_tx.operations.actions.stale import (
    Stale,
    StaleLine,
    StaleReading,
    StaleReason,
    check_task,
    nothing_stale,
)
from airflow_tx.operations.cli import render
from airflow_tx.operations.cli.actions import target_of
from airflow_tx.operations.cli.context import (
    beside_rows,
    command,
    store_of,
)


@command
def stale(args: Namespace) -> None:
    """`airflow tx stale TOPOLOGY [--code TASK]`."""
    with store_of(args) as store:
        target = target_of(store, args)
        reading = StaleReading(target.ledger, target.dag())
        every = reading.read()
        check_task(reading.code, every, args.code)
    found = every.of(args.code)
    if args.output == "table":
        render.print_rows(_groups(found.lines), args.output)
    else:
        rows = [{**asdict(each), "reason": each.reason.value} for each in found.lines]
        render.print_rows(rows, args.output)
    for line in _told(target.topology, target.record.dag_id, every, found, args.code):
        print(line, file=beside_rows(args))


def _groups(lines: Iterable[StaleLine]) -> list[render.TableRow]:
    """Give one row of a table for all transactions that are stale for one reason."""
    groups = dict[tuple[str, ...], list[StaleLine]]()
    for each in lines:
        key = (each.what, each.since or "", _restatement(each))
        groups.setdefault(key, []).append(each)
    return [
        {
            "transactions": _ranges([each.txid for each in alike if each.txid is not None]),
            "stale_because": what,
            "since": since,
            "restatement": restatement,
        }
        for (what, since, restatement), alike in groups.items()
    ]


def _restatement(line: StaleLine) -> str:
    if line.restatement is None:
        return ""
    return f"transaction {line.restatement}" if line.restatement else "requested"


def _ranges(txids: Sequence[int]) -> str:
    """Write txids in short: 1-3, 5."""
    counter = count()
    runs = (list(alike) for _, alike in groupby(txids, lambda txid: txid - next(counter)))
    return ", ".join(str(each[0]) if len(each) == 1 else f"{each[0]}-{each[-1]}" for each in runs)


def _told(topology: str, dag_id: str, every: Stale, found: Stale, task: str) -> Iterable[str]:
    """Say below the table how many there are, which were not compared, and the commands to type."""
    if found.txids:
        narrowed = ("--code", task) if task else ()
        restate = Command.of("restate", topology, "--stale", *narrowed, "--dry-run")
        many = f"{len(found.txids)} of {counted(every.compared, 'transactions')}"
        yield f"{many} of topology {topology} are stale. To see what a restatement would do: {restate}"
        if any(each.tasks for each in found.lines):
            accept = Command.of(
                "restate", topology, "--stale", *narrowed, "--accept", "--why", "TEXT"
            )
            yield f"To keep what the other code has made: {accept}"
    else:
        yield f"{nothing_stale(topology, every, task)}."
    for why, number in every.unknown.items():
        yield f"Not compared: {counted(number, 'transactions')}, since {why}."
    if any(each.reason is StaleReason.INTERVAL for each in found.lines):
        yield f"To count the intervals: {Command.of('backfill', dag_id, '--from', 'DATE', '--to', 'DATE')}"
