"""Shared by all commands: decorators, ledger access, --why, confirmation."""

from __future__ import annotations

import sqlite3
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from io import TextIOWrapper
from typing import NoReturn, TextIO

from airflow.utils.cli import action_cli, suppress_logs_and_warning
from airflow.utils.platform import getuser
from airflow.utils.providers_configuration_loader import providers_configuration_loaded
from sqlalchemy.exc import DBAPIError, OperationalError

from airflow_tx.base.config import Settings
from airflow_tx.base.errors import (
    ConfigError,
    TxError,
    UnknownTransaction,
)
from airflow_tx.base.remedy import Command, without_controls
from airflow_tx.hooks import ZooKeeperHook
from airflow_tx.ledger import Audit, Ledger, Paths, Store, TopologyView
from airflow_tx.operations.actions.action import ParsedDag, PreviewAnswer
from airflow_tx.operations.actions.dags import checked_dag
from airflow_tx.operations.actions.ledger_places import LedgerPlaces
from airflow_tx.operations.actions.run_ends import with_run_ends
from airflow_tx.operations.cli import render
from airflow_tx.outputs import StagingArea

CommandFunction = Callable[[Namespace], None]


def command(function: CommandFunction) -> CommandFunction:
    """Make a command. It knows the options of providers, prints no logs, and ends with one line on our errors."""

    @suppress_logs_and_warning
    @providers_configuration_loaded
    @wraps(function)
    def run(args: Namespace) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # a terminal may lack a character
        try:
            try:
                function(args)
            except UnknownTransaction:
                if not _found_elsewhere(args):
                    raise
                function(args)
        except TxError as error:
            raise SystemExit(without_controls(str(error))) from error
        except OperationalError as error:  # a state raises StateError for its own
            raise SystemExit(_database_trouble(error)) from error

    return run


def _database_trouble(error: OperationalError) -> str:
    reason = without_controls(str(error.orig)).strip()
    text = f"Airflow's metadata database: {reason}. The work done so far stays. "
    text += "When the database answers, run the command again."
    if isinstance(error.orig, sqlite3.OperationalError):
        text += " SQLite lets one process write at a time. Use PostgreSQL for more than a trial."
    return text


def action(function: CommandFunction) -> CommandFunction:
    """Make a command that changes something: an entry in Airflow's audit log, by the name of the function."""
    audited: CommandFunction = action_cli(command(function))  # type: ignore[no-untyped-call]
    return audited


def comparison(function: CommandFunction) -> CommandFunction:
    """Make a command whose exit code 1 says that something differs: what it cannot do ends with exit code 2."""
    done = command(function)

    @wraps(function)
    def run(args: Namespace) -> None:
        try:
            done(args)
        except SystemExit as ended:
            if isinstance(ended.code, str):
                wrong_usage(ended.code)
            raise

    return run


def _found_elsewhere(args: Namespace) -> bool:
    """Take the ledger that a DAG of this Airflow names, for a topology that the one of `[tx]` does not know.

    :return: whether the command is to be run once more, on that ledger.
    :raises ConfigError: several ledgers have a topology of this name.
    """
    name = getattr(args, "topology", None)
    if name is None or args.conn_id or args.root:
        return False
    with store_of(args) as store:
        if store.get(paths_of(args).record) is not None:
            return False
    places = LedgerPlaces().found_for(name)
    if len(places) > 1:
        remedy = f"Several ledgers have it; name one: {', '.join(place.name for place in places)}"
        raise ConfigError(option="TOPOLOGY", value=name, remedy=remedy)
    for place in places:
        args.topology = place.paths.topology
        args.conn_id = place.conn_id
        args.root = place.paths.root
        print(
            f"Topology {name}: --conn-id {args.conn_id} --root {args.root}, as its DAG says.",
            file=sys.stderr,
        )
    return bool(places)


def store_of(args: Namespace, conn_id: str = "") -> AbstractContextManager[Store]:
    """Connect the store of the ledger as long as the block.

    :param conn_id: of another connection than the one that the command names.
    """
    return ZooKeeperHook(conn_id or conn_id_of(args)).store()


def ledger_at(store: Store, paths: Paths) -> Ledger:
    """Return the ledger of the topology at `paths`."""
    return Ledger(store, paths, history=Settings.load().history)


def conn_id_of(args: Namespace) -> str:
    return args.conn_id or Settings.load().zookeeper_conn_id


