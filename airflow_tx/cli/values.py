"""`airflow tx state …`: what a state holds, read from the state itself; nothing is changed."""

from __future__ import annotations

import base64
import csv
import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from airflow_tx.cli import render
from airflow_tx.cli.context import command, paths_of, store_of
from airflow_tx.errors import ConfigError
from airflow_tx.protocol.view import topology_record
from airflow_tx.state.api import Fence, FencedState, QueryableState
from airflow_tx.state.column_types import CONVERT, from_plain

_AS_JSON = ("bigint", "double", "boolean")


@command
def get_values(args: Namespace) -> None:
    """`airflow tx state get TOPOLOGY STATE [KEY ...]`."""
    state = _state(args)
    fence = state.fence()
    rows: list[render.TableRow] = []
    if isinstance(state, QueryableState):
        rows = _of_keys(state, args.keys) if args.keys else state.read(limit=max(args.limit, 0))
    elif args.keys:
        raise ConfigError(
            option="KEY",
            value=args.keys[0],
            remedy=f"A {type(state).__name__} cannot be asked for keys: leave it out.",
        )
    # Beside the values, which may be piped into another program.
    print(_last(state.name, fence), file=sys.stderr)
    render.print_rows(
        [{name: _shown(value) for name, value in row.items()} for row in rows], args.output
    )


def _state(args: Namespace) -> FencedState:
    from airflow_tx.actions.dags import transactional_dag

    dag_id = args.dag_id or _known_dag(args)
    spec, states = transactional_dag(dag_id)
    if spec.topology != args.topology:
        remedy = f"Its topology is {spec.topology!r}: airflow tx state get {spec.topology} ... --dag-id {dag_id}"
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
        return topology_record(store, paths_of(args)).dag_id


def _last(name: str, fence: Fence | None) -> str:
    if fence is None:
        return f"State {name}: no transaction noted"
    return f"State {name}: {'' if fence.applied else 'in the middle of '}transaction {fence.token.txid}"


# --- keys --------------------------------------------------------------------------------------------------------


def _of_keys(state: QueryableState, texts: Sequence[str]) -> list[render.TableRow]:
    names = (*state.columns.values, *state.columns.composites)
    types = state.key_types()
    keys = [parse_key(text, state.columns.keys, types) for text in texts]
    return [
        {
            **dict(zip(state.columns.keys, key, strict=True)),
            **(found or dict.fromkeys(names)),
        }
        for key, found in zip(keys, state.multi_get(keys), strict=True)
    ]


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
