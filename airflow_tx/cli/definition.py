"""The commands `airflow tx …`. Airflow imports this for every command line, so it imports nothing heavy."""

from __future__ import annotations

from typing import Any

from airflow.cli.cli_config import (  # type: ignore[attr-defined]
    ARG_OUTPUT,
    ARG_VERBOSE,
    ARG_YES,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
    parsedate,
    positive_int,
)


def _arg(*flags: str, **options: Any) -> Arg:
    return Arg(flags, **options)  # type: ignore[no-untyped-call]


def _command(function: str) -> Any:
    return lazy_load_command(f"airflow_tx.cli.{function}")


def _flag(name: str, help: str) -> Arg:
    return _arg(name, action="store_true", default=False, help=help)


ARG_TOPOLOGY = _arg(
    "topology",
    help="The name of the topology: the dag_id, unless its Transaction says otherwise; or NAME@CONNECTION/ROOT",
)
ARG_TOPOLOGY_OR_ALL = _arg(
    "topology", nargs="?", help="The topology whose transactions to list; without it, the topologies"
)
ARG_TXID = _arg("txid", type=int, help="The transaction id")
ARG_TXID_OR_TOPOLOGY = _arg(
    "txid", type=int, nargs="?", help="The transaction id; without it, the topology itself is shown"
)
ARG_NO_LAG = _flag("--no-lag", "Do not ask the sources for their lag, and parse no DAG file")
ARG_WIDE = _flag("--wide", "Print every column of the table, however wide it gets")
ARG_ONLY = _arg(
    "--state",
    help="Only topologies in this state: blocked, unreadable, failed, late, waits or fine. Of a named topology, only "
    "transactions that are open, failed, processing, processed, committing, committed, skipped or readmitted",
)
ARG_WATCH = _flag("--watch", "Print the list again every two seconds until Ctrl-C. No source is asked for its lag")
ARG_LIMIT = _arg("--limit", type=int, default=25, help="How many ended transactions to list at most (default: 25)")
ARG_CONN_ID = _arg("--conn-id", help="The connection of the ledger (default: option zookeeper_conn_id of section tx)")
ARG_ROOT = _arg("--root", help="The znode below which topologies lie (default: option root of section tx)")
ARG_STATE_LOST = _arg(
    "--state-lost",
    metavar="STATE",
    help="The state was emptied, or restored to an older backup: accept the values it holds. Lost values stay lost",
)
ARG_LEDGER_LOST = _flag(
    "--ledger-lost", "ZooKeeper was lost, or restored to an older snapshot: resume where the states of the DAG stand"
)
ARG_RESET = _flag(
    "--reset",
    "Forget all transactions AND DELETE ALL VALUES of the states of the DAG: start again at the source's first row",
)
ARG_DAG_ID = _arg(
    "--dag-id", help="The DAG that names the states (default: the one the ledger names, else the topology)"
)
ARG_SOURCE_DAG_ID = _arg("--dag-id", help="The DAG that names the source (default: the one the ledger names)")
ARG_WHY = _arg("--why", default="", metavar="TEXT", help="The reason. Required with --reset; the ledger keeps it")
ARG_REASON = _arg("--why", metavar="TEXT", help="The reason. Required; the ledger keeps it")
ARG_REPLAY_WHY = _arg("--why", metavar="TEXT", help="The reason. Required with --changed-rows; the ledger keeps it")
ARG_TXIDS = _arg("txids", type=int, nargs="*", metavar="TXID", help="The transaction ids")
ARG_FAILED = _flag(
    "--failed",
    "Every open transaction that failed, or whose run ended or was deleted, and every run that yielded its slot",
)
ARG_FORCE = _flag("--force", "Also a transaction whose run is queued or running")
ARG_CHANGED_ROWS = _flag(
    "--changed-rows",
    "Take the rows of the named transactions as they are now, for example after a file was corrected. Needs --why",
)
ARG_STATE = _arg("state", metavar="STATE", help="The name of the state, such as tx_state.flight_totals")
ARG_CHANGED_STATE = _arg(
    "--state", required=True, metavar="STATE", help="The name of the state, such as tx_state.flight_totals"
)
ARG_KEYS = _arg(
    "keys",
    nargs="*",
    metavar="KEY",
    help="Show these keys: one value for each key column, separated by commas (AA,JFK), or a JSON list",
)
ARG_KEYS_LIMIT = _arg("--limit", type=int, default=25, help="Without KEY: how many keys to show at most (default: 25)")
ARG_OLD = _arg("old", metavar="OLD", help="The name that the ledger knows, such as tx_state.flight_totals")
ARG_STATE_NEW = _arg("new", metavar="NEW", help="The name that the DAG gives the state now")
ARG_STATE_DAG_ID = _arg("--dag-id", help="The DAG that names the states, instead of the one the ledger names")

