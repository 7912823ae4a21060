"""`airflow tx repair`: a state, or ZooKeeper, went back in time."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_tx.base.errors import ConfigError, RepairRefused, StateError, UnreadableRecord
from airflow_tx.ledger import (
    Paths,
    Phase,
    ReadOnlyLedger,
    Store,
    TransactionRecord,
)
from airflow_tx.operations.actions.action import EffectLine, PreviewAnswer
from airflow_tx.operations.cli import render
from airflow_tx.operations.cli.context import (
    action,
    audit_of,
    check_why,
    conn_id_of,
    is_shown,
    ledger_on,
    paths_of,
    print_done,
    staging_of,
    store_of,
    wrong_usage,
)
from airflow_tx.state import FencedState, StateKind

if TYPE_CHECKING:
    from airflow_tx.ledger import Decision, HeldState, Ledger, Repaired, RepairRecord, SeenState


# --- repair previews ----------------------------------------------------------------------------------------------
# What `airflow tx repair | state rename | state forget` would do.
#
# The step of the repair itself decides, and its multi is not sent: the preview and the repair cannot differ.


_OUTRANKED = "its grant is outranked; its commit begins again under a new one"


def of_kept(
    ledger: Ledger, planned: Decision[Repaired], sentence: str, *more: str
) -> PreviewAnswer:
    """Preview a repair that leaves open transactions open.

    :param more: what it does beside the ledger.
    """
    opened = ledger.open_records()
    granted = {txid: record for txid, record in opened.items() if record.phase is Phase.COMMITTING}
    outranked = [EffectLine(txid, record.run_id, _OUTRANKED) for txid, record in granted.items()]
    return _preview(planned, sentence, more, outranked)


def of_rebuilt(
    ledger: Ledger, planned: Decision[Repaired], fences: Mapping[str, Any]
) -> PreviewAnswer:
    """Preview a rebuilt ledger, with its place: a person sees whether it is the right one.

    :param fences: by state.
    """
    place = f"{ledger.paths.topology} in {ledger.store.where}"
    what = f"{place} ({_in_words(fences)}): {planned.result.summary}"
    opened = ledger.open_records()
    effects = [
        EffectLine(txid, record.run_id, _becomes(ledger, planned, txid, record))
        for txid, record in opened.items()
    ]
    return _preview(planned, f"Rebuild the ledger of topology {what}.", (), effects)


def of_reset(
    ledger: Ledger, planned: Decision[Repaired], fences: Mapping[str, Any]
) -> PreviewAnswer:
    """Preview a reset.

    :param fences: by state.
    """
    try:
        opened = ledger.open_records()
    except UnreadableRecord:
        opened = {}  # a reset removes what cannot be read, too
    what = (
        f"all transactions of topology {ledger.paths.topology} and DELETE ALL VALUES of its states"
    )
    deleted = [
        f"state {name}: all of its values are deleted ({_in_words({name: fences[name]})})"
        for name in sorted(fences)
    ]
    forgotten = [
        EffectLine(txid, record.run_id, "forgotten: its run begins again, with other rows")
        for txid, record in opened.items()
    ]
    return _preview(
        planned,
        f"Forget {what}: {', '.join(sorted(fences)) or 'none'}.",
        deleted,
        forgotten,
    )


def _becomes(
    ledger: Ledger, planned: Decision[Repaired], txid: int, record: TransactionRecord
) -> str:
    """Say what a rebuilt ledger makes of an open transaction: its multi removes the record, and may unbind the run."""
    from airflow_tx.ledger import bound_after

    bound = bound_after(planned, ledger.paths, txid, record.key)
    if bound is None:
        return "forgotten: its run begins again when it is cleared"
    if bound != txid:
        return f"forgotten: its rows belong to skipped transaction {bound} again"
    return "closed: the states say that it was committed"


def _preview(
    planned: Decision[Repaired],
    sentence: str,
    more: Iterable[str],
    opened: Iterable[EffectLine],
) -> PreviewAnswer:
    done = planned.result
    noted = f"{done.summary}; generation {done.generation}; transaction {done.current} commits next"
    effects = [EffectLine(None, None, each) for each in (noted, *more)]
    return PreviewAnswer("", sentence, (*effects, *opened), refused=(), needs_reason=False)


def _in_words(found: Mapping[str, Any]) -> str:
    """Describe the fences of states in one line, for the question before a repair."""
    notes = (
        f"{name}: no fence"
        if fence is None
        else f"{name}: {'' if fence.applied else 'in '}transaction {fence.token.txid}"
        for name, fence in sorted(found.items())
    )
    return "; ".join(notes)


# --- repairs ------------------------------------------------------------------------------------------------------


@action
def repair(args: Namespace) -> None:
    """`airflow tx repair TOPOLOGY (--roll-forward [STATE ...] | --state-lost STATE | --back TXID | ...)`."""
    kinds = {"state_lost": _state_lost, "ledger_lost": _ledger_lost, "reset": _reset}
    chosen = [name for name in kinds if getattr(args, name)]
    kinds |= {"roll_forward": _roll_forward, "back": _back}
    chosen += [name for name in ("roll_forward", "back") if getattr(args, name) is not None]
    if len(chosen) != 1:
        wrong_usage(
            "Give exactly one of --roll-forward [STATE ...], --state-lost STATE, --back TXID, --ledger-lost, --reset."
        )
    of_roll_forward = (args.until is not None, args.changed, args.unchanged, args.restate)
    if args.roll_forward is None and any(of_roll_forward):
        wrong_usage("--restate, --until, --changed and --unchanged are for --roll-forward.")
    if args.unseen and not args.state_lost:
        wrong_usage("--unseen is for --state-lost.")
    if args.reset and not args.dry_run:
        check_why(args, f"repair {args.topology} --reset")
    with store_of(args) as store:
        kinds[chosen[0]](args, store)


def _state_lost(args: Namespace, store: Store) -> None:
    from airflow_tx.ledger import Repairs

    ledger = ledger_on(store, args)
    audit = audit_of(args)
    name = args.state_lost
    seen = None if args.unseen else _seen(args, store, name)
    repairs = Repairs(ledger)
    planned = repairs.state_lost.preview(name, audit, seen=seen)
    sentence = (
        f"Accept what state {name} of topology {args.topology} holds; what it lost stays lost."
    )
    if not is_shown(args, of_kept(ledger, planned, sentence)):
        print_done("Repaired", repairs.state_lost(name, audit, seen=seen))


def _seen(args: Namespace, store: Store, name: str) -> SeenState | None:
    """Look at a state whose loss is to be accepted: that alone is accepted.

    :raises RepairRefused: it cannot be reached, or the DAG has no such state.
    """
    from airflow_tx.ledger import STATE_LOST, reason_of
    from airflow_tx.operations.actions.roll_forward import seen_state

    def refused(problem: str, remedy: str) -> RepairRefused:
        return RepairRefused(
            what=STATE_LOST, topology=args.topology, problem=problem, remedy=remedy
        )

    unseen = f"airflow tx repair {args.topology} --state-lost {shlex.quote(name)} --unseen"
    try:
        _, states = _dag(args, store, STATE_LOST)
    except ConfigError as error:
        raise refused(f"its state cannot be looked at. {error}", f"Or: {unseen}") from error
    if name not in states:
        known = ", ".join(sorted(states)) or "no state"
        remedy = (
            f"To continue without it: airflow tx state forget {args.topology} {shlex.quote(name)}"
        )
        raise refused(f"the DAG has {known}, and no state {name!r}", remedy)
    state = states[name]
    if not state.has_fence:
        return None
    try:
        return seen_state(ledger_on(store, args), state)
    except StateError as error:
        problem = f"state {name!r} cannot be looked at ({reason_of(error)})"
        raise refused(problem, f"Let it be reached, or: {unseen}") from error


def _ledger_lost(args: Namespace, store: Store) -> None:
    from airflow_tx.ledger import LEDGER_LOST, HeldState, Repairs

    request, states = _dag(args, store, LEDGER_LOST)
    found = {name: state.fence() for name, state in states.items()}
    held = [
        HeldState.of(
            name,
            undoable=states[name].kind is StateKind.OPAQUE,
            fence=fence,
            holds=states[name].holds,
            receipts=states[name].receipts(),
        )
        for name, fence in found.items()
        if fence is not None
    ]
    ledger = ledger_on(store, args)
    audit = audit_of(args)
    repairs = Repairs(ledger)
    changes = _kept_changes(args, held)
    planned = repairs.preview_ledger_lost(held, request, audit, changes=changes)
    made_anew = repairs.incarnation()
    if is_shown(args, of_rebuilt(ledger, planned, found)):
        return
    for incarnation in {fence.incarnation for fence in found.values() if fence is not None}:
        staging_of(args).adopt_earlier(args.topology, incarnation)
        if made_anew not in ("", incarnation):
            staging_of(args).adopt_taken(made_anew, incarnation)
    print_done("Repaired", repairs.ledger_lost(held, request, audit, changes=changes))


def _kept_changes(args: Namespace, held: Sequence[HeldState]) -> list[RepairRecord]:
    """Read the accepted changes that the journal keeps of the ledger that the states belong to."""
    from airflow_tx.outputs import JournalArea

    lives = {each.incarnation for each in held}
    return [each for life in lives for each in JournalArea(staging_of(args), life).changes()]


def _back(args: Namespace, store: Store) -> None:
    """Take back the transactions after the one to which source and states went back."""
    from airflow_tx.operations.actions.roll_forward import NOT_TAKEN_BACK, held_by

    _, states = _dag(args, store, "back")
    ledger = ledger_on(store, args)
    audit = audit_of(args)
    held = held_by(states, ledger.existing_topology().incarnation)
    planned = ledger.back.preview(args.back, audit=audit, **held)
    sentence = f"Take back all transactions of topology {args.topology} after {args.back}. {NOT_TAKEN_BACK}"
    if not is_shown(args, of_kept(ledger, planned, sentence)):
        print_done("Repaired", ledger.back(args.back, audit=audit, **held))


def _reset(args: Namespace, store: Store) -> None:
    from airflow_tx.ledger import RESET, Repairs

    request, states = _dag(args, store, RESET)
    refused = partial(RepairRefused, what=RESET, topology=args.topology)
    fences = {name: _clearable(name, state, refused) for name, state in states.items()}
    ledger = ledger_on(store, args)
    audit = audit_of(args)
    repairs = Repairs(ledger)
    incarnation = repairs.incarnation()
    planned = repairs.preview_reset(request, audit)
    if is_shown(args, of_reset(ledger, planned, fences)):
        return

    def clear() -> None:
        for state in states.values():
            state.clear()
        if incarnation:
            staging_of(args).forget(args.topology, incarnation)

    print_done("Repaired", repairs.reset(request, audit, clear=clear))


def _clearable(name: str, state: FencedState, refused: Callable[..., RepairRefused]) -> Any:
    """Read the fence of a state that can be emptied: once the ledger is emptied, what it held is lost.

    :raises RepairRefused: the state cannot be emptied, or not be read.
    """
    from airflow_tx.ledger import reason_of

    if not state.can_clear:
        raise refused(
            problem=f"state {name!r} ({type(state).__name__}) cannot be emptied",
            remedy="Empty it by hand, take it out of the DAG, and repeat.",
        )
    try:
        return state.fence()
    except Exception as error:
        raise refused(
            problem=f"state {name!r} cannot be read ({reason_of(error)})",
            remedy="Let it be reached, or take it out of the DAG, and repeat.",
        ) from error


def _dag(args: Namespace, store: Store, what: str) -> tuple[Any, dict[str, Any]]:
    """The DAG's description of its topology, and its states by name."""
    from airflow_tx.ledger import RESET
    from airflow_tx.operations.actions.dags import elsewhere, transactional_dag

    paths = paths_of(args)
    spec, states = transactional_dag(args.dag_id or _dag_id(store, paths) or args.topology)
    if problem := elsewhere(spec, paths, conn_id_of(args)):
        given = args.state_lost if args.back is None else args.back
        value = "" if given is None else f" {shlex.quote(str(given))}"
        raise RepairRefused(
            what=what,
            topology=args.topology,
            problem=problem,
            remedy=f"Repeat: airflow tx repair {spec.topology} --{what}{value} --dag-id {spec.dag_id} "
            f"--conn-id {spec.conn_id} --root {spec.paths.root}{' --why TEXT' if what == RESET else ''}",
        )
    return spec.request, states


