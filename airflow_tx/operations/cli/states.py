"""`airflow tx ddl | at`: print SQL that creates the states of a DAG, or that reads the states as of a transaction."""

from __future__ import annotations

from argparse import Namespace

from airflow_tx.base.errors import (
    ConfigError,
    StateError,
)
from airflow_tx.base.remedy import Command, without_controls
from airflow_tx.ledger import LedgerView, TopologyRecord
from airflow_tx.operations.actions.dags import transactional_dag
from airflow_tx.operations.cli import render
from airflow_tx.operations.cli.context import command, dag_of, paths_of, store_of
from airflow_tx.state import Fence, FencedState, check_as_of


@command
def print_ddl(args: Namespace) -> None:
    """`airflow tx ddl DAG`."""
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
        print(f"-- no state of DAG {args.dag} is in an SQL database")


@command
def read_at(args: Namespace) -> None:
    """`airflow tx at TOPOLOGY [TXID]`."""
    with store_of(args) as store:
        ledger = LedgerView(store, paths_of(args))
        record = ledger.existing_topology()
        _, states = dag_of(args, record.dag_id)
        # Read the ledger first, then the fences. The fences may then be ahead of the ledger, but
        # not behind it.
        newest = ledger.current() - 1
        txid = newest if args.txid is None else args.txid
        if not 1 <= txid <= newest:
            final = (
                f"Transactions 1 to {newest} are final."
                if newest
                else "No transaction is final yet."
            )
            raise ConfigError(option="TXID", value=txid, remedy=final)
        view = ledger.final_transaction(txid)
    ended = view and view.ended and view.ended.isoformat()
    told = {"transaction": txid, "ended": ended, "run_id": view and view.document.run_id}
    found = {
        name: _reading_of(args, state, record, newest=newest, txid=txid)
        for name, state in states.items()
    }
    if args.output != "table":
        rows: list[render.TableRow] = [
            {"state": name, **told, "line": line and str(line), "why": why}
            for name, (line, why) in found.items()
        ]
        return render.print_rows(rows, args.output)
    of = "" if view is None else f": {view.status} {ended}, run {view.document.run_id}"
    print(without_controls(f"-- {args.topology} as of transaction {txid}{of}"))
    for name, (line, why) in found.items():
        print(without_controls(f"-- {why or name}"))
        if line:
            print(line if isinstance(line, Command) else f"{line};")


def _reading_of(
    args: Namespace, state: FencedState, record: TopologyRecord, *, newest: int, txid: int
) -> tuple[str | Command | None, str | None]:
    """Return the query or command that reads a state as of a transaction, or the reason why there is none."""
    try:
        held = _matching_fence(state, record, args.topology)
        line = state.at(txid, newest)
        if not line:
            check_as_of(held, txid, newest, state=state.name)
    except StateError as error:
        return None, str(error)
    return line or Command("state get", args.topology, (state.name,)), None


def _matching_fence(state: FencedState, record: TopologyRecord, topology: str) -> Fence:
    """Read the fence of a state, and check that the state has every transaction that the ledger committed to it.

    :raises StateError: the state lacks a transaction, or the fence belongs to another ledger.
    """
    last = record.states.get(state.name)
    held = state.fence()
    if held is not None and last is not None and not held.token.is_look:
        if held.incarnation == record.incarnation and held.txid >= last:
            return held
    found = "none" if held is None else held.txid
    problem = f"its last transaction is {found} in its fence, but {last or 'none'} in the ledger"
    raise StateError(
        state=state.name,
        problem=problem if state.has_fence else "it has no fence, so its transaction is unknown",
        remedy=("Compare them: " + Command.of("verify", topology)),
    )
