"""Starts the runs of open transactions again: same txid, next attempt. Source: protocol.md §5."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_tx import compat
from airflow_tx.processing.begin import conf_of
from airflow_tx.protocol.audit import Audit
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Counter, Phase, TopologyRecord, TransactionRecord
from airflow_tx.protocol.replay import LIVE_RUN_STATES
from airflow_tx.protocol.status import TransactionView
from airflow_tx.protocol.view import topology_view

_QUEUED = "queued"


@dataclass(frozen=True)
class Told:
    """What a command did to one run.

    :param txid: None: the run has no transaction yet.
    :param done: in words.
    """

    txid: int | None
    run_id: str
    done: str


class Restarts:
    """Starts runs of one topology again."""

    def __init__(self, ledger: Ledger, dag_id: str) -> None:
        self.ledger = ledger
        self.dag_id = dag_id

    def start(self, run_id: str, key: str, *, past_limit: bool) -> str:
        """Clear a run, or make it anew if there is none; in words, which of these.

        :param key: the identity that the run had.
        :param past_limit: let it start although the DAG has as many running runs as it may.
        :raises RunNotStarted: Airflow does not know the DAG any more.
        """
        if compat.clear_run(self.dag_id, run_id, past_limit=past_limit):
            return "its run was cleared"
        compat.create_run(self.dag_id, run_id, conf_of(key))
        if past_limit:
            compat.clear_run(self.dag_id, run_id, past_limit=True)
        return "its run did not exist, and was made anew"

    def named(self, txids: Sequence[int], *, force: bool) -> Iterator[Told]:
        """Replay these transactions.

        :param force: also those whose run is queued or running.
        :raises AlreadyFinal, UnknownTransaction: one of them is not open; nothing was changed.
        """
        for txid, record, live in self._named(txids, force=force):
            yield self._replay(txid, record, live, withdraw=True)
        self.ledger.unblock()

    def changed(self, txids: Sequence[int], states: Mapping[str, bool], audit: Audit, *, force: bool) -> Iterator[Told]:
        """Replay these transactions with the rows as they are now.

        :param states: see `changing.note_changed`.
        :raises ChangeRefused: the rows of one cannot be decided anew; those before it are noted.
        :raises AlreadyFinal, UnknownTransaction: see `named`.
        """
        for txid, record, live in self._named(txids, force=force):
            if live is None:
                self.ledger.note_changed(txid, states, audit)
            told = self._replay(txid, record, live, withdraw=True)
            yield told if live else replace(told, done=f"its rows are decided anew: {told.done}")
        self.ledger.unblock()

    def _named(self, txids: Sequence[int], *, force: bool) -> Iterator[tuple[int, TransactionRecord, str | None]]:
        """With each the state of its run, if that forbids to start it again."""
        opened = {txid: self._open(txid) for txid in sorted(set(txids))}
        states = self._states(record.run_id for record in opened.values())
        for txid, record in opened.items():
            live = None if force else states.get(record.run_id)
            yield txid, record, live if live in LIVE_RUN_STATES else None

    def failed(self) -> Iterator[Told]:
        """Replay what has failed, or has lost its run; and start runs again that had given up their run slots."""
        view = topology_view(self.ledger.store, self.ledger.paths, recent=0)
        opened = sorted((each for each in view.transactions if each.open), key=lambda each: each.txid)
        states = self._states(each.run_id for each in opened)
        for each in opened:
            told = self._replay_if_failed(each, states.get(each.run_id), its_turn=each.txid == view.current)
            if told is not None:
                yield told
        yield from self._start_yielded(view.record)
        self.ledger.unblock()

    def free(self, waiting: Sequence[str]) -> Iterator[Told]:
        """Start runs that had yielded, once the turn has passed on: if the run whose turn it is has its run slot.

        :param waiting: their run_ids.
        """
        read = Reader(self.ledger.store)
        current = read.peek(Counter, self.ledger.paths.current).txid
        holder = read.peek_if_any(TransactionRecord, self.ledger.paths.transaction(current))
        if holder is not None and self._states([holder.run_id]).get(holder.run_id) == _QUEUED:
            return
        record = read.peek(TopologyRecord, self.ledger.paths.record)
        free = {run_id: record.yielded[run_id] for run_id in waiting if run_id in record.yielded}
        states = self._states(free)
        for run_id, entry in free.items():
            if entry["blocking"] >= current or states.get(run_id) != "failed":
                continue
            if self._is_over(entry):
                self.ledger.came_back(run_id)
            else:
                yield self._start_waiter(run_id, entry)

    def _replay_if_failed(self, view: TransactionView, state: str | None, *, its_turn: bool) -> Told | None:
        if state in LIVE_RUN_STATES:
            if view.status != Phase.FAILED.value:
                return None
            return Told(view.txid, view.run_id, f"left alone: its run is {state}")
        if view.skip is not None and not view.stale and not its_turn:
            return Told(view.txid, view.run_id, "left alone: it is skipped at its turn; to replay it, name its txid")
        # One that is to be skipped now: its `begin` sees to that.
        return self._replay(view.txid, self._open(view.txid), None, withdraw=False)

    def _replay(self, txid: int, record: TransactionRecord, live: str | None, *, withdraw: bool) -> Told:
        done = []
        if withdraw and record.skip is not None:
            self.ledger.withdraw_skip(txid)
            done.append("its skip was withdrawn")
        if live is not None:
            done.append(f"its run was left alone: it is {live} (--force starts it again all the same)")
        else:
            done.append(self.start(record.run_id, record.key, past_limit=True))
            self.ledger.came_back(record.run_id)
        return Told(txid, record.run_id, ", ".join(done))

    def _start_yielded(self, record: TopologyRecord) -> Iterator[Told]:
        """Those without a transaction; one that has not ended yet is left to who passes the turn on."""
        for run_id, entry in record.yielded.items():
            if self._is_over(entry):
                self.ledger.came_back(run_id)
        without = {run_id: entry for run_id, entry in record.yielded.items() if entry["txid"] is None}
        states = self._states(without)
        for run_id, entry in without.items():
            if run_id not in states:
                self.ledger.came_back(run_id)
                yield Told(None, run_id, "forgotten: it had yielded, and was deleted")
            elif states[run_id] == "failed":
                yield self._start_waiter(run_id, entry)

    def _start_waiter(self, run_id: str, entry: dict[str, Any]) -> Told:
        compat.clear_run(self.dag_id, run_id, past_limit=False)
        self.ledger.came_back(run_id)
        return Told(entry["txid"], run_id, f"cleared: it had yielded to transaction {entry['blocking']}")

    def _is_over(self, entry: dict[str, Any]) -> bool:
        """Whether the transaction of a run that had yielded has ended otherwise."""
        txid = entry["txid"]
        return txid is not None and self.ledger.store.get(self.ledger.paths.transaction(txid)) is None

    def _open(self, txid: int) -> TransactionRecord:
        path = self.ledger.paths.transaction(txid)
        record = Reader(self.ledger.store).peek_if_any(TransactionRecord, path)
        if record is None:
            self.ledger.withdraw_skip(txid)  # says what became of it
            record = Reader(self.ledger.store).peek(TransactionRecord, path)
        return record

    def _states(self, run_ids: Any) -> dict[str, str]:
        return compat.runs_of(self.dag_id, list(run_ids))
