"""User replay: start the next attempt of the given transactions, or of all failed transactions.

Source: protocol.md §5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

from airflow_tx.base.errors import ChangeRefused, Refused
from airflow_tx.base.remedy import Command
from airflow_tx.ledger import (
    LIVE_RUN_STATES,
    Audit,
    Phase,
    TopologyRecord,
    TransactionRecord,
    TransactionView,
    check_changeable,
    topology_view,
)
from airflow_tx.operations.actions.action import (
    ActionPlan,
    ActionTarget,
    EffectLine,
    ParsedDag,
    PersonalAction,
    PlannedEffect,
    RunForbidden,
    none_of,
    started_again,
    transactions,
)
from airflow_tx.transaction import Comeback, comeback, undoable


class RunReplay(PersonalAction):
    """Restarts the runs of open transactions."""

    starts_runs = True

    def _start(
        self, txid: int, record: TransactionRecord, audit: Audit, *notes: Callable[[], object]
    ) -> str:
        """Restart a run, and return a description of the start.

        :param notes: functions that write to the ledger before the next attempt can begin.
        """

        def noting() -> None:
            for note in notes:
                note()
            self.ledger.note_person(txid, audit)

        how = self.target.runs.start(record.run_id, record.key, past_limit=True, noting=noting)
        self.ledger.came_back(record.run_id)
        return how

    def _unblock(self, audit: Audit) -> Iterable[EffectLine]:
        self.ledger.unblock()
        return ()


class NamedReplay(RunReplay):
    """Starts the next attempt of the given open transactions. If one of them is refused, none is replayed.

    :param txids: txids of the transactions.
    :param force: whether to include transactions whose run is queued or running.
    :param changed_rows: whether to read the current rows of the source.
    """

    def __init__(
        self, target: ActionTarget, txids: Sequence[int], *, force: bool, changed_rows: bool
    ) -> None:
        super().__init__(target)
        self.txids = sorted(set(txids))
        self.force = force
        self.changed_rows = changed_rows
        self.needs_reason = changed_rows

    def plan(self) -> ActionPlan:
        version = self.target.version(self.txids)
        found = self.target.opened(self.txids)
        opened = {txid: each for txid, each in found.items() if not isinstance(each, Refused)}
        states = self.target.runs.states(each.run_id for each in opened.values())
        effects: dict[int, PlannedEffect] = {}
        errors = {txid: each for txid, each in found.items() if isinstance(each, Refused)}
        for txid, record in opened.items():
            try:
                effects[txid] = self._effect(txid, record, states.get(record.run_id))
            except (ChangeRefused, RunForbidden) as refused:
                errors[txid] = refused
        planned = list(effects.values())
        if errors:
            run_ids = {txid: each.run_id for txid, each in opened.items()}
            why = [EffectLine(txid, run_ids.get(txid), str(each)) for txid, each in errors.items()]
            are = "is" if len(errors) == 1 else "are"
            held_up = f"not replayed, since {transactions(sorted(errors))} {are} refused"
            planned = none_of(planned, why, next(iter(errors.values())), held_up)
        replayed = [txid for txid in effects if not errors and not effects[txid].is_refused]
        unblocked = PlannedEffect((), self._unblock)
        return ActionPlan(version, self._sentence(replayed), [*planned, unblocked], self.txids)

    def _effect(self, txid: int, record: TransactionRecord, state: str | None) -> PlannedEffect:
        """Plan the replay of one transaction.

        :param state: state of its run, or None if the run was deleted.
        :raises RunForbidden: the run was deleted, and the user may not create it.
        :raises ChangeRefused: the rows of the transaction cannot be decided again.
        """
        self.target.runs.check_state(record.run_id, state)
        live = state if not self.force and state in LIVE_RUN_STATES else None
        states = self._undoable(txid) if self.changed_rows else None
        if live is None and states is not None:
            check_changeable(self.ledger.paths, record, states)
        line = EffectLine(txid, record.run_id, self._outlook(record, state, live))
        deed = partial(self._replay, txid, record, live, states)
        return PlannedEffect([line], deed, is_refused=live is not None and record.skip is None)

    def _outlook(self, record: TransactionRecord, state: str | None, live: str | None) -> str:
        what = "its skip is withdrawn" if record.skip is not None else ""
        if live is not None:
            return f"{what and f'{what}; '}its run is {live}; with force it is replayed anyway"
        decided = "its rows are decided again" if self.changed_rows else ""
        parts = filter(None, (what, decided, _outlook(state)))
        return f"{', '.join(parts)}, and begins as attempt {record.attempt + 1}"

    def _replay(
        self,
        txid: int,
        record: TransactionRecord,
        live: str | None,
        states: Mapping[str, bool | None] | None,
        audit: Audit,
    ) -> Iterator[EffectLine]:
        """Replay one transaction.

        :param live: state of a run that must not be restarted, or None to restart the run.
        :param states: result of `undoable` if the rows are decided again, or None.
        """
        done = ""
        notes: list[Callable[[], object]] = []
        if live is None and states is not None:
            notes.append(partial(self.ledger.note_changed, txid, states, audit=audit))
            done = "its rows are decided again: "
        if record.skip is not None:
            notes.append(partial(self.ledger.withdraw_skip, txid))
            done += "its skip was withdrawn, "
        if live is None:
            done += self._start(txid, record, audit, *notes)
        else:
            for note in notes:
                note()
            done += f"its run was left alone: it is {live} (--force starts it again anyway)"
        yield EffectLine(txid, record.run_id, done)

    def _sentence(self, txids: Sequence[int]) -> str:
        if not txids:
            return f"There is nothing to replay in topology {self.target.topology}."
        rows = ", with its current rows" if self.changed_rows else ""
        return f"Replay {transactions(txids)} of topology {self.target.topology}{rows}."

    @cached_property
    def _parsed(self) -> ParsedDag:
        return self.target.dag()

    def _undoable(self, txid: int) -> Mapping[str, bool | None]:
        """Return for each state whether it can undo a transaction.

        This is also True for a state without values from it.

        :raises ChangeRefused: the rows of this source never change.
        """
        spec, states = self._parsed
        topology = self.target.topology
        if not spec.source.rows_can_change:
            raise ChangeRefused(
                txid=txid,
                topology=topology,
                problem=f"{spec.source!r} reads a log, whose rows never change",
                remedy=(
                    "Skip a transaction that cannot be processed: "
                    + Command.of("skip", topology, txid, "--why", "TEXT")
                    + "; after any other failure, replay it with the same rows"
                ),
            )
        return undoable(self.ledger, states, txid)


class FailedReplay(RunReplay):
    """Replays all transactions that have failed or whose run was deleted. Also restarts yielded runs."""

    def plan(self) -> ActionPlan:
        view = topology_view(self.ledger.store, self.ledger.paths, recent=0)
        states = self.target.runs.states(each.document.run_id for each in view.opened)
        effects: list[PlannedEffect] = []
        failed: list[int] = []
        for each in view.opened:
            state = states.get(each.document.run_id)
            why = self._why_left_alone(each, state, its_turn=each.txid == view.current)
            if why is not None:
                left = [EffectLine(each.txid, each.document.run_id, f"left alone: {why}")]
                effects.append(PlannedEffect(left, partial(_say, left), is_refused=True))
            elif state not in LIVE_RUN_STATES:
                line = EffectLine(each.txid, each.document.run_id, _outlook(state))
                effects.append(PlannedEffect([line], partial(self._replay, each.txid)))
                failed.append(each.txid)
        effects += [*self._yielded(view.record), PlannedEffect((), self._unblock)]
        sentence = f"No transaction of topology {self.target.topology} has failed."
        if failed:
            sentence = (
                f"Replay the failed transactions of topology {self.target.topology}: "
                f"{', '.join(map(str, failed))}."
            )
        return ActionPlan(self.target.version(failed), sentence, effects, failed)

    def _replay(self, txid: int, audit: Audit) -> Iterator[EffectLine]:
        """Replay one transaction. If a user has skipped the transaction, its `begin` performs the skip.

        :raises AlreadyFinal: the transaction is no longer open.
        """
        record = self.target.opened([txid])[txid]
        if isinstance(record, Refused):
            raise record
        yield EffectLine(txid, record.run_id, self._start(txid, record, audit))

    def _why_left_alone(
        self, view: TransactionView, state: str | None, *, its_turn: bool
    ) -> str | None:
        """Explain why an open transaction is not replayed.

        Return None if it is replayed, or if its run has not failed.
        """
        if state in LIVE_RUN_STATES:
            return f"its run is {state}" if view.status == Phase.FAILED.value else None
        if view.skip is not None and not view.stale and not its_turn:
            return "it is skipped at its turn; to replay it, name its txid"
        try:
            self.target.runs.check_state(view.document.run_id, state)
        except RunForbidden as refused:
            return str(refused)
        return None

    def _yielded(self, record: TopologyRecord) -> Iterator[PlannedEffect]:
        """Plan the restart of yielded runs without an open transaction.

        Other yielded runs are replayed as transactions. A run that has not ended yet restarts when the turn advances.
        """
        states = self.target.runs.states(record.yielded)
        for run_id, entry in record.yielded.items():
            txid = entry.txid
            state = states.get(run_id)
            is_over = txid is not None and self.ledger.status(txid) is None
            found = comeback(state, is_over=is_over, is_free=True)
            if (txid is not None and not is_over) or found is Comeback.WAIT:
                continue
            done = []
            if found is Comeback.START:
                done = [started_again(None, run_id, entry.blocking)]
            elif state is None and not is_over:
                lost = "forgotten: it had yielded, and was deleted"
                done = [EffectLine(None, run_id, lost)]
            would = [replace(line, what=f"is {line.what}") for line in done]
            yield PlannedEffect(would, partial(self._come_back, run_id, found, done))

    def _come_back(
        self, run_id: str, found: Comeback, done: Sequence[EffectLine], audit: Audit
    ) -> Sequence[EffectLine]:
        """Restart a yielded run, or remove it from the list of yielded runs."""
        if found is Comeback.START:
            self.target.runs.restart(run_id)
        self.ledger.came_back(run_id)
        return done


def _outlook(state: str | None) -> str:
    """Describe how a run with this state is restarted.

    :param state: state of the run, or None if the run was deleted.
    """
    return "its run is created again" if state is None else "its run is cleared"


def _say(lines: Sequence[EffectLine], audit: Audit) -> Sequence[EffectLine]:
    return lines
