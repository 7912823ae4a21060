"""Shared by all commands: decorators, ledger access, --why, confirmation."""

from __future__ import annotations

import sqlite3
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import Enum
from functools import wraps
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TextIO, TypeVar

from airflow.utils.cli import action_cli, suppress_logs_and_warning
from airflow.utils.platform import getuser
from airflow.utils.providers_configuration_loader import providers_configuration_loaded
from sqlalchemy.exc import DBAPIError, OperationalError

from airflow_tx.base.config import Settings
from airflow_tx.base.errors import ConfigError, TxError, UnknownTransaction, without_controls
from airflow_tx.base.remedy import Command
from airflow_tx.ledger import Paths, Store
from airflow_tx.operations.cli import render

if TYPE_CHECKING:
    from airflow_tx.ledger import Ledger, TopologyView
    from airflow_tx.operations.actions.action import PreviewAnswer
    from airflow_tx.outputs import StagingArea
    from airflow_tx.state import FencedState
    from airflow_tx.transaction import TransactionSpec


# --- context ------------------------------------------------------------------------------------------------------


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
    from airflow_tx.operations.actions.ledger_places import LedgerPlaces

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


@contextmanager
def store_of(args: Namespace) -> Iterator[Store]:
    """Connect the store of the ledger as long as the block."""
    from airflow_tx.hooks import ZooKeeperHook

    with ZooKeeperHook(conn_id_of(args)).store() as store:
        yield store


def ledger_on(store: Store, args: Namespace, topology: str | None = None) -> Ledger:
    """Return the ledger of a topology on a store; None: of the named one."""
    return ledger_at(store, paths_of(args, topology))


def ledger_at(store: Store, paths: Paths) -> Ledger:
    """Return the ledger of the topology at `paths`."""
    from airflow_tx.ledger import Ledger

    return Ledger(store, paths, history=Settings.load().history)


def conn_id_of(args: Namespace) -> str:
    return args.conn_id or Settings.load().zookeeper_conn_id


def root_of(args: Namespace) -> str:
    return args.root or Settings.load().root


def staging_of(args: Namespace) -> StagingArea:
    """Return where the topologies of the ledger stage their output."""
    from airflow_tx.outputs import StagingArea

    return StagingArea.of_ledger(conn_id_of(args), root_of(args))


def paths_of(args: Namespace, topology: str | None = None) -> Paths:
    """Return the place of the records of a topology; None: of the named one."""
    return Paths(root_of(args), topology if topology is not None else args.topology)


def dag_of(args: Namespace, dag_id: str) -> tuple[TransactionSpec, dict[str, FencedState]]:
    """Return the transaction of the DAG of the topology, and its states by name.

    :param dag_id: unless `--dag-id` names another one.
    :raises ConfigError: the DAG keeps another topology.
    """
    from airflow_tx.operations.actions.dags import checked_dag

    return checked_dag(args.dag_id or dag_id, paths_of(args), conn_id_of(args))


def audit_of(args: Namespace) -> Any:
    from airflow_tx.ledger import Audit

    return Audit(who=getuser(), why=args.why or "")


def with_known_run_ends(views: Sequence[TopologyView]) -> list[TopologyView]:
    """Say how runs of open transactions ended; what the ledger knows is shown also while Airflow's database is away."""
    from airflow_tx.operations.actions.replay import with_run_ends

    try:
        return with_run_ends(views)
    except DBAPIError as error:
        reason = without_controls(str(error.orig)).strip()
        text = "Airflow's metadata database does not say which runs are over"
        print(f"{text}: {reason}. The list shows what the ledger knows.", file=sys.stderr)
        return list(views)


def logical_dates(args: Namespace, zone: str) -> tuple[datetime, datetime]:
    """Read `--from` and `--to`, see `dates_between`."""
    from airflow_tx.operations.actions.action import dates_between

    return dates_between(args.first, args.last, zone)


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
            is_refusal = preview.sentence in [each.what for each in preview.refused]
            ending = "" if is_refusal else " Nothing was changed."
            print(without_controls(f"{told}{ending}"))
        lines = [(each, "") for each in preview.effects] + [
            (each, "refused: ") for each in preview.refused
        ]
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
        answer = input(f"{question} [y/N] ")
    except EOFError:
        raise SystemExit(f"{question} Nothing was changed: confirm it with --yes.") from None
    if answer.strip().lower() not in ("y", "yes"):
        raise SystemExit("Nothing was changed.")


