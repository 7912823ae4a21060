"""The commands `airflow tx …`. Airflow imports this for every command line, so it imports nothing heavy."""

from __future__ import annotations

from argparse import SUPPRESS, Action, ArgumentParser, Namespace
from typing import Any

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ARG_YES,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
    positive_int,
)

# --- arguments ----------------------------------------------------------------------------------------------------
# The arguments of the commands `airflow tx …`, which Airflow imports for every command line.


def _arg(*flags: str, **options: Any) -> Arg:
    return Arg(flags, **options)  # type: ignore[no-untyped-call]


def _flag(name: str, help: str) -> Arg:
    return _arg(name, action="store_true", default=False, help=help)


class _Topology(Action):
    """Keeps the topology, and lets the command itself ask for a missing reason: it knows when it needs one.

    The reason is a required option of the parser, so that its help shows it without brackets.
    """

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, values)
        for each in parser._actions:
            each.required = each.required and each.dest != "why"


_FROM_ZERO = positive_int(allow_zero=True)  # type: ignore[no-untyped-call]
_FROM_ONE = positive_int(allow_zero=False)  # type: ignore[no-untyped-call]

ARG_TOPOLOGY = _arg(
    "topology",
    action=_Topology,
    help="The name of the topology: the dag_id, unless its Transaction says otherwise; or NAME@CONNECTION/ROOT",
)
ARG_DAG = _arg("dag", help="The dag_id")
ARG_TOPOLOGY_OR_ALL = _arg(
    "topology",
    nargs="?",
    help="The topology whose transactions to list; without it, the topologies",
)
ARG_TOPOLOGY_OR_ANY = _arg(
    "topology", nargs="?", help="The topology whose source to ask; without it, all are searched"
)
ARG_TXID = _arg("txid", type=int, help="The transaction id")
ARG_TXID_OR_TOPOLOGY = _arg(
    "txid", type=int, nargs="?", help="The transaction id; without it, the topology itself is shown"
)
ARG_TXID_OR_NEWEST = _arg(
    "txid", type=int, nargs="?", help="A final transaction (default: the newest one)"
)
ARG_NO_LAG = _flag("--no-lag", "Do not ask the sources for their lag, and parse no DAG file")
ARG_WIDE = _flag("--wide", "Print every column of the table, however wide it gets")
ARG_STATUS = _arg(
    "--status",
    help="Only topologies of this status: blocked, unreadable, failed, late, waits or fine. Of a named topology, only "
    "transactions that are open, failed, processing, processed, committing, committed, skipped or readmitted",
)
# The earlier name of --status.
ARG_OLD_STATUS = _arg("--state", dest="status", default=SUPPRESS, help=SUPPRESS)
ARG_WATCH = _flag(
    "--watch", "Print the list again every two seconds until Ctrl-C. No source is asked for its lag"
)
ARG_LIMIT = _arg(
    "--limit",
    type=_FROM_ZERO,
    default=25,
    help="How many ended transactions to list at most (default: 25)",
)
ARG_CONN_ID = _arg(
    "--conn-id",
    help="The connection of the ledger (default: option zookeeper_conn_id of section tx)",
)
ARG_ROOT = _arg(
    "--root", help="The znode that holds the topologies (default: option root of section tx)"
)
ARG_STATE_LOST = _arg(
    "--state-lost",
    metavar="STATE",
    help="The state was emptied, or restored to an older backup: accept the values it holds. Lost values stay lost",
)
ARG_ROLL_FORWARD = _arg(
    "--roll-forward",
    nargs="*",
    metavar="STATE",
    help="The states were restored to an older backup: write what they lack again from the journal. Without a STATE: "
    "each that lacks something",
)
ARG_UNTIL = _arg(
    "--until",
    type=int,
    metavar="TXID",
    help="With --roll-forward: the last transaction to write again",
)
ARG_RESTATE = _flag(
    "--restate",
    "With --roll-forward: of a table, have the transactions processed again whose rows the journal does not have. "
    "Their runs start again, and their rows get later txids",
)
ARG_CHANGED = _arg(
    "--changed",
    type=int,
    action="append",
    default=[],
    metavar="REPAIR",
    help="With --roll-forward: the values have the change by hand of this repair again. May be given several times",
)
ARG_UNCHANGED = _arg(
    "--unchanged",
    type=int,
    action="append",
    default=[],
    metavar="REPAIR",
    help="With --roll-forward: the change by hand of this repair is wanted no more. May be given several times",
)
ARG_UNSEEN = _flag(
    "--unseen",
    "With --state-lost: accept the state without a look at it, with any content that it has when it is back",
)
ARG_MADE_AFTER = _arg(
    "--after",
    type=_FROM_ZERO,
    metavar="TXID",
    help="The last transaction that was committed when the values were changed (default: the last one now)",
)
ARG_BACK = _arg(
    "--back",
    type=int,
    metavar="TXID",
    help="Source and states were restored to one moment, after this transaction: take all later ones back",
)
ARG_LEDGER_LOST = _flag(
    "--ledger-lost",
    "ZooKeeper was lost, or restored to an older snapshot: resume where the states of the DAG stand",
)
ARG_RESET = _flag(
    "--reset",
    "Forget all transactions AND DELETE ALL VALUES of the states of the DAG: start again at the source's first row",
)
ARG_DAG_ID = _arg(
    "--dag-id",
    help="The DAG that names the states (default: the one the ledger names, else the topology)",
)
ARG_SOURCE_DAG_ID = _arg(
    "--dag-id", help="The DAG that names the source (default: the one the ledger names)"
)
ARG_WHY = _arg(
    "--why",
    default="",
    metavar="TEXT",
    help="The reason. Required with --reset; the ledger keeps it",
)
ARG_REASON = _arg(
    "--why",
    required=True,
    metavar="TEXT",
    help="The reason, which the ledger keeps. It is not needed with --dry-run",
)
ARG_RESTATED_WHY = _arg(
    "--why",
    metavar="TEXT",
    help="The reason, which the ledger keeps. Required without --withdraw and --dry-run",
)
ARG_REPLAY_WHY = _arg(
    "--why", metavar="TEXT", help="The reason. Required with --changed-rows; the ledger keeps it"
)
ARG_TXIDS = _arg("txids", type=int, nargs="*", metavar="TXID", help="The transaction ids")
ARG_CHECKS = _arg(
    "names", nargs="+", metavar="NAME", help="The name of the check; several may be given"
)
ARG_FAILED = _flag(
    "--failed",
    "Every open transaction that failed, or whose run ended or was deleted, and every run that yielded its slot",
)
ARG_FORCE = _flag("--force", "Also a transaction whose run is queued or running")
ARG_CHANGED_ROWS = _flag(
    "--changed-rows",
    "Take the current rows of the named transactions, for example after a file was corrected. Needs --why",
)
ARG_STATE = _arg(
    "state", metavar="STATE", help="The name of the state, such as tx_state.flight_totals"
)
ARG_CHANGED_STATE = _arg(
    "--state",
    required=True,
    metavar="STATE",
    help="The name of the state, such as tx_state.flight_totals",
)
ARG_COMPARED = _arg(
    "states",
    nargs=2,
    metavar="DAG:STATE",
    help="A DAG and one of its states, such as flights:tx_state.flight_totals; the DAG alone, if it has one state",
)
ARG_TOLERANCE = _arg(
    "--tolerance",
    type=float,
    default=1e-9,
    help="By which part of the larger one two doubles may differ (default: 1e-9)",
)
ARG_COMPARED_LIMIT = _arg(
    "--limit",
    type=int,
    default=20,
    help="How many keys of each kind of difference to print at most (default: 20)",
)
ARG_WAIT = _flag("--wait", "Wait until the states can be compared")
ARG_KEYS = _arg(
    "keys",
    nargs="*",
    metavar="KEY",
    help="Show these keys: one value for each key column, separated by commas (AA,JFK), or a JSON list",
)
ARG_KEYS_LIMIT = _arg(
    "--limit",
    type=_FROM_ZERO,
    default=25,
    help="Without KEY: how many keys to show at most (default: 25)",
)
ARG_OLD = _arg(
    "old", metavar="OLD", help="The name that the ledger knows, such as tx_state.flight_totals"
)
ARG_STATE_NEW = _arg("new", metavar="NEW", help="The name that the DAG gives the state now")
ARG_STATE_DAG_ID = _arg(
    "--dag-id", help="The DAG that names the states, instead of the one the ledger names"
)

