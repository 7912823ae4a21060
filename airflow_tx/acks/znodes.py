"""Ackers in a tree of znodes: in ZooKeeper, or in memory. One znode an acker, replaced in one versioned write."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial

from airflow_tx.acks.api import not_open
from airflow_tx.acks.reference import Origin
from airflow_tx.acks.tree import Acker, Portion, TreeReport
from airflow_tx.errors import (
    AckersRefused,
    AckersUnavailable,
    OutcomeUnknown,
    RequirementFailed,
    StaleMessage,
    StoreError,
    TooMuchMetadata,
    UnknownMessage,
    shortened_reason,
)
from airflow_tx.protocol.api import Create, Delete, Node, Put, Requirement, Store, Unchanged, Write

_PASSES = 1000
"""Each time that one is overtaken, another worker has got on."""


@dataclass(frozen=True)
class OpenAttempt:
    """The newest attempt of a transaction.

    :param birth: of the transaction: a ledger that was reset gives txids again.
    :param failed: why a message of it was failed.
    """

    attempt: int
    birth: str
    ackers: int
    failed: str | None = None

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class ZnodeAckers:
    """An `AckerStore` beside the ledgers, in `<root>.acks/<topology>@<incarnation>/<txid>`.

    :param store: ZooKeeper, or memory.
    :param root: the root of the ledgers.
    :param where: for messages.
    """

    def __init__(
        self,
        store: Store,
        root: str,
        *,
        where: str = "the ledger's ZooKeeper",
        close: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self._base = f"{root.rstrip('/')}.acks"
        self._where = where
        self._close = close

    def open(self, origin: Origin, birth: str, ackers: int) -> None:
        wanted = OpenAttempt(origin.attempt, birth, ackers)
        with self._errors():
            self._store.ensure(self._folder(origin))
            self._repeat(lambda: self._open(origin, wanted))

    def check(self, origin: Origin) -> None:
        with self._errors():
            self._newest(origin)

    def take(self, origin: Origin, acker: int, portion: Portion) -> list[int]:
        refused = list[int]()

        def step() -> bool:
            node, _ = self._newest(origin)
            path = f"{self._path(origin)}/{acker}"
            own = self._store.get(path)
            if own is None:
                raise self._unknown(origin)
            before = Acker.from_json(own.data)
            after, unknown = before.take(origin, portion)
            if after is before:
                return True
            refused[:] = unknown
            held = (Unchanged(self._path(origin), node.version), Unchanged(path, own.version))
            return self._sent(held, [Put(path, after.to_json())])

        with self._errors():
            self._repeat(step)
        return refused

    def fail(self, origin: Origin, reason: str) -> None:
        def step() -> bool:
            node, opened = self._newest(origin)
            path = self._path(origin)
            failed = replace(opened, failed=shortened_reason(reason, 500))
            return opened.failed is not None or self._sent(
                [Unchanged(path, node.version)], [Put(path, failed.to_json())]
            )

        with self._errors():
            self._repeat(step)

    def report(self, origin: Origin) -> TreeReport:
        with self._errors():
            self._store.sync()
            _, opened = self._newest(origin)
            nodes = [
                self._store.get(f"{self._path(origin)}/{acker}") for acker in range(opened.ackers)
            ]
            if None in nodes:  # it ended, or another attempt was opened, in between
                raise self._unknown(origin)
            return TreeReport.of(
                (Acker.from_json(node.data) for node in nodes if node is not None), opened.failed
            )

    def forget(self, origin: Origin) -> None:
        folder = self._folder(origin)
        with self._errors():
            found = self._store.children(folder)
            for name in found.names if found is not None else ():
                if int(name) <= origin.txid:
                    self._repeat(partial(self._send_removal, f"{folder}/{name}"))

    def close(self) -> None:
        if self._close is not None:
            self._close()

    # --- one step, and another if it was overtaken

    def _repeat(self, step: Callable[[], bool]) -> None:
        for _ in range(_PASSES):
            if step():
                return
            self._store.sync()
        raise AckersUnavailable(
            where=self._where, reason=f"a write was overtaken {_PASSES} times in a row"
        )

    def _sent(self, held: Sequence[Requirement], writes: Sequence[Write]) -> bool:
        """Whether it has happened; if this is unknown, the step finds out."""
        try:
            self._store.multi(held, writes)
        except (RequirementFailed, OutcomeUnknown):
            return False
        return True

    def _open(self, origin: Origin, wanted: OpenAttempt) -> bool:
        path = self._path(origin)
        node = self._store.get(path)
        found = None if node is None else OpenAttempt(**json.loads(node.data))
        if found is None:
            made: list[Write] = [Create(path, wanted.to_json())]
            return self._sent(
                [], made + [Create(f"{path}/{acker}", b"") for acker in range(wanted.ackers)]
            )
        assert node is not None
        if found.birth == wanted.birth and found.attempt >= wanted.attempt:
            if found.attempt > wanted.attempt:
                raise StaleMessage(**origin.words, newest=found.attempt)
            return True
        kept = min(found.ackers, wanted.ackers)
        return self._sent(
            [Unchanged(path, node.version)],
            [
                Put(path, wanted.to_json()),
                *(Put(f"{path}/{acker}", b"") for acker in range(kept)),
                *(Create(f"{path}/{acker}", b"") for acker in range(kept, wanted.ackers)),
                *(Delete(f"{path}/{acker}") for acker in range(kept, found.ackers)),
            ],
        )

    def _removal(self, path: str) -> list[Write]:
        children = self._store.children(path)
        if children is None:
            return []
        return [*(Delete(f"{path}/{name}") for name in children.names), Delete(path)]

    def _send_removal(self, path: str) -> bool:
        return self._sent([], self._removal(path))

    # --- reading

    def _folder(self, origin: Origin) -> str:
        return f"{self._base}/{origin.place}"

    def _path(self, origin: Origin) -> str:
        return f"{self._folder(origin)}/{origin.txid}"

    def _newest(self, origin: Origin) -> tuple[Node, OpenAttempt]:
        node = self._store.get(self._path(origin))
        if node is None:
            raise self._unknown(origin)
        opened = OpenAttempt(**json.loads(node.data))
        if opened.attempt > origin.attempt:
            raise StaleMessage(**origin.words, newest=opened.attempt)
        if opened.attempt < origin.attempt:
            raise self._unknown(origin)
        return node, opened

    def _unknown(self, origin: Origin) -> UnknownMessage:
        return UnknownMessage(**origin.words, problem=not_open(origin))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except TooMuchMetadata as error:
            remedy = "Give Transaction(ackers=...) more ackers, emit fewer roots, or keep the ackers in Redis."
            problem = f"an acker with so many open trees takes {error.size} bytes, and a znode {error.limit}"
            raise AckersRefused(where=self._where, problem=problem, remedy=remedy) from None
        except StoreError as error:
            raise AckersUnavailable(where=self._where, reason=str(error)) from error
