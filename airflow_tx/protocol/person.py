"""What people read and did: texts that may quote an error, and who did something, when and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any


class Redaction:
    """Marks a text that may quote an error, for pydantic.

    The board sets `schema` before it describes its answers: what it sends names no address and no credential.
    Without it, nothing that has such a text can be sent.
    """

    schema: Callable[[Any, Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return self.schema(source, handler)


REDACTION = Redaction()
Words = Annotated[str, REDACTION]
"""A text that may quote an error."""


@dataclass(frozen=True, kw_only=True)
class Person:
    """Who did something, when and why."""

    who: str
    when: datetime
    why: Words


@dataclass(frozen=True, kw_only=True)
class PersonOfAttempt(Person):
    """An action of a person on one attempt of a transaction."""

    attempt: int


@dataclass(frozen=True, kw_only=True)
class ChangedRows(PersonOfAttempt):
    """Who let the rows be decided again, and of which attempt."""


@dataclass(frozen=True, kw_only=True)
class AcceptedLoss(Person):
    """Rows that the source lost, and that a person accepted as lost."""

    partition: str | None
    description: Words


@dataclass(frozen=True, kw_only=True)
class WaitingRun:
    """A run that gave up its run slot before it had a transaction."""

    run_id: str
    waiting_for: Words
    since: datetime


def moment(text: str | None) -> datetime | None:
    """Read a time, as records keep it; None: they have none."""
    return datetime.fromisoformat(text) if text else None


def person(noted: Mapping[str, Any] | None) -> Person | None:
    """Read from a record who did something; None: no one did."""
    return None if noted is None else Person(**deed(noted))


def deed(noted: Mapping[str, Any]) -> dict[str, Any]:
    """Read who, when and why: the fields of a `Person`."""
    return {
        "who": noted["who"],
        "when": datetime.fromisoformat(noted["when"]),
        "why": noted["why"],
    }
