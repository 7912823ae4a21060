"""The commands `airflow tx …`. Airflow imports this module for every command line, so it must import fast."""

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
# The arguments of the commands `airflow tx …`.


def _arg(name: str, help: str, **options: Any) -> Arg:
    return Arg((name,), help=help, **options)  # type: ignore[no-untyped-call]


def _flag(name: str, help: str) -> Arg:
    return _arg(name, help, action="store_true", default=False)


class _Topology(Action):
    """Stores the topology. Also makes `--why` optional for the parser, since the command itself checks it.

    `--why` is declared as required, so that the help shows it without brackets.
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
    "The name of the topology, which is the dag_id by default. For a topology in another ledger: NAME@CONNECTION/ROOT",
    action=_Topology,
)
ARG_TXID = _arg("txid", "The transaction id", type=int)
ARG_NO_LAG = _flag("--no-lag", "Do not query the sources for their lag, and do not parse DAG files")
ARG_WIDE = _flag("--wide", "Print every column of the table, even if it is wider than the terminal")
ARG_DAG_ID = _arg(
    "--dag-id",
    "The DAG that defines the states (default: the DAG that the ledger names, or else the DAG with the name of the "
    "topology)",
)
ARG_WHY = _arg(
    "--why", "The reason. Required with --reset; the ledger keeps it", default="", metavar="TEXT"
)
ARG_REASON = _arg(
    "--why",
    "The reason, which the ledger keeps. It is not needed with --dry-run",
    required=True,
    metavar="TEXT",
)
ARG_TXIDS = _arg("txids", "The transaction ids", type=int, nargs="*", metavar="TXID")
ARG_OLD = _arg(
    "old", "The state's name in the ledger, such as tx_state.flight_totals", metavar="OLD"
)

ARG_DRY_RUN = _flag("--dry-run", "Print what the command would do, and change nothing")

ARG_FROM = _arg(
    "--from", "The first transaction (default: the first)", dest="first", type=int, metavar="TXID"
)
ARG_TO = _arg(
    "--to",
    "The last transaction (default: the last final one)",
    dest="last",
    type=int,
    metavar="TXID",
)
FIND_DESCRIPTION = (
    "With a topology, its source decides which batches contain the value. Without a topology, the command searches "
    "the records of all topologies for the text, in upper or lower case. It searches txids, runs, names of batches "
    "and errors. A date matches each batch whose interval contains it. An offset or an id needs its partition "
    "(orders-0:17), unless you name a topology."
)

_IN_ZONE = "a day in the time zone of the schedule, or a time"


# --- definition ---------------------------------------------------------------------------------------------------


class _Examples:
    """The examples at the end of a help text, one on each line. Airflow would join the lines of a plain string."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        lines = (f"  airflow tx {each}" for each in self._text.splitlines())
        return "\n".join(["Examples:", *lines])

    __rich__ = __str__


def _command(
    name: str, function: str, help: str, description: str, examples: str, *args: Any
) -> Any:
    """Define a command of `airflow tx`.

    :param function: module and function in this folder. They are imported only to run this command.
    :param help: one line of help, for the list of commands.
    :param description: additional help text, or "" for none.
    :param examples: example command lines without `airflow tx`, one on each line.
    :param args: arguments of the command.
    """
    func = lazy_load_command(f"airflow_tx.operations.cli.{function}")
    epilog: Any = _Examples(examples)
    return ActionCommand(
        name=name, help=help, func=func, epilog=epilog, description=description or None, args=args
    )


_LEDGER = (
    _arg(
        "--conn-id",
        "The connection of the ledger (default: option zookeeper_conn_id of section tx)",
    ),
    _arg("--root", "The znode that holds the topologies (default: option root of section tx)"),
    ARG_VERBOSE,
)
_SHOWN = (ARG_OUTPUT, *_LEDGER)
_ACTED = (ARG_DRY_RUN, ARG_YES, *_SHOWN)
_CONFIRMED = (ARG_DRY_RUN, ARG_YES, ARG_DAG_ID, *_SHOWN)

