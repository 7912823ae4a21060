"""Corrections of an upstream topology: a person has every transaction restated that is behind one.

A coordinator does it by itself, but not again for corrections that it has requested a restatement for. Source:
protocol.md §12.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial

from airflow_tx.base.errors import ConfigError
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger import Audit, Correction, Corrections, digest
from airflow_tx.operations.actions.action import ActionPlan, ActionTarget, EffectLine, PlannedEffect
from airflow_tx.operations.actions.restatement import ChosenTransaction, TransactionRestatement


@dataclass(frozen=True)
class _Compared:
    """The transactions that are behind, and the topology that they are behind."""

    upstream: str
    corrections: Corrections | None

    @property
    def behind(self) -> dict[int, Correction]:
        """Give the transactions that are behind, by the txid that counts."""
        found = () if self.corrections is None else self.corrections.behind
        return {each.counts: each for each in found}

    def nothing(self, topology: str) -> str:
        """Say that nothing is behind."""
        return f"No transaction of topology {topology} is behind a correction of {self.upstream}."


class CorrectionRestatement(TransactionRestatement):
    """Restates every transaction that is behind a correction of the upstream topology.

    One that cannot be restated is noted as behind with the reason, and hinders no other.

    :param in_flight: as of `TransactionRestatement`.
    """

    needs_reason = False

    def __init__(self, target: ActionTarget, *, in_flight: int | None = None) -> None:
        super().__init__(target, in_flight=in_flight)
        self.subject = "The list of corrections"

    def plan(self) -> ActionPlan:
        """Plan to request what is behind, and to start its runs.

        :raises ConfigError: the topology reads no other one.
        """
        compared = self._compare()
        self._behind = compared.behind
        self.txids = sorted(self._behind)
        noting = PlannedEffect((), partial(self._note, compared))
        if not self.txids:
            return ActionPlan(digest([]), compared.nothing(self.target.topology), [noting])
        chosen, refused = self._choose(self.txids)
        effects = [*map(self._refusal, refused), *self._effects(chosen), noting]
        version = digest([self._version(chosen), [each.reason for each in self._behind.values()]])
        return ActionPlan(version, self._sentence([each.wanted.txid for each in chosen]), effects)

    def _compare(self) -> _Compared:
        with closing(self._spec.named_source) as source:
            if not source.upstream:
                again = Command.of("restate", self.target.topology, "TXID", "--why", "TEXT")
                remedy = Remedy.of("It reads no other topology. Name the transactions: ", again)
                raise ConfigError(option="--follow", value=type(source).__name__, remedy=remedy)
            found = source.corrections(self.ledger, datetime.now(timezone.utc))
            return _Compared(source.upstream, found)

    def _refusal(self, line: EffectLine) -> PlannedEffect:
        assert line.txid is not None
        return PlannedEffect([line], partial(self._leave, line), is_refused=True)

    def _leave(self, line: EffectLine, audit: Audit) -> Iterator[EffectLine]:
        """Note that a transaction stays behind, and why."""
        assert line.txid is not None
        each = self._behind[line.txid]
        self.ledger.note_behind(each.txid, each.ends, why=line.what)
        yield EffectLine(line.txid, line.run_id, f"not restated: {line.what}")

    def _request(self, each: ChosenTransaction, audit: Audit) -> None:
        correction = self._behind[each.run.txid]
        audit = replace(audit, why=audit.reason or correction.reason)
        self.ledger.want_correction(each.wanted, correction.txid, correction.ends, audit=audit)

    def _note(self, compared: _Compared, audit: Audit) -> Iterator[EffectLine]:
        """Note how far was compared, so that the ledger forgets what is behind no more."""
        if compared.corrections is not None:
            self.ledger.note_compared(compared.corrections.comparison)
        if not compared.behind:
            yield EffectLine(None, None, compared.nothing(self.target.topology))
