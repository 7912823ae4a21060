"""`airflow tx ddl | state get | at | diff`: what is stored, read and not changed."""

from __future__ import annotations

import base64
import csv
import json
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_tx.base.errors import (
    ConfigError,
    NotComparableNow,
    StateError,
    without_controls,
)
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger import LedgerView, ReadOnlyLedger, TopologyRecord
from airflow_tx.operations.cli import render
from airflow_tx.operations.cli.context import (
    command,
    comparison,
    dag_of,
    paths_of,
    store_of,
)
from airflow_tx.state import (
    CONVERT,
    Fence,
    FencedState,
    KeyDifferences,
    QueryableState,
    StateComparison,
    check_as_of,
    compared,
    from_plain,
    json_text,
)

_SECONDS_BETWEEN = 2.0
_AS_JSON = ("bigint", "double", "boolean")


@command
def print_ddl(args: Namespace) -> None:
    """`airflow tx ddl DAG`."""
    from airflow_tx.operations.actions.dags import transactional_dag

    _, states = transactional_dag(args.dag, option="DAG")
    found: dict[str, list[str]] = {}
    for state in states.values():
        for where, statements in state.ddl().items():
            found.setdefault(where, []).extend(statements)
    for where, statements in found.items():
        lines = [each if each.startswith("--") else f"{each};" for each in statements]
        print(f"-- {where}: {'run as the owner of the tables' if lines else 'nothing is missing'}")
        for line in dict.fromkeys(lines):
            print(line)
    if not found:
        print(f"-- no state of DAG {args.dag} is in a database of SQL")


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
            remedy=f"A {type(state).__name__} cannot be asked for keys: leave it out.",
        )
    # Beside the values, which may be piped into another program.
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
    """Count the rows of a table by transaction, the newest first; also name the given ones of which it has none."""
    counts = dict(state.rows_by_txid() or {})
    rows: list[render.TableRow] = [
        {"transaction": txid, "rows": counts[txid]}
        for txid in sorted(counts, key=lambda txid: txid or 0, reverse=True)
        if not args.keys or str(txid) in args.keys
    ]
    known = {str(txid) for txid in counts}
    return rows[: args.limit], [each for each in args.keys if each not in known]


def _state(args: Namespace) -> FencedState:
    from airflow_tx.operations.actions.dags import transactional_dag

    dag_id = args.dag_id or _known_dag(args)
    spec, states = transactional_dag(dag_id)
    if spec.topology != args.topology:
        remedy = Remedy.of(
            "Its topology is {topology!r}: <airflow tx state get {topology} ... --dag-id {dag_id}>",
            topology=spec.topology,
            dag_id=dag_id,
        )
        raise ConfigError(option="--dag-id", value=dag_id, remedy=remedy)
    if args.state not in states:
        known = ", ".join(sorted(states)) or "none"
        raise ConfigError(
            option="STATE",
            value=args.state,
            remedy=f"Topology {args.topology!r} has {known}.",
        )
    return states[args.state]


def _known_dag(args: Namespace) -> str:
    with store_of(args) as store:
        return ReadOnlyLedger(store, paths_of(args)).existing_topology().dag_id


def _last(name: str, before: Fence | None, after: Fence | None) -> str:
    if after is None:
        return f"State {name}: no transaction noted"
    is_whole = after.applied and before == after
    return f"State {name}: {'' if is_whole else 'in the middle of '}transaction {after.txid}"


# --- as of a transaction -----------------------------------------------------------------------------------------


@command
def read_at(args: Namespace) -> None:
    """`airflow tx at TOPOLOGY [TXID]`."""
    with store_of(args) as store:
        ledger = LedgerView(store, paths_of(args))
        record = ledger.existing_topology()
        _, states = dag_of(args, record.dag_id)
        # First what is final, then the states: a fence that is one further proves it.
        newest = ledger.current() - 1
        txid = newest if args.txid is None else args.txid
        if not 1 <= txid <= newest:
            final = f"Transactions 1 to {newest} are final." if newest else "None is final yet."
            raise ConfigError(option="TXID", value=txid, remedy=final)
        view = ledger.final_transaction(txid)
    ended = view and view.ended and view.ended.isoformat()
    told = {"transaction": txid, "ended": ended, "run_id": view and view.run_id}
    rows: list[render.TableRow] = [
        {"state": name, **told, **_reading_of(args, state, record, newest=newest, txid=txid)}
        for name, state in states.items()
    ]
    if args.output != "table":
        return render.print_rows(rows, args.output)
    of = "" if view is None else f": {view.status} {ended}, run {view.run_id}"
    print(without_controls(f"-- {args.topology} as of transaction {txid}{of}"))
    for row in rows:
        print(without_controls(f"-- {row['why'] or row['state']}"))
        if row["line"]:
            print(row["line"] + ";" * row["line"].startswith("SELECT"))


def _reading_of(
    args: Namespace, state: FencedState, record: TopologyRecord, *, newest: int, txid: int
) -> render.TableRow:
    """Give the line that reads a state as of a transaction, or why there is none."""
    typed = str(Command("state get", args.topology, (state.name,)))
    try:
        held = _matching_fence(state, record, args.topology)
        line = state.at(txid, newest)
        if not line:
            check_as_of(held, txid, newest, state=state.name)
    except StateError as error:
        return {"line": None, "why": str(error)}
    return {"line": line or typed, "why": None}


