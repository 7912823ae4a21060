"""The status of a transaction, and the user actions on it.

Open transactions are read from the ledger, final transactions from the history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger.attempt import of_lane
from airflow_tx.ledger.batch_words import batch_in_words, counted, shortened
from airflow_tx.ledger.json_text import digest, replace
from airflow_tx.ledger.reading import LedgerReading
from airflow_tx.ledger.receipt import (
    ASIDE,
    CheckNote,
    Deed,
    DeedOfAttempt,
    Outcome,
    Replaced,
    rejected_of,
)
from airflow_tx.ledger.records import (
    Ack,
    End,
    EndLine,
    Phase,
    RepairRecord,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    Wish,
)
from airflow_tx.ledger.steps.processing import (
    Instance,
    ack_val,
    missing_acks,
    must_ack,
    unproven_rows,
)
from airflow_tx.ledger.steps.recovery import COORDINATOR

# --- person -------------------------------------------------------------------------------------------------------
# User actions: who, when and why. Some of the texts may quote an error.


class Redaction:
    """A marker for pydantic: the text may quote an error.

    Set `schema` to a function that removes addresses and credentials from such texts. Until then, pydantic cannot
    create the schema of a class that contains such a text.
    """

    schema: Callable[[Any, Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return self.schema(source, handler)


REDACTION = Redaction()
Words = Annotated[str, REDACTION]
"""A text that may quote an error."""
UNSEEN = "the log of its task says why"
"""The text that replaces an error if the viewer may not read it."""
Steps = Annotated[Remedy, REDACTION]
"""A remedy, which may quote an error."""


@dataclass(frozen=True, kw_only=True)
class Person:
    """A user action: who, when and why."""

    who: str
    when: datetime
    why: Words


@dataclass(frozen=True, kw_only=True)
class PersonOfAttempt(Person):
    """A user action on one attempt of a transaction."""

    attempt: int


@dataclass(frozen=True, kw_only=True)
class AcceptedLoss(Person):
    """Lost rows of a source whose loss was accepted."""

    partition: str | None
    description: Words


@dataclass(frozen=True, kw_only=True)
class WaitingRun:
    """A run that yielded its run slot before it had a transaction."""

    run_id: str
    waiting_for: Words
    since: datetime


def moment(text: str | None) -> datetime | None:
    """Convert a time from its form in a record. Return None if the text is empty."""
    return datetime.fromisoformat(text) if text else None


def person(noted: Deed | Wish | None) -> Person | None:
    """Convert a user action from its form in a record. Return None if there was no action."""
    return None if noted is None else Person(**deed(noted))


def person_of(noted: DeedOfAttempt) -> PersonOfAttempt:
    """Convert a user action on one attempt from its form in a record."""
    return PersonOfAttempt(attempt=noted.attempt, **deed(noted))


def deed(noted: Deed | RepairRecord | Wish) -> dict[str, Any]:
    """Return who acted, when and why, as the fields of a `Person`."""
    return {"who": noted.who, "when": datetime.fromisoformat(noted.when), "why": noted.why}


# --- status -------------------------------------------------------------------------------------------------------


UNREADABLE = "UNREADABLE"
"""The status of a transaction whose record cannot be read."""


@dataclass(frozen=True)
class TransactionView:
    """One transaction, open or final, with its record and further facts for display.

    :param document: the record of the transaction. If it cannot be read, only `txid` and `error` have values.
    :param is_unreadable: whether the record cannot be read.
    :param rows: number of rows of the batch; None if not counted.
    :param ack_val: ack val as 16 hex digits, all 0 once everything is acked.
    :param waits: description of the event that the transaction waits for; None if there is none.
    :param to_do: the action that a user can take; None if no action is needed.
    :param stale: whether the batch does not start where the predecessor ended, so that it must be replayed.
    :param blocked: reason why the coordinator no longer replays the transaction; None if it does.
    :param readmit: who requested the readmission of the transaction, when and why.
    :param unproven: reasons why there is no proof that the tasks read every row once, known when all tasks have acked.
    :param restated_by: the transaction that counts instead of this one; None if there is none.
    :param wish: who requested a restatement of the transaction, when and why.
    :param batch: short name of the batch, see `batch_in_words`; "" if it has none or was not read.
    :param quoted: the error quoted in `waits`; None if there is none.
    :param unquoted: `waits` without the quoted error; None if there is none.
    :param unadvised: `to_do` without the remedy of the error.
    :param run_end: description of how the run ended before the transaction was final; None if the run is alive or was
        not read.
    :param rejected: number of rows that tasks or the source kept aside.
    :param behind: description of the upstream corrections that the transaction lacks; None if it lacks none.
    """

    document: TransactionRecord
    is_unreadable: bool = False
    rows: int | None = None
    ack_val: str = "0" * 16
    waits: str | None = None
    to_do: Remedy | None = None
    stale: bool = False
    blocked: str | None = None
    readmit: Person | None = None
    unproven: tuple[str, ...] = ()
    restated_by: int | None = None
    wish: Person | None = None
    batch: str = ""
    quoted: str | None = None
    unquoted: str | None = None
    unadvised: Remedy | None = None
    run_end: str | None = None
    rejected: int = 0
    behind: str | None = None

    def without_errors(self) -> TransactionView:
        """Return the view without error texts, which may quote rows, for users who may not read task logs."""
        own = self.document
        skip = own.skip
        if skip is not None and skip.who == COORDINATOR:
            skip = replace(skip, why=UNSEEN)
        replays = [replace(each, why=UNSEEN) for each in own.replays]
        shown = replace(own, replays=replays, skip=skip, replay=None)
        if self.refused:
            return replace(self, document=shown)
        return replace(
            self,
            document=replace(shown, error=own.error and UNSEEN, failed_task="", remedy=None),
            blocked=self.blocked and UNSEEN,
            waits=self.unquoted or self.waits,
            quoted=self.quoted if self.unquoted is None else None,
            to_do=self.to_do if own.remedy is None else self.unadvised,
        )

    def ended_by(self, when: datetime | None) -> TransactionView:
        """Return the view with the latest possible time of the end, if the record cannot be read."""
        end = replace(self.document.final, when="" if when is None else when.isoformat())
        return replace(self, document=replace(self.document, end=end))

    @property
    def txid(self) -> int:
        return self.document.txid

    @property
    def status(self) -> str:
        """The phase of an open transaction, or the outcome of a final one. `UNREADABLE` if unreadable."""
        return UNREADABLE if self.is_unreadable else self.document.status

    @property
    def open(self) -> bool:
        return self.document.end is None

    @property
    def began(self) -> datetime | None:
        """The time at which the newest attempt began. None if it is forgotten."""
        return moment(self.document.began)

    @property
    def created(self) -> datetime | None:
        """The time at which the first attempt began. None if it is unknown."""
        return moment(self.document.created)

    @property
    def processed(self) -> datetime | None:
        """The time of the last ack. None if a task has not acked."""
        return moment(self.document.processed)

    @property
    def granted(self) -> datetime | None:
        """The time of the newest grant. None while the transaction has no grant."""
        own = self.document
        return moment(own.granted_at) if own.phase is Phase.COMMITTING else None

    @property
    def ended(self) -> datetime | None:
        """The time at which the transaction became final. None while it is open."""
        return None if self.open else moment(self.document.final.when)

    @property
    def readmitted_as(self) -> int | None:
        """The transaction that has the rows after a readmission. None if there is none."""
        return None if self.open else self.document.final.readmitted_as

    @property
    def skip(self) -> Person | None:
        """Who skipped the transaction or requested its skip, when and why."""
        return person(self.document.skip)

    @property
    def changed(self) -> tuple[PersonOfAttempt, ...]:
        """Who requested that the rows be decided again, when and why, and for which attempt."""
        return tuple(map(person_of, self.document.changed))

    @property
    def restate(self) -> Person | None:
        """Who requested this restatement, or a restatement of this transaction, when and why."""
        return self.wish or person(self.document.wish)

    @property
    def checks(self) -> Mapping[str, CheckNote]:
        """The results of the checks, by name. While the transaction is open, only failed checks are known."""
        receipt = self.document.receipt
        return {**((receipt and receipt.checks) or {}), **self.document.checks}

    @property
    def lane(self) -> bool:
        """Whether a lane is processing the transaction."""
        return self.open and of_lane(self.document.request)

    @property
    def begun(self) -> bool:
        """Whether a run has begun the transaction. If not, its run is about to be started."""
        return not self.open or self.document.request != ""

    @property
    def refused(self) -> bool:
        """Whether the error is a permanent refusal, whose text quotes no row."""
        return self.document.remedy is not None and self.document.for_good > 0

    @property
    def waiting_for(self) -> str | None:
        """The event that the transaction waits for, and the action for the user. None if there is no event."""
        return self.waits if self.to_do is None else f"{self.waits}: {self.to_do}"

    @property
    def failure(self) -> str | None:
        """The error, with the name of the failed task. None if there is no error."""
        return Remedy.behind(self.document.error, task=self.document.failed_task) or None

    @property
    def cause(self) -> str | None:
        """The reason why the transaction failed. None if it has not failed or the reason is unknown."""
        return self.failure or self.run_end

    @property
    def said(self) -> str | None:
        """The error with its remedy, for display. None if there is no error."""
        own = self.document
        return Remedy.behind(own.error, own.remedy, task=own.failed_task) or None

    @property
    def replayed_by(self) -> tuple[PersonOfAttempt, ...]:
        """Who replayed which attempt, when and why. A replay that has not begun yet is last."""
        own = self.document
        found = [
            PersonOfAttempt(attempt=each.attempt, **deed(each.by))
            for each in own.replays
            if each.by is not None
        ]
        if own.asked is not None and own.asked.attempt == own.attempt:
            found.append(person_of(own.asked))
        return tuple(found)

    @property
    def check_results(self) -> dict[str, str]:
        """The result of each check: passed, warning, failed or accepted."""
        return {name: check_result(noted) for name, noted in self.checks.items()}

    @property
    def warnings(self) -> list[str]:
        """The names of the checks that failed with a warning."""
        return [name for name, result in self.check_results.items() if result == "warning"]

    @property
    def accepted_checks(self) -> dict[str, Person]:
        """Who accepted each failed check."""
        by = {name: person(noted.accepted) for name, noted in self.checks.items()}
        return {name: each for name, each in by.items() if each is not None}

    @property
    def processing_seconds(self) -> float | None:
        """Seconds from the start of the newest attempt until every task had acked. None if unknown."""
        return _seconds(self.began, self.processed)

    @property
    def commit_seconds(self) -> float | None:
        """Seconds from the grant until the end. None if the transaction has not ended, or if unknown."""
        return _seconds(self.granted, self.ended)

    @property
    def failed(self) -> bool:
        """Whether the newest attempt, its committer or its run has failed, so that no task is working."""
        is_known = self.open and not self.is_unreadable
        return is_known and (self.status == Phase.FAILED.value or self.cause is not None)

    @property
    def needs_run(self) -> bool:
        """Whether only the transaction's run can end it: no skip is requested, and the run has not yielded."""
        is_known = self.open and not self.is_unreadable
        return is_known and self.document.skip is None and self.document.yielded is None

    @property
    def can_be_readmitted(self) -> bool:
        """Whether a skipped transaction's rows count nowhere and can be readmitted."""
        is_skipped = self.status == Outcome.SKIPPED.value
        return is_skipped and self.readmitted_as is None and self.document.restates is None


