"""User acceptance of a loss: the source has lost rows, and the topology continues without them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from airflow_tx.base.errors import LossRefused, SourceError, StateBehind, TxError
from airflow_tx.base.remedy import Command
from airflow_tx.ledger import Audit, Loss, digest, shortened
from airflow_tx.operations.actions.action import (
    ActionPlan,
    EffectLine,
    PersonalAction,
    PlannedEffect,
    is_behind,
)
from airflow_tx.sources import Source


class LossAcceptance(PersonalAction):
    """Accepts that the source has lost rows, so that the topology continues without them.

    :ivar losses: losses that the last plan found.
    """

    needs_reason = asks_dag = True
    subject = "The loss"
    losses: Sequence[Loss] = ()

    def plan(self) -> ActionPlan:
        known = self.target.ledger.topology().losses
        self.losses = losses_of(self.target.dag()[0].source, self.target.ledger.deciding_from())
        lost = [[loss.partition, loss.position, loss.resume_at] for loss in self.losses]
        version = digest([known, lost])
        if not self.losses:
            return self.refused(version, LossRefused(topology=self.target.topology))
        if any(loss.went_back for loss in self.losses):
            self._check_states()
        what = "; ".join(shortened([loss.description for loss in self.losses]))
        sentence = (
            f"Continue topology {self.target.topology} without these rows. "
            f"No transaction will ever have them: {what}."
        )
        lines = [EffectLine(None, None, loss.description) for loss in self.losses]
        return ActionPlan(version, sentence, [PlannedEffect(lines, partial(self._accept, known))])

    def _check_states(self) -> None:
        """Raise an error if all states went back together with the source.

        The source's next rows would be counted twice.

        :raises StateBehind: the error names the command that repairs source and states.
        """
        topology = self.target.ledger.topology()
        states = [each for each in self.target.dag()[1].values() if each.has_fence]
        if not states or not all(is_behind(each, topology) for each in states):
            return
        fence = states[0].fence()
        raise StateBehind(
            remedy=(
                f"The source of topology {self.target.topology} also went back. This command says what to do: "
                + Command.of("repair", self.target.topology, "--roll-forward")
            ),
            state=states[0].name,
            expected=topology.states[states[0].name],
            found="nothing" if fence is None else fence.token.txid,
        )

    def _accept(self, known: Sequence[int], audit: Audit) -> Iterator[EffectLine]:
        self.target.ledger.accept_loss(self.losses, audit, known=known)
        for loss in self.losses:
            yield EffectLine(None, None, f"accepted as lost: {loss.description}")


def losses_of(source: Source, positions: Iterable[Any]) -> list[Loss]:
    """Collect the rows that the source has lost after any of these positions, without duplicates.

    :raises SourceError: the source does not respond.
    """
    found: dict[str, Loss] = {}
    try:
        for position in positions:
            found |= {
                digest([loss.partition, loss.position]): loss for loss in source.losses(position)
            }
    except TxError:
        raise
    except Exception as error:
        problem = f"it cannot tell what it has lost: {type(error).__name__}: {error}"
        remedy = "Nothing was changed. Make sure that the source can be reached, then repeat."
        raise SourceError(source=repr(source), problem=problem, remedy=remedy) from error
    finally:
        source.close()
    return list(found.values())
