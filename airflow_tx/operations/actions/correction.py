"""Restatement of all transactions that are behind an upstream correction.

A coordinator requests these restatements automatically, but only once for each correction. Source: protocol.md §12.
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
    """The corrections that a topology has not read, and the name of its upstream topology."""

    upstream: str
    corrections: Corrections | None

    @property
    def behind(self) -> dict[int, Correction]:
        """Return the transactions that are behind, by the txid of the last restatement."""
        found = () if self.corrections is None else self.corrections.behind
        return {each.counts: each for each in found}

    def nothing(self, topology: str) -> str:
        """Return the message for the case that no transaction is behind."""
        return f"No transaction of topology {topology} is behind a correction of {self.upstream}."


class CorrectionRestatement(TransactionRestatement):
    """Restates every transaction that is behind an upstream correction.

    If a transaction cannot be restated, the ledger records the reason. The other transactions are still restated.

    :param in_flight: see `TransactionRestatement`.
    """

    needs_reason = False

    def __init__(self, target: ActionTarget, *, in_flight: int | None = None) -> None:
        super().__init__(target, in_flight=in_flight)
        self.subject = "The list of corrections"

    def plan(self) -> ActionPlan:
        """Plan the requests for the restatements, and the start of their runs.

        :raises ConfigError: the topology reads no other topology.
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
                remedy = Remedy.of(
                    "The source reads no other topology, so name the transactions: ", again
                )
                raise ConfigError(option="--follow", value=type(source).__name__, remedy=remedy)
            found = source.corrections(self.ledger, datetime.now(timezone.utc))
            return _Compared(source.upstream, found)

    def _refusal(self, line: EffectLine) -> PlannedEffect:
        assert line.txid is not None
        return PlannedEffect([line], partial(self._leave, line), is_refused=True)

    def _leave(self, line: EffectLine, audit: Audit) -> Iterator[EffectLine]:
        """Record in the ledger that a transaction stays behind, and why."""
        assert line.txid is not None
        each = self._behind[line.txid]
        self.ledger.note_behind(each.txid, each.ends, why=line.what)
        yield EffectLine(line.txid, line.run_id, f"not restated: {line.what}")

    def _request(self, each: ChosenTransaction, audit: Audit) -> None:
        correction = self._behind[each.run.named]
        audit = replace(audit, why=audit.reason or correction.reason)
        ends = correction.ends
        self.ledger.want_correction(each.wanted, txid=correction.txid, ends=ends, audit=audit)

    def _note(self, compared: _Compared, audit: Audit) -> Iterator[EffectLine]:
        """Record in the ledger that the comparison has ended.

        The ledger then forgets transactions that are no longer behind.
        """
        if compared.corrections is not None:
            self.ledger.note_compared(compared.corrections.comparison)
        if not compared.behind:
            yield EffectLine(None, None, compared.nothing(self.target.topology))
