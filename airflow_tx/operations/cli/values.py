"""`airflow tx state get | rejected`: print the values of a state, or the rows that tasks have rejected."""

from __future__ import annotations

import csv
import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from airflow_tx.base.errors import (
    ConfigError,
)
from airflow_tx.base.remedy import Command, without_controls
from airflow_tx.ledger import LedgerView, ReadOnlyLedger, columns, counted
from airflow_tx.operations.actions.dags import transactional_dag
from airflow_tx.operations.actions.rejected import (
    RejectedRows,
    check_rejected,
    rejected_rows_of,
    rejected_table,
)
from airflow_tx.operations.cli import render
from airflow_tx.operations.cli.context import (
    beside_rows,
    command,
    dag_of,
    paths_of,
    store_of,
    wrong_usage,
)
from airflow_tx.state import (
    STATE_TYPES,
    Fence,
    FencedState,
    QueryableState,
    RejectedFilter,
    from_plain,
)

MALFORMED_TASK = "(malformed)"
"""The name in the task column for malformed rows, which the source keeps aside."""


@command
def get_values(args: Namespace) -> None:
    """`airflow tx state get TOPOLOGY STATE [KEY ...]`."""
    state = _state(args)
    fence = state.fence()
    rows: list[render.TableRow] = []
    missing: list[str] = []
    if isinstance(state, QueryableState):
        if args.keys:
            rows, missing = _of_keys(state, args.keys)
        else:
            rows = state.read(limit=args.limit)
    elif state.takes_back_by_txid:
        rows, missing = _of_transactions(state, args)
    elif args.keys:
        raise ConfigError(
            option="KEY",
            value=args.keys[0],
            remedy=f"The state is of type {type(state).__name__}, which has no lookup by key: leave out KEY.",
        )
    # Print to stderr, since the values may be piped into another program.
    print(_last(state.name, fence, state.fence()), file=sys.stderr)
    render.print_rows(rows, args.output)
    if missing:
        what = "rows of transaction" if state.takes_back_by_txid else "key"
        told = without_controls(f"State {state.name} has no {what} {'; '.join(missing)}.")
        if len(missing) == len(args.keys):
            raise SystemExit(told)
        print(told, file=sys.stderr)


def _of_transactions(
    state: FencedState, args: Namespace
) -> tuple[list[render.TableRow], list[str]]:
    """Count a table's rows by transaction, newest first. Also return the named transactions that have no rows."""
    counts = dict(state.rows_by_txid() or {})
    rows: list[render.TableRow] = [
        {"transaction": txid, "rows": counts[txid]}
        for txid in sorted(counts, key=lambda txid: txid or 0, reverse=True)
        if not args.keys or str(txid) in args.keys
    ]
    known = {str(txid) for txid in counts}
    return rows[: args.limit], [each for each in args.keys if each not in known]


def _state(args: Namespace) -> FencedState:
    dag_id = args.dag_id or _known_dag(args)
    spec, states = transactional_dag(dag_id)
    if spec.topology != args.topology:
        remedy = f"The topology of this DAG is {spec.topology!r}: " + Command.of(
            "state get", spec.topology, "...", "--dag-id", dag_id
        )
        raise ConfigError(option="--dag-id", value=dag_id, remedy=remedy)
    if args.state not in states:
        known = ", ".join(sorted(states)) or "none"
        raise ConfigError(
            option="STATE",
            value=args.state,
            remedy=f"States of topology {args.topology!r}: {known}.",
        )
    return states[args.state]


def _known_dag(args: Namespace) -> str:
    with store_of(args) as store:
        return ReadOnlyLedger(store, paths_of(args)).existing_topology().dag_id


def _last(name: str, before: Fence | None, after: Fence | None) -> str:
    if after is None:
        return f"State {name}: no transaction yet"
    is_whole = after.applied and before == after
    return f"State {name}: {'' if is_whole else 'in the middle of '}transaction {after.txid}"


def _of_keys(
    state: QueryableState, texts: Sequence[str]
) -> tuple[list[render.TableRow], list[str]]:
    """Read the values of keys. Also return the keys that are missing from the state."""
    names = (*state.columns.values, *state.columns.composites)
    types = state.key_types()
    keys = [parse_key(text, state.columns.keys, types) for text in texts]
    values = state.multi_get(keys)
    rows = [
        {
            **dict(zip(state.columns.keys, key, strict=True)),
            **(found or dict.fromkeys(names)),
        }
        for key, found in zip(keys, values, strict=True)
    ]
    return rows, [text for text, found in zip(texts, values, strict=True) if not found]


