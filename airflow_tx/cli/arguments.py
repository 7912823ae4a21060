"""The arguments of the commands `airflow tx …`, which Airflow imports for every command line."""

from __future__ import annotations

from argparse import Action, ArgumentParser, Namespace
from typing import Any

from airflow.cli.cli_config import Arg, positive_int


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
ARG_NO_LAG = _flag("--no-lag", "Do not ask the sources for their lag, and parse no DAG file")
ARG_WIDE = _flag("--wide", "Print every column of the table, however wide it gets")
ARG_ONLY = _arg(
    "--state",
    help="Only topologies in this state: blocked, unreadable, failed, late, waits or fine. Of a named topology, only "
    "transactions that are open, failed, processing, processed, committing, committed, skipped or readmitted",
)
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
ARG_CHANGED = _arg(
    "--changed",
    type=int,
    action="append",
    default=[],
    metavar="REPAIR",
    help="With --roll-forward: the values have the change by hand of this repair again. May be given several times",
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
FIND_DESCRIPTION = (
    "With a topology, its source is asked. Without one, the records of all topologies are searched for a text, in "
    "upper or lower case: in txids, runs, names of batches and errors. A date is found within the interval of a batch. "
    "Offsets and ids are found with a topology only."
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
