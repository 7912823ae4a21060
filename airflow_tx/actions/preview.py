"""What an action would do, before it is done, and the version that it was seen at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effect:
    """What an action does to a transaction, or to a run.

    :param txid: None: the run has no transaction, or it is done to the topology.
    :param run_id: "" if no run is concerned.
    :param done: in words; in a preview, what would be done.
    """

    txid: int | None
    run_id: str
    done: str


@dataclass(frozen=True)
class Preview:
    """What an action would do.

    :param version: of what it would be done to; an action that is given it is refused if something has changed since.
    :param sentence: what is about to be done, for a person to confirm.
    :param refused: what would not be done, and why.
    :param needs_reason: whether a reason has to be given.
    """

    version: str
    sentence: str
    effects: tuple[Effect, ...]
    refused: tuple[Effect, ...] = ()
    needs_reason: bool = False
