"""Replay by a person, of named transactions or of all failed ones: same txid, next attempt.

Source: protocol.md §5.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_tx import compat
from airflow_tx.actions.action import ActionTarget, PersonalAction
from airflow_tx.actions.preview import EffectLine, PreviewAnswer, transactions
from airflow_tx.actions.runs import RunForbidden, started_again
from airflow_tx.commit.handoff import undoable
from airflow_tx.commit.run_slots import Comeback, comeback
from airflow_tx.errors import ChangeRefused, Refused
from airflow_tx.protocol import recovery, run_slots, skip
from airflow_tx.protocol.records import Phase, TopologyRecord, TransactionRecord
from airflow_tx.protocol.replay import LIVE_RUN_STATES, check_changeable, note_changed
from airflow_tx.protocol.status import TransactionView
from airflow_tx.protocol.step import Audit
from airflow_tx.protocol.view import TopologyView, topology_view


class RunReplay(PersonalAction):
    """Starts the runs of open transactions again."""

    def _opened(self, txids: Sequence[int]) -> dict[int, TransactionRecord]:
        """:raises AlreadyFinal, UnknownTransaction: one of them is not open."""
        opened: dict[int, TransactionRecord] = {}
        for txid, found in self.ledger.run(skip.find_open, txids).items():
            if isinstance(found, Refused):
                raise found
            opened[txid] = found
        return opened

    def _states(self, run_ids: Iterable[str]) -> dict[str, str]:
        return compat.runs_of(self.target.record.dag_id, list(run_ids))

    def _replay(
        self,
        txid: int,
        record: TransactionRecord,
        audit: Audit,
        *,
        live: str | None = None,
        withdraw: bool = False,
    ) -> EffectLine:
        """Start a run again.

        :param live: the state of a run that is left alone.
        :param withdraw: take back that the transaction is to be skipped.
        """
        done = []
        if withdraw and record.skip is not None:
            self.ledger.run(skip.withdraw_skip, txid)
            done.append("its skip was withdrawn")
        if live is not None:
            done.append(
                f"its run was left alone: it is {live} (--force starts it again all the same)"
            )
        else:
            # First: the next attempt may begin as soon as the run is cleared.
            self.ledger.run(recovery.note_person, txid, audit)
            done.append(self.target.runs.start(record.run_id, record.key, past_limit=True))
            self.ledger.run(run_slots.came_back, record.run_id)
        return EffectLine(txid, record.run_id, ", ".join(done))


class NamedReplay(RunReplay):
    """Starts the runs of open transactions again: same txid, next attempt.

    :param force: also transactions whose run is queued or running.
    :param changed_rows: with the current rows.
    """

    def __init__(
        self, target: ActionTarget, txids: Sequence[int], *, force: bool, changed_rows: bool
    ) -> None:
        super().__init__(target)
        self.txids = sorted(set(txids))
        self.force = force
        self.changed_rows = changed_rows
        self.needs_reason = changed_rows

    def preview(self) -> PreviewAnswer:
        version = self.target.version(self.txids)
        found = self.target.opened(self.txids)
        opened = {txid: each for txid, each in found.items() if not isinstance(each, Refused)}
        states = self._states(each.run_id for each in opened.values())
        live = {
            txid
            for txid, each in opened.items()
            if not self.force and states.get(each.run_id) in LIVE_RUN_STATES
        }
        refused = [
            EffectLine(txid, None, str(each))
            for txid, each in found.items()
            if isinstance(each, Refused)
        ]
        refused += self._stuck(opened, live)
        refused += self._forbidden(opened, states)
        effects: list[EffectLine] = []
        # All are replayed, or none.
        stuck = sorted(each.txid for each in refused if each.txid is not None)
        held_up = f"not replayed, since {transactions(stuck)} {'is' if len(stuck) == 1 else 'are'} refused"
        for txid, record in opened.items():
            if txid in stuck:
                continue
            what = self._what(record, states.get(record.run_id), is_live=txid in live)
            if txid in live and record.skip is None:
                refused.append(EffectLine(txid, record.run_id, what))
            elif stuck:
                refused.append(EffectLine(txid, record.run_id, held_up))
            else:
                effects.append(EffectLine(txid, record.run_id, what))
        return self.answer(version, self._sentence(effects), effects, refused)

    def execute(self, audit: Audit, version: str | None = None) -> Iterator[EffectLine]:
        """Replay all transactions, or none. Raises as `PersonalAction.execute`.

        :raises AlreadyFinal, UnknownTransaction: one of them is not open; nothing was changed.
        :raises RunForbidden: the run of one was deleted, and the person may not create it; nothing was changed.
        :raises ChangeRefused: the rows of one cannot be decided again; nothing was changed.
        """
        states = self._undoable() if self.changed_rows else {}
        self.target.take(self.txids, version)
        yield from (self._changed(states, audit) if self.changed_rows else self._unchanged(audit))
        self.ledger.run(recovery.unblock)

    def _unchanged(self, audit: Audit) -> Iterator[EffectLine]:
        for txid, record, live in self._named():
            yield self._replay(txid, record, audit, live=live, withdraw=True)

    def _changed(
        self, states: Mapping[int, Mapping[str, bool | None]], audit: Audit
    ) -> Iterator[EffectLine]:
        """Replay with the current rows.

        :param states: by transaction, as `undoable` gives them.
        """
        named = list(self._named())
        for txid, record, live in named:
            if live is None:
                check_changeable(self.ledger.paths, txid, record, states[txid])
        for txid, record, live in named:
            if live is None:
                self.ledger.run(note_changed, txid, states[txid], audit=audit)
            outcome = self._replay(txid, record, audit, live=live, withdraw=True)
            yield (
                outcome
                if live
                else replace(outcome, what=f"its rows are decided again: {outcome.what}")
            )

    def _named(self) -> Iterator[tuple[int, TransactionRecord, str | None]]:
        """Give each open transaction with the state of its run, if that forbids to start it again."""
        opened = self._opened(self.txids)
        states = self._states(record.run_id for record in opened.values())
        for record in opened.values():
            self.target.runs.check_state(record.run_id, states.get(record.run_id))
        for txid, record in opened.items():
            live = None if self.force else states.get(record.run_id)
            yield txid, record, live if live in LIVE_RUN_STATES else None

    def _what(self, record: TransactionRecord, state: str | None, *, is_live: bool) -> str:
        if is_live:
            what = "its skip is withdrawn; " if record.skip is not None else ""
            return f"{what}its run is {state}; with force it is replayed all the same"
        what = "its skip is withdrawn, " if record.skip is not None else ""
        what += "its rows are decided again, " if self.changed_rows else ""
        what += "its run is created again" if state is None else "its run is cleared"
        return f"{what}, and begins as attempt {record.attempt + 1}"

    def _sentence(self, effects: Sequence[EffectLine]) -> str:
        if not effects:
            return f"There is nothing to replay in topology {self.target.topology}."
        named = transactions(each.txid for each in effects)
        rows = ", with its current rows" if self.changed_rows else ""
        return f"Replay {named} of topology {self.target.topology}{rows}."

    def _stuck(
        self, opened: Mapping[int, TransactionRecord], live: Collection[int]
    ) -> list[EffectLine]:
        """Name transactions whose rows cannot be decided again."""
        if not self.changed_rows or not opened:
            return []
        try:
            states = self._undoable()
        except ChangeRefused as refused:
            return [EffectLine(txid, each.run_id, str(refused)) for txid, each in opened.items()]
        stuck = []
        for txid, record in opened.items():
            try:
                if txid not in live:
                    check_changeable(self.ledger.paths, txid, record, states[txid])
            except ChangeRefused as refused:
                stuck.append(EffectLine(txid, record.run_id, str(refused)))
        return stuck

    def _forbidden(
        self, opened: Mapping[int, TransactionRecord], states: Mapping[str, str]
    ) -> Iterator[EffectLine]:
        """Name transactions whose run was deleted, if the person may not create another one."""
        for txid, record in opened.items():
            try:
                self.target.runs.check_state(record.run_id, states.get(record.run_id))
            except RunForbidden as refused:
                yield EffectLine(txid, record.run_id, str(refused))

    def _undoable(self) -> dict[int, Mapping[str, bool | None]]:
        """By transaction, the states of the DAG, and whether each can undo it or has no values of it.

        :raises ChangeRefused: its source never has other rows at the place of a batch.
        """
        spec, states = self.target.dag()
        topology = self.target.topology
        txid = self.txids[0]
        if not spec.source.rows_can_change:
            raise ChangeRefused(
                txid=txid,
                topology=topology,
                problem=f"{spec.source!r} reads a log, in which no row is ever another one",
                remedy=f"Skip a transaction that cannot be processed: airflow tx skip {topology} {txid} --why TEXT; "
                "after another failure, replay it without a change",
            )
        return {each: undoable(states, each) for each in self.txids}


@dataclass(frozen=True)
class TransactionToReplay:
    """A transaction to replay, with the state of its run; None: the run was deleted."""

    view: TransactionView
    run_state: str | None

    @property
    def outlook(self) -> str:
        return "its run is created again" if self.run_state is None else "its run is cleared"


@dataclass(frozen=True)
class YieldedRun:
    """The effect on a run that yielded, if no transaction of this run is replayed.

    :param blocking: the txid that it yielded to.
    :param is_lost: it was deleted before it had a transaction.
    """

    run_id: str
    blocking: int
    found: Comeback
    is_lost: bool


class FailedReplay(RunReplay):
    """Replays all transactions that have failed, or have lost their run; starts runs that had given up their slots."""

    def preview(self) -> PreviewAnswer:
        view = self._view()
        found = list(self._failed(view))
        to_replay = [each for each in found if isinstance(each, TransactionToReplay)]
        effects = [EffectLine(each.view.txid, each.view.run_id, each.outlook) for each in to_replay]
        for run in self._without_transaction(view.record):
            if run.found is Comeback.START:
                effects.append(
                    EffectLine(
                        None,
                        run.run_id,
                        f"is cleared: it had yielded to transaction {run.blocking}",
                    )
                )
            elif run.is_lost:
                effects.append(
                    EffectLine(None, run.run_id, "is forgotten: it had yielded, and was deleted")
                )
        txids = [each.view.txid for each in to_replay]
        sentence = f"No transaction of topology {self.target.topology} has failed."
        if txids:
            sentence = f"Replay what has failed of topology {self.target.topology}: {', '.join(map(str, txids))}."
        left_alone = [each for each in found if isinstance(each, EffectLine)]
        return self.answer(self.target.version(txids), sentence, effects, left_alone)

    def execute(self, audit: Audit, version: str | None = None) -> Iterator[EffectLine]:
        if version is not None:
            found = self._failed(self._view())
            self.target.take(
                [each.view.txid for each in found if isinstance(each, TransactionToReplay)],
                version,
            )
        view = self._view()
        for each in self._failed(view):
            if isinstance(each, EffectLine):
                yield each
            else:
                # One that is to be skipped now: its `begin` sees to that.
                txid = each.view.txid
                yield self._replay(txid, self._opened([txid])[txid], audit)
        for run in self._without_transaction(view.record):
            yield from self._start(run)
        self.ledger.run(recovery.unblock)

    def _start(self, run: YieldedRun) -> Iterator[EffectLine]:
        """Start a run again that had given up its run slot."""
        if run.found is Comeback.START:
            self.target.runs.restart(run.run_id)
        if run.found is not Comeback.WAIT:
            self.ledger.run(run_slots.came_back, run.run_id)
        if run.found is Comeback.START:
            yield started_again(None, run.run_id, run.blocking)
        elif run.is_lost:
            yield EffectLine(None, run.run_id, "forgotten: it had yielded, and was deleted")

    def _view(self) -> TopologyView:
        return topology_view(self.ledger.store, self.ledger.paths, recent=0)

    def _failed(self, view: TopologyView) -> Iterator[TransactionToReplay | EffectLine]:
        """Find the open transactions that have failed, or whose run is not alive, in the order of txids.

        Of one that is left alone, say why.
        """
        states = self._states(each.run_id for each in view.opened)
        for each in view.opened:
            failed = TransactionToReplay(each, states.get(each.run_id))
            why = self._why_left_alone(failed, its_turn=each.txid == view.current)
            if why is not None:
                yield EffectLine(each.txid, each.run_id, f"left alone: {why}")
            elif failed.run_state not in LIVE_RUN_STATES:
                yield failed

    def _why_left_alone(self, failed: TransactionToReplay, *, its_turn: bool) -> str | None:
        view = failed.view
        state = failed.run_state
        if state in LIVE_RUN_STATES:
            return f"its run is {state}" if view.status == Phase.FAILED.value else None
        if view.skip is not None and not view.stale and not its_turn:
            return "it is skipped at its turn; to replay it, name its txid"
        try:
            self.target.runs.check_state(view.run_id, state)
        except RunForbidden as refused:
            return str(refused)
        return None

    def _without_transaction(self, record: TopologyRecord) -> Iterator[YieldedRun]:
        """Decide about runs that yielded before they had a transaction, or whose transaction is over.

        Others are replayed as transactions; one that has not ended yet is started when the turn passes on.
        """
        states = self._states(record.yielded)
        for run_id, entry in record.yielded.items():
            txid = entry["txid"]
            state = states.get(run_id)
            is_over = txid is not None and self.ledger.status(txid) is None
            if txid is None or is_over:
                is_lost = not is_over and state is None
                yield YieldedRun(
                    run_id,
                    entry["blocking"],
                    comeback(state, is_over=is_over, is_free=True),
                    is_lost,
                )
