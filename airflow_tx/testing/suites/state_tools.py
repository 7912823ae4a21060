"""Tools for tests of a fenced state: open the state, create grants like a ledger, and convert rows of one column."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import pytest

from airflow_tx.ledger.attempt import Token
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.receipt import Deed, FenceBatch, Receipt, Replaced
from airflow_tx.state.aggregators import Aggregator
from airflow_tx.state.api import FencedState, Grant


class MakeState(Protocol):
    """Opens a state. By default, it has the key column `key` and the value column `n`, which is a sum of integers.

    Within a test, the same name opens the same store again, as another process would do. A different name opens another
    state.
    """

    def __call__(
        self,
        kind: str,
        name: str = "first",
        *,
        keys: Sequence[str] = ("key",),
        values: Mapping[str, Aggregator] | None = None,
        types: Mapping[str, str] | None = None,
    ) -> FencedState: ...


class Grants:
    """Creates grants like a ledger does, each with a larger epoch, a new nonce, and the birth of its transaction.

    A grant also contains the last final transaction of each state.
    """

    def __init__(self) -> None:
        self.incarnation = uuid.uuid4().hex
        self.generation = 1
        self.last: dict[str, int] = {}
        self.births: dict[str, str] = {}
        self.grants: dict[str, list[int]] = {}
        self._birth_of: dict[int, str] = {}
        self._epoch = 0

    def __call__(self, txid: int, attempt: int = 1) -> Grant:
        """Return a new grant for an attempt of a transaction."""
        self._epoch += 1
        birth = self._birth_of.setdefault(txid, uuid.uuid4().hex)
        token = Token(self.generation, txid, attempt, self._epoch, uuid.uuid4().hex, birth)
        births = dict(self.births)
        claim = self._claim(token)
        return Grant(
            "suite",
            self.incarnation,
            token,
            dict(self.last),
            births=births,
            claim=claim,
            grants=dict(self.grants),
        )

    def _claim(self, token: Token) -> Receipt:
        return Receipt(
            txid=token.txid,
            key=f"run {token.txid}",
            run_id=f"run {token.txid}",
            attempt=token.attempt,
            epoch=token.epoch,
            birth=token.birth,
            nonce=token.nonce,
            topology="suite",
            incarnation=self.incarnation,
            generation=token.generation,
            outcome="COMMITTED",
            granted="2026-01-01T00:00:00+00:00",
            metadata=token.txid,
            before=token.txid - 1,
            after=token.txid,
            previous="",
        )

    def final(self, grant: Grant, *states: FencedState) -> None:
        """Record that the transaction of `grant` is final in these states. Later grants contain this fact."""
        self.last.update({state.name: grant.txid for state in states})
        self.births.update({state.name: grant.token.birth for state in states})
        own = [grant.token.attempt, grant.token.epoch]
        self.grants.update({state.name: own for state in states})

    def go_back(self, txid: int) -> None:
        """Return to the moment before transaction `txid` began, like a ZooKeeper restored from an old snapshot."""
        self.last = {name: min(last, txid - 1) for name, last in self.last.items() if txid > 1}
        self.births.clear()
        self._birth_of = {each: birth for each, birth in self._birth_of.items() if each < txid}

    def commit(self, txid: int, state: FencedState, updates: Mapping[str, int | None]) -> None:
        self.commit_rows(txid, state, [{"key": key, "n": delta} for key, delta in updates.items()])

    def commit_rows(
        self, txid: int, state: FencedState, rows: Iterable[Mapping[str, Any]], attempt: int = 1
    ) -> None:
        grant = self(txid, attempt)
        state.raise_and_write(grant, rows)
        self.final(grant, state)


class StateTests:
    """Fixtures for the tests of a fenced state.

    :cvar cannot: the names of the aggregators and types that the store does not support.
    """

    cannot: ClassVar[frozenset[str]] = frozenset()

    @pytest.fixture
    def make_state(self) -> MakeState:
        raise NotImplementedError("override the fixture `make_state`")

    @pytest.fixture(params=["opaque", "transactional"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def state(self, make_state: MakeState, kind: str) -> FencedState:
        return make_state(kind)

    @pytest.fixture
    def grants(self) -> Grants:
        return Grants()


def rows(updates: Mapping[str, int | None]) -> list[dict[str, Any]]:
    """Return the rows of an update.

    :param updates: the deltas, by key.
    """
    return [{"key": key, "n": delta} for key, delta in updates.items()]


def totals(state: FencedState) -> dict[str, Any]:
    """Return the stored values by key."""
    return {row["key"]: row["n"] for row in state.read()}


def about_to_write(grant: Grant, state: FencedState, output: str) -> Grant:
    """Return the grant of a committer that is about to write an output to a state.

    :param output: a text that identifies the output.
    """
    return replace(grant, batch=batch_of(outputs={state.name: output}))


def about_to_skip(grant: Grant) -> Grant:
    """Return the grant of a skip."""
    return replace(grant, batch=batch_of(skip=Deed("ada", "2026-01-01T00:00:00+00:00", "a test")))


def about_to_restate(grant: Grant, txid: int) -> Grant:
    """Return the grant for a restatement of a committed transaction."""
    assert grant.claim is not None
    return replace(grant, claim=replace(grant.claim, replaces=Replaced(txid, "")))


def batch_of(key: str = "run", **said: Any) -> FenceBatch:
    """Return the facts about a transaction that a grant writes to the fence."""
    granted = "2026-01-01T00:00:00+00:00"
    unsaid: dict[str, Any] = dict.fromkeys(("skip", "rows", "position", "prev"))
    return FenceBatch(key=key, run_id=key, granted=granted, **unsaid | said)


def is_applied(state: FencedState) -> bool:
    """Return whether the store has all updates of the grant in the fence."""
    row = state.fence()
    assert row is not None
    return row.applied
