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
ARG_NO_LAG = _flag("--no-lag", "Do not ask the sources how much they have that is not committed: no DAG file is parsed")
ARG_WIDE = _flag("--wide", "A table with every column, however wide it is")
ARG_ONLY = _arg(
    "--state",
    help="Only topologies in this state: blocked, unreadable, failed, late, waits or fine. Of a named topology, only "
    "transactions that are open, failed, processing, processed, committing, committed, skipped or readmitted",
)
ARG_WATCH = _flag("--watch", "Print the list again every two seconds until Ctrl-C; no source is asked for its lag")
ARG_LIMIT = _arg("--limit", type=int, default=25, help="How many ended transactions to list at most (default: 25)")
ARG_CONN_ID = _arg("--conn-id", help="The connection of the ledger (default: option zookeeper_conn_id of section tx)")
ARG_ROOT = _arg("--root", help="The znode below which topologies lie (default: option root of section tx)")
ARG_STATE_LOST = _arg(
    "--state-lost",
    metavar="STATE",
    help="This state was emptied, or restored to an older backup: accept what it holds. What it lost stays lost",
)
ARG_LEDGER_LOST = _flag(
    "--ledger-lost", "ZooKeeper was lost, or restored to an older snapshot: go on from where the states of the DAG are"
)
ARG_RESET = _flag(
    "--reset",
    "Forget all transactions AND DELETE ALL VALUES of the states of the DAG: begin again from the source's start",
)
ARG_DAG_ID = _arg("--dag-id", help="The DAG that names the states (default: as the ledger says, else the topology)")
ARG_SOURCE_DAG_ID = _arg("--dag-id", help="The DAG that names the source (default: as the ledger says)")
ARG_WHY = _arg("--why", default="", metavar="TEXT", help="The reason, kept with the repair; --reset needs one")
ARG_REASON = _arg("--why", metavar="TEXT", help="The reason, kept in the ledger; it must be given")
ARG_REPLAY_WHY = _arg(
    "--why", metavar="TEXT", help="The reason, kept in the ledger; it must be given with --changed-rows"
)
ARG_TXIDS = _arg("txids", type=int, nargs="*", metavar="TXID", help="The transaction ids")
ARG_FAILED = _flag(
    "--failed", "Every open transaction that has failed, or whose run ended or was deleted; and runs that made room"
)
ARG_FORCE = _flag("--force", "Also a transaction whose run is queued or running")
ARG_CHANGED_ROWS = _flag(
    "--changed-rows", "Take the rows of named transactions as they are now, as after a file was corrected; with --why"
)
ARG_STATE = _arg("state", metavar="STATE", help="The name of the state, such as tx_state.flight_totals")
ARG_CHANGED_STATE = _arg(
    "--state", required=True, metavar="STATE", help="The name of the state, such as tx_state.flight_totals"
)
ARG_KEYS = _arg(
    "keys",
    nargs="*",
    metavar="KEY",
    help="The values of these keys: one value a key column, between commas (AA,JFK), or a JSON list",
)
ARG_KEYS_LIMIT = _arg("--limit", type=int, default=25, help="Without KEY: how many keys to show at most (default: 25)")
ARG_OLD = _arg("old", metavar="OLD", help="The name that the ledger knows, such as tx_state.flight_totals")
ARG_STATE_NEW = _arg("new", metavar="NEW", help="The name that the DAG gives the state now")
ARG_STATE_DAG_ID = _arg(
    "--dag-id", help="The DAG that names the states; then the ledger is not asked (default: as the ledger says)"
)

ARG_NEW = _arg("new", metavar="NEW", nargs="?", help="The new name; without it, the name stays")
ARG_NEW_DAG_ID = _arg("--dag-id", help="The DAG that it belongs to then (default: of the same name)")
ARG_RELEASE = _flag(
    "--release-states", "Take the fences off its states: their values stay, and another topology may go on with them"
)
ARG_DRY_RUN = _flag("--dry-run", "Say what would be done, and change nothing")

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
    help="A file, an offset of a partition (orders-0:17), an id, a date: as docs/receipts.md says of each source",
)

ARG_BACKFILLED = _arg("dag_id", metavar="DAG", help="The DAG, whose source is a DataIntervalSource")
ARG_FROM_DATE = _arg("--from", dest="first", type=parsedate, required=True, help="The first logical date")
ARG_TO_DATE = _arg("--to", dest="last", type=parsedate, required=True, help="The last logical date")
ARG_IN_FLIGHT = _arg(
    "--in-flight",
    type=positive_int(allow_zero=True),  # type: ignore[no-untyped-call]
    help="How many runs may be under way and not committed (default: max_pending of the block); 0: none is created, "
    "the lane of the coordinator takes the dates",
)

_LEDGER = (ARG_CONN_ID, ARG_ROOT, ARG_VERBOSE)

