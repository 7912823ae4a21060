"""Print ledger facts as rows, with Airflow's own console."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgspec

from airflow_tx.base.remedy import Remedy, without_controls
from airflow_tx.ledger import (
    AlarmNote,
    ChainStages,
    HealthCode,
    Outcome,
    Person,
    PersonOfAttempt,
    TaskTry,
    TopologyView,
    TransactionDetails,
    TransactionView,
    batch_in_words,
    check_in_words,
    columns,
    counted,
    dumps,
    pace_in_words,
    size_in_words,
    topology_health,
)
from airflow_tx.operations.actions.action import EffectLine
from airflow_tx.sources import Lag, LagUnknown

TableRow = dict[str, Any]

_TOPOLOGY_COLUMNS = "dag_id state source reads next_commit allocated open failed max_pending lag states repairs".split()
_RARE_COLUMNS = ("digest", "restates", "restated_by", "journal")

TRANSACTION_COLUMNS = """
    txid attempt status run_id rows size
    began processing commit ended
    waiting_for note behind digest
""".split()
"""The columns of `airflow tx list TOPOLOGY`."""
DETAIL_COLUMNS = [
    *"txid attempt status run_id began processed granted ended".split(),
    *"rows digest rejected not_proven checks size lost".split(),
    *"changed_rows ack_val failures error run_end".split(),
    *"waiting_for pinned stale blocked yielded".split(),
    *"replay replayed_by skip readmit readmitted_as".split(),
    *"restates restated_by restate behind".split(),
    *"upstream downstream".split(),
    *"batch position partitions acks".split(),
]
"""The columns of `airflow tx show TOPOLOGY TXID`."""
RECEIPT_COLUMNS = """
    txid attempt outcome run_id restates restated_by
    granted rows metadata written replays journal hash
""".split()
"""The columns of `airflow tx receipts` and of `airflow tx find TOPOLOGY WHAT`."""
FOUND_COLUMNS = """
    topology txid status matched text
    run_id batch restates restated_by
