"""What a state remembers with a value, so that a replay does not count twice. Source: trident-state seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from airflow_tx.errors import TxidBehind
from airflow_tx.protocol.attempt import Token

_T = TypeVar("_T")


def _refuse_earlier(stored: int, txid: int | None) -> None:
    if txid is not None and txid < stored:
        raise TxidBehind(txid=txid, stored=stored)


@dataclass(frozen=True)
class TransactionalValue(Generic[_T]):
    """A value and the last transaction in it: exact when a replay has the same rows (Trident's TransactionalValue).

    :param txid: the last transaction in it.
    :param value: with it; None: the key was removed.
    :param token: the grant that wrote it; a value outside a fenced state has none.
    :param chunk: the writer within that grant.
    :param updates: how many updates of `txid` are in it, for a batch that updates a key several times and ends between
        two of them; None: all that there are.
    """

    txid: int
    value: _T
    token: Token | None = None
    chunk: int | None = None
    updates: int | None = field(default=None, compare=False)

    def get(self, txid: int | None) -> _T:
        """The value as `txid` finds it; for the same txid it is in already.

        :raises TxidBehind: a later transaction has been here.
        """
        _refuse_earlier(self.txid, txid)
        return self.value

    def update(
        self, txid: int, value: _T, token: Token | None = None, chunk: int | None = None
    ) -> TransactionalValue[_T]:
        """What to store for `txid`: the stored value again if it is of `txid` already, else `value`.

        :raises TxidBehind: a later transaction has been here.
        """
        _refuse_earlier(self.txid, txid)
        # The writer is noted even when the value stays: two chunks with one key are found in a replay, too.
        return TransactionalValue(txid, self.value if txid == self.txid else value, token, chunk)


@dataclass(frozen=True)
class OpaqueValue(Generic[_T]):
    """A value, the last transaction in it and the value before that one (Trident's OpaqueValue).

    Exact even when a replay has other rows.

    :param txid: the last transaction in it.
    :param value: with it; None: the key was removed.
    :param prev: the value before `txid`; None: there was none.
    :param token: the grant that wrote it; a value outside a fenced state has none.
    :param chunk: the writer within that grant.
    """

    txid: int
    value: _T | None
    prev: _T | None
    token: Token | None = None
    chunk: int | None = None

    def get(self, txid: int | None) -> _T | None:
        """The value that an update by `txid` starts from: `prev` if `txid` itself was the last one, else `value`.

        :param txid: None asks for the newest value.
        :raises TxidBehind: a later transaction has been here.
        """
        _refuse_earlier(self.txid, txid)
        return self.prev if txid == self.txid else self.value

    def update(
        self, txid: int, value: _T | None, token: Token | None = None, chunk: int | None = None
    ) -> OpaqueValue[_T]:
        """What to store for `txid`; `value` was computed from `get(txid)`.

        :raises TxidBehind: a later transaction has been here.
        """
        return OpaqueValue(txid, value, self.get(txid), token, chunk)

    def rolled_back(self) -> OpaqueValue[_T]:
        """The same without its last transaction; doing it twice is harmless. A value of None is absent.

        The writer stays noted, so that the next attempt is told from it.
        """
        return replace(self, value=self.prev)
