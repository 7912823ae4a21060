"""`airflow tx diff`: compare the values of two states."""

from __future__ import annotations

import base64
import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from airflow_tx.base.errors import (
    ConfigError,
    NotComparableNow,
)
from airflow_tx.base.remedy import without_controls
from airflow_tx.operations.actions.dags import transactional_dag
from airflow_tx.operations.cli import render
from airflow_tx.operations.cli.context import comparison
from airflow_tx.state import FencedState, KeyDifferences, StateComparison, compared, json_text

_SECONDS_BETWEEN = 2.0


@comparison
def diff(args: Namespace) -> None:
    """`airflow tx diff DAG:STATE DAG:STATE`."""
    if not 0 <= args.tolerance < 1:
        raise ConfigError(
            option="--tolerance",
            value=args.tolerance,
            remedy="Give a fraction below 1, such as 1e-9.",
        )
    if args.limit < 0:
        raise ConfigError(option="--limit", value=args.limit, remedy="Give 0 or a larger number.")
    first, second = map(_state_of_dag, args.states)
    found = _compared_in_time(args, first, second)
    _print_comparison(found, (first.name, second.name), args.output)
    if not found.is_equal:
        raise SystemExit(1)


def _state_of_dag(text: str) -> FencedState:
    """Find the state that DAG:STATE names. If the DAG has only one state, DAG alone also names it."""
    dag_id, _, name = text.partition(":")
    _, states = transactional_dag(dag_id, option="DAG:STATE")
    known = ", ".join(f"{dag_id}:{each}" for each in sorted(states))
    if not name and len(states) == 1:
        return next(iter(states.values()))
    if name not in states:
        remedy = (
            f"Use {'one of ' if len(states) > 1 else ''}{known}."
            if known
            else f"DAG {dag_id} has no state."
        )
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
    rows: list[render.TableRow] = [
        {
            "keys": kind,
            "key": json_text(list(map(_plain, each.key.values()))),
            "first": _pairs(each.first),
            "second": _pairs(each.second),
        }
        for kind, keys in kinds.items()
        for each in keys.keys
    ]
    if rows:
        render.print_rows(rows, output)
    counts = ", ".join(f"{keys.count:,} {kind}" for kind, keys in kinds.items())
    told = [
        f"{first} (transaction {found.txids[0]}) and {second} (transaction {found.txids[1]}) are at the same position.",
        f"Keys: {found.equal:,} equal, {counts}.",
    ]
    if found.left_out:
        told.append(
            f"Not compared, since only one of the states has these columns: {', '.join(found.left_out)}."
        )
    print(without_controls("\n".join(told)))


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
    """Convert a value to JSON types. A value without a JSON type becomes a string."""
    value = base64.b64encode(value).decode() if isinstance(value, bytes) else value
    return (
        value if value is None or isinstance(value, (bool, int, float, list, dict)) else str(value)
    )
