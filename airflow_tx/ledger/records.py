"""The records of the ledger, frozen, and their JSON with its format version. Source: docs/protocol.md §1.

A reader that meets another format, or a field it does not know, stops with the path: a record is never taken for empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import datetime
from enum import Enum
from functools import cache
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import msgspec

from airflow_tx.base.errors import UnreadableRecord, shortened_reason, without_controls
from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger.json_text import dumps

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


# --- records ------------------------------------------------------------------------------------------------------


RECORD_FORMAT = 1
MOST_OF_REASON = 1000
"""Characters that a record keeps of why something failed, and of what to do about it."""

_R = TypeVar("_R", bound="DataclassInstance")


class Phase(str, Enum):
    """Where an open transaction stands. Final ones have no record, only history."""

    PROCESSING = "PROCESSING"
    PROCESSED = "PROCESSED"
    COMMITTING = "COMMITTING"
    FAILED = "FAILED"


class Outcome(str, Enum):
    """What became of a final transaction."""

    COMMITTED = "COMMITTED"
    SKIPPED = "SKIPPED"
    READMITTED = "READMITTED"


@dataclass(frozen=True)
class TopologyRecord:
    """What holds for all transactions of a topology.

    :param incarnation: uuid made with this ledger; a fence of another one is refused. `generation`: raised by a repair.
    :param states: per state, the last txid whose grant raised its fence and which became final.
    :param births: per state, the birth in its fence: of its last final one, or of the one that a rebuilt ledger begins.
    :param rebuilt: the last txid that was final when the ledger was rebuilt: of those without history nothing is known.
    :param partitioned: whether the source has partitions; `blocked`: the transaction that is replayed no more, and why.
    :param bid: which waiter is about to give up its run slot, while that is decided.
    :param yielded: per run_id, a waiter that has given up its run slot, to be started again; `yields`: how many in all.
    :param skips: the open transactions that are to be skipped at their turn, in order.
    :param pace: of the last committed transactions, how many rows each had and how many seconds it was in process;
        a third part names what was counted, if it is not rows.
    :param hours: how many transactions became final in each of the last hours, in UTC, such as 2013-01-01T17.
    :param losses: numbers of the repairs that accepted losses of rows, as long as the source has not passed them all.
    :param accepted: per state what its fence is compared with. `change`: the number of its newest accepted change. Of
        an accepted loss: since which `generation`, the `fence` that a person saw (None: none), whether it was `whole`.
        `began`: its first transaction, before which its place was empty; 0: it was not; without it: unknown.
        `emptied`: the first one after an accepted loss, before which it was empty again.
    :param garbage: records that no step reads any more and that were too many for one multi, as paths below.
    :param receipt: hash of the last receipt, "" if there is none; `origin`: the position before the first transaction.
    :param taken_back_from: per state, the first txid that it is sure to hold; it may lack what came before.
    :param renamed: per earlier name of a state, its name now.
    :param zone: the time zone of the DAG's schedule, in which a date is a day; "" is UTC.
    :param grants: per state, attempt and epoch of the grant that its last final transaction was marked under.
    :param rolling: who lets which states be written again from the journal, since when, and by which runs (`nonces`).
    :param columns: per state its value columns, each with the first txid that it holds; 0: it is as old as the state.
    """

    incarnation: str
    dag_id: str
    source_kind: str
    max_pending: int
    generation: int = 1
    states: dict[str, int] = field(default_factory=dict)
    op: str = ""
    partitioned: bool = False
    blocked: dict[str, Any] | None = None
    bid: dict[str, Any] | None = None
    yielded: dict[str, dict[str, Any]] = field(default_factory=dict)
    yields: int = 0
    skips: list[int] = field(default_factory=list)
    pace: list[list[Any]] = field(default_factory=list)
    hours: dict[str, int] = field(default_factory=dict)
    losses: list[int] = field(default_factory=list)
    accepted: dict[str, Any] = field(default_factory=dict)
    births: dict[str, str] = field(default_factory=dict)
    rebuilt: int = 0
    garbage: list[str] = field(default_factory=list)
    receipt: str = ""
    origin: Any = None
    taken_back_from: dict[str, int] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    zone: str = ""
    grants: dict[str, list[int]] = field(default_factory=dict)
    rolling: dict[str, Any] | None = None
    columns: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Counter:
    """`coordinator/current` and `coordinator/allocated`."""

    txid: int


@dataclass(frozen=True)
class Binding:
    """`runs/<key>`: the txid of a run's identity. Only the end of a transaction changes what counts.

    :param entry: name of the journal entry of this transaction; "": there is none.
    :param restating: the `txid` and the `birth` of the transaction that began to restate this one. Without a record of
        that birth, that transaction was skipped or lost, and this one counts.
    """

    txid: int
    entry: str = ""
    restating: dict[str, Any] | None = None


@dataclass(frozen=True)
class Metadata:
    """Exactly which rows a transaction has, and where the source stands after them.

    :param rows: what a source calls the metadata of its batch.
    :param partitions: always None; the field is part of the format.
    :param begin: of each partition that had no position before: where it begins, for replays of an opaque source.
    """

    attempt: int
    rows: Any
    position: Any
    partitions: None = None
    begin: Any = None


@dataclass(frozen=True)
class TransactionRecord:
    """One open transaction. Source: docs/protocol.md §1.

    :param request: try of the last begin.
    :param epoch: grows with every grant and every restart; never falls within a txid.
    :param op: nonce of the last step, by which an unanswered write is recognised.
    :param granted: true from the first grant of any attempt on; `claim`: the receipt that the last one gave.
    :param base: digest of the position after txid − 1 that the batch was computed from; `ended`: of that after it.
    :param pinned: it was re-admitted: its rows stay, unless a person lets them be decided again.
    :param skip: who wants it skipped at its turn, when and why; `yielded`: the txid whose run it gave up its slot for.
    :param replay: the last automatic replay that was asked for: of which attempt, how many in a row, when and why.
    :param asked: the last replay by a person: of which attempt, who, when and why.
    :param tasks: the tasks that must ack, each with the id of the message that `begin` emitted to it (16 hex digits).
    :param rows_digest: digest of the batch's rows.
    :param outputs: per transactional state, what a grant was about to write, as `output_text` gives it.
    :param fenced: names of the states that some grant was about to write.
    :param by_phase: whether the last grant is held by several tasks, one after the other.
    :param size: how many rows the source counted in the batch, and why it took so many; of files, how many files.
    :param lost: rows of the source that come before the batch and were accepted as lost, in words.
    :param changed: who let its rows be decided again, when and why, and the attempt whose rows they replace.
    :param birth: random, kept by every attempt: a ledger that went back gives a txid twice, never a birth; "": unknown.
    :param error: what failed in the last try, until another one works on it; `remedy`: what its refusal says to do.
    :param acks: the name of the folder with the acks of this attempt, unique in all lives of a ledger.
    :param replays: of earlier attempts, when and why each was replayed, its `rows` if they were counted, else its
        `size`, `by` which person; `counted`: rows of the first complete one.
    :param for_good: the generation of the ledger in which its commit was refused permanently, by `error`; 0: in none.
    :param repairable: of a restatement: whether a repair, or a store that comes back, may end what `error` says.
    :param journal: name of the journal entry that the last grant named; "": there is none.
    :param replaces: the `txid` and the `entry` of the transaction that this one restates; `wish`: who wanted that, when
        and why.
    :param checks: per check that failed, what it `found` in which output (`digest`), and who `accepted` that.
    """

    key: str
    run_id: str
    request: str
    attempt: int
    epoch: int
    op: str
    phase: Phase
    base: str
    ended: str
    rows_digest: str
    tasks: dict[str, str]
    created: str
    began: str
    nonce: str = ""
    granted: bool = False
    pinned: bool = False
    skip: dict[str, str] | None = None
    yielded: int | None = None
    replay: dict[str, Any] | None = None
    failures: int = 0
    outputs: dict[str, str] = field(default_factory=dict)
    fenced: list[str] = field(default_factory=list)
    by_phase: bool = False
    size: dict[str, Any] | None = None
    lost: list[str] = field(default_factory=list)
    processed: str | None = None
    granted_at: str | None = None
    error: str | None = None
    birth: str = ""
    changed: list[dict[str, Any]] = field(default_factory=list)
    acks: str = ""
    replays: list[dict[str, Any]] = field(default_factory=list)
    claim: dict[str, Any] | None = None
    counted: dict[str, Any] | None = None
    remedy: Remedy | None = None
    for_good: int = 0
    asked: dict[str, Any] | None = None
    journal: str = ""
    replaces: dict[str, Any] | None = None
    wish: dict[str, str] | None = None
    checks: dict[str, dict[str, Any]] = field(default_factory=dict)
    repairable: bool = False

    @property
    def accepted_checks(self) -> dict[str, dict[str, Any]]:
        """Give the checks whose failure a person accepted: a later attempt may have the same output."""
        return {name: each for name, each in self.checks.items() if "accepted" in each}

    def with_failure(
        self, op: str, reason: str, remedy: Remedy | None, *, repairable: bool
    ) -> TransactionRecord:
        """Note one more failure, for people: what failed, and apart from that what to do about it."""
        return replace(
            self,
            failures=self.failures + 1,
            error=_kept(reason),
            remedy=None if remedy is None else remedy.worded(_kept),
            repairable=repairable and self.replaces is not None,
            op=op,
        )

    @property
    def failure(self) -> str:
        """Say what failed, as a part of another sentence."""
        return (self.error or "no reason noted").removesuffix(".")

    @property
    def to_change(self) -> dict[str, Any] | None:
        """Give the person who wants the rows of this attempt decided again; None: no one, or a newer attempt exists."""
        return next((each for each in self.changed if each["attempt"] == self.attempt), None)


@dataclass(frozen=True)
class Ack:
    """What one task (or one mapped instance) of the newest attempt has contributed to the ack val.

    :param emitted: id of a message that only this entry knows (a mapped instance's own); 16 hex digits.
    :param acked: what it acked; equal to the emitted one, or the id that `begin` emitted, once it is done.
    :param rows: rows consumed, if the task counted them; `trees`: of messages, whose roots this try has emitted.
    :param outputs: references to its output; `read`: what it read, as `RowsRead` gives it; `code`: digest of its code.
    :param unproven: why the rows that it consumed are not proven, as far as it knows, one line each.
    """

    task_try: str
    op: str
    emitted: str = "0"
    acked: str = "0"
    done: bool = False
    rows: int | None = None
    outputs: list[Any] = field(default_factory=list)
    trees: int = 0
    read: list[dict[str, Any]] = field(default_factory=list)
    code: str = ""
    unproven: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class History:
    """What became of a final transaction; `digest`: of its rows. A rebuilt one has no receipt.

    :param restates: the transaction that this one restated, with any outcome.
    """

    txid: int
    attempts: int
    run_id: str
    outcome: Outcome
    began: str
    processed: str | None
    granted_at: str | None
    ended: str
    rows: int | None
    ack_val: str
    op: str
    failures: int = 0
    skip: dict[str, str] | None = None
    readmitted_as: int | None = None
    size: dict[str, Any] | None = None
    lost: list[str] = field(default_factory=list)
    changed: list[dict[str, Any]] = field(default_factory=list)
    birth: str = ""
    receipt: dict[str, Any] | None = None
    digest: str = ""
    created: str = ""
    restates: int | None = None

    @classmethod
    def of(
        cls, record: TransactionRecord, *, txid: int, outcome: Outcome, ended: str, **counted: Any
    ) -> History:
        """Make the history of an open transaction that ends now.

        :param counted: the fields that its record does not have, such as its receipt.
        """
        return cls(
            txid=txid,
            attempts=record.attempt,
            run_id=record.run_id,
            outcome=outcome,
            began=record.began,
            processed=record.processed,
            granted_at=record.granted_at,
            ended=ended,
            failures=record.failures,
            skip=record.skip if outcome is Outcome.SKIPPED else None,
            size=record.size,
            lost=record.lost,
            changed=record.changed,
            birth=record.birth,
            created=record.created,
            restates=None if record.replaces is None else record.replaces["txid"],
            **counted,
        )


@dataclass(frozen=True)
class Skipped:
    """`skipped/<txid>`: what a skipped transaction had, so that it can be re-admitted.

    :param rows: of all partitions; None once it is re-admitted, and of a restatement.
    :param skip: who skipped it, when and why; `readmit`: who wants it back.
    :param readmitted_as: the txid that has its rows now.
    :param replaces: the transaction that it was to restate, which still counts: its rows cannot come back.
    """

    key: str
    run_id: str
    rows: Any
    skip: dict[str, str]
    op: str
    readmit: dict[str, str] | None = None
    readmitted_as: int | None = None
    replaces: int | None = None


@dataclass(frozen=True)
class RepairRecord:
    """`repairs/<number>`: what a person did to the ledger.

    :param what: such as `state-lost` or `rename`; `told`: finding and result; `generation`: of the ledger after it.
    :param change: of `accept-change`: the `state`, how much more the total of each of its `columns` is than known (of a
        table, how many `rows` of a transaction there are), the last final `txid`, digests of the `keys` that are gone.
        `unknown` says that some are not known. Of `state-lost` and `state-forgotten`: the `state`, the current `txid`,
        and `taken_back_from` before (`held_from`); of a loss that was looked at the token in its `fence`, the last
        transaction that it had (`found`), and the newest accepted `change`. Of `state-renamed`: the `state`, its name
        now (`to`), and the current `txid`. Of `ledger-lost`: the current `txid`, and per state the last one that it is
        sure to have (`states`). Of `reset`: the new `incarnation`. Of `roll-forward`: the `states`, the `nonces` of its
        runs, and the changes that are wanted no more (`unchanged`).
    :param losses: of `accept-loss`: partition ("" if none), position (`place`), where it `goes_on`, and what is lost.
    """

    number: int
    what: str
    who: str
    when: str
    why: str
    told: str
    generation: int
    op: str
    losses: list[dict[str, Any]] = field(default_factory=list)
    change: dict[str, Any] = field(default_factory=dict)


def encode(record: Any) -> bytes:
    """Write a record as compact, sorted JSON with its format version."""
    said = {
        name: each.as_stored() if isinstance(each, Remedy) else each
        for name, each in vars(record).items()
        if each or name not in _LEFT_OUT
    }
    text = dumps({"format": RECORD_FORMAT, **said})
    return (dumps({"format": RECORD_FORMAT, **_fit(said)}) if _HALF in text else text).encode()


_HALF = "\\ud"
"""How the JSON of half a surrogate pair begins."""
_TEXTS = frozenset(("error", "found", "lost", "reason", "remedy", "told", "unproven", "who", "why"))
"""Fields with words of people and errors. Names and positions stay unchanged: another text would be another batch."""


def _fit(value: Any, name: str = "") -> Any:
    """Write the half surrogate pairs of texts for people as their escapes: no answer and no database takes them.

    A receipt is left alone, because its digest is kept.
    """
    if isinstance(value, str):
        return _fit_text(value) if name in _TEXTS else value
    if isinstance(value, list):
        return [_fit(each, name) for each in value]
    if not isinstance(value, dict) or name in ("claim", "receipt"):
        return value
    return {key: _fit(each, key) for key, each in value.items()}


def _fit_text(text: str) -> str:
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def decode(cls: type[_R], path: str, data: bytes) -> _R:
    """Read the record of class `cls` in `data`.

    :raises UnreadableRecord: damaged, of another format, or with fields that do not fit.
    """
    try:
        found = (value := json.loads(data.decode())).pop("format")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise UnreadableRecord(path=path, reason=f"it is not a record ({data[:40]!r})") from error
    if found != RECORD_FORMAT:
        raise UnreadableRecord(
            path=path, reason=f"it has format {found!r}, this version reads format {RECORD_FORMAT}"
        )
    try:
        msgspec.convert(value, _shape(cls))
        return cls(
            **{
                name: _READ[name](item) if name in _READ and item is not None else item
                for name, item in value.items()
            }
        )
    except (TypeError, ValueError) as error:
        known = f"{cls.__name__} ({', '.join(f.name for f in fields(cls))})"
        reason = f"its fields do not match {known}: {error}"
        raise UnreadableRecord(path=path, reason=reason) from error


# --- shapes -------------------------------------------------------------------------------------------------------
# Values within the fields of a record that code reads by name: a record is shown whole, or not at all.


class Moment:
    """A time as records keep it; "" is no time."""


_Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_INTS: Mapping[Any, Any] = {int: _Int, int | None: _Int | None}
_Element = Annotated[str, msgspec.Meta(pattern="^[!-.0-~]*$")]
"""A part of a path in ZooKeeper, which drops the connection for some characters."""
_EARLIEST = 1970
_LATEST = 9000


def _values(*, needed: bool = True, **kinds: Any) -> Any:
    """Make the shape of values by name.

    :param needed: whether all of them must be there.
    """
    fields = [(name, kind) if needed else (name, kind, None) for name, kind in kinds.items()]
    return msgspec.defstruct("Values", fields)


_Deed = _values(who=str, when=Moment, why=str)
_DeedOfAttempt = _values(who=str, when=Moment, why=str, attempt=_Int)
_Replayed = _values(attempt=_Int, when=Moment, why=str)
_Replays = GenericAlias(list, _Replayed)
_Asked = _values(attempt=_Int, reason=str)
_Blocked = _values(attempt=_Int, reason=str, txid=_Int, when=Moment)
_Yielded = _values(blocking=_Int, txid=_Int | None, when=Moment)
_Rolling = _values(found=dict[str, Any], when=Moment)
_Counted = _values(needed=False, rows=_Int | None, digests=dict[str, str])
_Checks = GenericAlias(dict, (str, _values(passed=bool)))
_Receipt = _values(
    needed=False,
    key=str,
    replays=_Replays,
    wish=_Deed | None,
    unproven=list[str],
    checks=_Checks | None,
)
_Size = dict[str, _Int | bool | str | None]
_TIMES = {
    **dict.fromkeys(("created", "began"), Moment),
    **dict.fromkeys(("processed", "granted_at"), Moment | None),
}
_WITHIN: Mapping[str, Mapping[str, Any]] = {
    "TopologyRecord": {
        "blocked": _Blocked | None,
        "yielded": GenericAlias(dict, (str, _Yielded)),
        "rolling": _Rolling | None,
    },
    "TransactionRecord": {
        **_TIMES,
        **dict.fromkeys(("skip", "wish"), _Deed | None),
        **dict.fromkeys(("acks", "nonce", "request"), _Element),
        "replay": _Asked | None,
        "asked": _DeedOfAttempt | None,
        "changed": GenericAlias(list, _DeedOfAttempt),
        "replays": _Replays,
        "claim": _Receipt | None,
        "counted": _Counted | None,
        "replaces": _values(txid=_Int) | None,
        "checks": _Checks,
        "size": _Size | None,
    },
    "History": {
        **_TIMES,
        "ended": Moment,
        "skip": _Deed | None,
        "changed": GenericAlias(list, _DeedOfAttempt),
        "receipt": _Receipt | None,
        "size": _Size | None,
    },
    "Skipped": {"skip": _Deed, "readmit": _Deed | None},
    "RepairRecord": {
        "when": Moment,
        "losses": GenericAlias(list, _values(partition=str, what=str)),
    },
    "Wish": {"when": Moment},
    "RaisedAlarms": {"raised": GenericAlias(dict, (str, _values(when=Moment)))},
}


def check_within(path: str, record: DataclassInstance | None) -> None:
    """Check what the fields of a record have within: `verify` reads it in any case, and says what is wrong.

    :raises UnreadableRecord: something is missing, or is of another kind.
    """
    cls: Any = type(record)
    said = {name: getattr(record, name) for name in _WITHIN.get(cls.__name__, ())}
    try:
        if said:
            msgspec.convert(said, _shape(cls, within=True), dec_hook=_read_moment)
    except ValueError as error:
        raise UnreadableRecord(path=path, reason=str(error)) from error


@cache
def _shape(cls: type[Any], *, within: bool = False) -> Any:
    """Make the shape of a record: its fields and no other ones, or what some of them have within."""
    types = dict(_WITHIN[cls.__name__] if within else get_type_hints(cls))
    if types.get("remedy") == Remedy | None:
        types["remedy"] = list[Any] | None
    shape: list[Any] = []
    for each in fields(cls):
        if each.name not in types:
            continue
        kind = _INTS.get(types[each.name], types[each.name])
        needed = each.default is MISSING and each.default_factory is MISSING
        shape.append((each.name, kind, *(() if needed else (None,))))
    return msgspec.defstruct(cls.__name__, shape, forbid_unknown_fields=True, kw_only=True)


def _read_moment(kind: Any, value: Any) -> Any:
    found = datetime.fromisoformat(value) if value else None
    if found is not None and (found.tzinfo is None or not _EARLIEST <= found.year < _LATEST):
        raise ValueError(f"{value} is no time of this ledger")
    return Moment()


_LEFT_OUT = frozenset(
    "checks columns entry grants journal renamed repairable replaces restates restating rolling taken_back_from wish "
    "zone".split()
)
"""Fields that a record has only once they say something: of a ledger that never restates an older release reads all."""

_READ: dict[str, Any] = {
    "phase": Phase,
    "outcome": Outcome,
    "remedy": Remedy.from_stored,
    # Airflow's database takes no other text, and is asked for the run.
    "run_id": _fit_text,
    "dag_id": _fit_text,
}


def _kept(words: str) -> str:
    return shortened_reason(without_controls(words), MOST_OF_REASON)