def _matching_fence(state: FencedState, record: TopologyRecord, topology: str) -> Fence:
    """Read a fence that has what the ledger has committed to the state, as the values then have.

    :raises StateError: it has not.
    """
    last = record.states.get(state.name)
    held = state.fence()
    if held is not None and last is not None and not held.token.is_look:
        if held.incarnation == record.incarnation and held.txid >= last:
            return held
    found = "none" if held is None else held.txid
    problem = f"its last transaction is {found} by its fence, and {last or 'none'} by the ledger"
    raise StateError(
        state=state.name,
        problem=problem if state.has_fence else "it has no fence, so its transaction is unknown",
        remedy=Remedy.of("Compare them: <airflow tx verify {topology}>", topology=topology),
    )


# --- keys --------------------------------------------------------------------------------------------------------


def _of_keys(
    state: QueryableState, texts: Sequence[str]
) -> tuple[list[render.TableRow], list[str]]:
    """Read the values of keys; also name the keys that the state has not."""
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
    """Read a key as a person types it: a JSON list, or one value a column, between commas.

    :param types: type per column; None: not known yet, for there are no values.
    :raises ConfigError: it is no key of such columns.
    """
    if not names:
        raise ConfigError(
            option="KEY",
            value=text,
            remedy="The state has one row and no key columns: leave it out.",
        )
    parts: Any = None
    if text.startswith("["):
        try:
            parts = json.loads(text)
        except ValueError:
            parts = None  # a text that begins so
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
            if kind in _AS_JSON or (kind == "text" and part.startswith('"')):
                part = json.loads(part)
            elif kind != "text":
                part = from_plain(kind, part)
        return None if part is None else CONVERT[kind](part)
    except (ValueError, TypeError, ArithmeticError):
        remedy = f"{name} is a {kind}."
        raise ConfigError(option="KEY", value=text, remedy=remedy) from None


def _shown(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


# --- two states --------------------------------------------------------------------------------------------------


@comparison
def diff(args: Namespace) -> None:
    """`airflow tx diff DAG:STATE DAG:STATE`."""
    if not 0 <= args.tolerance < 1:
        raise ConfigError(
            option="--tolerance", value=args.tolerance, remedy="Give a part of 1, such as 1e-9."
        )
    if args.limit < 0:
        raise ConfigError(option="--limit", value=args.limit, remedy="Give a number from 0.")
    first, second = map(_state_of_dag, args.states)
    found = _compared_in_time(args, first, second)
    _print_comparison(found, (first.name, second.name), args.output)
    if not found.is_equal:
        raise SystemExit(1)


def _state_of_dag(text: str) -> FencedState:
    """Find a state as `airflow tx diff` names it: DAG:STATE, or the DAG of one state."""
    from airflow_tx.operations.actions.dags import transactional_dag

    dag_id, _, name = text.partition(":")
    _, states = transactional_dag(dag_id, option="DAG:STATE")
    known = ", ".join(f"{dag_id}:{each}" for each in sorted(states))
    if not name and len(states) == 1:
        return next(iter(states.values()))
    if name not in states:
        remedy = f"Use {'one of ' if len(states) > 1 else ''}{known}." if known else "It has none."
        raise ConfigError(option="DAG:STATE", value=text, remedy=remedy)
    return states[name]


def _compared_in_time(args: Namespace, first: FencedState, second: FencedState) -> StateComparison:
    told = ""
    while True:
        try:
            return compared(first, second, tolerance=args.tolerance, limit=args.limit)
        except NotComparableNow as refusal:
            if not args.wait:
                raise
            if (reason := without_controls(f"Waiting: {refusal.problem}.")) != told:
                print(reason, file=sys.stderr)
            told = reason
        time.sleep(_SECONDS_BETWEEN)


def _print_comparison(found: StateComparison, names: tuple[str, str], output: str) -> None:
    first, second = names
    kinds = {
        f"only in {first}": found.only_first,
        f"only in {second}": found.only_second,
        "different": found.different,
    }
    if output != "table":
        render.print_rows([_as_data(found, names)], output)
        return
    rows = [row for kind, keys in kinds.items() for row in _shown_keys(kind, keys)]
    if rows:
        render.print_rows(rows, output)
    counts = ", ".join(f"{keys.count:,} {kind}" for kind, keys in kinds.items())
    told = [
        f"{first} (transaction {found.txids[0]}) and {second} (transaction {found.txids[1]}) are at the same position.",
        f"Keys: {found.equal:,} equal, {counts}.",
    ]
    if found.left_out:
        told.append(f"Not compared, since only one of them has it: {', '.join(found.left_out)}.")
    print(without_controls("\n".join(told)))


def _shown_keys(kind: str, keys: KeyDifferences) -> list[render.TableRow]:
    return [
        {
            "keys": kind,
            "key": json_text(list(map(_plain, each.key.values()))),
            "first": _pairs(each.first),
            "second": _pairs(each.second),
        }
        for each in keys.keys
    ]


def _pairs(values: Mapping[str, Any] | None) -> str | None:
    if values is None:
        return None
    return ", ".join(f"{name}={_plain(value)}" for name, value in values.items())


def _as_data(found: StateComparison, names: tuple[str, str]) -> render.TableRow:
    def listed(keys: KeyDifferences) -> dict[str, Any]:
        return {"count": keys.count, "keys": list(map(vars, keys.keys))}

    return {
        "first": names[0],
        "second": names[1],
        "transactions": list(found.txids),
        "compared": list(found.columns),
        "left_out": list(found.left_out),
        "equal": found.equal,
        "only_first": listed(found.only_first),
        "only_second": listed(found.only_second),
        "different": listed(found.different),
    }


def _plain(value: Any) -> Any:
    """Give a value as JSON has it; what JSON has not, as text."""
    value = _shown(value)
    return (
        value if value is None or isinstance(value, (bool, int, float, list, dict)) else str(value)
    )