ARG_NEW = _arg("new", metavar="NEW", nargs="?", help="The new name (default: the name stays)")
ARG_NEW_DAG_ID = _arg(
    "--dag-id", help="The DAG that owns the renamed topology (default: the DAG with the new name)"
)
ARG_RELEASE = _flag(
    "--release-states",
    "Remove the fences of its states: their values stay, and another topology may use them",
)
ARG_DRY_RUN = _flag("--dry-run", "Print what the command would do, and change nothing")

ARG_FROM = _arg(
    "--from",
    dest="first",
    type=int,
    metavar="TXID",
    help="The first transaction (default: the first)",
)
ARG_TO = _arg(
    "--to",
    dest="last",
    type=int,
    metavar="TXID",
    help="The last transaction (default: the last final one)",
)
ARG_RECOUNT = _arg(
    "--recount",
    type=_FROM_ZERO,
    default=0,
    metavar="N",
    help="Read the rows of the last N batches from the source again",
)
ARG_VALUES = _arg(
    "--values",
    action="store_true",
    help="Add up the values of the states, and compare the totals with the receipts",
)
ARG_STRICT = _arg(
    "--strict",
    action="store_true",
    help="Exit with 1, too, if transactions were given up by repair --state-lost",
)
FIND_DESCRIPTION = (
    "With a topology, its source is asked. Without one, the records of all topologies are searched for a text, in "
    "upper or lower case: in txids, runs, names of batches and errors. A date is found within the interval of a batch. "
    "An offset or an id is found with its partition (orders-0:17), without one with a topology only."
)
ARG_WHAT = _arg(
    "what",
    metavar="WHAT",
    help="A file, an offset of a partition (orders-0:17), an id or a date; docs/receipts.md lists them by source",
)