""".split()
"""The columns of `airflow tx find WHAT`. The short table has the first five."""
REJECTED_COUNT_COLUMNS = "task reason rows transactions first last".split()
"""The columns of `airflow tx rejected TOPOLOGY`. For a single transaction, only the first three are listed."""

IN_SHORT = 80
"""The width of a short table, in characters."""
TOPOLOGY_IN_SHORT = "topology state next_commit open failed lag".split()
TRANSACTION_IN_SHORT = "txid attempt status run_id rows".split()
RECEIPT_IN_SHORT = "txid outcome run_id rows metadata".split()
TOPOLOGY_STATUSES = tuple(each.value for each in HealthCode)
TRANSACTION_STATUSES = (
    "open",
    "failed",
    "processing",
    "processed",
    "committing",
    "committed",
    "skipped",
    "readmitted",
)
"""The values of `airflow tx list --status`."""


def has_status(view: TransactionView, status: str | None) -> bool:
    """Return whether a transaction has this status of `TRANSACTION_STATUSES`.

    The status None matches every transaction.
    """
    if status is None:
        return True
    if status == "open":
        return view.open
    if status == "failed":
        return view.failed or view.blocked is not None
    return view.status.lower() == status


class Seconds(float):
    """A duration that is printed with its unit, but as a number in JSON."""

    def __str__(self) -> str:
        return f"{float(self):.1f} s"


def as_json(value: Any) -> str:
    """Return a value as one line of JSON. Numbers keep all digits, and values without a JSON type become strings.

    Airflow's console would write each number and boolean as a string. Control characters are escaped.
    """
    text = _encoded(_data(value))
    return re.sub(r"[^\x20-\x7e]", lambda found: json.dumps(found[0])[1:-1], text)


def _encoded(data: Any) -> str:
    return msgspec.json.Encoder(decimal_format="number").encode(data).decode()


def _data(value: Any) -> Any:
    """Convert a value to JSON types."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, (Lag, Mapping)):
        named = vars(value) if isinstance(value, Lag) else value
        return {_data(str(name)): _data(each) for name, each in named.items()}
    if isinstance(value, (list, tuple)):
        return list(map(_data, value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Decimal) and value.is_finite():
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    is_empty = value is None or isinstance(value, LagUnknown)
    return None if is_empty else value if isinstance(value, int) else _data(str(value))


def _for_yaml(text: str) -> float | str:
    """Parse a JSON number. Keep it as a string if YAML readers would lose digits."""
    return float(text) if Decimal(repr(float(text))) == Decimal(text) else text


def print_rows(rows: Sequence[TableRow], output: str, *, width: int | None = None) -> None:
    """Print rows as table, json, yaml or plain.

    :param output: value of `--output`.
    :param width: maximum width of a table in characters, or None for any width.
    """
    from airflow.cli.simple_table import AirflowConsole
    from tabulate import tabulate  # type: ignore[import-untyped]

    if output == "json":
        print(as_json(rows))
        return
    console = AirflowConsole()
    if output == "yaml":
        console.print_as_yaml(json.loads(as_json(rows), parse_float=_for_yaml))
        return
    if output == "table":
        # Omit rare columns that are empty, so that fewer commands to copy are wrapped.
        empty = {name for name in _RARE_COLUMNS if not any(row.get(name) for row in rows)}
        rows = [{name: each for name, each in row.items() if name not in empty} for row in rows]
    rows = [
        {_shown(name, output): _shown(value, output) for name, value in row.items()} for row in rows
    ]
    # Airflow's console would parse strings as numbers, and round the numbers.
    if output == "plain" and rows:
        lines = [each.values() for each in rows]
        print(tabulate(lines, [*rows[0]], tablefmt="plain", disable_numparse=True))
        return
    if width is not None:
        console.width = min(width, console.width)
    console.print_as(data=rows, output=output)


def print_in_short(
    rows: Sequence[TableRow], columns: Sequence[str], below: Sequence[str], output: str
) -> None:
    """Print a table for a narrow terminal, and the long texts below the table.

    For another `output`, print all columns.

    :param columns: columns of the table. The first one identifies a row.
    :param below: columns to print below the table without line breaks, so that users can copy commands.
    :param output: value of `--output`.
    """
    if output != "table":
        print_rows(rows, output)
        return
    print_rows([{name: row[name] for name in columns} for row in rows], output, width=IN_SHORT)
    for row in rows:
        for name in below:
            if row[name] is not None:
                about = row[columns[0]] or row["run_id"]
                print(without_controls(f"{about}: {name.replace('_', ' ')} {row[name]}"))


def _shown(value: Any, output: str) -> Any:
    """Convert a value to text that is safe for a terminal, and for a program that reads UTF-8."""
    from rich.markup import escape

    if value is None or isinstance(value, (int, float)):
        return "" if value is None else value
    if isinstance(value, (Lag, LagUnknown)):
        return str(value) if isinstance(value, Lag) else "?"
    data = _data(value)
    text = without_controls(_encoded(data) if isinstance(data, (dict, list)) else str(data))
    # Escape brackets, which the table would interpret as styles.
    return escape(text) if output == "table" else text


def print_row(row: TableRow, output: str) -> None:
    """Print one object. A table has one line for each property. Other formats have a list with one entry."""
    if output == "table":
        print_rows(
            [
                {"property": name, "value": value}
                for name, value in row.items()
                if value is not None
            ],
            output,
        )
    else:
        print_rows([row], output)


def topology(
    view: TopologyView,
    lag: Lag | LagUnknown | None = None,
    alarms: Mapping[str, AlarmNote] | None = None,
) -> TableRow:
    """Return one row of `airflow tx list`.

    :param lag: lag of the source, or None if it was not queried.
    :param alarms: current alerts.
    """
    return {
        "topology": view.name,
        "dag_id": view.record.dag_id,
        "state": topology_health(view, alarms).code.value,
        "source": view.record.source_kind,
        "reads": _reads(view),
        "next_commit": view.current,
        "allocated": view.allocated,
        "open": len(view.opened),
        "failed": sum(each.failed for each in view.opened),
        "max_pending": view.record.max_pending,
        "lag": lag,
        "states": view.record.states,
        "repairs": len(view.repairs),
        "problem": _problem(view),
    }


def topology_details(
    view: TopologyView, lag: Lag | LagUnknown | None, alarms: Mapping[str, AlarmNote]
) -> TableRow:
    """Return the properties that `airflow tx show TOPOLOGY` prints."""
    health = topology_health(view, alarms)
    return {
        **topology(view, lag),
        "state": f"{health.code.value}: {health}",
        "incarnation": view.record.incarnation,
        "generation": view.record.generation,
        "rotating_state": view.rotating_state,
        "pace": pace_in_words(view.record.pace) or None,
        "accepted_losses": "\n".join(_accepted(view)) or None,
        "repairs": "\n".join(
            f"{each.what}: {each.told} ({each.why}; {each.who}, {each.when})"
            for each in view.repairs
        )
        or None,
    }


def _reads(view: TopologyView) -> str | None:
    """Describe the upstream topology, and the number of its unread transactions."""
    if not view.record.upstream:
        return None
    parts = [view.record.upstream]
    if isinstance(view.ahead, int):
        parts.append(f"{counted(view.ahead, 'transactions')} not taken yet")
    elif view.ahead is not None:
        parts.append(f"it cannot continue: {view.ahead}")
    if view.behind:
        parts.append(f"own transactions behind corrections: {len(view.behind)}")
    return ", ".join(parts)


def _accepted(view: TopologyView) -> Iterator[str]:
    for each in sorted(view.losses, key=lambda loss: loss.partition or ""):
        where = f"partition {each.partition}: " if each.partition else ""
        yield f"{where}{each.description} ({each.why}; {each.who}, {_time(each.when)})"


def _problem(view: TopologyView) -> str | None:
    blocked = next((each for each in view.opened if each.blocked), None)
    if blocked is not None:
        return f"blocked at transaction {blocked.txid}: {Remedy.behind(blocked.blocked, blocked.document.remedy)}"
    failed = next((each for each in view.opened if each.failed), None)
    return (
        None
        if failed is None
        else f"transaction {failed.txid} has failed: {failed.said or failed.run_end or 'no reason noted'}"
    )


def unreadable(name: str, problem: str) -> TableRow:
    """Return the row for a topology that cannot be read."""
    return {
        "topology": name,
        **dict.fromkeys(_TOPOLOGY_COLUMNS),
        "state": HealthCode.UNREADABLE.value,
        "problem": problem,
    }


def transaction(view: TransactionView) -> TableRow:
    """Return one row of `airflow tx list TOPOLOGY`."""
    spelled = _spelled(TransactionDetails(view, None))
    spelled["digest"] = view.document.digest.rpartition(":")[2] or None
    return columns(view, TRANSACTION_COLUMNS, **spelled)


def waiters(view: TopologyView) -> list[TableRow]:
    """Return the rows for runs that yielded before they got a transaction."""
    return [
        {
            **dict.fromkeys(TRANSACTION_COLUMNS),
            "status": "YIELDED",
            "run_id": each.run_id,
            "waiting_for": each.waiting_for,
            "note": f"gave up its run slot at {_time(each.since)}",
        }
        for each in view.waiting_runs
    ]


def wished(view: TopologyView) -> list[TableRow]:
    """Return the rows for requests whose transactions the ledger has forgotten."""
    listed = {each.txid for each in view.transactions}
    return [
        {
            **dict.fromkeys(TRANSACTION_COLUMNS),
            "txid": each.txid,
            "status": Outcome.COMMITTED.value,
            "run_id": each.run_id,
            "note": f"to be restated: {each.why} ({each.who})",
        }
        for each in view.wishes
        if each.txid not in listed
    ]


def _restatement(view: TransactionView) -> Iterator[str]:
    by = "" if view.restate is None else f": {_person(view.restate)}"
    if view.document.restates is not None:
        yield f"restates {view.document.restates}{by}"
    elif view.restate is not None:
        yield f"to be restated{by}"
    if view.restated_by is not None:
        yield f"restated by {view.restated_by}"


def _note(view: TransactionView) -> str | None:
    """Describe special facts about a transaction, such as a skip. Return None if there are none."""
    notes = [*_restatement(view)]
    if view.document.pinned and view.document.restates is None:
        notes.append("re-admitted: its rows never change")
    notes += [f"rows lost before this transaction: {what}" for what in view.document.lost]
    notes += [
        f"rows decided again for attempt {each.attempt}: {_person(each)}" for each in view.changed
    ]
    if view.open and view.skip is not None:
        notes.append(f"to be skipped: {_person(view.skip)}")
    elif view.skip is not None:
        notes.append(f"skipped: {_person(view.skip)}")
    if view.readmitted_as is not None:
        notes.append(f"re-admitted as transaction {view.readmitted_as}")
    if view.readmit is not None:
        notes.append(f"re-admission requested: {_person(view.readmit)}")
    # If the note is of an older attempt, a person has replayed the transaction since.
    last = view.document.replay
    if last is not None and last.count and last.attempt >= view.document.attempt - 1:
        times = "once" if last.count == 1 else f"{last.count} times in a row"
        notes.append(f"replayed automatically {times}: {last.reason}")
    return "; ".join(notes) or None


def _person(by: Person) -> str:
    return f"{by.why} ({by.who})"


def _person_at(by: Person | None) -> str | None:
    if by is None:
        return None
    at = f"{by.who}, {_time(by.when)}"
    return f"{by.why} ({at})" if by.why else at


def _of_attempts(noted: Iterable[PersonOfAttempt]) -> str | None:
    return "; ".join(f"attempt {each.attempt}: {_person_at(each)}" for each in noted) or None


def named_batch(metadata: Any, output: str) -> Any:
    """Return a batch's name for a user, or its metadata for a program."""
    return (output in ("table", "plain") and batch_in_words(metadata)) or metadata


def details(
    found: TransactionDetails, output: str = "table", stages: ChainStages | None = None
) -> TableRow:
    """Return the properties that `airflow tx show TOPOLOGY TXID` prints.

    :param stages: path of the transaction through a chain of topologies, or None if it is unknown.
    """
    way = {
        "upstream": stages and stages.up_in_words,
        "downstream": stages and stages.down_in_words,
    }
    return columns(found.transaction, DETAIL_COLUMNS, **_spelled(found, output), **way)


def _spelled(found: TransactionDetails, output: str = "table") -> TableRow:
    """Return the columns whose values are not copied unchanged from a transaction's view."""
    view = found.transaction
    return {
        "attempt": view.document.attempt or None,
        "size": None if view.document.size is None else size_in_words(view.document.size),
        "began": _time(view.began),
        "processing": _seconds(view.processing_seconds),
        "commit": _seconds(view.commit_seconds),
        "note": _note(view),
        "processed": _time(view.processed),
        "granted": _time(view.granted),
        "ended": _time(view.ended),
        "digest": view.document.digest or None,
        "rejected": "; ".join(map(_rejected, found.rejected.items())) or None,
        "not_proven": "; ".join(view.unproven) or None,
        "checks": "; ".join(check_in_words(name, each) for name, each in view.checks.items())
        or None,
        "lost": "; ".join(view.document.lost) or None,
        "changed_rows": _of_attempts(view.changed),
        "error": view.said,
        "pinned": "its rows never change, since it was skipped and re-admitted"
        if view.document.pinned and view.document.restates is None
        else None,
        "stale": f"its batch does not start at the position where transaction {view.txid - 1} ended"
        if view.stale
        else None,
        "yielded": None
        if view.document.yielded is None
        else f"it gave its run slot to the run of transaction {view.document.yielded}",
        "replay": _replay(view),
        "replayed_by": _of_attempts(view.replayed_by),
        "skip": _person_at(view.skip),
        "readmit": _person_at(view.readmit),
        "restate": _person_at(view.restate),
        "batch": named_batch(found.metadata, output),
        "position": found.position,
        "partitions": _partitions(found),
        "acks": ", ".join(
            f"{TaskTry(*key, '')}: {'acked' if ack.done else 'started'}"
            for key, ack in sorted(found.acks.items())
        )
        if view.open
        else None,
    }


def _rejected(found: tuple[str, tuple[int | None, int]]) -> str:
    task, (read, rejected) = found
    if read is None:
        return f"{task}: {rejected} rows"
    return f"{task}: rejected {rejected} of {read} rows, used {read - rejected}"


def _replay(view: TransactionView) -> str | None:
    noted = view.document.replay
    return (
        None
        if noted is None
        else f"replayed after attempt {noted.attempt}, {noted.count} in a row: {noted.reason} ({noted.when})"
    )


def _partitions(found: TransactionDetails) -> str | None:
    batch = found.batch
    if batch is None or not found.partitioned:
        return None
    rows = batch.rows or {}
    lines = (
        f"{name}: rows {dumps(rows[name]) if name in rows else 'none'}, position {dumps(place)}"
        for name, place in sorted((batch.position or {}).items())
    )
    return "\n".join(lines) or None


def _seconds(seconds: float | None) -> Seconds | None:
    return None if seconds is None else Seconds(seconds)


def _time(moment: datetime | None) -> str | None:
    """Format a time as in the records."""
    return None if moment is None else moment.isoformat(timespec="milliseconds")


def effect(done: EffectLine, note: str = "") -> TableRow:
    """Return the row for an effect.

    :param note: text before the description.
    """
    return {"txid": done.txid, "run_id": done.run_id, "done": f"{note}{done.what}"}
