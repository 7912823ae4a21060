"""`airflow tx skip | readmit | replay | accept-… | repair | state … | restate`, with entries in Airflow's audit log."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from airflow_tx.base import compat
from airflow_tx.base.errors import (
    RepairRefused,
    UnreadableRecord,
)
from airflow_tx.base.remedy import Command, Remedy, without_controls
from airflow_tx.ledger import (
    ENDS,
    LEDGER_LOST,
    LIVE_RUN_STATES,
    RESET,
    STATE_LOST,
    ReadOnlyLedger,
    Store,
    TopologyRecord,
    Wish,
    most_restated,
)
from airflow_tx.operations.actions import (
    book_of_ends,
    dags,
    loss_acceptance,
    lost_ledger,
    lost_state,
    removed_state,
    renamed_state,
    reset,
    return_to_transaction,
    roll_forward,
    value_acceptance,
    withdrawal,
)
from airflow_tx.operations.actions.action import (
    ActionTarget,
    EffectLine,
    ParsedDag,
    PersonalAction,
    TransactionAction,
)
from airflow_tx.operations.actions.check_acceptance import CheckAcceptance
from airflow_tx.operations.actions.correction import CorrectionRestatement
from airflow_tx.operations.actions.ledger_places import ledger_places
from airflow_tx.operations.actions.readmission import Readmission
from airflow_tx.operations.actions.repair import LedgerRepair
from airflow_tx.operations.actions.replay import FailedReplay, NamedReplay
from airflow_tx.operations.actions.request import dated_transactions
from airflow_tx.operations.actions.restatement import (
    RestatedRun,
    TransactionRestatement,
)
from airflow_tx.operations.actions.skip import TransactionSkip
from airflow_tx.operations.actions.stale import StaleAcceptance, StaleRestatement
from airflow_tx.operations.cli import render
from airflow_tx.operations.cli.context import (
    action,
    audit_of,
    beside_rows,
    check_reason,
    confirm,
    conn_id_of,
    dag_of,
    is_shown,
    ledger_at,
    paths_of,
    store_of,
    wrong_usage,
)
from airflow_tx.operations.cli.progress import Progress, Work, WorkStatus

# --- actions ------------------------------------------------------------------------------------------------------


@action
def skip(args: Namespace) -> None:
    """`airflow tx skip TOPOLOGY TXID --why TEXT`."""
    _act(args, "skip", TransactionSkip, args.txid)


@action
def readmit(args: Namespace) -> None:
    """`airflow tx readmit TOPOLOGY TXID --why TEXT`."""
    _act(args, "readmit", Readmission, args.txid)


@action
def replay(args: Namespace) -> None:
    """`airflow tx replay TOPOLOGY (TXID [TXID ...] [--force] [--changed-rows --why TEXT] | --failed)`."""
    if bool(args.txids) == args.failed:
        wrong_usage("Give either the txids to replay, or --failed.")
    if args.failed and args.force:
        wrong_usage(
            "--force can be used only with txids. With --failed, a transaction whose run is queued or running is not "
            "replayed."
        )
    if args.changed_rows and args.failed:
        wrong_usage("--changed-rows can be used only with txids.")
    if args.changed_rows:
        check_reason(args, "replay", *map(str, args.txids), "--changed-rows")
    with store_of(args) as store:
        target = target_of(store, args)
        chosen = NamedReplay(target, args.txids, force=args.force, changed_rows=args.changed_rows)
        do(FailedReplay(target) if args.failed else chosen, args, refusable=not args.failed)


def _act(args: Namespace, verb: str, kind: type[TransactionAction], *given: Any) -> None:
    """Run an action on one transaction, after it has a reason and a confirmation.

    :param verb: name of the command.
    :param kind: class of the action.
    :param given: arguments of the action, as typed in the command.
    """
    named = (str(each) for one in given for each in (one if isinstance(one, list) else [one]))
    check_reason(args, verb, *named)
    with store_of(args) as store:
        do(kind(target_of(store, args), *given), args, confirmed=True)


@action
def accept_loss(args: Namespace) -> None:
    """`airflow tx accept-loss TOPOLOGY --why TEXT`."""
    check_reason(args, "accept-loss")
    with store_of(args) as store:
        acceptance = loss_acceptance.LossAcceptance(target_of(store, args))
        if not is_previewed(acceptance, args, confirmed=True):
            list(acceptance.execute(audit_of(args)))
            rows: list[render.TableRow] = [
                {
                    "partition": loss.partition or None,
                    "lost": loss.description,
                    "goes_on_at": loss.resume_at,
                }
                for loss in acceptance.losses
            ]
            render.print_rows(rows, args.output)


@action
def accept_change(args: Namespace) -> None:
    """`airflow tx accept-change TOPOLOGY --state STATE --why TEXT`."""
    check_reason(args, "accept-change", "--state", args.state)
    with store_of(args) as store:
        acceptance = value_acceptance.ChangeAcceptance(
            target_of(store, args), args.state, made_after=args.after
        )
        do(acceptance, args, confirmed=True)


@action
def accept_check(args: Namespace) -> None:
    """`airflow tx accept-check TOPOLOGY TXID NAME [NAME ...] --why TEXT`."""
    _act(args, "accept-check", CheckAcceptance, args.txid, args.names)


def target_of(store: Store, args: Namespace) -> ActionTarget:
    """Return the topology that the command names.

    :raises UnknownTransaction: the topology does not exist.
    """

    record = ReadOnlyLedger(store, paths_of(args)).existing_topology()
    return ActionTarget(
        ledger_at(store, paths_of(args)), record, cache(lambda: dag_of(args, record.dag_id))
    )


def do(
    chosen: PersonalAction, args: Namespace, *, confirmed: bool = False, refusable: bool = True
) -> None:
    """Run an action. With `--dry-run`, only print its preview.

    :param confirmed: whether the user must confirm the action.
    :param refusable: whether a preview without effects is an error.
    """
    if not is_previewed(chosen, args, confirmed=confirmed, refusable=refusable):
        show_effects(chosen.execute(audit_of(args)), args)


def is_previewed(
    chosen: PersonalAction, args: Namespace, *, confirmed: bool, refusable: bool = True
) -> bool:
    """With `--dry-run`, print the preview. Otherwise ask for confirmation if needed.

    :return: whether this is a dry run.
    """
    is_wanted = confirmed or bool(args.dry_run)
    return is_wanted and is_shown(args, chosen.preview(), refusable=refusable)


def show_effects(effects: Iterable[EffectLine], args: Namespace) -> None:
    """Print the effects of an action. If one fails, print the earlier effects."""
    rows: list[render.TableRow] = []
    try:
        for each in effects:
            rows.append(render.effect(each))
    except BaseException:
        if rows:
            render.print_rows(rows, args.output)
        raise
    render.print_rows(rows, args.output)


# --- repair -------------------------------------------------------------------------------------------------------
# Repairs of a topology after a state or ZooKeeper went back, or after a state was renamed or
# removed.


@action
def repair(args: Namespace) -> None:
    """`airflow tx repair TOPOLOGY (--roll-forward [STATE ...] | --state-lost STATE | --back TXID | ...)`."""
    chosen = [bool(args.state_lost), args.ledger_lost, args.reset, args.ends]
    chosen += [args.roll_forward is not None, args.back is not None]
    if sum(chosen) != 1:
        wrong_usage(
            "Give exactly one of --roll-forward [STATE ...], --state-lost STATE, --back TXID, --ledger-lost, --ends, "
            "--reset."
        )
    of_roll_forward = (args.until is not None, args.changed, args.unchanged, args.restate)
    if args.roll_forward is None and any(of_roll_forward):
        wrong_usage(
            "--restate, --until, --changed and --unchanged can be used only with --roll-forward."
        )
    if args.unseen and not args.state_lost:
        wrong_usage("--unseen can be used only with --state-lost.")
    if args.reset:
        check_reason(args, "repair", "--reset")
    with store_of(args) as store:
        if args.roll_forward is not None:
            _roll_forward(args, store)
        else:
            do_repair(_chosen(args, store), args, "Repaired")


def do_repair(chosen: LedgerRepair, args: Namespace, told: str) -> None:
    """Run a repair after confirmation. With `--dry-run`, only print its preview."""
    preview = chosen.preview()
    if is_shown(args, preview):
        return
    done, *more = effects = list(chosen.execute(audit_of(args), preview.version))
    if args.output != "table":
        render.print_rows(list(map(render.effect, effects)), args.output)
        return
    print(f"{told}: {done.what}")
    for each in more:
        print(f"Transaction {each.txid}: {each.what}")


def _end_refused(refused: Sequence[EffectLine]) -> None:
    """Exit with code 1 if a state is refused."""
    if refused:
        raise SystemExit(without_controls("\n".join(str(each.what) for each in refused)))


def _chosen(args: Namespace, store: Store) -> LedgerRepair:
    if args.state_lost:
        return lost_state.LostState(
            _target(args, store, STATE_LOST), args.state_lost, unseen=args.unseen
        )
    if args.back is not None:
        return return_to_transaction.ReturnToTransaction(_target(args, store, "back"), args.back)
    if args.ends:
        return book_of_ends.BookExtension(_target(args, store, ENDS))
    if args.ledger_lost:
        return lost_ledger.LostLedger(_target(args, store, LEDGER_LOST, is_lost=True))
    return reset.TopologyReset(_target(args, store, RESET, is_lost=True))


def _target(args: Namespace, store: Store, what: str, *, is_lost: bool = False) -> ActionTarget:
    """Return the topology that the command names.

    :param what: option of the repair.
    :param is_lost: whether the topology record may be lost, so that the DAG provides its content.
    """
    record = (
        _record(args, store)
        if is_lost
        else ReadOnlyLedger(store, paths_of(args)).existing_topology()
    )

    dag = cache(lambda: _dag(args, record, what))
    return ActionTarget(ledger_at(store, paths_of(args)), record or dag()[0].request.made(""), dag)


def _record(args: Namespace, store: Store) -> TopologyRecord | None:
    try:
        return ReadOnlyLedger(store, paths_of(args)).topology_if_any()
    except UnreadableRecord:
        return None  # the repair reports the error, or fixes its cause


def _dag(args: Namespace, record: TopologyRecord | None, what: str) -> ParsedDag:
    """Return the `Transaction` of the DAG, and the states of the DAG by name.

    :raises RepairRefused: the DAG has another topology, or names another ledger for it.
    """
    known = args.topology if record is None else record.dag_id
    spec, states = dags.transactional_dag(args.dag_id or known)
    if problem := dags.elsewhere(spec, paths_of(args), conn_id_of(args)):
        value = args.state_lost if args.back is None else args.back
        place = ["--dag-id", spec.dag_id, "--conn-id", spec.conn_id, "--root", spec.paths.root]
        named = [] if value is None else [value]
        why = ["--why", "TEXT"] if what == RESET else []
        again = Command.of("repair", spec.topology, f"--{what}", *named, *place, *why)
        remedy = Remedy.of("Repeat: ", again)
        raise RepairRefused(what=what, topology=args.topology, problem=problem, remedy=remedy)
    return spec, states


def _roll_forward(args: Namespace, store: Store) -> None:
    """Rewrite the missing transactions of states. Exit with code 1 if a state cannot be written."""
    rolling = roll_forward.StateRollForward(
        target_of(store, args),
        args.roll_forward,
        restate=args.restate,
        until=args.until,
        changed=args.changed,
        unchanged=args.unchanged,
    )
    preview = rolling.preview()
    if not args.dry_run and args.output == "table" and not args.yes:
        render.print_rows([render.effect(each, "") for each in preview.effects], args.output)
    if is_shown(args, preview, refusable=False):
        _end_refused(preview.refused)
        return
    done = list(rolling.execute(audit_of(args)))
    if args.output != "table":
        render.print_rows(list(map(render.effect, done)), args.output)
        done = []
    told = [str(each.what) for each in done if each not in rolling.repair.refused]
    for place, each in enumerate(told):
        print(each if place else f"Repaired: {each}")
    _end_refused(rolling.repair.refused)
    if not told and args.output == "table":
        print(preview.sentence)


@action
def rename_stored_state(args: Namespace) -> None:
    """`airflow tx state rename TOPOLOGY OLD NEW`."""
    with store_of(args) as store:
        do_repair(
            renamed_state.StateRename(target_of(store, args), args.old, args.new), args, "Done"
        )


@action
def forget(args: Namespace) -> None:
    """`airflow tx state forget TOPOLOGY OLD`."""
    with store_of(args) as store:
        do_repair(removed_state.StateRemoval(target_of(store, args), args.old), args, "Done")


# --- restatement --------------------------------------------------------------------------------------------------
# `airflow tx restate`: request restatements, start their runs, and track them.
#
# The command stores nothing outside the ledger and Airflow. You can stop and repeat it at any time.


MOST_UNASKED = 1000
"""Maximum number of stale transactions that a command requests without confirmation."""


@action
def restate(args: Namespace) -> None:
    """`airflow tx restate TOPOLOGY [TXID ... | --from DATE --to DATE | --follow | --stale | --withdraw]`."""
    _check_usage(args)
    with store_of(args) as store:
        target = target_of(store, args)
        if args.withdraw:
            do(withdrawal.WishWithdrawal(target, args.txids), args)
            return
        if args.accept:
            do(StaleAcceptance(target, args.code), args, confirmed=True)
            return
        coordinator = ledger_places().coordinator_at(conn_id_of(args), paths_of(args))
        target = replace(target, coordinator=coordinator)
        restatement = _restatement(target, args)
        is_dry = is_previewed(restatement, args, confirmed=False)
        if not is_dry and isinstance(restatement, StaleRestatement):
            _confirm_many(restatement, args)
        if held_up := compat.why_none_starts(target.record.dag_id):
            raise SystemExit(f"{held_up}, then repeat this command.")
        if not is_dry:
            _restate(restatement, target, args)


def _confirm_many(restatement: StaleRestatement, args: Namespace) -> None:
    """Ask for confirmation if there are more stale transactions than a user may expect."""
    many = 0 if args.yes else len(restatement.stale.txids)
    if many > MOST_UNASKED:
        confirm(args, f"Restate {many} transactions of topology {args.topology}?")


def _restatement(target: ActionTarget, args: Namespace) -> TransactionRestatement:
    if args.follow:
        return CorrectionRestatement(target, in_flight=args.in_flight)
    if args.stale:
        return StaleRestatement(target, code=args.code, in_flight=args.in_flight)
    dated = args.first is not None
    txids = dated_transactions(target, args.first, args.last) if dated else args.txids
    return TransactionRestatement(
        target, txids, changed_rows=args.changed_rows, in_flight=args.in_flight, dated=dated
    )


def _check_usage(args: Namespace) -> None:
    named_otherwise = args.txids or args.first or args.withdraw or args.changed_rows
    finder = "--follow" if args.follow else "--stale"
    if (args.follow and args.stale) or ((args.follow or args.stale) and named_otherwise):
        other = "--stale" if args.follow else "--follow"
        wrong_usage(
            f"{finder} finds the transactions itself. Leave out txids, --from, --to, --changed-rows, --withdraw and "
            f"{other}."
        )
    if (args.code or args.accept) and not args.stale:
        wrong_usage("--code and --accept can be used only with --stale.")
    if args.accept:
        check_reason(args, "restate", "--stale", "--accept")
    if (args.first is None) != (args.last is None):
        wrong_usage("Give both --from and --to.")
    if args.first is not None and args.txids:
        wrong_usage("Give either the txids, or --from and --to.")
    if args.withdraw:
        if args.first is not None or args.changed_rows or args.in_flight:
            wrong_usage(
                "--withdraw cannot be used with --from, --to, --changed-rows or --in-flight. Without txids, it "
                "withdraws all requests."
            )
        return
    if args.follow or args.stale:
        return
    named = [*map(str, args.txids)] or (["--from", "DATE", "--to", "DATE"] if args.first else [])
    check_reason(args, "restate", *named)


def _restate(restatement: TransactionRestatement, target: ActionTarget, args: Namespace) -> None:
    show_effects(restatement.execute(audit_of(args)), args)
    work = RestatedWork(target, restatement.chosen)
    if not work.read():
        return
    in_flight = args.in_flight or most_restated(target.ledger.topology().max_pending)
    try:
        left = Progress(work, in_flight, to=beside_rows(args)).follow()
    except KeyboardInterrupt:
        left = work.read()
    for line in left_over(target.topology, left):
        print(line, file=beside_rows(args))
    if any(each.status is not WorkStatus.DONE for each in left):
        raise SystemExit(1)


@dataclass(frozen=True)
class RestatedPiece:
    """A transaction whose restatement the command tracks.

    :param of: transaction to restate.
    :param txid: transaction that restates it, or None if none has begun.
    :param state: state of its run, or None if the run was deleted.
    :param wish: its request, or None if a run has begun the restatement or the request was withdrawn.
    """

    of: int
    run_id: str
    status: WorkStatus
    txid: int | None
    state: str | None
    wish: Wish | None

    @property
    def is_in_flight(self) -> bool:
        return self.status is WorkStatus.IN_FLIGHT


class RestatedWork(Work[RestatedPiece]):
    """The restatements that are requested when the command starts, with their status in the ledger and in Airflow."""

    def __init__(self, target: ActionTarget, chosen: Iterable[RestatedRun]) -> None:
        super().__init__(target.ledger)
        self._target = target
        self._keys = {each.txid: (each.key, each.run_id) for each in chosen}
        self._keys |= {wish.txid: (wish.key, wish.run_id) for wish in target.wishes()}
        self._started: set[int] = set()

    def read(self) -> list[RestatedPiece]:
        self.current = self.ledger.current_if_any()
        wished = {wish.txid: wish for wish in self._target.wishes()}
        run_ids = [run_id for _, run_id in self._keys.values()]
        states = compat.runs_of(self._target.record.dag_id, run_ids)
        found = [
            self._read(of, key, run_id, states.get(run_id), wished.get(of))
            for of, (key, run_id) in self._keys.items()
        ]
        # Show open restatements first, since the others wait for them.
        return sorted(found, key=lambda each: (each.txid is None, each.txid or each.of))

    def create(self, piece: RestatedPiece) -> None:
        assert piece.wish is not None
        self._started.add(piece.of)
        self._target.runs.start(piece.run_id, piece.wish.key, past_limit=True, latest=True)

    def _read(
        self, of: int, key: str, run_id: str, state: str | None, wish: Wish | None
    ) -> RestatedPiece:
        return RestatedPiece(of, run_id, *self._status(of, key, state, wish), state, wish)

    def _status(
        self, of: int, key: str, state: str | None, wish: Wish | None
    ) -> tuple[WorkStatus, int | None]:
        is_live = state in LIVE_RUN_STATES
        if wish is not None:
            if is_live:
                return WorkStatus.IN_FLIGHT, None
            return WorkStatus.FAILED if of in self._started else WorkStatus.WAITING, None
        binding = self.ledger.bound(key)
        if binding.txid != of:
            return WorkStatus.DONE, binding.txid
        begun = self.ledger.restating(binding)
        if begun is None:
            # The transaction was skipped, or its request was withdrawn.
            return WorkStatus.FAILED, None
        return WorkStatus.IN_FLIGHT if is_live else WorkStatus.FAILED, begun


def left_over(topology: str, pieces: Sequence[RestatedPiece]) -> list[str]:
    """Return the lines that describe the remaining work."""
    lines = [_failure(topology, each) for each in pieces if each.status is WorkStatus.FAILED]
    if any(each.txid for each in pieces if each.status is WorkStatus.FAILED):
        lines.append(
            f"To replay the failed transactions: {Command.of('replay', topology, '--failed')}"
        )
    left = [each for each in pieces if each.status in (WorkStatus.WAITING, WorkStatus.IN_FLIGHT)]
    if left:
        again = Command.of("restate", topology, "--why", "TEXT")
        lines.append(f"Transactions left to restate: {len(left)}. To continue: {again}")
    return lines or [f"All {len(pieces)} transactions are restated."]


def _failure(topology: str, each: RestatedPiece) -> str:
    if each.txid is not None:
        show = Command.of("show", topology, each.txid)
        restating = f"run {each.run_id} of its restatement (transaction {each.txid})"
        return f"{each.of}: {restating} ended as {each.state}: {show}"
    if each.wish is not None:
        withdraw = Command.of("restate", topology, each.of, "--withdraw")
        return (
            f"{each.of}: run {each.run_id} ended as {each.state} before it began the restatement. To find out why, "
            f"read the log of its `begin` task. To withdraw the request: {withdraw}"
        )
    return f"{each.of}: its old contribution still counts, since its restatement was skipped or withdrawn"