def root_of(args: Namespace) -> str:
    return args.root or Settings.load().root


def staging_of(args: Namespace) -> StagingArea:
    """Return where the topologies of the ledger stage their output."""
    return StagingArea.of_ledger(conn_id_of(args), root_of(args))


def paths_of(args: Namespace, topology: str | None = None) -> Paths:
    """Return the place of the records of a topology; None: of the named one."""
    return Paths(root_of(args), topology if topology is not None else args.topology)


def dag_of(args: Namespace, dag_id: str) -> ParsedDag:
    """Return the transaction of the DAG of the topology, and its states by name.

    :param dag_id: unless `--dag-id` names another one.
    :raises ConfigError: the DAG keeps another topology.
    """
    return checked_dag(args.dag_id or dag_id, paths_of(args), conn_id_of(args))


def audit_of(args: Namespace) -> Audit:
    return Audit(who=getuser(), why=args.why or "")


def with_known_run_ends(views: Sequence[TopologyView]) -> list[TopologyView]:
    """Say how runs of open transactions ended; what the ledger knows is shown also while Airflow's database is away."""
    try:
        return with_run_ends(views)
    except DBAPIError as error:
        reason = without_controls(str(error.orig)).strip()
        text = "Airflow's metadata database does not say which runs are over"
        print(f"{text}: {reason}. The list shows what the ledger knows.", file=sys.stderr)
        return list(views)


def wrong_usage(text: str) -> NoReturn:
    """End as Airflow does when it cannot understand a command line: with exit code 2. Nothing was asked or changed."""
    print(text, file=sys.stderr)
    raise SystemExit(2)


def check_reason(args: Namespace, verb: str, *words: str) -> None:
    """Refuse an action without a reason; a dry run keeps none.

    :param verb: of the typed command; `words`: behind its topology, for the message.
    """
    if not args.dry_run and not without_controls(args.why or "").strip():
        first = next(
            (place for place, each in enumerate(words) if each.startswith("--")), len(words)
        )
        typed = Command(verb, args.topology, words[:first], (*words[first:], "--why", "TEXT"))
        wrong_usage(f"Say why, it is kept in the ledger: {typed}")


def is_shown(args: Namespace, preview: PreviewAnswer, *, refusable: bool = True) -> bool:
    """Print the preview if only the preview is wanted; otherwise ask a person to confirm.

    :param refusable: whether a preview without an effect fails.
    :raises SystemExit: it fails, with the line that says why.
    """
    if args.dry_run:
        refusals = preview.refused if refusable and not preview.effects else ()
        if args.output == "table" and not refusals:
            told = f"It would: {preview.sentence}" if preview.effects else preview.sentence
            # A refusal says itself what was changed.
            ending = "" if preview.is_refusal else " Nothing was changed."
            print(without_controls(f"{told}{ending}"))
        lines = [(each, "") for each in preview.effects] + [
            (each, "refused: ") for each in preview.refused
        ]
        # The line at the end says the only one.
        if args.output != "table" or not refusals or len(lines) > 1:
            render.print_rows([render.effect(each, note) for each, note in lines], args.output)
        if refusals:
            raise SystemExit(without_controls(str(refusals[0].what)))
    elif preview.effects:  # else the action itself says why it does nothing
        confirm(args, preview.sentence)
    return bool(args.dry_run)


def beside_rows(args: Namespace) -> TextIO:
    """Return where to print what is no row: a program reads rows alone from the output."""
    return sys.stdout if args.output == "table" else sys.stderr


def print_table(
    args: Namespace, rows: Sequence[render.TableRow], columns: Sequence[str], *below: str
) -> None:
    """Print a table in short, see `render.print_in_short`; with `--wide`, every column."""
    if args.wide:
        render.print_rows(rows, args.output)
    else:
        render.print_in_short(rows, columns, below, args.output)


def confirm(args: Namespace, question: str) -> None:
    if args.yes:
        return
    question = without_controls(question)
    try:
        # Without a terminal the line that says why nothing was done has the question.
        answer = input(f"{question} [y/N] " if sys.stdin.isatty() else "")
    except EOFError:
        raise SystemExit(f"{question} Nothing was changed: confirm it with --yes.") from None
    if answer.strip().lower() not in ("y", "yes"):
        raise SystemExit("Nothing was changed.")