def _dag_id(store: Store, paths: Paths) -> str | None:
    try:
        record = ReadOnlyLedger(store, paths).topology_if_any()
    except UnreadableRecord:
        return None  # the repair will report the error, or repair it
    return None if record is None else record.dag_id


def _roll_forward(args: Namespace, store: Store) -> None:
    """Write the missing transactions of states again; exit code 1 if a state cannot be written."""
    from airflow_tx.operations.actions.action import ActionTarget
    from airflow_tx.operations.actions.dags import checked_dag
    from airflow_tx.operations.actions.restatement import TransactionRestatement
    from airflow_tx.operations.actions.roll_forward import RollForwardRepair
    from airflow_tx.outputs import JournalArea

    record = ReadOnlyLedger(store, paths_of(args)).existing_topology()
    spec, states = checked_dag(args.dag_id or record.dag_id, paths_of(args), conn_id_of(args))
    area = staging_of(args)
    ledger = ledger_on(store, args)
    restating = TransactionRestatement(ActionTarget(ledger, record, lambda: (spec, states)), ())
    repair = RollForwardRepair(
        ledger,
        states,
        JournalArea(area, record.incarnation),
        area.of_topology(record.incarnation),
        chosen=args.roll_forward,
        until=args.until,
        changed=args.changed,
        unchanged=args.unchanged,
        source=spec.source,
        restating=restating if args.restate else None,
    )
    preview = repair.preview()
    if not args.dry_run and args.output == "table" and not args.yes:
        render.print_rows([render.effect(each, "") for each in preview.effects], args.output)
    if not is_shown(args, preview):
        done = repair.execute(audit_of(args))
        if done is not None:
            print_done("Repaired", done)
            if args.restate and ledger.wishes():
                print(
                    "The coordinator starts the runs that are processed again. Without one: "
                    f"airflow tx restate {args.topology} --why TEXT"
                )
        elif not repair.refused:
            print(preview.sentence)
    if repair.refused:
        raise SystemExit("\n".join(str(each.what) for each in repair.refused))