def view_open(
    topology: str, txid: int, ledger: LedgerReading, acks: Mapping[Instance, Ack]
) -> TransactionView:
    """Return the view of an open transaction.

    :param acks: the acks of the task instances.
    """
    record = _of_now(ledger.opened[txid], ledger.topology)
    rows = [entry.rows for entry in acks.values() if entry.rows is not None]
    waiting = _waiting_for(topology, txid, ledger, acks)
    return TransactionView(
        record,
        rows=max(rows, default=None),
        ack_val=f"{ack_val(record, acks, _must_ack(record, acks)):016x}",
        waits=waiting.what,
        quoted=waiting.quoted,
        to_do=waiting.to_do,
        stale=txid in ledger.stale,
        blocked=_blocked(txid, ledger),
        unproven=_unproven(record, acks),
        unquoted=waiting.unquoted,
        unadvised=waiting.unadvised,
        rejected=sum(
            each.get("rows") or 0
            for ack in acks.values()
            for each in ack.outputs
            if each.get("name", "").startswith(ASIDE)
        ),
    )


def _of_now(record: TransactionRecord, topology: TopologyRecord) -> TransactionRecord:
    """Return the record without outdated facts, such as a yield of a run that has a run slot again."""
    if record.run_id not in topology.yielded:
        record = replace(record, yielded=None)
    if record.remedy is None or record.for_good in (0, topology.generation):
        return record
    return replace(record, error=Remedy.behind(record.error, _REPAIRED), remedy=None)


