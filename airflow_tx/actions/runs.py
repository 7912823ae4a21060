"""Starts the runs of open transactions again: same txid, next attempt. Source: protocol.md §5."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_tx import compat
from airflow_tx.actions.preview import Effect
from airflow_tx.commit.run_slots import Comeback, comeback, start_yielded
from airflow_tx.errors import Refused
from airflow_tx.processing.begin import conf_of
from airflow_tx.protocol import recovery, replay, run_slots, skip
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.records import Phase, TopologyRecord, TransactionRecord
from airflow_tx.protocol.replay import LIVE_RUN_STATES
from airflow_tx.protocol.status import TransactionView
from airflow_tx.protocol.step import Audit
from airflow_tx.protocol.view import topology_view
from airflow_tx.sources.run.data_interval import interval_of_key

if TYPE_CHECKING:
    from airflow_tx.actions.action import ActionTarget


class RunForbidden(Refused):
    """A run that was deleted, and that the person may not create again."""

    template = (
        "Run {run_id!r} was deleted, and you may not create runs of DAG {dag_id!r}. Ask a person who may to do this, "
        "or ask for the right to create them"
    )


@dataclass(frozen=True)
class CommandRuns:
    """The runs of a DAG, reached through Airflow's database.

    :param may_create: whether the person may create runs.
    """

    dag_id: str
    may_create: bool = True

    def check(self, run_ids: Collection[str]) -> None:
        """Find out whether the person may start these runs again.

        :raises RunForbidden: one was deleted, and the person may not create it.
        """
        states = compat.runs_of(self.dag_id, run_ids)
        for run_id in run_ids:
            self.check_state(run_id, states.get(run_id))

    def check_state(self, run_id: str, state: str | None) -> None:
        """Find out whether the person may start a run of this state again; None: it was deleted. Raises as `check`."""
        if state is None and not self.may_create:
            raise RunForbidden(run_id=run_id, dag_id=self.dag_id)

    def state(self, run_id: str) -> str | None:
        return compat.runs_of(self.dag_id, [run_id]).get(run_id)

    def restart(self, run_id: str) -> None:
        compat.clear_run(self.dag_id, run_id, past_limit=False)

    def start(self, run_id: str, key: str, *, past_limit: bool = False) -> str:
        """Clear a run, or create it; says in words which of these.

        :param past_limit: let it start although the DAG has as many running runs as it may.
        :raises RunForbidden: it was deleted, and the person may not create it.
        """
        if compat.clear_run(self.dag_id, run_id, past_limit=past_limit):
            return "its run was cleared"
        self.check_state(run_id, None)
        compat.create_run(self.dag_id, run_id, conf_of(key), interval_of_key(key))
        if past_limit:
            compat.clear_run(self.dag_id, run_id, past_limit=True)
        return "its run did not exist, and was made anew"


@dataclass(frozen=True)
class FailedTransactions:
    """What `replay --failed` is about, in the order of txids.

    :param outcomes: the transactions to replay; of those that are left alone, why.
    :param states: of their runs, by run_id; a deleted one has none.
    """

    record: TopologyRecord
    outcomes: tuple[TransactionView | Effect, ...]
    states: Mapping[str, str]

    @property
    def to_replay(self) -> list[tuple[TransactionView, str | None]]:
        """List the transactions to replay, each with the state of its run."""
        return [(each, self.states.get(each.run_id)) for each in self.outcomes if isinstance(each, TransactionView)]

    @property
    def left_alone(self) -> list[Effect]:
        """List those that are left alone, and why."""
        return [each for each in self.outcomes if isinstance(each, Effect)]

    @classmethod
    def read(cls, ledger: Ledger, runs: CommandRuns) -> FailedTransactions:
        """Find the open transactions that have failed, or whose run is not alive."""
        view = topology_view(ledger.store, ledger.paths, recent=0)
        opened = sorted((each for each in view.transactions if each.open), key=lambda each: each.txid)
        states = compat.runs_of(runs.dag_id, [each.run_id for each in opened])
        found = (_if_failed(each, states.get(each.run_id), runs, its_turn=each.txid == view.current) for each in opened)
        return cls(view.record, tuple(each for each in found if each is not None), states)


def _if_failed(
    view: TransactionView, state: str | None, runs: CommandRuns, *, its_turn: bool
) -> TransactionView | Effect | None:
    if state in LIVE_RUN_STATES:
        if view.status != Phase.FAILED.value:
            return None
        return Effect(view.txid, view.run_id, f"left alone: its run is {state}")
    if view.skip is not None and not view.stale and not its_turn:
        return Effect(view.txid, view.run_id, "left alone: it is skipped at its turn; to replay it, name its txid")
    try:
        runs.check_state(view.run_id, state)
    except RunForbidden as refused:
        return Effect(view.txid, view.run_id, f"left alone: {refused}")
    return view


@dataclass(frozen=True)
class YieldedRun:
    """What becomes of a run that yielded, if no transaction of it is replayed.

    :param blocking: the txid that it yielded to.
    :param is_lost: it was deleted before it had a transaction.
    """

    run_id: str
    blocking: int
    found: Comeback
    is_lost: bool


class Restarts:
    """Starts runs of one topology again."""

    def __init__(self, ledger: Ledger, dag_id: str, *, may_create: bool = True) -> None:
        self.ledger = ledger
        self.runs = CommandRuns(dag_id, may_create)

    @classmethod
    def of(cls, target: ActionTarget) -> Restarts:
        """Make those of the topology that an action is about."""
        return cls(target.ledger, target.record.dag_id, may_create=target.may_create)

    def failed_transactions(self) -> FailedTransactions:
        """Find what `failed` is about."""
        return FailedTransactions.read(self.ledger, self.runs)

    def named(self, txids: Sequence[int], audit: Audit, *, force: bool) -> Iterator[Effect]:
        """Replay these transactions.

        :param force: also those whose run is queued or running.
        :raises AlreadyFinal, UnknownTransaction: one of them is not open; nothing was changed.
        :raises RunForbidden: the run of one was deleted, and the person may not create it; nothing was changed.
        """
        for txid, record, live in self._named(txids, force=force):
            yield self._replay(txid, record, live, audit, withdraw=True)
        self.ledger.run(recovery.unblock)

    def changed(
        self, txids: Sequence[int], states: Mapping[int, Mapping[str, bool | None]], audit: Audit, *, force: bool
    ) -> Iterator[Effect]:
        """Replay these transactions with the rows as they are now.

        :param states: by transaction, as `undoable` gives them.
        :raises ChangeRefused: the rows of one cannot be decided anew; nothing was changed.
        :raises AlreadyFinal, UnknownTransaction, RunForbidden: as `named`.
        """
        named = list(self._named(txids, force=force))
        for txid, record, live in named:
            if live is None:
                replay.check_changeable(self.ledger.paths, txid, record, states[txid])
        for txid, record, live in named:
            if live is None:
                self.ledger.run(replay.note_changed, txid, states[txid], audit)
            outcome = self._replay(txid, record, live, audit, withdraw=True)
            yield outcome if live else replace(outcome, done=f"its rows are decided anew: {outcome.done}")
        self.ledger.run(recovery.unblock)

    def _named(self, txids: Sequence[int], *, force: bool) -> Iterator[tuple[int, TransactionRecord, str | None]]:
        """Give each open transaction with the state of its run, if that forbids to start it again."""
        opened = self._opened(txids)
        states = self._states(record.run_id for record in opened.values())
        for record in opened.values():
            self.runs.check_state(record.run_id, states.get(record.run_id))
        for txid, record in opened.items():
            live = None if force else states.get(record.run_id)
            yield txid, record, live if live in LIVE_RUN_STATES else None

    def _opened(self, txids: Sequence[int]) -> dict[int, TransactionRecord]:
        """:raises AlreadyFinal, UnknownTransaction: one of them is not open."""
        opened: dict[int, TransactionRecord] = {}
        for txid, found in self.ledger.run(skip.find_open, txids).items():
            if isinstance(found, Refused):
                raise found
            opened[txid] = found
        return opened

    def failed(self, audit: Audit) -> Iterator[Effect]:
        """Replay what has failed, or has lost its run; and start runs again that had given up their run slots."""
        found = self.failed_transactions()
        for outcome in found.outcomes:
            if isinstance(outcome, Effect):
                yield outcome
            else:
                # One that is to be skipped now: its `begin` sees to that.
                record = self._opened([outcome.txid])[outcome.txid]
                yield self._replay(outcome.txid, record, None, audit, withdraw=False)
        for each in self.without_transaction(found.record):
            if each.found is Comeback.START:
                self.runs.restart(each.run_id)
            if each.found is not Comeback.WAIT:
                self.ledger.run(run_slots.came_back, each.run_id)
            if each.found is Comeback.START:
                yield _came_back(None, each.run_id, each.blocking)
            elif each.is_lost:
                yield Effect(None, each.run_id, "forgotten: it had yielded, and was deleted")
        self.ledger.run(recovery.unblock)

    def yielded(self, waiting: Sequence[str]) -> Iterator[Effect]:
        """Start runs that had yielded, once the turn has passed on.

        :param waiting: their run_ids.
        """
        for run_id, entry in start_yielded(self.ledger, self.runs, waiting):
            yield _came_back(entry["txid"], run_id, entry["blocking"])

    def _replay(
        self, txid: int, record: TransactionRecord, live: str | None, audit: Audit, *, withdraw: bool
    ) -> Effect:
        done = []
        if withdraw and record.skip is not None:
            self.ledger.run(skip.withdraw_skip, txid)
            done.append("its skip was withdrawn")
        if live is not None:
            done.append(f"its run was left alone: it is {live} (--force starts it again all the same)")
        else:
            # First: the next attempt may begin as soon as the run is cleared.
            self.ledger.run(recovery.note_person, txid, audit)
            done.append(self.runs.start(record.run_id, record.key, past_limit=True))
            self.ledger.run(run_slots.came_back, record.run_id)
        return Effect(txid, record.run_id, ", ".join(done))

    def without_transaction(self, record: TopologyRecord) -> Iterator[YieldedRun]:
        """Decide about runs that yielded before they had a transaction, or whose transaction is over.

        Others are replayed as transactions; one that has not ended yet is started when the turn passes on.
        """
        states = self._states(record.yielded)
        for run_id, entry in record.yielded.items():
            txid, state = entry["txid"], states.get(run_id)
            is_over = txid is not None and self.ledger.status(txid) is None
            if txid is None or is_over:
                is_lost = not is_over and state is None
                yield YieldedRun(run_id, entry["blocking"], comeback(state, is_over=is_over, is_free=True), is_lost)

    def _states(self, run_ids: Any) -> dict[str, str]:
        return compat.runs_of(self.runs.dag_id, list(run_ids))


def _came_back(txid: int | None, run_id: str, blocking: int) -> Effect:
    return Effect(txid, run_id, f"cleared: it had yielded to transaction {blocking}")
