"""Replay by a person: of transactions that are named, or of all that have failed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from airflow_tx import compat
from airflow_tx.actions.action import ActionTarget, PersonalAction
from airflow_tx.actions.preview import Effect, Preview
from airflow_tx.actions.runs import Restarts, RunForbidden
from airflow_tx.commit.handoff import undoable
from airflow_tx.commit.run_slots import Comeback
from airflow_tx.errors import ChangeRefused, Refused
from airflow_tx.protocol.records import TransactionRecord
from airflow_tx.protocol.replay import LIVE_RUN_STATES, check_changeable
from airflow_tx.protocol.step import Audit


class NamedReplay(PersonalAction):
    """Starts the runs of open transactions again: same txid, next attempt.

    :param force: also those whose run is queued or running.
    :param changed_rows: with the rows as they are now.
    """

    def __init__(self, target: ActionTarget, txids: Sequence[int], *, force: bool, changed_rows: bool) -> None:
        super().__init__(target)
        self.txids = sorted(set(txids))
        self.force = force
        self.changed_rows = changed_rows
        self.needs_reason = changed_rows
        self._restarts = Restarts.of(target)

    def preview(self) -> Preview:
        version = self.target.version(self.txids)
        found = self.target.opened(self.txids)
        opened = {txid: each for txid, each in found.items() if not isinstance(each, Refused)}
        states = compat.runs_of(self.target.record.dag_id, [each.run_id for each in opened.values()])
        live = {txid for txid, each in opened.items() if not self.force and states.get(each.run_id) in LIVE_RUN_STATES}
        refused = [Effect(txid, "", str(each)) for txid, each in found.items() if isinstance(each, Refused)]
        refused += self._stuck(opened, live)
        refused += self._forbidden(opened, states)
        effects: list[Effect] = []
        # All are replayed, or none.
        stuck = sorted(each.txid for each in refused if each.txid is not None)
        held_up = f"nothing is done to it, since transaction {', '.join(map(str, stuck))} is refused"
        for txid, record in opened.items():
            if txid in stuck:
                continue
            what = self._what(record, states.get(record.run_id), is_live=txid in live)
            if txid in live and record.skip is None:
                refused.append(Effect(txid, record.run_id, what))
            elif stuck:
                refused.append(Effect(txid, record.run_id, held_up))
            else:
                effects.append(Effect(txid, record.run_id, what))
        return Preview(version, self._sentence(effects), tuple(effects), tuple(refused), self.needs_reason)

    def execute(self, audit: Audit, version: str | None = None) -> Iterator[Effect]:
        states = self._undoable() if self.changed_rows else {}
        self.target.take(self.txids, version)
        if self.changed_rows:
            yield from self._restarts.changed(self.txids, states, audit, force=self.force)
        else:
            yield from self._restarts.named(self.txids, audit, force=self.force)

    def _what(self, record: TransactionRecord, state: str | None, *, is_live: bool) -> str:
        if is_live:
            what = "its skip is withdrawn; " if record.skip is not None else ""
            return f"{what}its run is {state}; with force it is replayed all the same"
        what = "its skip is withdrawn, " if record.skip is not None else ""
        what += "its rows are decided anew, " if self.changed_rows else ""
        what += "its run is made anew" if state is None else "its run is cleared"
        return f"{what}, and begins as attempt {record.attempt + 1}"

    def _sentence(self, effects: Sequence[Effect]) -> str:
        if not effects:
            return f"There is nothing to replay in topology {self.target.topology}."
        named = ", ".join(str(each.txid) for each in effects)
        rows = ", with the rows as they are now" if self.changed_rows else ""
        return f"Replay transaction {named} of topology {self.target.topology}{rows}."

    def _stuck(self, opened: Mapping[int, TransactionRecord], live: Collection[int]) -> list[Effect]:
        """Name those whose rows cannot be decided anew."""
        if not self.changed_rows or not opened:
            return []
        try:
            states = self._undoable()
        except ChangeRefused as refused:
            return [Effect(txid, each.run_id, str(refused)) for txid, each in opened.items()]
        stuck = []
        for txid, record in opened.items():
            try:
                if txid not in live:
                    check_changeable(self.target.ledger.paths, txid, record, states[txid])
            except ChangeRefused as refused:
                stuck.append(Effect(txid, record.run_id, str(refused)))
        return stuck

    def _forbidden(self, opened: Mapping[int, TransactionRecord], states: Mapping[str, str]) -> Iterator[Effect]:
        """Name those whose run was deleted, where the person may not create another one."""
        for txid, record in opened.items():
            try:
                self._restarts.runs.check_state(record.run_id, states.get(record.run_id))
            except RunForbidden as refused:
                yield Effect(txid, record.run_id, str(refused))

    def _undoable(self) -> dict[int, Mapping[str, bool | None]]:
        """By transaction, the states of the DAG, and whether each can undo it or holds nothing of it.

        :raises ChangeRefused: its source never has other rows at the place of a batch.
        """
        spec, states = self.target.dag()
        topology, txid = self.target.topology, self.txids[0]
        if not spec.source.rows_can_change:
            raise ChangeRefused(
                txid=txid,
                topology=topology,
                problem=f"{spec.source!r} reads a log, in which no row is ever another one",
                remedy=f"What cannot be processed is skipped: airflow tx skip {topology} {txid} --why TEXT; "
                "what failed for another reason is replayed as it is",
            )
        return {each: undoable(states, each) for each in self.txids}


class FailedReplay(PersonalAction):
    """Replays all that has failed, or has lost its run; starts runs again that had given up their run slots."""

    def preview(self) -> Preview:
        restarts = Restarts.of(self.target)
        found = restarts.failed_transactions()
        effects = [
            Effect(each.txid, each.run_id, "its run is made anew" if state is None else "its run is cleared")
            for each, state in found.to_replay
        ]
        for run in restarts.without_transaction(found.record):
            if run.found is Comeback.START:
                effects.append(Effect(None, run.run_id, f"is cleared: it had yielded to transaction {run.blocking}"))
            elif run.is_lost:
                effects.append(Effect(None, run.run_id, "is forgotten: it had yielded, and was deleted"))
        txids = [each.txid for each, _ in found.to_replay]
        return Preview(
            self.target.version(txids),
            f"Replay what has failed of topology {self.target.topology}: {', '.join(map(str, txids))}."
            if txids
            else f"No transaction of topology {self.target.topology} has failed.",
            tuple(effects),
            tuple(found.left_alone),
        )

    def execute(self, audit: Audit, version: str | None = None) -> Iterator[Effect]:
        restarts = Restarts.of(self.target)
        if version is not None:
            found = restarts.failed_transactions()
            self.target.take([each.txid for each, _ in found.to_replay], version)
        yield from restarts.failed(audit)
