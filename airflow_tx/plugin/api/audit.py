"""What people did, for viewers: who did it and why only where the viewer may read the audit log of the DAG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_tx.protocol.person import AcceptedLoss, ChangedRows, Person, Words
from airflow_tx.protocol.records import RepairRecord


@dataclass(frozen=True, kw_only=True)
class DeedLine:
    """An action of a person.

    :param who: null, as is `why`: the viewer may not read the audit log.
    """

    who: str | None
    when: datetime
    why: Words | None


@dataclass(frozen=True, kw_only=True)
class ChangedLine(DeedLine):
    """A decision to take the rows again, and of which attempt."""

    attempt: int


@dataclass(frozen=True, kw_only=True)
class LossLine(DeedLine):
    """Rows that the source lost, and that a person accepted as lost."""

    partition: str | None
    description: Words


@dataclass(frozen=True, kw_only=True)
class RepairLine(DeedLine):
    """An action of a person on the ledger."""

    number: int
    what: str
    done: Words


@dataclass(frozen=True)
class AuditView:
    """The part of the actions of people that a viewer sees.

    :param shown: whether the viewer may read the audit log of the DAG.
    """

    shown: bool

    def deed(self, done: Person | None) -> DeedLine | None:
        """Describe an action; None: it was not done."""
        if done is None:
            return None
        return DeedLine(who=self._seen(done.who), when=done.when, why=self._seen(done.why))

    def changed(self, noted: Sequence[ChangedRows]) -> list[ChangedLine]:
        """Describe who let rows be decided again."""
        return [
            ChangedLine(
                who=self._seen(each.who),
                when=each.when,
                why=self._seen(each.why),
                attempt=each.attempt,
            )
            for each in noted
        ]

    def losses(self, accepted: Sequence[AcceptedLoss]) -> list[LossLine]:
        """Describe which rows were accepted as lost."""
        return [
            LossLine(
                who=self._seen(each.who),
                when=each.when,
                why=self._seen(each.why),
                partition=each.partition,
                description=each.description,
            )
            for each in accepted
        ]

    def repairs(self, records: Sequence[RepairRecord]) -> list[RepairLine]:
        """Describe what people did to the ledger."""
        return [
            RepairLine(
                who=self._seen(each.who),
                when=datetime.fromisoformat(each.when),
                why=self._seen(each.why),
                number=each.number,
                what=each.what,
                done=each.told,
            )
            for each in records
        ]

    def _seen(self, text: str) -> str | None:
        return text if self.shown else None