_REPAIRED = Remedy(("The topology has been repaired since then.",))


def with_run_end(
    topology: str, view: TransactionView, state: str | None, *, strands: bool = False
) -> TransactionView:
    """Return the view of an open transaction whose run has ended. The transaction waits until the run is restarted.

    :param state: the state of the run in Airflow; None if the run does not exist.
    :param strands: whether Airflow does not start the unfinished run, because its backfill is cancelled or paused.
    """
    if state is None and (view.lane or not view.begun):
        return view  # The run of the transaction does not exist yet.
    how = "was deleted" if state is None else f"{'is' if strands else 'ended as'} {state}"
    own = view.document
    end = f"its run {own.run_id} {how}"
    if strands:  # the error is from before the run was cleared
        own = replace(own, error=None, failed_task="")
    view = replace(view, run_end=end, document=own)
    named = view.blocked or view.stale or own.remedy
    is_over = state is not None and not strands
    if named or (is_over and (own.error or view.status == Phase.FAILED.value)):
        return view
    otherwise = ", or unpause the backfill" if strands else ", or clear the run"
    to_do = replay_of(topology, view.txid) + ("" if state is None else otherwise)
    waits = f"a replay, since {end}"
    return replace(view, waits=waits, to_do=to_do, quoted=end, unquoted=None)