ARG_NEW = _arg("new", metavar="NEW", nargs="?", help="The new name (default: the name stays)")
ARG_NEW_DAG_ID = _arg("--dag-id", help="The DAG that owns the renamed topology (default: the DAG with the new name)")
ARG_RELEASE = _flag(
    "--release-states", "Remove the fences of its states: their values stay, and another topology may use them"
)
ARG_DRY_RUN = _flag("--dry-run", "Print what the command would do, and change nothing")

ARG_FROM = _arg("--from", dest="first", type=int, metavar="TXID", help="The first transaction (default: the first)")
ARG_TO = _arg("--to", dest="last", type=int, metavar="TXID", help="The last transaction (default: the last final one)")
ARG_RECOUNT = _arg(
    "--recount", type=int, default=0, metavar="N", help="Read the rows of the last N batches from the source again"
)
ARG_VALUES = _arg(
    "--values", action="store_true", help="Add up the values of the states, and compare the totals with the receipts"
)
ARG_WHAT = _arg(
    "what",
    metavar="WHAT",
    help="A file, an offset of a partition (orders-0:17), an id or a date; docs/receipts.md lists them by source",
)

ARG_BACKFILLED = _arg("dag_id", metavar="DAG", help="The DAG, whose source is a DataIntervalSource")
ARG_FROM_DATE = _arg("--from", dest="first", type=parsedate, required=True, help="The first logical date")
ARG_TO_DATE = _arg("--to", dest="last", type=parsedate, required=True, help="The last logical date")
ARG_IN_FLIGHT = _arg(
    "--in-flight",
    type=positive_int(allow_zero=True),  # type: ignore[no-untyped-call]
    help="How many runs may be active and not committed (default: max_pending of the block). With 0 no run is created: "
    "the lane of the coordinator takes the dates",
)

_LEDGER = (ARG_CONN_ID, ARG_ROOT, ARG_VERBOSE)