def parse_key(text: str, names: Sequence[str], types: Any) -> tuple[Any, ...]:
    """Parse a typed key: a JSON list, or one value per column, separated by commas.

    :param text: typed key.
    :param names: key columns.
    :param types: type of each column, or None if the state has no values yet.
    :raises ConfigError: the text is not a key of these columns.
    """
    if not names:
        raise ConfigError(
            option="KEY",
            value=text,
            remedy="The state has one row and no key columns: leave out KEY.",
        )
    parts: Any = None
    if text.startswith("["):
        try:
            parts = json.loads(text)
        except ValueError:
            parts = None  # this is not JSON, but a value that starts with a bracket
    if not isinstance(parts, list):
        parts = [text] if len(names) == 1 else next(csv.reader([text], skipinitialspace=True), [])
    if len(parts) != len(names):
        remedy = f"Give a value for each key column: {','.join(names)}"
        raise ConfigError(option="KEY", value=text, remedy=remedy)
    if types is None:
        return tuple(parts)
    return tuple(
        _value(text, name, types[name], part) for name, part in zip(names, parts, strict=True)
    )


def _value(text: str, name: str, kind: str, part: Any) -> Any:
    try:
        if isinstance(part, str):
            is_json = STATE_TYPES[kind].plain is None and (kind != "text" or part.startswith('"'))
            part = json.loads(part) if is_json else from_plain(kind, part)
        return None if part is None else STATE_TYPES[kind].convert(part)
    except (ValueError, TypeError, ArithmeticError):
        remedy = f"Column {name} has the type {kind}."
        raise ConfigError(option="KEY", value=text, remedy=remedy) from None


# --- rejected rows ------------------------------------------------------------------------------------------------


@command
def rejected(args: Namespace) -> None:
    """`airflow tx rejected TOPOLOGY [TXID]`."""
    limit = _limit(args.limit)
    with store_of(args) as store:
        ledger = LedgerView(store, paths_of(args))
        record = ledger.existing_topology()
        newest = ledger.current() - 1
        first, last = 1, newest
        if args.txid is not None:
            check_rejected(ledger.details(args.txid).transaction, args.topology)
            first = last = args.txid
    spec, _ = dag_of(args, record.dag_id)
    table = rejected_table(spec)
    task = "" if args.task == MALFORMED_TASK else args.task
    found = rejected_rows_of(
        table,
        RejectedFilter(first, last, task, args.reason),
        topology=args.topology,
        incarnation=record.incarnation,
        most=0 if args.txid is None else limit,
    )
    # Print this text to another stream, since the rows may be piped into another program.
    is_early = found.after is not None and found.after.txid > newest
    note = ", which is not final: its rows do not count yet" if is_early else ""
    print(f"{_last(table.name, found.before, found.after)}{note}", file=sys.stderr)
    _print_rejected(found, args)


def _limit(given: str) -> int:
    if not (given.isascii() and given.isdigit()):
        wrong_usage(
            f"--limit {given}: this is not a number. Give a number from 0, such as --limit 20."
        )
    return int(given)


def _print_rejected(found: RejectedRows, args: Namespace) -> None:
    of_all = args.txid is None
    names = render.REJECTED_COUNT_COLUMNS[: 6 if of_all else 3]
    counts = [
        columns(each, names, task=_task(each.task, args.output)) for each in found.counts.counts
    ]
    rows: list[render.TableRow] = [
        {
            name.removeprefix("tx_"): _task(value, args.output) if name == "tx_task" else value
            for name, value in row.items()
        }
        for row in found.rows
    ]
    more = found.counts.rows - len(rows)
    if args.output in ("json", "yaml") and not of_all:
        told = {"txid": args.txid, "rejected": found.counts.rows, "reasons": counts}
        return render.print_rows([{**told, "rows": rows, "more": more}], args.output)
    if counts or args.output != "table":
        render.print_rows(counts, args.output)
    if rows:
        render.print_rows(rows, args.output)
    for line in _told(found, 0 if of_all else more):
        print(line, file=beside_rows(args))


def _told(found: RejectedRows, more: int) -> Iterator[str]:
    """Yield notes on the number of rows and reasons that are not printed.

    :param more: number of rows that are not printed.
    """
    if not found.counts.rows:
        yield "No rejected row matches the command."
    if found.counts.others:
        yield f"{found.counts.others} more reasons with fewer rows are not shown. To see them, add --task or --reason."
    if more:
        yield f"{counted(more, 'more rows')}. To print all of them, add --limit {found.counts.rows}."


def _task(task: str, output: str) -> str:
    return task if task or output not in ("table", "plain") else MALFORMED_TASK
