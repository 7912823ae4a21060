"""The questions and answers of the board's API that are about what a person does."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from airflow_tx.plugin.api.redaction import Words

MOST_TXIDS = 100
"""Each one is read on its own; of more, `replay-failed` is the action."""

Txid = Annotated[int, Field(ge=1)]


class PreviewBody(BaseModel):
    """What is to be done.

    :param txids: of replay one or several, of skip and readmit one, else none.
    :param force: of replay: also transactions whose run is queued or running.
    :param changed_rows: of replay: take the rows as they are now.
    """

    model_config = ConfigDict(extra="forbid")

    txids: list[Txid] = Field(default=[], max_length=MOST_TXIDS)
    force: bool = False
    changed_rows: bool = False


class ActionBody(PreviewBody):
    """What is to be done, as it was previewed.

    :param version: of the preview; the action is refused if something has changed since.
    :param why: the reason, where one is needed.
    """

    version: str = Field(max_length=200)
    why: str = Field(default="", max_length=2000)


class EffectLine(BaseModel):
    """What is done to one transaction, or to one run; null: to the topology."""

    txid: int | None
    run_id: str | None
    what: Words


class PreviewAnswer(BaseModel):
    """What would happen.

    :param version: give it back with the action.
    :param sentence: what is about to happen, as a question for a person.
    :param refused: what cannot be done, and why; if nothing is left in `effects`, the action would be refused.
    :param needs_reason: whether `why` has to be given.
    """

    version: str
    sentence: Words
    effects: list[EffectLine]
    refused: list[EffectLine]
    needs_reason: bool


class ActionAnswer(BaseModel):
    """What was done."""

    done: list[EffectLine]