def replay_of(topology: str, txid: int) -> Remedy:
    """Return the command that replays a transaction."""
    return Remedy.of(Command.of("replay", topology, txid))


def unquoted(error: UnreadableRecord) -> str:
    """Explain why a record cannot be read. The invalid value is left out, since viewers may not see it."""
    return str(UnreadableRecord(path=error.path, reason=error.reason))


def view_unreadable(
    txid: int, error: UnreadableRecord, *, is_open: bool = False, ended: datetime | None = None
) -> TransactionView:
    """Return the view of a transaction with an unreadable record, so that lists can still show the transaction.

    :param ended: time of the last write to the record.
    """
    end = None if is_open else End(Outcome.COMMITTED, "")
    document = TransactionRecord.unknown(txid, error=unquoted(error), end=end)
    found = TransactionView(document, is_unreadable=True)
    return found if is_open else found.ended_by(ended)


def view_final(history: TransactionRecord, skipped: Skipped | None) -> TransactionView:
    """Return the view of a final transaction.

    :param skipped: the skip record; None if the transaction was not skipped.
    """
    receipt = history.receipt
    found: dict[str, Any] = {}
    if receipt is not None:
        found = {
            "batch": batch_in_words(receipt.metadata),
            "unproven": tuple(receipt.unproven or ()),
            "rejected": sum(rows for _, rows in rejected_of(receipt.tasks).values()),
        }
    return TransactionView(
        history,
        rows=history.rows,
        waits=_waiting_for_readmission(skipped),
        readmit=None if skipped is None else person(skipped.readmit),
        **found,
    )