TX_COMMANDS = (
    ActionCommand(
        name="list",
        help="List topologies, or the transactions of one",
        func=_command("commands.list_transactions"),
        description=(
            "The lag of a topology is how much its source has after the last committed transaction. The source is "
            "asked now. The lag is ? if the source cannot tell."
        ),
        args=(ARG_TOPOLOGY_OR_ALL, ARG_ONLY, ARG_WATCH, ARG_LIMIT, ARG_WIDE, ARG_NO_LAG, ARG_OUTPUT, *_LEDGER),
    ),
    ActionCommand(
        name="show",
        help="Show one transaction, or a topology with its accepted losses and repairs",
        func=_command("commands.show"),
        args=(ARG_TOPOLOGY, ARG_TXID_OR_TOPOLOGY, ARG_NO_LAG, ARG_OUTPUT, *_LEDGER),
    ),
    ActionCommand(
        name="verify",
        help="Compare what ledger, states and receipts say of each other",
        description=(
            "Checks that the chain of receipts is complete, that each transaction begins where the one before it "
            "ended, and that the ledger, the fences and the receipts of the states agree. Prints one line for each "
            "finding, and ends with exit code 1 if there is one. Notes name skips, accepted losses, repairs, and what "
            "cannot be checked. The command changes nothing."
        ),
        func=_command("receipts.verify"),
        args=(ARG_TOPOLOGY, ARG_FROM, ARG_TO, ARG_RECOUNT, ARG_VALUES, ARG_DAG_ID, *_LEDGER),
    ),
    ActionCommand(
        name="find",
        help="Find the transaction that counted a file, an offset, an id or a date",
        func=_command("receipts.find"),
        args=(ARG_TOPOLOGY, ARG_WHAT, ARG_DAG_ID, ARG_OUTPUT, *_LEDGER),
    ),
    ActionCommand(
        name="receipts",
        help="List the receipts of final transactions; -o json prints every field",
        func=_command("receipts.receipts"),
        args=(ARG_TOPOLOGY, ARG_FROM, ARG_TO, ARG_DAG_ID, ARG_OUTPUT, *_LEDGER),
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
        args=(ARG_TOPOLOGY, ARG_TXID, ARG_REASON, ARG_DRY_RUN, ARG_YES, ARG_DAG_ID, ARG_OUTPUT, *_LEDGER),
    ),
    ActionCommand(
        name="readmit",
        help="Process the rows of a skipped transaction, as a new one",
        description=(
            "Its run is started again and gets a new txid, with the rows of the same place as they are now. The ledger "
            "keeps who, when and --why."
        ),
        func=_command("actions.readmit"),
        args=(ARG_TOPOLOGY, ARG_TXID, ARG_REASON, ARG_DRY_RUN, ARG_YES, ARG_OUTPUT, *_LEDGER),
    ),
    ActionCommand(
        name="accept-loss",
        help="Continue without rows that the source has lost",
        description=(
            "Use it if the next rows are gone from the source, as its error says. The lost rows are in no transaction; "
            "all rows before and after them are. The ledger keeps who, when and --why."
        ),
        func=_command("actions.accept_loss"),
        args=(ARG_TOPOLOGY, ARG_REASON, ARG_DRY_RUN, ARG_YES, ARG_SOURCE_DAG_ID, ARG_OUTPUT, *_LEDGER),
    ),
    ActionCommand(
        name="accept-change",
        help="Accept values of a state that were changed on purpose",
        description=(
            "Use it after you corrected rows of a state, or deleted them. `verify --values` then compares the state "
            "with the values it holds now, and names the change in a note. The ledger keeps who, when and --why."
        ),
        func=_command("actions.accept_change"),
        args=(ARG_TOPOLOGY, ARG_CHANGED_STATE, ARG_REASON, ARG_DRY_RUN, ARG_YES, ARG_DAG_ID, ARG_OUTPUT, *_LEDGER),
    ),
    ActionCommand(
        name="repair",
        help="Resume after a state or ZooKeeper went back in time",
        description=(
            "Give exactly one of --state-lost, --ledger-lost and --reset, as the error of the commit task says. "
            "First pause the DAG, end its runs, and try --dry-run. The ledger keeps every repair with who, when and "
            "--why."
        ),
        func=_command("commands.repair"),
        args=(
            ARG_TOPOLOGY,
            ARG_STATE_LOST,
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
            "For a DAG whose source is a DataIntervalSource. Existing runs stay as they are. The others are created as "
            "`airflow backfill create` does, while fewer than --in-flight are active. If you interrupt the command, "
            "repeat it: it resumes. It ends when all intervals are done, or when only a person can help. Then it "
            "prints what is left, and its exit code is 1."
        ),
        func=_command("backfill.backfill"),
        args=(ARG_BACKFILLED, ARG_FROM_DATE, ARG_TO_DATE, ARG_IN_FLIGHT, ARG_DRY_RUN, ARG_OUTPUT, ARG_VERBOSE),
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
        args=(ARG_TOPOLOGY, ARG_NEW, ARG_NEW_DAG_ID, ARG_REASON, ARG_DRY_RUN, ARG_YES, *_LEDGER),
    ),
    ActionCommand(
        name="delete",
        help="Delete the ledger of a topology that you no longer need",
        description=(
            "Its states keep their values and their fences: no other topology can use them, unless you release them. "
            "If you interrupt the command, repeat it."
        ),
        func=_command("topologies.delete"),
        args=(ARG_TOPOLOGY, ARG_RELEASE, ARG_REASON, ARG_DAG_ID, ARG_DRY_RUN, ARG_YES, *_LEDGER),
    ),
    GroupCommand(
        name="state",
        help="Values of a state, and its name",
        subcommands=(
            ActionCommand(
                name="get",
                help="Show the values of some keys, or of the first ones, and the last transaction in the state",
                description=(
                    "The values may include those of a transaction that is being committed. Then the last transaction "
                    "is the one that `airflow tx show` calls COMMITTING."
                ),
                func=_command("values.get_values"),
                args=(ARG_TOPOLOGY, ARG_STATE, ARG_KEYS, ARG_KEYS_LIMIT, ARG_STATE_DAG_ID, ARG_OUTPUT, *_LEDGER),
            ),
            ActionCommand(
                name="rename",
                help="Continue with a state under its new name in the DAG",
                description=(
                    "For a renamed table (ALTER TABLE ... RENAME TO ...), a connection with another id, another prefix "
                    "or path. The fence moves to the new name. End the topology's runs first."
                ),
                func=_command("states.rename"),
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
                func=_command("states.forget"),
                args=(ARG_TOPOLOGY, ARG_OLD, ARG_DRY_RUN, ARG_YES, ARG_WHY, ARG_OUTPUT, *_LEDGER),
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
            subcommands=TX_COMMANDS,
        )
    ]