TX_COMMANDS = (
    ActionCommand(
        name="list",
        help="List topologies, or the transactions of one",
        func=_command("commands.list_transactions"),
        description=(
            "The lag of a topology is what its source has behind the last committed transaction, asked of the source "
            "now; it is ? where it cannot be told."
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
            "The chain of receipts is whole, each transaction begins where the one before ended, ledger, fences and "
            "receipts of the states agree. One line a finding, and exit code 1 if there is one; notes name skips, "
            "accepted losses, repairs, and what nobody can vouch for. Nothing is changed."
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
        help="List the receipts of final transactions; as json, whole",
        func=_command("receipts.receipts"),
        args=(ARG_TOPOLOGY, ARG_FROM, ARG_TO, ARG_DAG_ID, ARG_OUTPUT, *_LEDGER),
    ),
    ActionCommand(
        name="replay",
        help="Start the runs of open transactions again: same txid, next attempt",
        description=(
            "Clears the runs, beyond max_active_runs if need be; a deleted run is created again. A requested skip "
            "is withdrawn. A transaction whose run is queued or running is left alone without --force. With "
            "--changed-rows the source decides the same place again, with what is there now, as long as no state that "
            "cannot undo it may hold something of it; who, when and --why are kept in the ledger."
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
            "Its rows are counted nowhere, and kept until they are re-admitted. Who, when and --why are kept in the "
            "ledger."
        ),
        func=_command("actions.skip"),
        args=(ARG_TOPOLOGY, ARG_TXID, ARG_REASON, ARG_DRY_RUN, ARG_YES, ARG_DAG_ID, ARG_OUTPUT, *_LEDGER),
    ),
    ActionCommand(
        name="readmit",
        help="Process the rows of a skipped transaction, as a new one",
        description=(
            "Its run is started again and gets a new txid, with the rows of the same place as they are now. Who, when "
            "and --why are kept in the ledger."
        ),
        func=_command("actions.readmit"),
        args=(ARG_TOPOLOGY, ARG_TXID, ARG_REASON, ARG_DRY_RUN, ARG_YES, ARG_OUTPUT, *_LEDGER),
    ),
    ActionCommand(
        name="accept-loss",
        help="Go on without rows that the source has lost",
        description=(
            "For rows that come next and that the source can no longer give, as its error says. They are in no "
            "transaction; everything before and after them is. Who, when and --why are kept in the ledger."
        ),
        func=_command("actions.accept_loss"),
        args=(ARG_TOPOLOGY, ARG_REASON, ARG_DRY_RUN, ARG_YES, ARG_SOURCE_DAG_ID, ARG_OUTPUT, *_LEDGER),
    ),
    ActionCommand(
        name="accept-change",
        help="Accept values of a state that were changed on purpose",
        description=(
            "For rows that a person has corrected in a state, or deleted from it. `verify --values` compares the state "
            "with what it holds now, and names the change in a note. Who, when and --why are kept in the ledger."
        ),
        func=_command("actions.accept_change"),
        args=(ARG_TOPOLOGY, ARG_CHANGED_STATE, ARG_REASON, ARG_DRY_RUN, ARG_YES, ARG_DAG_ID, ARG_OUTPUT, *_LEDGER),
    ),
    ActionCommand(
        name="repair",
        help="Go on after a state or ZooKeeper went back in time",
        description=(
            "Give exactly one of --state-lost, --ledger-lost and --reset, as the error of the commit task says. "
            "Pause the DAG and end its runs first. Look at --dry-run before. Every repair is kept in the ledger with "
            "who, when and --why."
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
            "For a DAG whose source is a DataIntervalSource. Runs that exist are left as they are; the others are "
            "created as `airflow backfill create` does, as long as fewer than --in-flight are under way. "
            "Interrupted, it goes on when it is repeated. It ends once all is done, or nothing can go on without a "
            "person; it says what is left, and its exit code is 1 then."
        ),
        func=_command("backfill.backfill"),
        args=(ARG_BACKFILLED, ARG_FROM_DATE, ARG_TO_DATE, ARG_IN_FLIGHT, ARG_DRY_RUN, ARG_OUTPUT, ARG_VERBOSE),
    ),
    ActionCommand(
        name="rename",
        help="Give a topology another name, or to another DAG",
        description=(
            "For a DAG that was renamed: its new name has to be in its file. Without NEW the topology keeps its name, "
            "and belongs to --dag-id. The states stay its own. A ledger that the renamed DAG has made already is "
            "replaced, unless it has committed. Pause the DAG and end its runs first. If it is interrupted, repeat it."
        ),
        func=_command("topologies.rename"),
        args=(ARG_TOPOLOGY, ARG_NEW, ARG_NEW_DAG_ID, ARG_REASON, ARG_DRY_RUN, ARG_YES, *_LEDGER),
    ),
    ActionCommand(
        name="delete",
        help="Delete the ledger of a topology that is over",
        description=(
            "Its states keep their values and their fences: no other topology can have them, unless they are released. "
            "If it is interrupted, repeat it."
        ),
        func=_command("topologies.delete"),
        args=(ARG_TOPOLOGY, ARG_RELEASE, ARG_REASON, ARG_DAG_ID, ARG_DRY_RUN, ARG_YES, *_LEDGER),
    ),
    GroupCommand(
        name="state",
        help="What a state holds",
        subcommands=(
            ActionCommand(
                name="get",
                help="Show the values of some keys, or of the first ones, and the last transaction in the state",
                description=(
                    "Values of a transaction that is being committed may be among them; then the last transaction is "
                    "the one that `airflow tx show` calls COMMITTING."
                ),
                func=_command("values.get_values"),
                args=(ARG_TOPOLOGY, ARG_STATE, ARG_KEYS, ARG_KEYS_LIMIT, ARG_STATE_DAG_ID, ARG_OUTPUT, *_LEDGER),
            ),
            ActionCommand(
                name="rename",
                help="Go on with a state under the name that the DAG gives it now",
                description=(
                    "For a table that was renamed (ALTER TABLE ... RENAME TO ...), a connection with another id, "
                    "another prefix or path. The fence comes along. End the topology's runs first."
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
                help="Go on without a state that the DAG no longer updates",
                description="Another one may take its place, and begins with what it holds.",
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
            help="Transactions: what the ledger and the states say, replays, skips and repairs",
            subcommands=TX_COMMANDS,
        )
    ]