def forgotten(txid: int, skipped: Skipped) -> TransactionRecord:
    """Create the record of a transaction from the skip record, if the ledger has nothing else."""
    outcome = Outcome.READMITTED if is_back(skipped) else Outcome.SKIPPED
    end = End(outcome, skipped.skip.when, readmitted_as=skipped.readmitted_as)
    replaces = None if skipped.replaces is None else Replaced(skipped.replaces, "")
    return TransactionRecord.unknown(
        txid, run_id=skipped.run_id, skip=skipped.skip, replaces=replaces, end=end
    )


def remembered(line: EndLine) -> TransactionRecord | None:
    """Create the record of a transaction from its line in the book of ends. Return None if it was taken back."""
    if line.outcome is None:
        return None
    replaces = Replaced(line.first, "") if line.first else None
    end = End(line.outcome, "")
    return TransactionRecord.unknown(
        line.txid, key=line.key, run_id=line.key, birth=line.birth, replaces=replaces, end=end
    )


def _seconds(start: datetime | None, end: datetime | None) -> float | None:
    return None if start is None or end is None else max((end - start).total_seconds(), 0.0)


_PERSON = "a person"


@dataclass(frozen=True)
class _Waiting:
    """The event that a transaction waits for, and the action for the user.

    :param quoted: the error quoted in `what`.
    :param unquoted: `what` without the quoted error; None if there is none.
    :param unadvised: `to_do` without the remedy of the error.
    """

    what: str
    to_do: Remedy | None = None
    quoted: str | None = None
    unquoted: str | None = None
    unadvised: Remedy | None = None


def _waiting_for(
    topology: str, txid: int, ledger: LedgerReading, acks: Mapping[Instance, Ack]
) -> _Waiting:
    record = _of_now(ledger.opened[txid], ledger.topology)
    replay = replay_of(topology, txid)
    if (reason := _blocked(txid, ledger)) is not None:
        to_do = to_continue(topology, txid, record.remedy, may_skip=True)
        alone = to_continue(topology, txid, may_skip=True)
        what = "a person: it is replayed no more"
        return _Waiting(f"{what} ({reason})", to_do, reason, what, alone)
    if txid in ledger.stale:
        since = f"a replay, since its batch does not start where transaction {txid - 1} ended"
        return _Waiting(since, replay, unadvised=replay)
    if record.run_id in ledger.topology.yielded and record.skip is None:
        before = f"the run of transaction {record.yielded}, to which it gave its run slot"
        return _Waiting(f"{before}; then it is started again")
    if record.skip is not None:
        is_next = txid == ledger.current or not ledger.first
        return _Waiting("its skip" if is_next else f"{ledger.first}, then it is skipped")
    if record.remedy is not None:
        to_do = to_continue(topology, txid, record.remedy)
        return _Waiting(_PERSON, to_do, unadvised=replay)
    if record.phase is Phase.FAILED:
        return _Waiting("a replay", replay + ", or clear its failed task")
    note = record.replay
    if note is not None and record.request == "" and note.attempt == record.attempt:
        what = "its run, which does not exist yet"
        return _Waiting(f"{what}: {note.reason}", quoted=note.reason, unquoted=what)
    if record.phase is Phase.PROCESSING:
        tasks = missing_acks(acks, _must_ack(record, acks))
        trees = sum(entry.trees for entry in acks.values())
        messages = (
            f"acks of its messages ({counted(trees, 'trees')}), and its committer"
            if trees
            else "its committer"
        )
        return _Waiting(f"an ack of {', '.join(shortened(tasks))}" if tasks else messages)
    if record.error is not None:
        return _Waiting("its committer, which has failed", replay + ", or clear its failed task")
    is_behind = txid > ledger.current and ledger.first
    return _Waiting(str(ledger.first) if is_behind else "its committer")


