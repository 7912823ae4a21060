"""The plan of an action: its effects, each with the deed that brings it about, and the preview that lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from airflow_tx.errors import TxError
from airflow_tx.protocol.person import Words
from airflow_tx.protocol.step import Audit


@dataclass(frozen=True)
class EffectLine:
    """The effect on one transaction, or on one run; null: on the topology."""

    txid: int | None
    run_id: str | None
    what: Words
    """In words; in a preview, what would be done."""


Deed = Callable[[Audit], Iterable[EffectLine]]
"""Does one thing, and says what it did."""


@dataclass(frozen=True)
class PlannedEffect:
    """One effect of an action: the lines of its preview, and the deed that brings it about.

    :param would: what a preview says. Only a preview reads it, so a generator may look things up for it.
    :param deed: if the effect is refused, it raises the refusal, or says why it changes nothing.
    """

    would: Iterable[EffectLine]
    deed: Deed
    is_refused: bool = False


@dataclass(frozen=True)
class ActionPlan:
    """The effects of an action, in order: `preview` lists them, and `execute` does their deeds.

    :param version: changes with everything that the plan depends on.
    :param sentence: what is about to happen, as a question for a person.
    :param claimed: transactions whose version the ledger compares and notes as acted on; None: the ledger has no such
        version.
    """

    version: str
    sentence: str
    effects: Sequence[PlannedEffect]
    claimed: Sequence[int] | None = None


@dataclass(frozen=True)
class PreviewAnswer:
    """What would happen.

    :param version: give it back with the action.
    :param sentence: what is about to happen, as a question for a person.
    :param refused: what cannot be done, and why; if nothing is left in `effects`, the action would be refused.
    :param needs_reason: whether `why` is required.
    """

    version: str
    sentence: Words
    effects: tuple[EffectLine, ...]
    refused: tuple[EffectLine, ...]
    needs_reason: bool


def transactions(txids: Iterable[int | None]) -> str:
    """Name transactions: `transaction 1`, or `transactions 1, 2`."""
    named = [str(txid) for txid in txids]
    return f"transaction{'s' if len(named) > 1 else ''} {', '.join(named)}"


def refusing(error: TxError) -> Deed:
    """Make the deed of an effect that is refused."""

    def refuse(audit: Audit) -> NoReturn:
        raise error

    return refuse


def none_of(
    effects: Iterable[PlannedEffect], refused: Iterable[EffectLine], error: TxError, held_up: str
) -> list[PlannedEffect]:
    """Refuse all effects, since some transactions are refused.

    :param refused: why, of each of these; `held_up`: why the others are not done.
    """
    told = [PlannedEffect([line], refusing(error), is_refused=True) for line in refused]
    for each in effects:
        left = (line if each.is_refused else replace(line, what=held_up) for line in each.would)
        told.append(PlannedEffect(list(left), refusing(error), is_refused=True))
    return told