TX_COMMANDS = (
    _command(
        "list",
        "commands.list_transactions",
        "List topologies, or the transactions of one",
        "The lag of a topology is the amount of data in its source after the last committed transaction. The command "
        "queries each source. The lag is ? if it is unknown.",
        "list\nlist flights --status failed",
        _arg(
            "topology",
            "The topology whose transactions are listed. Without it, the command lists the topologies",
            nargs="?",
        ),
        _arg(
            "--status",
            "Only topologies with this status: blocked, unreadable, failed, late, waits or fine. With TOPOLOGY, only "
            "transactions with this status: open, failed, processing, processed, committing, committed, skipped or "
            "readmitted",
        ),
        # The former name of --status.
        _arg("--state", SUPPRESS, dest="status", default=SUPPRESS),
        _flag(
            "--watch",
            "Print the list again every two seconds until Ctrl-C, without the lag of the sources",
        ),
        _arg(
            "--limit",
            "Maximum number of ended transactions to list (default: 25)",
            type=_FROM_ZERO,
            default=25,
        ),
        ARG_WIDE,
        ARG_NO_LAG,
        *_SHOWN,
    ),
    _command(
        "ddl",
        "states.print_ddl",
        "Print the SQL that creates or alters the tables of the states of a DAG",
        "Use it if the database user of the tasks may not create or alter tables. Run the SQL before the first run, "
        "before an upgrade, and after a table was restored without its key. Tables that need no change are left out.",
        "ddl flights\nddl flights --verbose",
        _arg("dag", "The dag_id"),
        ARG_VERBOSE,
    ),
    _command(
        "show",
        "commands.show",
        "Show one transaction, or a topology with its accepted losses and repairs",
        "",
        "show flights\nshow flights 7",
        ARG_TOPOLOGY,
        _arg(
            "txid",
            "The transaction id. Without it, the command shows the topology",
            type=int,
            nargs="?",
        ),
        ARG_NO_LAG,
        *_SHOWN,
    ),
    _command(
        "at",
        "states.read_at",
        "Print how to read each state as of a final transaction",
        "Prints a query or a command for each state of the DAG, or the reason why the state cannot be read as of that "
        "transaction. An SQL query stays correct while later transactions commit. When the values of that transaction "
        "are gone, it returns no rows: run this command again. If you run `airflow tx state get`, check that it names "
        "the same transaction. The command changes nothing.",
        "at flights\nat flights 7 --output json",
        ARG_TOPOLOGY,
        _arg("txid", "A final transaction (default: the newest one)", type=int, nargs="?"),
        ARG_DAG_ID,
        *_SHOWN,
    ),
    _command(
        "verify",
        "receipts.verify",
        "Check that the ledger, the states and the receipts agree",
        "Checks that the chain of receipts is complete, and that each transaction begins where the one before it "
        "ended. Checks that the ledger, the fences and the receipts of the states agree. Prints one line for each "
        "finding, and ends with exit code 1 if there is one. Notes report skips, accepted losses, repairs, and "
        "everything that cannot be checked. The command changes nothing.",
        "verify flights\nverify flights --values --strict",
        ARG_TOPOLOGY,
        ARG_FROM,
        ARG_TO,
        _arg(
            "--recount",
            "Read the rows of the last N batches from the source again",
            type=_FROM_ZERO,
            default=0,
            metavar="N",
        ),
        _arg(
            "--values",
            "Add up the values of the states, and compare the totals with the receipts",
            action="store_true",
        ),
        _flag(
            "--chain",
            "Also compare each topology of the chain with its upstream topology, up to the first one. The command "
            "compares the ranges, the transactions that count, and the rows of the tables",
        ),
        _arg(
            "--strict",
            "Also exit with code 1 if `repair --state-lost` has given up transactions",
            action="store_true",
        ),
        ARG_DAG_ID,
        *_SHOWN,
    ),
    _command(
        "stale",
        "stale.stale",
        "List committed transactions whose result would differ with the current DAG",
        "Compares each receipt with the DAG file: the code of its tasks and applications, data intervals without a "
        "transaction, and corrections of the upstream topology. Names, comments and the layout of the code do not "
        "count. The command changes nothing.",
        "stale flights\nstale flights --code count --output json",
        ARG_TOPOLOGY,
        _arg(
            "--code",
            "Only transactions in which this task ran other code",
            default="",
            metavar="TASK",
        ),
        ARG_DAG_ID,
        *_SHOWN,
    ),
    _command(
        "find",
        "receipts.find",
        "Find the transaction that counted a file, an offset, an id or a date",
        FIND_DESCRIPTION,
        "find flights orders-0:17\nfind 2026-01-31",
        _arg(
            "topology",
            "The topology to search with its source. Without it, the records of all topologies are searched",
            nargs="?",
        ),
        _arg(
            "what",
            "A file, an offset of a partition (orders-0:17), an id or a date. In a chain of topologies, also a "
            "transaction of another topology (orders:3). docs/receipts.md lists the possible values for each source",
            metavar="WHAT",
        ),
        ARG_DAG_ID,
        ARG_WIDE,
        *_SHOWN,
    ),
    _command(
        "receipts",
        "receipts.receipts",
        "List the receipts of final transactions; -o json prints every field",
        "",
        "receipts flights --from 7 --to 9\nreceipts flights --output json",
        ARG_TOPOLOGY,
        ARG_FROM,
        ARG_TO,
        ARG_DAG_ID,
        ARG_WIDE,
        *_SHOWN,
    ),
    _command(
        "replay",
        "actions.replay",
        "Start the runs of open transactions again: same txid, next attempt",
        "Clears the runs, even beyond max_active_runs. Creates a deleted run again, and withdraws a requested skip. "
        "Without --force, a transaction whose run is queued or running stays unchanged. With --changed-rows, the "
        "source decides again which rows belong to the transaction. This is refused if a state may contain a part of "
        "the transaction and cannot undo it. The ledger keeps who, when and --why.",
        "replay flights 7\nreplay flights --failed --dry-run",
        ARG_TOPOLOGY,
        ARG_TXIDS,
        _flag(
            "--failed",
            "Replay every open transaction that failed, or whose run ended or was deleted. Also start every run that "
            "yielded its slot",
        ),
        _flag("--force", "Also replay a transaction whose run is queued or running"),
        _flag(
            "--changed-rows",
            "Read the rows of the named transactions from the source again, for example after a file was corrected. "
            "Needs --why",
        ),
        _arg(
            "--why", "The reason. Required with --changed-rows; the ledger keeps it", metavar="TEXT"
        ),
        ARG_DRY_RUN,
        ARG_DAG_ID,
        *_SHOWN,
    ),
    _command(
        "skip",
        "actions.skip",
        "Skip a transaction at its turn, so that later ones can commit",
        "Its rows do not count, unless you re-admit them later. The ledger keeps who, when and --why.",
        'skip flights 7 --dry-run\nskip flights 7 --why "its file is broken"',
        ARG_TOPOLOGY,
        ARG_TXID,
        ARG_REASON,
        *_CONFIRMED,
    ),
    _command(
        "readmit",
        "actions.readmit",
        "Process the rows of a skipped transaction as a new transaction",
        "Its run starts again with a new txid, and reads the current rows of the same place in the source. The ledger "
        "keeps who, when and --why.",
        'readmit flights 7 --dry-run\nreadmit flights 7 --why "its file was corrected"',
        ARG_TOPOLOGY,
        ARG_TXID,
        ARG_REASON,
        *_ACTED,
    ),
    _command(
        "restate",
        "actions.restate",
        "Process committed transactions again, and replace what they contributed",
        "Use it after a bug was fixed, a file came late, or a column was added. Each transaction is processed again as "
        "a new one, by the newest version of the DAG. The old contribution counts until the new one is committed. The "
        "command waits for the runs. If you interrupt it, repeat it, with or without the TXIDs, to continue with the "
        "remaining transactions. The ledger keeps who, when and --why.",
        'restate flights 7 8 --why "a wrong currency"\nrestate flights --stale --dry-run',
        ARG_TOPOLOGY,
        ARG_TXIDS,
        _arg(
            "--from",
            f"In place of TXID, if the source is a DataIntervalSource: the first logical date, {_IN_ZONE}",
            dest="first",
        ),
        _arg("--to", f"The last logical date, {_IN_ZONE}", dest="last"),
        _arg(
            "--why",
            "The reason, which the ledger keeps. Required without --follow, --stale, --withdraw and --dry-run",
            metavar="TEXT",
        ),
        _flag(
            "--changed-rows",
            "Read the current rows of the same place in the source, including late rows",
        ),
        _flag(
            "--follow",
            "In place of TXID, if the source is an UpstreamSource: every transaction that is behind a correction of "
            "the upstream topology. Without --why, the reason names the correction",
        ),
        _flag(
            "--stale",
            "In place of TXID: every transaction that `airflow tx stale` lists. Without --why, the reason describes "
            "why the transaction is stale",
        ),
        _arg(
            "--code",
            "With --stale: only transactions in which this task ran other code",
            default="",
            metavar="TASK",
        ),
        _flag(
            "--accept",
            "With --stale: request no restatement, and keep the results of transactions that ran other code",
        ),
        _flag(
            "--withdraw",
            "Withdraw the requests for these TXIDs, or all requests if no TXID is given. A restatement that has begun "
            "continues",
        ),
        _arg(
            "--in-flight",
            "Maximum number of transactions to restate at once (default: max_pending of the block, minus 1)",
            type=_FROM_ONE,
        ),
        ARG_DRY_RUN,
        ARG_YES,
        ARG_DAG_ID,
        *_SHOWN,
    ),
    _command(
        "accept-loss",
        "actions.accept_loss",
        "Continue without rows that the source has lost",
        "Use it if an error of the source says that its next rows are gone. The lost rows are in no transaction, but "
        "all rows before and after them are. The ledger keeps who, when and --why.",
        'accept-loss flights --dry-run\naccept-loss flights --why "the topic has expired"',
        ARG_TOPOLOGY,
        ARG_REASON,
        ARG_DRY_RUN,
        ARG_YES,
        _arg(
            "--dag-id", "The DAG that defines the source (default: the DAG that the ledger names)"
        ),
        *_SHOWN,
    ),
    _command(
        "accept-change",
        "actions.accept_change",
        "Accept values of a state that were changed on purpose",
        "Use it after you corrected or deleted rows of a state. `verify --values` then compares the state with the "
        "accepted values, and mentions the change in a note. The ledger keeps who, when and --why.",
        "accept-change flights --state db.totals --dry-run\n"
        'accept-change flights --state db.totals --why "a test account"',
        ARG_TOPOLOGY,
        _arg(
            "--state",
            "The name of the state, such as tx_state.flight_totals",
            required=True,
            metavar="STATE",
        ),
        _arg(
            "--after",
            "The last transaction that was committed when the values were changed (default: the last transaction that "
            "is committed now)",
            type=_FROM_ZERO,
            metavar="TXID",
        ),
        ARG_REASON,
        *_CONFIRMED,
    ),
    _command(
        "accept-check",
        "actions.accept_check",
        "Commit an output in which checks have failed",
        "Use it if the rows are right although a check of the DAG has failed. The acceptance holds only for this "
        "output: a replay with other rows is checked again. The command then clears the failed commit task, or "
        "replays a transaction of a lane. The ledger keeps who, when and --why.",
        'accept-check flights 7 "no negative sums" --dry-run\n'
        'accept-check flights 7 "no negative sums" --why "a refund"',
        ARG_TOPOLOGY,
        ARG_TXID,
        _arg(
            "names", "The name of the check. You can give several names", nargs="+", metavar="NAME"
        ),
        ARG_REASON,
        *_ACTED,
    ),
    _command(
        "repair",
        "actions.repair",
        "Resume after a state or ZooKeeper went back in time",
        "Give exactly one of --roll-forward, --state-lost, --back, --ledger-lost, --ends and --reset, as the error of "
        "the task says. First pause the DAG, end its runs, and try --dry-run. The ledger keeps every repair with who, "
        "when and --why.",
        "repair flights --roll-forward --dry-run\nrepair flights --state-lost db.totals",
        ARG_TOPOLOGY,
        _arg(
            "--roll-forward",
            "The states were restored to an older backup: write the missing transactions again from the journal. "
            "Without a STATE: every state that lacks a transaction",
            nargs="*",
            metavar="STATE",
        ),
        _flag(
            "--restate",
            "With --roll-forward: process the transactions of a table again if the journal does not have their rows. "
            "Their runs start again, and their rows get later txids",
        ),
        _arg(
            "--until",
            "With --roll-forward: the last transaction to write again",
            type=int,
            metavar="TXID",
        ),
        _arg(
            "--changed",
            "With --roll-forward: the restored values contain the change by hand that this repair accepted. You can "
            "repeat this option",
            type=int,
            action="append",
            default=[],
            metavar="REPAIR",
        ),
        _arg(
            "--unchanged",
            "With --roll-forward: the restored values lack the change by hand that this repair accepted, and must "
            "stay without it. You can repeat this option",
            type=int,
            action="append",
            default=[],
            metavar="REPAIR",
        ),
        _arg(
            "--state-lost",
            "The state was emptied, or restored to an older backup: accept the values it holds. Lost values stay lost",
            metavar="STATE",
        ),
        _flag(
            "--unseen",
            "With --state-lost: accept a state that cannot be reached now. The command does not read it, so it also "
            "accepts later content",
        ),
        _arg(
            "--back",
            "The source and the states were restored to the moment after this transaction: take back all later "
            "transactions",
            type=int,
            metavar="TXID",
        ),
        _flag(
            "--ledger-lost",
            "ZooKeeper was lost, or restored to an older snapshot: rebuild the ledger from the states of the DAG",
        ),
        _flag(
            "--ends",
            "The book of ends begins after the first transaction: rebuild its older lines from the receipts of the "
            "ledger and of the states. Runs may continue",
        ),
        _flag(
            "--reset",
            "Forget all transactions AND DELETE ALL VALUES of the states of the DAG: start again at the source's "
            "first row",
        ),
        ARG_DAG_ID,
        ARG_DRY_RUN,
        ARG_YES,
        ARG_WHY,
        *_SHOWN,
    ),
    _command(
        "backfill",
        "backfill.backfill",
        "Create the runs of data intervals in the order of their dates, and follow them",
        "For a DAG whose source is a DataIntervalSource. Existing runs stay unchanged. The command creates the other "
        "runs like `airflow backfill create`, while fewer than --in-flight runs are active. If you interrupt the "
        "command, repeat it to resume. It ends when all intervals are done. If only a person can continue, it prints "
        "the remaining intervals and exits with code 1.",
        "backfill flights --from 2026-01-01 --to 2026-01-31 --dry-run\n"
        "backfill flights --from 2026-01-01 --to 2026-01-31 --in-flight 4",
        _arg("dag_id", "The DAG, whose source is a DataIntervalSource", metavar="DAG"),
        _arg("--from", f"The first logical date: {_IN_ZONE}", dest="first", required=True),
        _arg("--to", f"The last logical date: {_IN_ZONE}", dest="last", required=True),
        _arg(
            "--in-flight",
            "Maximum number of active runs without a commit (default: max_pending of the block). With 0, the command "
            "creates no run, since the lane of the coordinator processes the dates",
            type=_FROM_ZERO,
        ),
        ARG_DRY_RUN,
        ARG_OUTPUT,
        ARG_VERBOSE,
    ),
    _command(
        "diff",
        "comparison.diff",
        "Compare the states of two DAGs, such as two versions of one DAG",
        "Compares the states key by key. Both states must be at the same position of their sources. The exit code is 0 "
        "if they are equal, and 1 if they differ. It is 2 if they cannot be compared now, and the command prints the "
        "reason. The command reads no ledger and changes nothing.",
        "diff flights flights_v2\ndiff flights:db.totals flights_v2:db.totals --wait",
        _arg(
            "states",
            "A DAG and one of its states, such as flights:tx_state.flight_totals. The state can be left out if the DAG "
            "has only one",
            nargs=2,
            metavar="DAG:STATE",
        ),
        _arg(
            "--tolerance",
            "Largest difference at which two doubles count as equal, as a fraction of the larger one (default: 1e-9)",
            type=float,
            default=1e-9,
        ),
        _arg(
            "--limit",
            "Maximum number of keys to print for each kind of difference (default: 20)",
            type=int,
            default=20,
        ),
        _flag("--wait", "Wait until the states can be compared"),
        ARG_OUTPUT,
        ARG_VERBOSE,
    ),
    _command(
        "lint",
        "lint.lint",
        "Find code in DAG files that would count rows twice",
        "Reads the files without importing them. The exit code is 0 without findings, 1 with findings, and 2 if a file "
        "cannot be read. A comment such as `# noqa: TX101` on its line suppresses a finding.",
        "lint dags\nlint dags/flights.py --format sarif",
        _arg(
            "path",
            "A DAG file, a Spark application, or a folder of them",
            metavar="DAG_FILE|FOLDER",
        ),
        _arg(
            "--format",
            "How to print the findings (default: text)",
            choices=("text", "json", "sarif"),
            default="text",
        ),
        ARG_VERBOSE,
    ),
    _command(
        "rename",
        "topologies.rename",
        "Rename a topology, or assign it to another DAG",
        "Use it after you renamed a DAG in its file. Without NEW, the topology keeps its name and belongs to the DAG "
        "of --dag-id. The topology keeps its states. If the renamed DAG has already created a ledger, the command "
        "replaces it, unless it has a committed transaction. Pause the DAG and end its runs first. If you interrupt "
        "the command, repeat it.",
        'rename flights flights_eu --dry-run\nrename flights flights_eu --why "one DAG a region"',
        ARG_TOPOLOGY,
        _arg("new", "The new name (default: the current name)", metavar="NEW", nargs="?"),
        _arg(
            "--dag-id",
            "The DAG that owns the renamed topology (default: the DAG with the new name)",
        ),
        ARG_REASON,
        *_ACTED,
    ),
    _command(
        "delete",
        "topologies.delete",
        "Delete the ledger of a topology that you no longer need",
        "The states of the topology keep their values and their fences. No other topology can use the states, unless "
        "you add --release-states. If you interrupt the command, repeat it.",
        'delete flights --dry-run\ndelete flights --release-states --why "it has moved"',
        ARG_TOPOLOGY,
        _flag(
            "--release-states",
            "Also remove the fences of the states. Their values stay, and another topology may use the states",
        ),
        ARG_REASON,
        ARG_DAG_ID,
        *_ACTED,
    ),
    _command(
        "rejected",
        "values.rejected",
        "Count and show the rows that tasks have rejected",
        "Counts the rows in the table that the DAG passes as Transaction(rejected=...), by task and reason. The reason "
        "with the most rows comes first. Rows of open transactions do not count. With TXID, the command also prints "
        "the rows. It changes nothing.",
        "rejected flights\nrejected flights 7 --task load --limit 100",
        ARG_TOPOLOGY,
        _arg(
            "txid",
            "A committed transaction whose rejected rows are also printed (default: count the rows of all "
            "transactions)",
            type=int,
            nargs="?",
        ),
        _arg(
            "--task",
            "Only rows that this task has rejected. Use (malformed) for rows that the source kept aside",
        ),
        _arg("--reason", "Only rows with exactly this reason", metavar="TEXT"),
        _arg(
            "--limit",
            "With TXID: how many rows to print at most (default: 20)",
            default="20",
            metavar="N",
        ),
        ARG_DAG_ID,
        *_SHOWN,
    ),
    GroupCommand(
        name="state",
        help="Show the values of a state, or rename or forget it",
        epilog=_Examples("state get flights db.totals\nstate rename flights OLD NEW --dry-run"),  # type: ignore[arg-type]
        subcommands=(
            _command(
                "get",
                "values.get_values",
                "Show the values of the given keys, or of the first keys, and the last transaction in the state",
                "The values may include values of a transaction that is being committed. The command then names it as "
                "the last transaction, and `airflow tx show` gives its status as COMMITTING. For a table, the command "
                "counts the rows of each transaction, or of the transactions that KEY names.",
                "state get flights db.totals\nstate get flights db.totals AA,JFK --output json",
                ARG_TOPOLOGY,
                _arg(
                    "state",
                    "The name of the state, such as tx_state.flight_totals",
                    metavar="STATE",
                ),
                _arg(
                    "keys",
                    "Show these keys: one value for each key column, separated by commas (AA,JFK), or a JSON list",
                    nargs="*",
                    metavar="KEY",
                ),
                _arg(
                    "--limit",
                    "Without KEY: maximum number of keys to show (default: 25)",
                    type=_FROM_ZERO,
                    default=25,
                ),
                _arg(
                    "--dag-id",
                    "The DAG that defines the states (default: the DAG that the ledger names)",
                ),
                *_SHOWN,
            ),
            _command(
                "rename",
                "actions.rename_stored_state",
                "Rename a state in the ledger after its name has changed in the DAG",
                "Use it after you renamed a table (ALTER TABLE ... RENAME TO ...), or changed the connection id, "
                "prefix or path of a state. The fence moves to the new name. End the topology's runs first.",
                "state rename flights db.old db.new --dry-run\n"
                'state rename flights db.old db.new --why "a clearer name"',
                ARG_TOPOLOGY,
                ARG_OLD,
                _arg("new", "The new name of the state in the DAG", metavar="NEW"),
                ARG_DAG_ID,
                ARG_DRY_RUN,
                ARG_YES,
                ARG_WHY,
                *_SHOWN,
            ),
            _command(
                "forget",
                "actions.forget",
                "Continue without a state that the DAG no longer updates",
                "A new state of the DAG may replace the forgotten state. It starts with the values that its store "
                "already has.",
                "state forget flights db.totals --dry-run\n"
                'state forget flights db.totals --why "not needed"',
                ARG_TOPOLOGY,
                ARG_OLD,
                ARG_DAG_ID,
                ARG_DRY_RUN,
                ARG_YES,
                ARG_WHY,
                *_SHOWN,
            ),
        ),
    ),
)


def get_tx_cli_commands() -> list[CLICommand]:
    """Return the commands that this provider adds to Airflow's command line."""
    return [
        GroupCommand(
            name="tx",
            help="Transactions: show, verify, replay, skip and repair them",
            epilog=_Examples("list\nshow flights 7"),  # type: ignore[arg-type]
            subcommands=TX_COMMANDS,
        )
    ]