def to_continue(
    topology: str, txid: int, remedy: Remedy | None = None, *, may_skip: bool = False
) -> Remedy:
    """Return the action that lets a failed transaction continue: the remedy for its error, then a replay or a skip.

    After a repair, the transaction must still be replayed. A repair of the whole ledger may remove the transaction, so
    its run must be cleared instead.
    """
    first = remedy or Remedy()
    named = {(each.verb, *each.arguments[:1]) for each in first.commands}
    skip = Command.of("skip", topology, txid, "--why", "TEXT")
    steps = [Command.of("replay", topology, txid), *([skip] if may_skip else ())]
    left = [each for each in steps if (each.verb, str(txid)) not in named]
    end = Remedy.of(*left[:1], *(part for each in left[1:] for part in (", or ", each)))
    if not first or not left:
        return first + end
    stop = ". " if isinstance(first.parts[-1], Command) else " "
    return first + stop + _before(first, left) + end


def _before(first: Remedy, left: Sequence[Command]) -> str:
    """Return the words that join the remedy to the commands after it."""
    if any(each.verb == "rename" or _MOVING.intersection(each.options) for each in first.commands):
        return "Then clear its run, or if the transaction is still open: "
    if left[0].verb == "skip":
        return "Or: "
    return "Then: " if any(each.verb != "skip" for each in first.commands) else "To replay it: "


_MOVING = frozenset({"--ledger-lost", "--reset", "--back"})


def _unproven(record: TransactionRecord, acks: Mapping[Instance, Ack]) -> tuple[str, ...]:
    if record.receipt is not None and record.phase is Phase.COMMITTING:
        return tuple(record.receipt.unproven or ())
    if missing_acks(acks, _must_ack(record, acks)) or record.rows_digest == digest(None):
        return ()
    return unproven_rows(acks, None if record.changed else record.size)


def _waiting_for_readmission(skipped: Skipped | None) -> str | None:
    if skipped is None or skipped.readmit is None or is_back(skipped):
        return None
    return f"begin of run {skipped.run_id}, which takes the skipped rows again"


def _blocked(txid: int, ledger: LedgerReading) -> str | None:
    """Return why the coordinator no longer replays a transaction. Return None if it does.

    The mark remains for a while after a manual replay or skip.
    """
    mark = ledger.topology.blocked
    record = ledger.opened[txid]
    return mark.reason if mark is not None and mark.txid == txid and mark.holds(record) else None


def is_back(skipped: Skipped) -> bool:
    """Return whether another transaction has the rows of a skipped transaction."""
    return skipped.readmitted_as is not None


def can_return(skipped: Skipped) -> bool:
    """Return whether the rows of a skipped transaction may be readmitted.

    A restatement's rows already count in the transaction that it restated.
    """
    return not is_back(skipped) and skipped.replaces is None


def _must_ack(record: TransactionRecord, acks: Mapping[Instance, Ack]) -> set[Instance]:
    return must_ack(record, acks, {task for task, index in acks if index >= 0})


def pace_in_words(pace: Sequence[Sequence[Any]]) -> str:
    """Describe the row count and the processing time of each recent transaction."""
    return ", ".join(
        f"{count:g} {(*unit, 'rows')[0]} in {seconds:.1f} s" for count, seconds, *unit in pace
    )


def size_in_words(size: Mapping[str, Any]) -> str:
    """Describe the size of a batch, and the reason for this size.

    :param size: the size in a record: the number of rows or files, and the reason.
    """
    words = ", ".join(
        counted(count, unit) for unit, count in size.items() if unit not in ("why", "at_most")
    )
    words = f"at most {words}" if size.get("at_most") else words
    return f"{words} ({size['why']})" if size.get("why") else words


def check_in_words(name: str, noted: CheckNote) -> str:
    """Describe the result of a check, and who accepted its failure."""
    words = f"{name}: {check_result(noted)}"
    if noted.passed:
        return words
    by = noted.accepted
    accepted = "" if by is None else f": {by.why} ({by.who}, {by.when})"
    return f"{words}: {noted.found}{accepted}"


def check_result(noted: CheckNote) -> str:
    """Return the result of a check: passed, warning, failed or accepted."""
    if noted.passed:
        return "passed"
    if noted.accepted is not None:
        return "accepted"
    return "warning" if noted.severity else "failed"
