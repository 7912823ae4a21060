"""The memory of a state with a value, so that a replay does not count twice, and the updates of a value.

Source: trident-state seed (OpaqueValue, ValueUpdater, persistentAggregate).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from airflow_tx.errors import ChunkConflict, TxidBehind
from airflow_tx.protocol.attempt import Token
from airflow_tx.state.aggregators import CombinerAggregator, as_delta
from airflow_tx.state.api import StateKind
from airflow_tx.state.reducers import ReducerAggregator

_T = TypeVar("_T")


@dataclass(frozen=True)
class Writer:
    """Who writes a value.

    :param txid: the transaction.
    :param token: the grant; None: there is no fence.
    :param chunk: the writer within that grant.
    """

    txid: int
    token: Token | None = None
    chunk: int | None = None

    def check(self, stored: StoredValue[Any], *, state: str, key: Any) -> None:
        """Refuse to write over a value.

        :raises TxidBehind: a later transaction has written it.
        :raises ChunkConflict: another writer of the same grant has written it.
        """
        _refuse_earlier(stored.txid, self.txid)
        mine = self.token is not None and stored.token == self.token and stored.txid == self.txid
        if mine and stored.chunk != self.chunk:
            raise ChunkConflict(
                state=state, key=key, found=stored.chunk, chunk=self.chunk, txid=self.txid
            )


def _refuse_earlier(stored: int, txid: int | None) -> None:
    if txid is not None and txid < stored:
        raise TxidBehind(txid=txid, stored=stored)


@dataclass(frozen=True)
class TransactionalValue(Generic[_T]):
    """A value and the last transaction in it: exact when a replay has the same rows (Trident's TransactionalValue).

    A transaction before that one is refused: TxidBehind.

    :param txid: the last transaction in it.
    :param value: with it; None: the key was removed.
    :param token: the grant that wrote it; a value outside a fenced state has none.
    :param chunk: the writer within that grant.
    :param updates: how many updates of `txid` are in it, for a batch that updates a key several times and ends between
        two of them; None: all.
    """

    txid: int
    value: _T
    token: Token | None = None
    chunk: int | None = None
    updates: int | None = field(default=None, compare=False)

    def get(self, txid: int | None) -> _T:
        """Read the value as `txid` finds it; for the same txid it is in already."""
        _refuse_earlier(self.txid, txid)
        return self.value

    def update(
        self, txid: int, value: _T, token: Token | None = None, chunk: int | None = None
    ) -> TransactionalValue[_T]:
        """Compute what to store for `txid`: the stored value again if it is of `txid` already, else `value`."""
        _refuse_earlier(self.txid, txid)
        # The writer is noted even when the value stays: two chunks with one key are found in a replay, too.
        return TransactionalValue(txid, self.value if txid == self.txid else value, token, chunk)

    def updated(self, writer: Writer, combine: Callable[[_T | None], _T]) -> TransactionalValue[_T]:
        """Combine the value with an update, unless the transaction of `writer` is in it already."""
        value = self.value if writer.txid == self.txid else combine(self.value)
        return self.update(writer.txid, value, writer.token, writer.chunk)

    def undone(self, writer: Writer) -> TransactionalValue[_T]:
        """Return the value unchanged: it does not know the one before it."""
        return self


@dataclass(frozen=True)
class OpaqueValue(Generic[_T]):
    """A value, the last transaction in it and the value before that one (Trident's OpaqueValue).

    Exact even when a replay has other rows. The fields are the same as of TransactionalValue, and:

    :param prev: the value before `txid`; None: there was none.
    :param value: with it; None: the key was removed.
    :param token: the grant that wrote it; a value outside a fenced state has none.
    :param chunk: the writer within that grant.
    """

    txid: int
    value: _T | None
    prev: _T | None
    token: Token | None = None
    chunk: int | None = None

    def get(self, txid: int | None) -> _T | None:
        """Read the value that an update by `txid` starts from: `prev` if `txid` itself was the last one, else `value`.

        :param txid: None: the newest value.
        """
        _refuse_earlier(self.txid, txid)
        return self.prev if txid == self.txid else self.value

    def update(
        self, txid: int, value: _T | None, token: Token | None = None, chunk: int | None = None
    ) -> OpaqueValue[_T]:
        """Compute what to store for `txid`; `value` was computed from `get(txid)`."""
        return OpaqueValue(txid, value, self.get(txid), token, chunk)

    def updated(self, writer: Writer, combine: Callable[[_T | None], _T]) -> OpaqueValue[_T]:
        """Combine the value with an update; within the same transaction, the value before it."""
        return self.update(writer.txid, combine(self.get(writer.txid)), writer.token, writer.chunk)

    def undone(self, writer: Writer) -> OpaqueValue[_T]:
        """Take out what another grant of the transaction of `writer` wrote."""
        outranked = self.txid == writer.txid and self.token != writer.token
        return self.rolled_back() if outranked else self

    def rolled_back(self) -> OpaqueValue[_T]:
        """Take out the last transaction; doing it twice is harmless. A value of None is absent.

        The transaction stays noted, and its grant does not: any writer of it may come next.
        """
        return replace(self, value=self.prev, token=None)


StoredValue: TypeAlias = TransactionalValue[_T] | OpaqueValue[_T]


def updated_value(
    kind: StateKind,
    stored: StoredValue[_T] | None,
    writer: Writer,
    combine: Callable[[_T | None], _T],
) -> StoredValue[_T]:
    """Compute what to store under a key that `writer` may write.

    :param stored: None: there is no such key.
    :param combine: gives the new value for the one that an update starts from; None: there is none.
    """
    if stored is not None:
        return stored.updated(writer, combine)
    if kind is StateKind.OPAQUE:
        return OpaqueValue(writer.txid, combine(None), None, writer.token, writer.chunk)
    return TransactionalValue(writer.txid, combine(None), writer.token, writer.chunk)


class ValueUpdater(Protocol[_T]):
    """Computes a new value from a stored one."""

    def update(self, stored: _T | None) -> _T | None:
        """Compute the new value; None removes the key.

        :param stored: None: there is no such key. It is yours: you may change it and return it.
        """


class CombinerValueUpdater(Generic[_T]):
    """Combines the stored value with what an aggregator, such as `Sum()`, made of the batch; NULL changes nothing.

    :param aggregator: such as `Sum()`.
    :param delta: what it made of the batch; NULL changes nothing.
    """

    def __init__(self, aggregator: CombinerAggregator, delta: _T | None) -> None:
        self._aggregator = aggregator
        self._delta: _T | None = as_delta(aggregator, delta)

    def update(self, stored: _T | None) -> _T | None:
        if stored is None or self._delta is None:
            return self._delta if stored is None else stored
        combined: _T | None = self._aggregator.combine(stored, self._delta)
        return combined


class ReducerValueUpdater(Generic[_T]):
    """Takes the rows of a key into its value, one after another, by a ReducerAggregator.

    :param aggregator: with `init()` and `reduce(current, row)`.
    :param rows: in the order in which they came.
    """

    def __init__(self, aggregator: ReducerAggregator[_T], rows: Iterable[Any]) -> None:
        self._aggregator = aggregator
        self._rows = list(rows)

    def update(self, stored: _T | None) -> _T | None:
        value = self._aggregator.init() if stored is None else stored
        for row in self._rows:
            value = self._aggregator.reduce(value, row)
        return value


class Replace(Generic[_T]):
    """Sets a value, for any stored value; None removes the key.

    :param value: None removes the key.
    """

    def __init__(self, value: _T | None) -> None:
        self._value = value

    def update(self, stored: _T | None) -> _T | None:
        return self._value
