"""The data of an acker: one XOR for each tree, for trees of any size. Source: Storm's acker.

This module does no I/O. A store keeps an `Acker` as text, or applies the same changes in a server-side script.
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
# A reference is a short text that identifies a message by its attempt, its trees and its id.


_SCHEME = "tx1"


class Origin(NamedTuple):
    """The attempt of a transaction that a message belongs to.

    :param topology: the topology.
    :param txid: the transaction.
    :param attempt: the attempt.
    :param incarnation: the incarnation of the topology. It distinguishes ledgers that keep their ackers in the same
        store.
    """

    topology: str
    txid: int
    attempt: int
    incarnation: str = ""

    @property
    def place(self) -> str:
        """Return the name of the topology in acker stores and references, which is unique among all ledgers."""
        return encode_name(self.topology) + (f"@{self.incarnation}" if self.incarnation else "")

    @property
    def words(self) -> dict[str, Any]:
        """Return the fields that identify the attempt in errors about messages."""
        return {"topology": self.topology, "txid": self.txid, "attempt": self.attempt}

    def __str__(self) -> str:
        return f"transaction {self.txid}.{self.attempt} of {self.topology!r}"


def origin_of(topology: str, attempt: TransactionAttempt, incarnation: str) -> Origin:
    """Return the origin of the messages of an attempt."""
    return Origin(topology, attempt.txid, attempt.attempt, incarnation)


@dataclass(frozen=True)
class Lineage:
    """The origin of a message, and its trees. All messages of one tree have the same lineage.

    :param origin: the attempt that the message belongs to.
    :param trees: for each tree, its acker and the id of its root, or () if no transaction waits for the message.
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
        """Return the lineage from its text.

        :raises NotAReference: the text is not a lineage.
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
                problem=f"{_SCHEME}:TOPOLOGY@INCARNATION:TXID.ATTEMPT:TREES:ID is the form of a reference",
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

    :param lineage: the attempt of the message, and the trees that the message belongs to.
    :param id: the random id of the message.
    """

    lineage: Lineage
    id: int

    def __str__(self) -> str:
        return f"{self.lineage.text}:{self.id:016x}"

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Return the reference from its text.

        :raises NotAReference: the text is not a reference.
        """
        lineage, number = split(text)
        return cls(Lineage.parse(lineage), number)


def split(text: str) -> tuple[str, int]:
    """Split a reference into the text of its lineage and its id.

    :raises NotAReference: the text has no id at its end.
    """
    try:
        lineage, _, number = text.rpartition(":")
        return lineage, message_id(number)
    except (AttributeError, TypeError, ValueError):
        raise NotAReference(
            text=str(text)[:120], problem="16 hexadecimal digits are missing at its end"
        ) from None


def message_id(text: str) -> int:
    """Return a message id from its text.

    :raises ValueError: the text does not have 16 hexadecimal digits.
    """
    if len(text) != 16:
        raise ValueError(text)
    return int.from_bytes(bytes.fromhex(text), "big")


def new_id() -> int:
    """Return 64 random bits, never 0, from the operating system, since a fork would copy Python's generator."""
    return int.from_bytes(os.urandom(8), "big") or 1


# --- tree ---------------------------------------------------------------------------------------------------------


Changes = Mapping[int, tuple[int, int]]
"""The change of each tree, by root: the XOR of the emitted and acked ids, and the number of emitted minus acked ids."""


@dataclass(frozen=True)
class Tree:
    """An incomplete tree of messages.

    :param value: the ack val, which is the XOR of all emitted and acked ids.
    :param count: the number of emitted minus acked messages.
    :param owner: the stream that registered the root.
    """

    value: int
    count: int
    owner: str

    @property
    def complete(self) -> bool:
        """Return whether every message is acked. The count matters too: the XOR hides an id that was acked three times.

        The count is also compared, since the XOR hides an id that was acked three times.
        """
        return self.value == 0 and self.count == 0

    @property
    def acked_twice(self) -> bool:
        """Return whether a message was acked more than once, in which case the tree can never be complete."""
        return self.value == 0 and self.count != 0


@dataclass(frozen=True)
class Portion:
    """The changes that a stream sends to one acker, which applies all of them, exactly once.

    :param stream: the random name of the stream, which connects one worker with one acker.
    :param number: the number of the portion in the stream, from 1. The acker applies each number once, in order.
    :param changes: the changes of trees.
    :param emitter: the task that registers the roots of `changes`, or "" if they are already registered.
    :param acked: the number of acked messages, for statistics.
    """

    stream: str
    number: int
    changes: Changes
    emitter: str = ""
    acked: int = 0


@dataclass(frozen=True)
class Acker:
    """The trees of one attempt that belong to this acker. A tree belongs to the acker with number `root id mod n`.

    :param trees: the incomplete trees, by root.
    :param numbers: the number of the last applied portion, by stream.
    :param emitters: the task that has registered roots, and the number of its roots, by stream.
    :param acked: the number of acked messages.
    """

    trees: Mapping[int, Tree] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    emitters: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    acked: int = 0

    def take(self, origin: Origin, portion: Portion) -> tuple[Acker, list[int]]:
        """Apply a portion, and return the new acker.

        :return: the new acker, and the roots that are unknown or whose tree is already complete. A portion that was
            applied before does not change the acker.
        :raises AckersBehind: the previous portion is missing.
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
    """Refuse a portion whose number does not follow the last applied portion of its stream.

    :param last: the number of the last applied portion.
    :raises AckersBehind: the store has lost portions.
    """
    if last != portion.number - 1:
        raise AckersBehind(found=last, expected=portion.number - 1, **origin.words)


@dataclass(frozen=True)
class TreeReport:
    """The status of an attempt's trees.

    :param emitted: the number of registered roots, by try of a task.
    :param open: the number of incomplete trees, by task.
    :param twice: the number of trees that can never be complete, since a message was acked more than once, by task.
    :param failed: the reason why a message failed, or None if no message failed.
    :param acked: the number of acked messages. A message in several trees counts once in each tree.
    """

    emitted: Mapping[TaskTry, int]
    open: Mapping[str, int]
    twice: Mapping[str, int]
    failed: str | None = None
    acked: int = 0

    @classmethod
    def of(cls, ackers: Iterable[Acker], failed: str | None) -> TreeReport:
        """Return the status of all trees of an attempt, from all its ackers."""
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
    """Return the text that identifies the try of a task in an acker."""
    return f"{ack_name(task.task_id, task.map_index)} {task.task_try}"


def emitter_try(text: str) -> TaskTry:
    """Return the try of a task from the result of `emitter_text`."""
    instance, _, task_try = text.partition(" ")
    return TaskTry(*ack_element(instance), task_try)
