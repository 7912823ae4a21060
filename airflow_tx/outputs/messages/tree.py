"""The data of an acker, and its changes: per tree one XOR, for any size of the tree. Source: Storm's acker.

Pure: a backend stores an `Acker` as text, or does the same under the store's own lock.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from airflow_tx.base.errors import AckersBehind, NotAReference
from airflow_tx.ledger import (
    TaskTry,
    TransactionAttempt,
    ack_element,
    ack_name,
    decode_name,
    encode_name,
)

# --- reference ----------------------------------------------------------------------------------------------------
# A message as a small text that travels anywhere: whose it is, in which trees it stands, and its id.


_SCHEME = "tx1"


class Origin(NamedTuple):
    """The attempt of a transaction that a message belongs to.

    :param incarnation: of the topology: another ledger may keep its ackers in the same store.
    """

    topology: str
    txid: int
    attempt: int
    incarnation: str = ""

    @property
    def place(self) -> str:
        """Name the topology in a store of ackers, and in a reference: no two ledgers have the same name."""
        return encode_name(self.topology) + (f"@{self.incarnation}" if self.incarnation else "")

    @property
    def words(self) -> dict[str, Any]:
        """Give the fields by which messages name it."""
        return {"topology": self.topology, "txid": self.txid, "attempt": self.attempt}

    def __str__(self) -> str:
        return f"transaction {self.txid}.{self.attempt} of {self.topology!r}"


def origin_of(topology: str, attempt: TransactionAttempt, incarnation: str) -> Origin:
    """Name the attempt of a topology that messages belong to."""
    return Origin(topology, attempt.txid, attempt.attempt, incarnation)


@dataclass(frozen=True)
class Lineage:
    """Whose a message is, and in which trees it stands: all messages of one tree have the same.

    :param trees: of each tree, its acker and the id of its root; none: nothing waits for the message.
    """

    origin: Origin
    trees: tuple[tuple[int, int], ...] = ()

    @cached_property
    def text(self) -> str:
        origin = self.origin
        trees = ",".join(f"{acker}.{root:016x}" for acker, root in self.trees)
        return f"{_SCHEME}:{origin.place}:{origin.txid}.{origin.attempt}:{trees}"

    @classmethod
    def parse(cls, text: str) -> Lineage:
        """Read what `text` wrote.

        :raises NotAReference: it is none.
        """
        try:
            scheme, place, attempt, trees = text.split(":")
            txid, _, number = attempt.partition(".")
            topology, _, incarnation = place.partition("@")
            origin = Origin(decode_name(topology), int(txid), int(number), incarnation)
            found = cls(origin, tuple(_tree(tree) for tree in trees.split(",") if tree))
        except ValueError:
            raise NotAReference(
                text=text[:120],
                problem=f"{_SCHEME}:TOPOLOGY@INCARNATION:TXID.ATTEMPT:TREES:ID is one",
            ) from None
        if scheme != _SCHEME:
            raise NotAReference(text=text[:120], problem=f"it does not begin with {_SCHEME!r}")
        return found


def _tree(text: str) -> tuple[int, int]:
    acker, _, root = text.partition(".")
    return int(acker), message_id(root)


@dataclass(frozen=True)
class Reference:
    """One message.

    :param lineage: the attempt of a transaction, and the trees that the message belongs to.
    :param id: its random id.
    """

    lineage: Lineage
    id: int

    def __str__(self) -> str:
        return f"{self.lineage.text}:{self.id:016x}"

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Read what `str` wrote.

        :raises NotAReference: it is none.
        """
        lineage, number = split(text)
        return cls(Lineage.parse(lineage), number)


def split(text: str) -> tuple[str, int]:
    """Take a reference apart: the text of its lineage, and its id.

    :raises NotAReference: it has no id at its end.
    """
    try:
        lineage, _, number = text.rpartition(":")
        return lineage, message_id(number)
    except (AttributeError, TypeError, ValueError):
        raise NotAReference(
            text=str(text)[:120], problem="16 hexadecimal digits are missing at its end"
        ) from None


def message_id(text: str) -> int:
    """Read an id.

    :raises ValueError: it is not 16 hexadecimal digits.
    """
    if len(text) != 16:
        raise ValueError(text)
    return int.from_bytes(bytes.fromhex(text), "big")


def new_id() -> int:
    """Make 64 random bits, never 0; not from a generator that a fork would copy."""
    return int.from_bytes(os.urandom(8), "big") or 1


# --- tree ---------------------------------------------------------------------------------------------------------


Changes = Mapping[int, tuple[int, int]]
"""By root: XOR of the ids of messages that were emitted and acked, and how many more were emitted than acked."""


@dataclass(frozen=True)
class Tree:
    """One tree of messages that is not complete.

    :param value: the ack val: XOR of all ids that were emitted and acked.
    :param count: how many more messages were emitted than acked.
    :param owner: the stream that registered its root: who to report to.
    """

    value: int
    count: int
    owner: str

    @property
    def complete(self) -> bool:
        """Whether every message is acked; an id that was acked three times cancels out as well, except in the count."""
        return self.value == 0 and self.count == 0

    @property
    def acked_twice(self) -> bool:
        """Whether some message was acked more than once, so that the tree cannot become complete."""
        return self.value == 0 and self.count != 0


