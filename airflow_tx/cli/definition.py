"""The commands `airflow tx …`. Airflow imports this for every command line, so it imports nothing heavy."""

from __future__ import annotations

from typing import Any

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ARG_VERBOSE,
    ARG_YES,
    ActionCommand,
    CLICommand,
    GroupCommand,
    lazy_load_command,
)

from airflow_tx.cli import arguments as own


def _command(function: str) -> Any:
    return lazy_load_command(f"airflow_tx.cli.{function}")


_LEDGER = (own.ARG_CONN_ID, own.ARG_ROOT, ARG_VERBOSE)
_CONFIRMED = (own.ARG_DRY_RUN, ARG_YES, own.ARG_DAG_ID, ARG_OUTPUT, *_LEDGER)

TX_COMMANDS = (
    ActionCommand(
        name="list",
        help="List topologies, or the transactions of one",
        func=_command("commands.list_transactions"),
        description=(
            "The lag of a topology is how much its source has after the last committed transaction. The source is "
            "asked now. The lag is ? if the source cannot tell."
        ),
        args=(
            own.ARG_TOPOLOGY_OR_ALL,
            own.ARG_ONLY,
            own.ARG_WATCH,
            own.ARG_LIMIT,
            own.ARG_WIDE,
            own.ARG_NO_LAG,
            ARG_OUTPUT,
            *_LEDGER,
        ),
    ),
    ActionCommand(
        name="show",
        help="Show one transaction, or a topology with its accepted losses and repairs",
        func=_command("commands.show"),
        args=(own.ARG_TOPOLOGY, own.ARG_TXID_OR_TOPOLOGY, own.ARG_NO_LAG, ARG_OUTPUT, *_LEDGER),
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
        args=(
            own.ARG_TOPOLOGY,
            own.ARG_FROM,
            own.ARG_TO,
            own.ARG_RECOUNT,
            own.ARG_VALUES,
            own.ARG_DAG_ID,
            ARG_OUTPUT,
            *_LEDGER,
        ),
    ),
    ActionCommand(
        name="find",
        help="Find the transaction that counted a file, an offset, an id or a date",
        description=own.FIND_DESCRIPTION,
        func=_command("receipts.find"),
        args=(
            own.ARG_TOPOLOGY_OR_ANY,
            own.ARG_WHAT,
            own.ARG_DAG_ID,
            own.ARG_WIDE,
            ARG_OUTPUT,
            *_LEDGER,
        ),
    ),
    ActionCommand(
        name="receipts",
        help="List the receipts of final transactions; -o json prints every field",
        func=_command("receipts.receipts"),
        args=(
            own.ARG_TOPOLOGY,
            own.ARG_FROM,
            own.ARG_TO,
            own.ARG_DAG_ID,
            own.ARG_WIDE,
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
        args=(
            own.ARG_TOPOLOGY,
            own.ARG_TXIDS,
            own.ARG_FAILED,
            own.ARG_FORCE,
            own.ARG_CHANGED_ROWS,
            own.ARG_REPLAY_WHY,
            own.ARG_DRY_RUN,
            own.ARG_DAG_ID,
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
        args=(
            own.ARG_TOPOLOGY,
            own.ARG_TXID,
            own.ARG_REASON,
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
        args=(
            own.ARG_TOPOLOGY,
            own.ARG_TXID,
            own.ARG_REASON,
            own.ARG_DRY_RUN,
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
        func=_command("restatement.restate"),
        args=(
            own.ARG_TOPOLOGY,
            own.ARG_TXIDS,
            own.ARG_FROM_RESTATED,
            own.ARG_TO_RESTATED,
            own.ARG_RESTATED_WHY,
            own.ARG_RESTATED_ROWS,
            own.ARG_WITHDRAW,
            own.ARG_RESTATED_IN_FLIGHT,
            own.ARG_DRY_RUN,
            own.ARG_DAG_ID,
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
        args=(
            own.ARG_TOPOLOGY,
            own.ARG_REASON,
            own.ARG_DRY_RUN,
            ARG_YES,
            own.ARG_SOURCE_DAG_ID,
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
        args=(
            own.ARG_TOPOLOGY,
            own.ARG_CHANGED_STATE,
            own.ARG_REASON,
            *_CONFIRMED,
        ),
    ),
    ActionCommand(
        name="repair",
        help="Resume after a state or ZooKeeper went back in time",
        description=(
            "Give exactly one of --roll-forward, --state-lost, --ledger-lost and --reset, as the error of the commit "
            "task says. "
            "First pause the DAG, end its runs, and try --dry-run. The ledger keeps every repair with who, when and "
            "--why."
        ),
        func=_command("repairs.repair"),
        args=(
            own.ARG_TOPOLOGY,
            own.ARG_ROLL_FORWARD,
            own.ARG_UNTIL,
            own.ARG_CHANGED,
            own.ARG_STATE_LOST,
            own.ARG_LEDGER_LOST,
            own.ARG_RESET,
            own.ARG_DAG_ID,
            own.ARG_DRY_RUN,
            ARG_YES,
            own.ARG_WHY,
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
        args=(
            own.ARG_BACKFILLED,
            own.ARG_FROM_DATE,
            own.ARG_TO_DATE,
            own.ARG_IN_FLIGHT,
            own.ARG_DRY_RUN,
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
        func=_command("values.diff"),
        args=(
            own.ARG_COMPARED,
            own.ARG_TOLERANCE,
            own.ARG_COMPARED_LIMIT,
            own.ARG_WAIT,
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
        args=(own.ARG_LINTED, own.ARG_LINT_FORMAT, ARG_VERBOSE),
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
        args=(
            own.ARG_TOPOLOGY,
            own.ARG_NEW,
            own.ARG_NEW_DAG_ID,
            own.ARG_REASON,
            own.ARG_DRY_RUN,
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
        args=(
            own.ARG_TOPOLOGY,
            own.ARG_RELEASE,
            own.ARG_REASON,
            own.ARG_DAG_ID,
            own.ARG_DRY_RUN,
            ARG_YES,
            ARG_OUTPUT,
            *_LEDGER,
        ),
    ),
    GroupCommand(
        name="state",
        help="Values of a state, and its name",
        subcommands=(
            ActionCommand(
                name="get",
                help="Show the values of some keys, or of the first ones, and the last transaction in the state",
                description=(
                    "The values may include values of a transaction that is being committed. Then the last transaction "
                    "is the one that `airflow tx show` calls COMMITTING."
                ),
                func=_command("values.get_values"),
                args=(
                    own.ARG_TOPOLOGY,
                    own.ARG_STATE,
                    own.ARG_KEYS,
                    own.ARG_KEYS_LIMIT,
                    own.ARG_STATE_DAG_ID,
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
                func=_command("states.rename"),
                args=(
                    own.ARG_TOPOLOGY,
                    own.ARG_OLD,
                    own.ARG_STATE_NEW,
                    own.ARG_DAG_ID,
                    own.ARG_DRY_RUN,
                    ARG_YES,
                    own.ARG_WHY,
                    ARG_OUTPUT,
                    *_LEDGER,
                ),
            ),
            ActionCommand(
                name="forget",
                help="Continue without a state that the DAG no longer updates",
                description="Another state may take its place, and begins with the values it holds.",
                func=_command("states.forget"),
                args=(
                    own.ARG_TOPOLOGY,
                    own.ARG_OLD,
                    own.ARG_DRY_RUN,
                    ARG_YES,
                    own.ARG_WHY,
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
            subcommands=TX_COMMANDS,
        )
    ]