# --- progress -----------------------------------------------------------------------------------------------------
# The progress of a command that starts runs while there is room in flight, and follows them until they are done.


# Seconds between two readings; a commit ends the wait.
_PACE = 1.0


class WorkStatus(Enum):
    """The outcome of one piece of the work."""

    DONE = "done"
    FAILED = "failed"
    IN_FLIGHT = "in flight"
    WAITING = "waiting"


class WorkPiece(Protocol):
    """One piece of the work: a transaction, or what becomes one."""

    @property
    def status(self) -> WorkStatus: ...
    @property
    def txid(self) -> int | None:
        """The transaction, once it is open."""

    @property
    def is_in_flight(self) -> bool:
        """Whether its run is queued or running, and has not committed."""


_Piece = TypeVar("_Piece", bound=WorkPiece)


class Work(Protocol[_Piece]):
    """All of the work of a command."""

    @property
    def in_order(self) -> bool:
        """Whether a failed piece delays all later ones."""

    def read(self) -> list[_Piece]:
        """Give the current state of all pieces, in their order."""

    def create(self, piece: _Piece) -> None:
        """Start the run of a piece that waits."""

    def await_commit(self, seconds: float) -> None:
        """Wait until something may have changed, so many seconds at most."""


class Progress(Generic[_Piece]):
    """Creates runs while there is room in flight, and says how far they are.

    :param in_flight: how many runs may be queued or running without having committed; 0: a lane takes all dates.
    :param to: where it prints; None: its output.
    """

    def __init__(
        self,
        dates: Work[_Piece],
        in_flight: int,
        sleep: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        to: TextIO | None = None,
    ) -> None:
        self._dates = dates
        self._in_flight = in_flight
        self._sleep = sleep or dates.await_commit
        self._clock = clock
        self._to = to

    def follow(self) -> list[_Piece]:
        """Continue until everything is done, or only a person can help; give the final state of the pieces."""
        dates = self._dates.read()
        began = self._clock()
        shown = ""
        at_first = _counts(dates)[WorkStatus.DONE]
        while True:
            counts = _counts(dates)
            line = f"done {counts[WorkStatus.DONE]} of {len(dates)}, " + ", ".join(
                f"{status.value} {counts[status]}"
                for status in WorkStatus
                if status is not WorkStatus.DONE
            )
            if line != shown:
                seconds = self._seconds_left(
                    counts, counts[WorkStatus.DONE] - at_first, self._clock() - began
                )
                print(line + seconds, file=self._to, flush=True)
                shown = line
            created = self._create(dates)
            if not created and _is_over(dates, in_order=self._dates.in_order):
                return dates
            if not created:
                self._sleep(_PACE)
            dates = self._dates.read()

    def _create(self, dates: Sequence[_Piece]) -> bool:
        room = max(self._in_flight - sum(each.is_in_flight for each in dates), 0)
        wanted = [each for each in dates if each.status is WorkStatus.WAITING][:room]
        for each in wanted:
            self._dates.create(each)
        return bool(wanted)

    def _seconds_left(self, counts: Counter[WorkStatus], done: int, elapsed: float) -> str:
        left = counts[WorkStatus.IN_FLIGHT] + counts[WorkStatus.WAITING]
        return f", about {round(left * elapsed / done)} s left" if done and left else ""


def _counts(dates: Sequence[WorkPiece]) -> Counter[WorkStatus]:
    return Counter(each.status for each in dates)


def _is_over(dates: Sequence[WorkPiece], *, in_order: bool) -> bool:
    """Ask whether nothing can be committed any more: the first that is not done has failed, and others wait for it."""
    open_ones = [
        each
        for each in dates
        if each.status is WorkStatus.IN_FLIGHT
        or each.status is WorkStatus.WAITING
        or (each.status is WorkStatus.FAILED and (in_order or each.txid is not None))
    ]
    return not open_ones or open_ones[0].status is WorkStatus.FAILED
