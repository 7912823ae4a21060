"""Reset of a topology. It removes all transactions from the ledger, and all values from the states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.ledger import RESET, readers_in_words, reason_of
from airflow_tx.operations.actions.action import ActionPlan, EffectLine
from airflow_tx.operations.actions.repair import NOBODY, LedgerRepair, fences_in_words
from airflow_tx.state import FencedState


class TopologyReset(LedgerRepair):
    """Forgets all transactions, and deletes all values of the states. You can repeat it after a crash."""

    option = RESET

    def decide(self) -> ActionPlan:
        spec, states = self.target.dag()
        fences = {name: self._clearable(name, state) for name, state in states.items()}
        incarnation = self.repairs.incarnation()
        planned = self.repairs.preview_reset(spec.request, NOBODY)
        topology = self.target.topology

        def clear() -> None:
            for state in states.values():
                state.clear()
            if incarnation:
                spec.staging().forget(incarnation)

        sentence = (
            f"Forget all transactions of topology {topology} and DELETE ALL VALUES of its states: "
            f"{', '.join(sorted(fences)) or 'none'}."
        )
        deleted = [
            EffectLine(
                None,
                None,
                f"state {name}: all of its values are deleted ({fences_in_words({name: fences[name]})})",
            )
            for name in sorted(fences)
        ]
        reset = partial(self.repairs.reset, spec.request, clear=clear)
        read = readers_in_words(self.ledger, "Reset them, too.")
        readers = [EffectLine(None, None, read)] if read else []
        lines = [*deleted, *readers, *self._forgotten()]
        return self.planned(planned, sentence, lambda audit: reset(audit=audit), lines)

    def _forgotten(self) -> Sequence[EffectLine]:
        try:
            opened = self.ledger.open_records()
        except UnreadableRecord:
            return ()  # a reset also removes unreadable records
        what = "forgotten: its run begins again, with other rows"
        return [EffectLine(txid, record.run_id, what) for txid, record in opened.items()]

    def _failed(self) -> Iterator[EffectLine]:
        return iter(())

    def _clearable(self, name: str, state: FencedState) -> Any:
        """Read a state's fence. Check that the state can be emptied before the ledger is.

        :raises RepairRefused: the state cannot be emptied or read.
        """
        if not state.can_clear:
            problem = f"state {name!r} ({type(state).__name__}) cannot be emptied"
            raise self.refusal(
                problem, "Empty the state by hand, remove it from the DAG, and repeat."
            )
        try:
            return state.fence()
        except Exception as error:
            problem = f"state {name!r} cannot be read ({reason_of(error)})"
            remedy = "Make sure that its store can be reached, or remove the state from the DAG, then repeat."
            raise self.refusal(problem, remedy) from error