ARG_BACKFILLED = _arg("dag_id", metavar="DAG", help="The DAG, whose source is a DataIntervalSource")
_IN_ZONE = "a day in the time zone of the schedule, or a time"
ARG_FROM_DATE = _arg(
    "--from", dest="first", required=True, help=f"The first logical date: {_IN_ZONE}"
)
ARG_TO_DATE = _arg("--to", dest="last", required=True, help=f"The last logical date: {_IN_ZONE}")
ARG_FROM_RESTATED = _arg(
    "--from",
    dest="first",
    help=f"In place of TXID, if the source is a DataIntervalSource: the first logical date, {_IN_ZONE}",
)
ARG_TO_RESTATED = _arg("--to", dest="last", help=f"The last logical date, {_IN_ZONE}")
ARG_WITHDRAW = _flag(
    "--withdraw",
    "Withdraw the request for these TXIDs, or for all; a restatement that has begun continues",
)
ARG_RESTATED_ROWS = _flag(
    "--changed-rows", "Take the current rows of the same place, including late ones"
)
ARG_RESTATED_IN_FLIGHT = _arg(
    "--in-flight",
    type=_FROM_ONE,
    help="How many transactions may be restated at once (default: max_pending of the block, minus 1)",
)
ARG_IN_FLIGHT = _arg(
    "--in-flight",
    type=_FROM_ZERO,
    help="How many runs may be active and not committed (default: max_pending of the block). With 0 no run is created: "
    "the lane of the coordinator takes the dates",
)
ARG_LINTED = _arg(
    "path", metavar="DAG_FILE|FOLDER", help="A DAG file, a Spark application, or a folder of them"
)
ARG_LINT_FORMAT = _arg(
    "--format",
    choices=("text", "json", "sarif"),
    default="text",
    help="How to print the findings (default: text)",
)


# --- definition ---------------------------------------------------------------------------------------------------


def _command(function: str) -> Any:
    return lazy_load_command(f"airflow_tx.operations.cli.{function}")


class _Examples:
    """The examples at the end of a help, a line each: Airflow would join the lines of a plain text."""

    def __init__(self, *lines: str) -> None:
        self._lines = lines

    def __str__(self) -> str:
        return "\n".join(["Examples:", *(f"  airflow tx {line}" for line in self._lines)])

    __rich__ = __str__


def _examples(first: str, second: str) -> Any:
    return _Examples(first, second)


_LEDGER = (ARG_CONN_ID, ARG_ROOT, ARG_VERBOSE)
_CONFIRMED = (ARG_DRY_RUN, ARG_YES, ARG_DAG_ID, ARG_OUTPUT, *_LEDGER)

