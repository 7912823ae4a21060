"""How commands show the ledger: rows for Airflow's own console. Pure, bar `show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow_tx.protocol.records import dumps
from airflow_tx.protocol.view import TopologyView, TransactionDetails, TransactionView

Row = dict[str, Any]


def show(rows: Sequence[Row], output: str) -> None:
    """Print rows as table, json, yaml or plain."""
    from airflow.cli.simple_table import AirflowConsole

    AirflowConsole().print_as(data=rows, output=output)


def show_one(row: Row, output: str) -> None:
    """Print one thing: in a table one line a property, else as the only entry of a list."""
    if output == "table":
        show([{"property": name, "value": value} for name, value in row.items() if value is not None], output)
    else:
        show([row], output)


def topology(view: TopologyView) -> Row:
    """One line of `airflow tx list`."""
    opened = [each for each in view.transactions if each.open]
    return {
        "topology": view.name,
        "dag_id": view.record.dag_id,
        "source": view.record.source_kind,
        "next_commit": view.current,
        "allocated": view.allocated,
        "open": len(opened),
        "failed": sum(each.status == "FAILED" for each in opened),
        "max_pending": view.record.max_pending,
        "states": dumps(view.record.states),
        "repairs": len(view.repairs),
        "problem": None,
    }


def unreadable(name: str, problem: str) -> Row:
    """The line of a topology that cannot be read."""
    columns = ("dag_id", "source", "next_commit", "allocated", "open", "failed", "max_pending", "states", "repairs")
    return {"topology": name, **dict.fromkeys(columns), "problem": problem}


def transaction(view: TransactionView) -> Row:
    """One line of `airflow tx list TOPOLOGY`."""
    return {
        "txid": view.txid,
        "attempt": view.attempt,
        "status": view.status,
        "run_id": view.run_id,
        "rows": view.rows,
        "began": view.began,
        "processing": _seconds(view.began, view.processed),
        "commit": _seconds(view.granted, view.ended),
        "ended": view.ended,
        "waiting_for": view.waiting_for,
    }


def details(found: TransactionDetails) -> Row:
    """`airflow tx show`."""
    view = found.transaction
    return {
        "txid": view.txid,
        "attempt": view.attempt,
        "status": view.status,
        "run_id": view.run_id,
        "began": view.began,
        "processed": view.processed,
        "granted": view.granted,
        "ended": view.ended,
        "rows": view.rows,
        "ack_val": view.ack_val,
        "failures": view.failures,
        "error": view.error,
        "waiting_for": view.waiting_for,
        "batch": None if found.batch is None else dumps(found.batch.rows),
        "position": None if found.batch is None else dumps(found.batch.position),
        "acks": _acks(found) if view.open else None,
    }


def _acks(found: TransactionDetails) -> str:
    return ", ".join(f"{task}: {'acked' if ack.done else 'started'}" for task, ack in sorted(found.acks.items()))


def _seconds(start: str | None, end: str | None) -> str | None:
    if start is None or end is None:
        return None
    return f"{(datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds():.1f} s"


def fences(found: Mapping[str, Any]) -> str:
    """What the fences of states say, in one line, for the question before a repair."""
    told = (
        f"{name}: no fence"
        if fence is None
        else f"{name}: {'' if fence.applied else 'in '}transaction {fence.token.txid}"
        for name, fence in sorted(found.items())
    )
    return "; ".join(told)
