"""Functions that all commands use: decorators, access to the ledger, `--why` and confirmations."""

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
    """Decorate a command. It loads the options of the providers, hides logs, and prints one line for a `TxError`."""

    @suppress_logs_and_warning
    @providers_configuration_loaded
    @wraps(function)
    def run(args: Namespace) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                # The terminal may not support a character.
                stream.reconfigure(errors="backslashreplace")
        try:
            try:
                function(args)
            except UnknownTransaction:
                if not _found_elsewhere(args):
                    raise
                function(args)
        except TxError as error:
            raise SystemExit(without_controls(str(error))) from error
        # These errors come from Airflow's database. States raise StateErrors.
        except OperationalError as error:
            raise SystemExit(_database_trouble(error)) from error

    return run


def _database_trouble(error: OperationalError) -> str:
    reason = without_controls(str(error.orig)).strip()
    text = f"Airflow's metadata database failed: {reason}. The work that is already done is kept. "
    text += "When the database answers, run the command again."
    if isinstance(error.orig, sqlite3.OperationalError):
        text += " SQLite lets one process write at a time. Use PostgreSQL for more than a trial."
    return text


def action(function: CommandFunction) -> CommandFunction:
    """Decorate a command that changes something.

    Each call also writes an entry with the command's name to Airflow's audit log.
    """
    audited: CommandFunction = action_cli(command(function))  # type: ignore[no-untyped-call]
    return audited


def comparison(function: CommandFunction) -> CommandFunction:
    """Decorate a command that exits with code 1 if it finds differences, and with code 2 on errors."""
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
    """If the ledger from `[tx]` lacks the topology, switch to the ledger that a DAG names for it.

    :return: whether to rerun the command with that ledger.
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
        remedy = (
            "Several ledgers have a topology of this name. Use one of these names: "
            f"{', '.join(place.name for place in places)}"
        )
        raise ConfigError(option="TOPOLOGY", value=name, remedy=remedy)
    for place in places:
        args.topology = place.paths.topology
        args.conn_id = place.conn_id
        args.root = place.paths.root
        print(
            f"Topology {name} is read with --conn-id {args.conn_id} --root {args.root}, as its DAG specifies.",
            file=sys.stderr,
        )
    return bool(places)


def store_of(args: Namespace, conn_id: str = "") -> AbstractContextManager[Store]:
    """Connect to the store of the ledger within the `with` block.

    :param conn_id: connection of the store, or "" for the connection that the command names.
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
    """Return the staging area of the topologies in this ledger."""
    return StagingArea.of_ledger(conn_id_of(args), root_of(args))


def paths_of(args: Namespace, topology: str | None = None) -> Paths:
    """Return the ZooKeeper paths of a topology. The default is the topology that the command names."""
    return Paths(root_of(args), topology if topology is not None else args.topology)


def dag_of(args: Namespace, dag_id: str) -> ParsedDag:
    """Return the `Transaction` of the topology's DAG, and the states of the DAG by name.

    :param dag_id: dag_id, unless `--dag-id` names another DAG.
    :raises ConfigError: the DAG has another topology, or names another ledger for it.
    """
    return checked_dag(args.dag_id or dag_id, paths_of(args), conn_id_of(args))


def audit_of(args: Namespace) -> Audit:
    return Audit(who=getuser(), why=args.why or "")


def with_known_run_ends(views: Sequence[TopologyView]) -> list[TopologyView]:
    """Add the final run states to open transactions. If Airflow's database does not respond, print a note instead."""
    try:
        return with_run_ends(views)
    except DBAPIError as error:
        reason = without_controls(str(error.orig)).strip()
        text = "The ends of runs are unknown, since Airflow's metadata database cannot be read"
        print(f"{text}: {reason}. The list shows only what the ledger knows.", file=sys.stderr)
        return list(views)


def wrong_usage(text: str) -> NoReturn:
    """Exit with code 2, as Airflow does for an invalid command line. Nothing was changed."""
    print(text, file=sys.stderr)
    raise SystemExit(2)


def check_reason(args: Namespace, verb: str, *words: str) -> None:
    """Refuse an action without a reason. A dry run needs no reason.

    :param verb: name of the typed command, for the message.
    :param words: arguments after the topology, for the message.
    """
    if not args.dry_run and not without_controls(args.why or "").strip():
        first = next(
            (place for place, each in enumerate(words) if each.startswith("--")), len(words)
        )
        typed = Command(verb, args.topology, words[:first], (*words[first:], "--why", "TEXT"))
        wrong_usage(f"Give the reason, which the ledger keeps: {typed}")


def is_shown(args: Namespace, preview: PreviewAnswer, *, refusable: bool = True) -> bool:
    """With `--dry-run`, print the preview. Otherwise ask the user for confirmation.

    :param refusable: whether a preview without effects is an error.
    :return: whether this is a dry run.
    :raises SystemExit: the preview has no effects. The message is the reason.
    """
    if args.dry_run:
        refusals = preview.refused if refusable and not preview.effects else ()
        if args.output == "table" and not refusals:
            told = f"Dry run: {preview.sentence}" if preview.effects else preview.sentence
            # A refusal already says whether something was changed.
            ending = "" if preview.is_refusal else " Nothing was changed."
            print(without_controls(f"{told}{ending}"))
        lines = [(each, "") for each in preview.effects] + [
            (each, "refused: ") for each in preview.refused
        ]
        # If a refusal is the only line, the exit prints it.
        if args.output != "table" or not refusals or len(lines) > 1:
            render.print_rows([render.effect(each, note) for each, note in lines], args.output)
        if refusals:
            raise SystemExit(without_controls(str(refusals[0].what)))
    elif preview.effects:  # without effects, the action itself explains the reason
        confirm(args, preview.sentence)
    return bool(args.dry_run)


def beside_rows(args: Namespace) -> TextIO:
    """Return the stream for text other than rows. A program that reads stdout gets only rows."""
    return sys.stdout if args.output == "table" else sys.stderr


def print_table(
    args: Namespace, rows: Sequence[render.TableRow], columns: Sequence[str], *below: str
) -> None:
    """Print a short table with `render.print_in_short`. With `--wide`, print every column."""
    if args.wide:
        render.print_rows(rows, args.output)
    else:
        render.print_in_short(rows, columns, below, args.output)


def confirm(args: Namespace, question: str) -> None:
    if args.yes:
        return
    question = without_controls(question)
    try:
        # Without a terminal, do not print the prompt here. The error below quotes it.
        answer = input(f"{question} [y/N] " if sys.stdin.isatty() else "")
    except EOFError:
        raise SystemExit(
            f"{question} Nothing was changed. To confirm without a terminal, add --yes."
        ) from None
    if answer.strip().lower() not in ("y", "yes"):
        raise SystemExit("Nothing was changed.")
