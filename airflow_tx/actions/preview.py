"""The effect of an action, before it is done, and the version of the preview."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_tx.protocol.person import Words


@dataclass(frozen=True)
class EffectLine:
    """The effect on one transaction, or on one run; null: on the topology."""

    txid: int | None
    run_id: str | None
    what: Words
    """In words; in a preview, what would be done."""


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