@dataclass(frozen=True)
class Portion:
    """The data that a stream sends to one acker, all or nothing, once.

    :param stream: random, of one worker and acker alone.
    :param number: from 1; the acker takes each number once, and none before the one before it.
    :param emitter: the task that registers the roots of `changes`; "": they are registered already.
    :param acked: how many messages were acked, for people.
    """

    stream: str
    number: int
    changes: Changes
    emitter: str = ""
    acked: int = 0


@dataclass(frozen=True)
class Acker:
    """The trees of one attempt whose root is this acker's, `id mod n`.

    :param trees: by root, the incomplete ones.
    :param numbers: by stream, the last portion that was taken.
    :param emitters: by stream, the task that has registered roots, and how many.
    :param acked: how many messages were acked.
    """

    trees: Mapping[int, Tree] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    emitters: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    acked: int = 0

    def take(self, origin: Origin, portion: Portion) -> tuple[Acker, list[int]]:
        """Apply a portion: the acker after it, and the roots that it does not know or whose tree is complete.

        The same object comes back if the portion was taken before.

        :raises AckersBehind: the portion before it is missing.
        """
        last = self.numbers.get(portion.stream, 0)
        if last == portion.number:
            return self, []
        check_number(origin, portion, last)
        trees = dict(self.trees)
        refused = list[int]()
        for root, (value, count) in portion.changes.items():
            tree = trees.pop(root, None)
            if tree is None and not portion.emitter:
                refused.append(root)
                continue
            before = tree or Tree(0, 0, portion.stream)
            changed = replace(before, value=before.value ^ value, count=before.count + count)
            if not changed.complete:
                trees[root] = changed
        after = replace(
            self, trees=trees, numbers=self._numbers(portion), emitters=self._emitters(portion)
        )
        return replace(after, acked=self.acked + portion.acked), refused

    def _numbers(self, portion: Portion) -> Mapping[str, int]:
        return {**self.numbers, portion.stream: portion.number}

    def _emitters(self, portion: Portion) -> Mapping[str, tuple[str, int]]:
        if not portion.emitter:
            return self.emitters
        _, before = self.emitters.get(portion.stream, ("", 0))
        return {**self.emitters, portion.stream: (portion.emitter, before + len(portion.changes))}

    def to_json(self) -> bytes:
        trees = {
            f"{root:016x}": [f"{tree.value:016x}", tree.count, tree.owner]
            for root, tree in self.trees.items()
        }
        value = {
            "trees": trees,
            "numbers": self.numbers,
            "emitters": self.emitters,
            "acked": self.acked,
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Acker:
        if not data:
            return cls()
        value = json.loads(data)
        trees = {
            int(root, 16): Tree(int(val, 16), count, owner)
            for root, (val, count, owner) in value["trees"].items()
        }
        emitters = {
            stream: (emitter, count) for stream, (emitter, count) in value["emitters"].items()
        }
        return cls(trees, value["numbers"], emitters, value["acked"])


def check_number(origin: Origin, portion: Portion, last: int) -> None:
    """Refuse a portion that does not follow the last one that was taken of its stream.

    :raises AckersBehind: the store has lost portions.
    """
    if last != portion.number - 1:
        raise AckersBehind(found=last, expected=portion.number - 1, **origin.words)


@dataclass(frozen=True)
class TreeReport:
    """How the trees of an attempt are.

    :param emitted: by try of a task, how many roots it has registered.
    :param open: by task, how many of its trees are not complete.
    :param twice: by task, in how many of these some message was acked more than once.
    :param failed: why a message was failed; None: none was.
    :param acked: how many messages were acked, in each tree that they stand in.
    """

    emitted: Mapping[TaskTry, int]
    open: Mapping[str, int]
    twice: Mapping[str, int]
    failed: str | None = None
    acked: int = 0

    @classmethod
    def of(cls, ackers: Iterable[Acker], failed: str | None) -> TreeReport:
        """Add up what the ackers of an attempt hold."""
        emitted = Counter[TaskTry]()
        still_open = Counter[str]()
        twice = Counter[str]()
        acked = 0
        for acker in ackers:
            acked += acker.acked
            owners = {
                stream: emitter_try(emitter) for stream, (emitter, _) in acker.emitters.items()
            }
            for stream, (_, count) in acker.emitters.items():
                emitted[owners[stream]] += count
            for tree in acker.trees.values():
                still_open[str(owners[tree.owner])] += 1
                twice[str(owners[tree.owner])] += tree.acked_twice
        return cls(dict(emitted), dict(still_open), dict(+twice), failed, acked)


def emitter_text(task: TaskTry) -> str:
    """Name a try of a task as an acker keeps it."""
    return f"{ack_name(task.task_id, task.map_index)} {task.task_try}"


def emitter_try(text: str) -> TaskTry:
    """Read what `emitter_text` wrote."""
    instance, _, task_try = text.partition(" ")
    return TaskTry(*ack_element(instance), task_try)
