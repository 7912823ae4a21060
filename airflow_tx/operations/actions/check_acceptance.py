"""User acceptance of failed checks, so that a transaction can commit its output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from msgspec import structs

from airflow_tx.base import compat
from airflow_tx.base.errors import Refused
from airflow_tx.ledger import Audit, TransactionRecord, check_in_words
from airflow_tx.operations.actions.action import (
    ActionPlan,
    ActionTarget,
    EffectLine,
    PlannedEffect,
    TransactionAction,
)
from airflow_tx.operations.actions.replay import NamedReplay


class CheckRefused(Refused):
    """Signals that the check to accept has not failed."""

    template = (
        "Check {name!r} of transaction {txid} of {topology} is not accepted: it has not failed in the newest attempt, "
        "whose failed checks are: {failed}.",
        "Nothing was changed.",
    )


class CheckAcceptance(TransactionAction):
    """Accepts the failed checks of a transaction. The acceptance is valid only for the current output.

    :param names: names of the checks.
    """

    needs_reason = starts_runs = True

    def __init__(self, target: ActionTarget, txid: int, names: Sequence[str]) -> None:
        super().__init__(target, txid)
        self.names = list(dict.fromkeys(names))

    def plan(self) -> ActionPlan:
        version = self.target.version([self.txid])
        record = self.target.opened([self.txid])[self.txid]
        if isinstance(record, Refused):
            return self.refused(version, record, self.txid)
        acceptable = {name for name, each in record.checks.items() if each.digest}
        if unknown := [name for name in self.names if name not in acceptable]:
            refusal = CheckRefused(
                name=unknown[0],
                txid=self.txid,
                topology=self.target.topology,
                failed=", ".join(map(repr, record.checks)) or "none",
            )
            return self.refused(version, refusal, self.txid, record.run_id)
        # Hide earlier acceptances from users who may not read the audit log.
        shown = {name: record.checks[name] for name in self.names}
        if not self.target.sees_audit:
            shown = {name: structs.replace(each, accepted=None) for name, each in shown.items()}
        found = [check_in_words(name, each) for name, each in shown.items()]
        sentence = (
            f"Commit transaction {self.txid}.{record.attempt} of topology {self.target.topology} (run "
            f"{record.run_id}) although checks have failed: {'; '.join(found)}."
        )
        lines = [EffectLine(self.txid, record.run_id, each) for each in found]
        effect = PlannedEffect(lines, partial(self._accept, record))
        return ActionPlan(version, sentence, [effect], [self.txid])

    def _accept(self, record: TransactionRecord, audit: Audit) -> Iterator[EffectLine]:
        """Record the acceptance in the ledger. Retry the commit if no other failed check remains."""
        digests = {name: record.checks[name].digest for name in self.names}
        self.ledger.accept_checks(self.txid, digests, audit=audit)
        for name in self.names:
            accepted = f"accepted: {name}: {record.checks[name].found}"
            yield EffectLine(self.txid, record.run_id, accepted)
        if left := sorted(record.checks.keys() - {*self.names, *record.accepted_checks}):
            why = f"not committed: these checks also failed: {', '.join(left)}. Accept them, or correct the code"
            yield EffectLine(self.txid, record.run_id, why)
        elif compat.clear_run(
            self.target.record.dag_id, record.run_id, past_limit=True, only_failed=True
        ):
            yield EffectLine(self.txid, record.run_id, "its failed tasks were cleared")
        else:  # no run exists, since the transaction belongs to a lane or its run was deleted
            replay = NamedReplay(self.target, [self.txid], force=False, changed_rows=False)
            for effect in replay.plan().effects:
                yield from effect.deed(audit)