TX_COMMANDS = (
    ActionCommand(
        name="list",
        help="List topologies, or the transactions of one",
        func=_command("commands.list_transactions"),
        epilog=_examples("list", "list flights --status failed"),
        description=(
            "The lag of a topology is how much its source has after the last committed transaction. The source is "
            "asked now. The lag is ? if the source cannot tell."
        ),
        args=(
            ARG_TOPOLOGY_OR_ALL,
            ARG_STATUS,
            ARG_OLD_STATUS,
            ARG_WATCH,
            ARG_LIMIT,
            ARG_WIDE,
            ARG_NO_LAG,
            ARG_OUTPUT,
            *_LEDGER,
        ),
    ),
    ActionCommand(
        name="ddl",
        help="Print the SQL that the owner of the tables runs for the states of a DAG",
        description=(
            "For a database user that may not create or alter tables. Run it at the start, before an upgrade, and "
            "after a table was restored without its key. Tables that are complete are left out."
        ),
        func=_command("states.print_ddl"),
        epilog=_examples("ddl flights", "ddl flights --verbose"),
        args=(ARG_DAG, ARG_VERBOSE),
    ),
    ActionCommand(
        name="show",
        help="Show one transaction, or a topology with its accepted losses and repairs",
        func=_command("commands.show"),
        epilog=_examples("show flights", "show flights 7"),
        args=(ARG_TOPOLOGY, ARG_TXID_OR_TOPOLOGY, ARG_NO_LAG, ARG_OUTPUT, *_LEDGER),
    ),
    ActionCommand(
        name="at",
        help="Print how each state is read as of a final transaction",
        description=(
            "Prints a line to paste for each state of the DAG, or why none reads it as of that transaction, and until "
            "when. A query of SQL stays right while later transactions commit, or it reads no rows: then type the "
            "command again. After `airflow tx state get`, compare the transaction that it names. The command changes "
            "nothing."
        ),
        func=_command("states.read_at"),
        epilog=_examples("at flights", "at flights 7 --output json"),
        args=(ARG_TOPOLOGY, ARG_TXID_OR_NEWEST, ARG_DAG_ID, ARG_OUTPUT, *_LEDGER),
    ),
    ActionCommand(
        name="verify",
        help="Compare what ledger, states and receipts say of each other",
        description=(
            "Checks that the chain of receipts is complete, and that each transaction begins where the one before it "
            "ended. Checks that the ledger, the fences and the receipts of the states agree. Prints one line for each "
            "finding, and ends with exit code 1 if there is one. Notes name skips, accepted losses, repairs, and what "
            "cannot be checked. The command changes nothing."
        ),
        func=_command("receipts.verify"),
        epilog=_examples("verify flights", "verify flights --values --strict"),
        args=(
            ARG_TOPOLOGY,
            ARG_FROM,
            ARG_TO,
            ARG_RECOUNT,
            ARG_VALUES,
            ARG_STRICT,
            ARG_DAG_ID,
            ARG_OUTPUT,
            *_LEDGER,
        ),
    ),
    ActionCommand(
        name="find",
        help="Find the transaction that counted a file, an offset, an id or a date",
        description=FIND_DESCRIPTION,
        func=_command("receipts.find"),
        epilog=_examples("find flights orders-0:17", "find 2026-01-31"),
        args=(
            ARG_TOPOLOGY_OR_ANY,
            ARG_WHAT,
            ARG_DAG_ID,
            ARG_WIDE,
            ARG_OUTPUT,
            *_LEDGER,
        ),
    ),
    ActionCommand(
        name="receipts",
        help="List the receipts of final transactions; -o json prints every field",
        func=_command("receipts.receipts"),
        epilog=_examples("receipts flights --from 7 --to 9", "receipts flights --output json"),
        args=(
            ARG_TOPOLOGY,
            ARG_FROM,
            ARG_TO,
            ARG_DAG_ID,
            ARG_WIDE,
            ARG_OUTPUT,
            *_LEDGER,
        ),
    ),
    ActionCommand(
        name="replay",
        help="Start the runs of open transactions again: same txid, next attempt",
        description=(
            "Clears the runs, beyond max_active_runs if necessary. A deleted run is created again. A requested skip is "
            "withdrawn. Without --force, a transaction whose run is queued or running is left alone. With "
            "--changed-rows the source decides the rows of the same place again. That is refused if a state that "
            "cannot undo the transaction may hold part of it. The ledger keeps who, when and --why."
        ),
        func=_command("actions.replay"),
        epilog=_examples("replay flights 7", "replay flights --failed --dry-run"),
        args=(
            ARG_TOPOLOGY,
            ARG_TXIDS,
            ARG_FAILED,
            ARG_FORCE,
            ARG_CHANGED_ROWS,
            ARG_REPLAY_WHY,
            ARG_DRY_RUN,
            ARG_DAG_ID,
            ARG_OUTPUT,
            *_LEDGER,
        ),
    ),
    ActionCommand(
        name="skip",
        help="Take a transaction out of the way at its turn",
        description=(
            "Its rows are counted nowhere, and kept until you re-admit them. The ledger keeps who, when and --why."
        ),
        func=_command("actions.skip"),
        epilog=_examples("skip flights 7 --dry-run", 'skip flights 7 --why "its file is broken"'),
        args=(
            ARG_TOPOLOGY,
            ARG_TXID,
            ARG_REASON,
            *_CONFIRMED,
        ),
    ),
    ActionCommand(
        name="readmit",
        help="Process the rows of a skipped transaction, as a new one",
        description=(
            "Its run is started again and gets a new txid, with the current rows of the same place. The ledger "
            "keeps who, when and --why."
        ),
        func=_command("actions.readmit"),
        epilog=_examples(
            "readmit flights 7 --dry-run", 'readmit flights 7 --why "its file was corrected"'
        ),
        args=(
            ARG_TOPOLOGY,
            ARG_TXID,
            ARG_REASON,
            ARG_DRY_RUN,
            ARG_YES,
            ARG_OUTPUT,
            *_LEDGER,
        ),
    ),
    ActionCommand(
        name="restate",
        help="Process committed transactions again, and replace what they contributed",
        description=(
            "Use it after a bug was fixed, a file came late, or a column was added. Each transaction is processed "
            "again as a new one, by the newest version of the DAG. The old contribution counts until the new one is "
            "committed. The command follows the runs. If you interrupt it, repeat it, or give no TXID: it continues "
            "with the remaining ones. The ledger keeps who, when and --why."
        ),
        func=_command("actions.restate"),
        epilog=_examples(
            'restate flights 7 8 --why "a wrong currency"',
            "restate flights --from 2026-01-03 --to 2026-01-05 --dry-run",
        ),
        args=(
            ARG_TOPOLOGY,
            ARG_TXIDS,
            ARG_FROM_RESTATED,
            ARG_TO_RESTATED,
            ARG_RESTATED_WHY,
            ARG_RESTATED_ROWS,
            ARG_WITHDRAW,
            ARG_RESTATED_IN_FLIGHT,
            ARG_DRY_RUN,
            ARG_DAG_ID,
            ARG_OUTPUT,
            *_LEDGER,
        ),
    ),
    ActionCommand(
        name="accept-loss",
        help="Continue without rows that the source has lost",
        description=(
            "Use it if the next rows are gone from the source, as its error says. The lost rows are in no transaction; "
            "all rows before and after them are. The ledger keeps who, when and --why."
        ),
        func=_command("actions.accept_loss"),
        epilog=_examples(
            "accept-loss flights --dry-run", 'accept-loss flights --why "the topic has expired"'
        ),
        args=(
            ARG_TOPOLOGY,
            ARG_REASON,
            ARG_DRY_RUN,
            ARG_YES,
            ARG_SOURCE_DAG_ID,
            ARG_OUTPUT,
            *_LEDGER,
        ),
    ),
    ActionCommand(
        name="accept-change",
        help="Accept values of a state that were changed on purpose",
        description=(
            "Use it after you corrected rows of a state, or deleted them. `verify --values` then compares the state "
            "with the values it holds now, and names the change in a note. The ledger keeps who, when and --why."
        ),
        func=_command("actions.accept_change"),
        epilog=_examples(
            "accept-change flights --state db.totals --dry-run",
            'accept-change flights --state db.totals --why "a test account"',
        ),
        args=(
            ARG_TOPOLOGY,
            ARG_CHANGED_STATE,
            ARG_MADE_AFTER,
            ARG_REASON,
            *_CONFIRMED,
        ),
    ),
    ActionCommand(
        name="accept-check",
        help="Commit an output in which checks have failed",
        description=(
            "Use it if the rows are right although a check of the DAG has failed. The acceptance holds for this "
            "output alone: a replay with other rows is checked again. Then the failed commit task is cleared; a "
            "transaction of a lane is replayed. The ledger keeps who, when and --why."
        ),
        func=_command("actions.accept_check"),
        epilog=_examples(
            'accept-check flights 7 "no negative sums" --dry-run',
            'accept-check flights 7 "no negative sums" --why "a refund"',
        ),
        args=(
            ARG_TOPOLOGY,
            ARG_TXID,
            ARG_CHECKS,
            ARG_REASON,
            ARG_DRY_RUN,
            ARG_YES,
            ARG_OUTPUT,
            *_LEDGER,
        ),
    ),
    ActionCommand(
        name="repair",
        help="Resume after a state or ZooKeeper went back in time",
        description=(
            "Give exactly one of --roll-forward, --state-lost, --back, --ledger-lost and --reset, as the error of the "
            "commit task says. "
            "First pause the DAG, end its runs, and try --dry-run. The ledger keeps every repair with who, when and "
            "--why."
        ),
        func=_command("actions.repair"),
        epilog=_examples(
            "repair flights --roll-forward --dry-run", "repair flights --state-lost db.totals"
        ),
        args=(
            ARG_TOPOLOGY,
            ARG_ROLL_FORWARD,
            ARG_RESTATE,
            ARG_UNTIL,
            ARG_CHANGED,
            ARG_UNCHANGED,
            ARG_STATE_LOST,
            ARG_UNSEEN,
            ARG_BACK,
            ARG_LEDGER_LOST,
            ARG_RESET,
            ARG_DAG_ID,
            ARG_DRY_RUN,
            ARG_YES,
            ARG_WHY,
            ARG_OUTPUT,
            *_LEDGER,
        ),
    ),
    ActionCommand(
        name="backfill",
        help="Create the runs of data intervals in the order of their dates, and follow them",
        description=(
            "For a DAG whose source is a DataIntervalSource. Existing runs stay unchanged. The others are created as "
            "`airflow backfill create` does, while fewer than --in-flight are active. If you interrupt the command, "
            "repeat it: it resumes. It ends when all intervals are done, or when only a person can help. Then it "
            "prints what is left, and its exit code is 1."
        ),
        func=_command("backfill.backfill"),
        epilog=_examples(
            "backfill flights --from 2026-01-01 --to 2026-01-31 --dry-run",
            "backfill flights --from 2026-01-01 --to 2026-01-31 --in-flight 4",
        ),
        args=(
            ARG_BACKFILLED,
            ARG_FROM_DATE,
            ARG_TO_DATE,
            ARG_IN_FLIGHT,
            ARG_DRY_RUN,
            ARG_OUTPUT,
            ARG_VERBOSE,
        ),
    ),
    ActionCommand(
        name="diff",
        help="Compare the states of two DAGs, such as two versions of one DAG",
        description=(
            "Compares key by key, when both states are at the same position of their sources. The exit code is 0 if "
            "they are equal, and 1 if they differ. It is 2 if they cannot be compared now, and the command says why. "
            "The command asks no ledger and changes nothing."
        ),
        func=_command("comparison.diff"),
        epilog=_examples(
            "diff flights flights_v2",
            "diff flights:db.totals flights_v2:db.totals --wait",
        ),
        args=(
            ARG_COMPARED,
            ARG_TOLERANCE,
            ARG_COMPARED_LIMIT,
            ARG_WAIT,
            ARG_OUTPUT,
            ARG_VERBOSE,
        ),
    ),
    ActionCommand(
        name="lint",
        help="Find what would count twice in DAG files",
        description=(
            "Reads the files and imports none. The exit code is 0 without findings, 1 with findings, and 2 if a file "
            "cannot be read. A comment `# noqa: TX101` on the line leaves out a finding."
        ),
        func=_command("lint.lint"),
        epilog=_examples("lint dags", "lint dags/flights.py --format sarif"),
        args=(ARG_LINTED, ARG_LINT_FORMAT, ARG_VERBOSE),
    ),
    ActionCommand(
        name="rename",
        help="Give a topology another name, or another DAG",
        description=(
            "For a DAG that was renamed: its file must have the new name. Without NEW the topology keeps its name and "
            "belongs to --dag-id. It keeps its states. A ledger that the renamed DAG has already created is replaced, "
            "unless it has committed. Pause the DAG and end its runs first. If you interrupt the command, repeat it."
        ),
        func=_command("topologies.rename"),
        epilog=_examples(
            "rename flights flights_eu --dry-run",
            'rename flights flights_eu --why "one DAG a region"',
        ),
        args=(
            ARG_TOPOLOGY,
            ARG_NEW,
            ARG_NEW_DAG_ID,
            ARG_REASON,
            ARG_DRY_RUN,
            ARG_YES,
            ARG_OUTPUT,
            *_LEDGER,
        ),
    ),
    ActionCommand(
        name="delete",
        help="Delete the ledger of a topology that you no longer need",
        description=(
            "Its states keep their values and their fences: no other topology can use them, unless you release them. "
            "If you interrupt the command, repeat it."
        ),
        func=_command("topologies.delete"),
        epilog=_examples(
            "delete flights --dry-run", 'delete flights --release-states --why "it has moved"'
        ),
        args=(
            ARG_TOPOLOGY,
            ARG_RELEASE,
            ARG_REASON,
            ARG_DAG_ID,
            ARG_DRY_RUN,
            ARG_YES,
            ARG_OUTPUT,
            *_LEDGER,
        ),
    ),
    GroupCommand(
        name="state",
        help="Values of a state, and its name",
        epilog=_examples("state get flights db.totals", "state rename flights OLD NEW --dry-run"),
        subcommands=(
            ActionCommand(
                name="get",
                help="Show the values of some keys, or of the first ones, and the last transaction in the state",
                description=(
                    "The values may include values of a transaction that is being committed. Then the last transaction "
                    "is the one that `airflow tx show` calls COMMITTING. Of a table, the command counts the rows of "
                    "each transaction, or of the transactions that KEY names."
                ),
                func=_command("values.get_values"),
                epilog=_examples(
                    "state get flights db.totals",
                    "state get flights db.totals AA,JFK --output json",
                ),
                args=(
                    ARG_TOPOLOGY,
                    ARG_STATE,
                    ARG_KEYS,
                    ARG_KEYS_LIMIT,
                    ARG_STATE_DAG_ID,
                    ARG_OUTPUT,
                    *_LEDGER,
                ),
            ),
            ActionCommand(
                name="rename",
                help="Continue with a state under its new name in the DAG",
                description=(
                    "For a renamed table (ALTER TABLE ... RENAME TO ...), a connection with another id, another prefix "
                    "or path. The fence moves to the new name. End the topology's runs first."
                ),
                func=_command("actions.rename_stored_state"),
                epilog=_examples(
                    "state rename flights db.old db.new --dry-run",
                    'state rename flights db.old db.new --why "a clearer name"',
                ),
                args=(
                    ARG_TOPOLOGY,
                    ARG_OLD,
                    ARG_STATE_NEW,
                    ARG_DAG_ID,
                    ARG_DRY_RUN,
                    ARG_YES,
                    ARG_WHY,
                    ARG_OUTPUT,
                    *_LEDGER,
                ),
            ),
            ActionCommand(
                name="forget",
                help="Continue without a state that the DAG no longer updates",
                description="Another state may take its place, and begins with the values it holds.",
                func=_command("actions.forget"),
                epilog=_examples(
                    "state forget flights db.totals --dry-run",
                    'state forget flights db.totals --why "not needed"',
                ),
                args=(
                    ARG_TOPOLOGY,
                    ARG_OLD,
                    ARG_DAG_ID,
                    ARG_DRY_RUN,
                    ARG_YES,
                    ARG_WHY,
                    ARG_OUTPUT,
                    *_LEDGER,
                ),
            ),
        ),
    ),
)


def get_tx_cli_commands() -> list[CLICommand]:
    """What this provider adds to Airflow's command line."""
    return [
        GroupCommand(
            name="tx",
            help="Transactions: show, verify, replay, skip and repair them",
            epilog=_examples("list", "show flights 7"),
            subcommands=TX_COMMANDS,
        )
    ]
