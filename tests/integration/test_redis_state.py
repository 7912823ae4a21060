"""What a RedisState does with a real server, beyond what every state does: crashes, lost data, zombies, refusals."""

from __future__ import annotations

import copy
import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_tx.base.errors import (
    ChunkConflict,
    ConfigError,
    FenceForeign,
    FenceOutranked,
    LedgerBehind,
    StateBehind,
    StateDiffers,
    StateError,
    StateOutcomeUnknown,
    StateUnavailable,
)
from airflow_tx.base.failpoints import VARIABLE
from airflow_tx.state import Grant, MemoryDatabase, MemoryState, Sum
from airflow_tx.state.redis import state as module
from airflow_tx.state.redis.fence import RedisFence
from airflow_tx.state.redis.state import RedisState
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.suites.state_tools import Grants, rows, totals
from tests.examples import examples
from tests.integration.proxy import ReplyEater
from tests.servers.redis import REDIS_PASSWORD, LocalRedis

_SOON = 300.0  # far more than an answer takes, however busy the machine is
both_kinds = pytest.mark.parametrize("kind", ["opaque", "transactional"])
# Three portions, when a portion is five keys.
_MANY = {f"key {number:02}": number for number in range(12)}


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five keys in one script, and a stop after each."""
    monkeypatch.setattr(module, "KEYS_AT_ONCE", 5)
    monkeypatch.setattr(module, "PORTIONS_AT_ONCE", 1)


def _state(server: LocalRedis, prefix: str = "totals", kind: str = "opaque", **options: Any) -> RedisState:
    given = {"keys": ["key"], "values": {"n": Sum()}, **options}
    return RedisState.from_url(server.url(), prefix=prefix, kind=kind, **given)


class _Pause:
    """Makes whoever writes next stand still between two portions."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reached, self._go_on = folder / "reached", folder / "go on"
        rule = f"redis_state.between_portions:pause={self._go_on}:once={self._reached}"
        monkeypatch.setenv(VARIABLE, rule)

    def reached(self) -> None:
        eventually(self._reached.exists, _SOON, "the writer is between two portions")

    def go_on(self) -> None:
        self._go_on.touch()


@pytest.fixture
def pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_portions: None) -> _Pause:
    return _Pause(tmp_path, monkeypatch)


# --- a writer that was thought dead ------------------------------------------------------------------------------

_LATE: dict[str, Callable[[RedisState, Grant, dict[str, int]], Any]] = {
    "raise": lambda state, grant, updates: state.raise_fence(grant),
    "write": lambda state, grant, updates: state.write(grant, rows(updates)),
    "part": lambda state, grant, updates: state.write(grant, rows(updates), chunk=3, complete=False),
    "nothing": lambda state, grant, updates: state.write(grant, []),
    "both": lambda state, grant, updates: state.raise_and_write(grant, rows(updates)),
}


@both_kinds
@pytest.mark.parametrize("late", _LATE)
@pytest.mark.parametrize("updates", [{"a": 1}, {"only the old attempt has it": 1}, {"new": 1}, _MANY])
def test_a_paused_writer_is_refused_when_it_resumes_after_the_next_transaction(
    redis: LocalRedis, prefix: str, kind: str, late: str, updates: dict[str, int]
) -> None:
    grants, state, zombie = Grants(), _state(redis, prefix, kind), _state(redis, prefix, kind)
    old = grants(1)
    zombie.raise_and_write(old, rows({"a": 1, "only the old attempt has it": 1}))
    # A transactional replay has the same output.
    again = {"a": 1} if kind == "opaque" else {"a": 1, "only the old attempt has it": 1}
    new = grants(1, 2)
    state.raise_and_write(new, rows(again))
    grants.final(new, state)
    grants.commit(2, state, {"a": 10})
    before, everything = totals(state), _everything(redis, prefix)
    with pytest.raises((FenceOutranked, LedgerBehind)):
        _LATE[late](zombie, old, updates)
    assert totals(state) == before == {**again, "a": 11}
    assert _everything(redis, prefix) == everything


@both_kinds
def test_a_writer_paused_between_two_parts_of_an_update_cannot_write_the_remaining_parts(
    redis: LocalRedis, prefix: str, kind: str, pool: ThreadPoolExecutor, pause: _Pause
) -> None:
    grants, state = Grants(), _state(redis, prefix, kind)
    grants.commit(1, state, {"key 00": 100, "key 11": 100})
    old = grants(2)
    writing = pool.submit(_state(redis, prefix, kind).raise_and_write, old, rows(_MANY))
    pause.reached()
    new = grants(2, 2)
    state.raise_and_write(new, rows(_MANY))
    grants.final(new, state)
    grants.commit(3, state, {"key 00": 1000})
    pause.go_on()
    with pytest.raises(FenceOutranked):
        writing.result(_SOON)
    assert totals(state) == {**_MANY, "key 00": 1100, "key 11": 111}


def _everything(server: LocalRedis, prefix: str) -> dict[bytes, Any]:
    client = server.client()
    return {
        name: {b"string": client.get, b"stream": client.xrange}.get(client.type(name), client.hgetall)(name)
        for name in client.scan_iter(f"{{{prefix}}}:*")
    }


# --- a client that dies --------------------------------------------------------------------------------------------

_WRITER = """
import pickle, sys
from airflow_tx.state import Sum
from airflow_tx.state.redis import state as module
from airflow_tx.state.redis.state import RedisState
from airflow_tx.testing.suites.state_tools import rows

module.KEYS_AT_ONCE, module.PORTIONS_AT_ONCE = 5, 1
url, prefix, kind = sys.argv[1:]
state = RedisState.from_url(url, prefix=prefix, keys=["key"], values={"n": Sum()}, kind=kind)
state.raise_and_write(pickle.load(sys.stdin.buffer), rows({f"key {number:02}": number for number in range(12)}))
"""


@both_kinds
def test_the_parts_of_an_update_of_a_killed_client_are_rolled_back_or_continued(
    redis: LocalRedis, prefix: str, kind: str, tmp_path: Path
) -> None:
    grants, state = Grants(), _state(redis, prefix, kind)
    grants.commit(1, state, {"key 00": 100, "key 11": 100})
    rule = f"redis_state.between_portions:kill:once={tmp_path / 'killed'}"
    done = subprocess.run(
        [sys.executable, "-c", _WRITER, redis.url(), prefix, kind],
        input=pickle.dumps(grants(2)),
        env={**os.environ, VARIABLE: rule},
    )
    assert done.returncode == -signal.SIGKILL
    left = totals(state)
    assert 2 < len(left) < len(_MANY)
    fence = state.fence()
    assert fence is not None
    assert not fence.applied
    replay = grants(2, 2)
    if kind == "opaque":
        state.raise_fence(replay)
        assert totals(state) == {"key 00": 100, "key 11": 100}
    state.raise_and_write(replay, rows(_MANY))
    assert totals(state) == {**_MANY, "key 00": 100, "key 11": 111}


def test_the_next_grant_completes_an_interrupted_roll_back_before_it_writes(
    redis: LocalRedis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = {f"key {number}": 1 for number in range(20_000)}
    grants, state = Grants(), _state(redis, prefix)
    grants.commit(1, state, {"key 7": 5, "other": 1})
    state.raise_and_write(grants(2), rows(many))
    second = grants(2, 2)
    with monkeypatch.context() as patch:

        def die(*_: Any) -> bool:
            raise KeyboardInterrupt

        patch.setattr(RedisFence, "has_raised", die)
        with pytest.raises(KeyboardInterrupt):
            state.raise_fence(second)
    assert 10_000 < len(totals(state)) < len(many)
    with pytest.raises(StateError, match="roll-back has not finished"):
        state.write(second, rows({"key 1": 1}))
    third = grants(2, 3)
    state.raise_and_write(third, rows({"key 7": 2, "key 8": 2}))
    assert totals(state) == {"key 7": 7, "other": 1, "key 8": 2}
    grants.final(third, state)
    grants.commit(3, state, {"key 9": 1})
    assert redis.client().exists(f"{{{prefix}}}:undo") == 0


# --- a server that dies ------------------------------------------------------------------------------------------


def test_a_server_that_lost_all_data_between_raise_and_write_is_refused() -> None:
    with LocalRedis() as server:
        grants, state = Grants(), _state(server)
        grants.commit(1, state, {"a": 1})
        grant = grants(2)
        state.raise_fence(grant)
        server.restart()
        with pytest.raises(FenceOutranked, match="the fence holds nothing"):
            state.write(grant, rows({"a": 1}))
        for attempt in (1, 2):
            with pytest.raises(StateBehind, match="--state-lost"):
                state.raise_and_write(grants(2, attempt), rows({"a": 1}))
        assert (state.fence(), state.read()) == (None, [])
        # The repair that the message names takes the state's entry out of the ledger.
        grants.generation, grants.last = 2, {}
        grants.commit(2, state, {"a": 1})
        assert totals(state) == {"a": 1}


@both_kinds
def test_the_same_grant_can_commit_after_a_server_with_an_aof_restarts_before_the_write(kind: str) -> None:
    with LocalRedis(persistence="aof") as server:
        grants, state = Grants(), _state(server, kind=kind)
        grants.commit(1, state, {"a": 1})
        grant = grants(2)
        state.raise_fence(grant)
        server.restart()
        with pytest.raises(StateUnavailable, match="restarted"):
            state.write(grant, rows({"a": 1}))
        assert totals(state) == {"a": 1}
        state.raise_fence(grant)  # the same grant may begin anew
        state.write(grant, rows({"a": 1}))
        assert totals(state) == {"a": 2}


@both_kinds
@pytest.mark.parametrize("again", [True, False], ids=["the same grant", "a new grant"])
@pytest.mark.parametrize("persistence", ["aof", "none"])
def test_an_update_killed_between_two_parts_never_counts_as_complete(
    kind: str, persistence: str, again: bool, pool: ThreadPoolExecutor, pause: _Pause
) -> None:
    with LocalRedis(persistence=persistence) as server:
        grants, state = Grants(), _state(server, kind=kind)
        if persistence == "aof":
            grants.commit(1, state, {"key 00": 100})
        grant = grants(2)
        writing = pool.submit(_state(server, kind=kind).raise_and_write, grant, rows(_MANY))
        pause.reached()
        server.restart()
        pause.go_on()
        with pytest.raises((StateUnavailable, FenceOutranked)):
            writing.result(_SOON)
        fence = state.fence()
        assert fence is None or not fence.applied
        state.raise_and_write(grant if again else grants(2, 2), rows(_MANY))
        assert totals(state) == {**_MANY, "key 00": 100 if persistence == "aof" else 0}


@both_kinds
def test_no_row_counts_twice_after_the_server_is_killed_between_write_and_commit(kind: str) -> None:
    with LocalRedis(persistence="aof") as server:
        grants, state = Grants(), _state(server, kind=kind)
        grants.commit(1, state, {"a": 1})
        state.raise_and_write(grants(2), rows({"a": 1, "b": 1}))
        server.restart()
        assert totals(state) == {"a": 2, "b": 1}
        second = grants(2, 2)
        state.raise_and_write(second, rows({"a": 1, "b": 1}))
        grants.final(second, state)
        grants.commit(3, state, {"b": 1})
        assert totals(state) == {"a": 2, "b": 2}


def test_the_first_transaction_is_written_again_if_the_server_loses_it_before_the_commit_ends() -> None:
    with LocalRedis() as server:
        grants, state = Grants(), _state(server)
        state.raise_and_write(grants(1), rows({"a": 1}))
        server.restart()
        second = grants(1, 2)
        state.raise_and_write(second, rows({"a": 1}))
        grants.final(second, state)
        server.restart()
        with pytest.raises(StateBehind):
            state.raise_fence(grants(2))


@both_kinds
@pytest.mark.parametrize("moment", ["before the raise", "after the raise", "after a part"])
def test_an_older_snapshot_is_noticed_whether_it_was_made_before_or_during_the_commit(kind: str, moment: str) -> None:
    with LocalRedis(persistence="rdb") as server:
        grants, state = Grants(), _state(server, kind=kind)
        grants.commit(1, state, {"a": 1})
        grant = grants(2)
        if moment == "before the raise":
            server.save()
        state.raise_fence(grant)
        if moment == "after the raise":
            server.save()
        state.write(grant, rows({"a": 1}), chunk=1, complete=False)
        if moment == "after a part":
            server.save()
        state.write(grant, rows({"b": 1}), chunk=2)
        grants.final(grant, state)
        server.restart()
        following = grants(3)
        for use in (state.raise_fence, lambda grant: state.raise_and_write(grant, rows({"a": 1}))):
            with pytest.raises(StateBehind, match="--state-lost"):
                use(following)
        assert totals(state) == ({"a": 2} if moment == "after a part" else {"a": 1})


# --- keys that vanish --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["one key", "values", "touched"])
def test_evicted_or_deleted_keys_are_noticed(redis: LocalRedis, prefix: str, what: str) -> None:
    grants, state, client = Grants(), _state(redis, prefix), redis.client()
    grants.commit(1, state, {"a": 1, "b": 2})
    if what == "one key":
        client.hdel(f"{{{prefix}}}:values", '["a"]')
    else:
        client.delete(f"{{{prefix}}}:{what}")
    before = _everything(redis, prefix)
    with pytest.raises(StateBehind, match=r"2 keys of values .*evicted, expired, or changed by hand.*--state-lost"):
        state.raise_and_write(grants(2), rows({"a": 1}))
    assert _everything(redis, prefix) == before
    grants.generation, grants.last = 2, {}  # repaired: what is there is accepted
    grants.commit(2, state, {"c": 1})
    assert totals(state)["c"] == 1


@both_kinds
def test_an_older_copy_with_the_same_number_of_keys_is_noticed(redis: LocalRedis, prefix: str, kind: str) -> None:
    grants, state, client = Grants(), _state(redis, prefix, kind=kind), redis.client()
    grants.commit(1, state, {"a": 1, "b": 2})
    older = client.dump(f"{{{prefix}}}:values")
    grants.commit(2, state, {"a": 1})
    grants.commit(3, state, {})
    client.restore(f"{{{prefix}}}:values", 0, older, replace=True)
    with pytest.raises(StateBehind, match="2 keys of values, but the value of one key has changed.*--state-lost"):
        state.raise_and_write(grants(4), rows({"a": 1}))
    state.accept_values()
    grants.commit(4, state, {"a": 1})
    assert totals(state) == {"a": 2, "b": 2}


@pytest.fixture
def copied(redis: LocalRedis, prefix: str, kind: str) -> RedisState:
    """A state whose keys were copied from another prefix, without the fence."""
    grants, name = Grants(), f'{prefix} it\'s a "copy"'
    for txid in (1, 2):
        grants.commit(txid, _state(redis, prefix, kind), {"a": 1, "b": txid})
    for key in ("values", "touched", "schema", "receipts"):
        redis.client().copy(f"{{{prefix}}}:{key}", f"{{{name}}}:{key}")
    return _state(redis, name, kind)


@both_kinds
@pytest.mark.parametrize("txid", [1, 3])
def test_values_without_a_fence_are_refused_until_a_person_deletes_them(
    redis: LocalRedis, copied: RedisState, txid: int
) -> None:
    grants, before = Grants(), _everything(redis, copied.prefix)
    with pytest.raises(
        StateDiffers, match="it has values but no fence.*Nothing was written.*another prefix"
    ) as refused:
        copied.raise_and_write(grants(txid), rows({"a": 5}))
    assert _everything(redis, copied.prefix) == before
    redis.client().execute_command(*shlex.split(str(refused.value).rpartition("commit task: ")[2]))
    grants.commit(txid, copied, {"a": 5})
    assert totals(copied) == {"a": 5}


@both_kinds
def test_values_that_a_repair_has_accepted_belong_to_the_state(copied: RedisState) -> None:
    grant = replace(Grants()(3), accepted={copied.name: {"generation": 1, "fence": None}})
    copied.raise_and_write(grant, rows({"a": 5}))
    assert totals(copied) == {"a": 7, "b": 3}


# --- writers at once ---------------------------------------------------------------------------------------------


def test_the_latest_of_several_simultaneous_first_grants_wins(
    redis: LocalRedis, prefix: str, pool: ThreadPoolExecutor
) -> None:
    grants = Grants()
    given = [grants(1) for _ in range(8)]

    def use(grant: Grant) -> bool:
        try:
            _state(redis, prefix).raise_and_write(grant, rows({"a": 1, f"of {grant.token.epoch}": 1}))
        except FenceOutranked:
            return False
        return True

    assert list(pool.map(use, given))[-1]
    assert totals(_state(redis, prefix)) == {"a": 1, "of 8": 1}


@dataclass
class _Meanwhile:
    """A sum during which something else happens: after the values were read, before they are written."""

    happens: Callable[[], Any] | None = None
    name: str = "meanwhile"
    type: str = "bigint"

    def zero(self) -> int:
        return 0

    def init(self, value: int) -> int:
        return value

    def combine(self, a: int, b: int) -> int:
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        return a + b


def test_an_older_grant_is_refused_if_a_newer_grant_raises_the_fence_before_its_write(
    redis: LocalRedis, prefix: str
) -> None:
    sums = _Meanwhile()
    grants, state = Grants(), _state(redis, prefix, values={"n": sums})
    grants.commit(1, state, {"a": 1})
    old, new = grants(2), grants(2, 2)
    sums.happens = lambda: _state(redis, prefix, values={"n": _Meanwhile()}).raise_and_write(new, rows({"a": 10}))
    with pytest.raises(FenceOutranked):
        state.raise_and_write(old, rows({"a": 100}))
    assert totals(state) == {"a": 11}
    fence = state.fence()
    assert fence is not None
    assert fence.token == new.token


@both_kinds
def test_a_newer_grant_rolls_back_a_concurrent_write_of_an_older_grant(
    redis: LocalRedis, prefix: str, kind: str
) -> None:
    sums = _Meanwhile()
    grants, state = Grants(), _state(redis, prefix, kind, values={"n": sums})
    grants.commit(1, state, {"a": 1, "b": 1})
    old, new = grants(2), grants(2, 2)
    zombie = _state(redis, prefix, kind, values={"n": _Meanwhile()})
    zombie.raise_fence(old)
    sums.happens = lambda: zombie.write(old, rows({"a": 10, "b": 10}))
    state.raise_and_write(new, rows({"a": 10, "b": 10}))
    assert totals(state) == {"a": 11, "b": 11}


@both_kinds
def test_a_key_that_two_chunks_write_concurrently_is_refused(redis: LocalRedis, prefix: str, kind: str) -> None:
    sums = _Meanwhile()
    grants, state = Grants(), _state(redis, prefix, kind, values={"n": sums})
    grants.commit(1, state, {"a": 1})
    grant = grants(2)
    state.raise_fence(grant)
    other = _state(redis, prefix, kind, values={"n": _Meanwhile()})
    sums.happens = lambda: other.write(grant, rows({"a": 10}), chunk=1, complete=False)
    with pytest.raises(ChunkConflict, match="'a'.*chunk 1 and from chunk 2"):
        state.write(grant, rows({"a": 100, "b": 100}), chunk=2, complete=False)
    assert totals(state) == {"a": 11}


def test_parallel_writers_of_one_grant_write_all_their_keys(
    redis: LocalRedis, prefix: str, pool: ThreadPoolExecutor
) -> None:
    grants, state = Grants(), _state(redis, prefix)
    grants.commit(1, state, {"0 7": 1})
    grant = grants(2)
    state.raise_fence(grant)

    def part(number: int) -> int:
        chunk = number % 4  # each is sent twice, at once
        update = rows({f"{chunk} {key}": key for key in range(500)})
        return _state(redis, prefix).write(grant, update, chunk=chunk, complete=False)

    assert list(pool.map(part, range(8))) == [500] * 8
    state.write(grant, [], chunk=9)
    expected = {f"{chunk} {key}": key for chunk in range(4) for key in range(500)}
    assert totals(state) == {**expected, "0 7": 8}


@both_kinds
def test_a_key_that_belongs_to_another_chunk_is_refused_before_any_key_is_written(
    redis: LocalRedis, prefix: str, kind: str, small_portions: None
) -> None:
    grants, state = Grants(), _state(redis, prefix, kind)
    grant = grants(1)
    state.raise_fence(grant)
    state.write(grant, rows({"key 11": 1}), chunk=1, complete=False)
    with pytest.raises(ChunkConflict, match="'key 11'.*chunk 1 and from chunk 2"):
        state.write(grant, rows(_MANY), chunk=2, complete=False)
    assert totals(state) == {"key 11": 1}


# --- numbers -----------------------------------------------------------------------------------------------------

_big = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3) | st.none()
_programs = st.lists(
    st.tuples(st.dictionaries(st.sampled_from("abc"), _big, max_size=3), st.booleans()), min_size=1, max_size=6
)


@both_kinds
@pytest.mark.parametrize("column", ["bigint", "numeric"])
def test_sums_are_as_exact_as_in_the_memory_state_or_are_refused(redis: LocalRedis, kind: str, column: str) -> None:
    """The model is MemoryState, whose numbers are Python's."""

    @settings(max_examples=examples(15, 40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(_programs)
    def check(program: list[tuple[dict[str, int | None], bool]]) -> None:
        values = {"n": Sum(column)}
        mine = _state(redis, f"m{uuid.uuid4().hex}", kind, values=values)
        model = MemoryState(mine.name, keys=["key"], values=values, kind=kind, database=MemoryDatabase())
        grants, txid = Grants(), 1
        for updates, final in program:
            grant, told = grants(txid, grants._epoch + 1), []
            for state in (model, mine):
                try:
                    told.append(str(state.raise_and_write(grant, rows(updates))))
                except StateError as error:
                    told.append(str(error))
            assert told[0] == told[1]
            found = [totals(state) for state in (model, mine)]
            if "refused" not in told[0]:
                assert found[0] == found[1]
                assert [type(value) for value in found[0].values()] == [type(value) for value in found[1].values()]
                if final:
                    grants.final(grant, mine)
                    txid += 1
        mine.clear()

    check()


def test_a_sum_that_is_too_large_is_refused_and_no_value_is_written(
    redis: LocalRedis, prefix: str, small_portions: None
) -> None:
    grants, state = Grants(), _state(redis, prefix)
    grants.commit(1, state, {"key 11": 2**63 - 1})
    before, grant = _everything(redis, prefix), grants(2)
    with pytest.raises(StateError, match="sum of column n does not fit into 64 bits"):
        state.raise_and_write(grant, rows(_MANY))
    assert _everything(redis, prefix) == before
    state.raise_fence(grant)
    with pytest.raises(StateError, match="sum of column n does not fit into 64 bits"):
        state.write(grant, rows(_MANY))
    assert totals(state) == {"key 11": 2**63 - 1}


def test_decimal_sums_keep_all_their_digits(redis: LocalRedis, prefix: str) -> None:
    grants, state = Grants(), _state(redis, prefix, keys=[], values={"n": Sum("numeric")})
    for txid, delta in enumerate([Decimal("0.1"), Decimal("0.2"), None, Decimal(10**30), 5], 1):
        grant = grants(txid)
        state.raise_and_write(grant, [{"n": delta}])
        grants.final(grant, state)
    assert state.read() == [{"n": Decimal(f"{10**30 + 5}.3")}]


# --- who shares what ---------------------------------------------------------------------------------------------


def test_values_can_be_read_with_ordinary_redis_commands(redis: LocalRedis, prefix: str) -> None:
    state = _state(redis, prefix, keys=["origin", "carrier"], values={"n": Sum(), "late": Sum()})
    state.raise_and_write(Grants()(1), [{"carrier": "AA", "origin": "JFK", "n": 2, "late": -7}])
    assert redis.client().hgetall(f"{{{prefix}}}:values") == {b'["AA","JFK"]': b"[-7,2]"}
    assert state.read() == [{"origin": "JFK", "carrier": "AA", "n": 2, "late": -7}]
    # The order in which columns are named makes no difference.
    other = _state(redis, prefix, keys=["carrier", "origin"], values={"late": Sum(), "n": Sum()})
    assert other.read() == [{"carrier": "AA", "origin": "JFK", "late": -7, "n": 2}]


def test_a_second_topology_with_the_same_prefix_is_refused(redis: LocalRedis, prefix: str) -> None:
    first, second = Grants(), Grants()
    first.commit(1, _state(redis, prefix), {"a": 1})
    for use in (_state(redis, prefix).raise_fence, lambda grant: _state(redis, prefix).raise_and_write(grant, [])):
        with pytest.raises(FenceForeign, match="One state serves one topology"):
            use(second(1))
    assert totals(_state(redis, prefix)) == {"a": 1}


def test_a_state_with_other_columns_is_refused_and_the_error_shows_both_definitions(
    redis: LocalRedis, prefix: str
) -> None:
    from airflow_tx.state import Max

    grants = Grants()
    grants.commit(1, _state(redis, prefix), {"a": 1})
    before = _everything(redis, prefix)
    others: list[dict[str, Any]] = [
        {"values": {"m": Sum()}},
        {"values": {"n": Sum("double")}},
        {"values": {"n": Max()}},
        {"types": {"key": "bigint"}},
        {"keys": ["key", "more"]},
    ]
    states = [_state(redis, prefix, **other) for other in others]
    for state in (*states, _state(redis, prefix, "transactional")):
        for use in (state.raise_fence, lambda _, state=state: state.read()):
            with pytest.raises(StateError, match=r"other columns: expected .*, found opaque \(n sum bigint\) by key"):
                use(grants(2))
    assert _everything(redis, prefix) == before


def test_a_redis_key_of_another_program_is_refused(redis: LocalRedis, prefix: str) -> None:
    redis.client().set(f"{{{prefix}}}:values", "mine")
    with pytest.raises(StateError, match="WRONGTYPE"):
        _state(redis, prefix).raise_and_write(Grants()(1), rows({"a": 1}))
    assert redis.client().get(f"{{{prefix}}}:values") == b"mine"


def test_a_state_under_a_new_prefix_can_take_over_the_fence_of_the_old_prefix(redis: LocalRedis, prefix: str) -> None:
    grants, old, new = Grants(), _state(redis, prefix, "opaque"), _state(redis, f"{prefix}-new", "opaque")
    grants.commit(1, old, {"a": 1})
    held = old.fence()
    assert (new.fence_of(old.name), new.fence()) == (held, None)
    new.take_over(old.name)
    assert (new.fence_of(old.name), old.fence()) == (held, None)
    assert totals(new) == {"a": 1}


def test_a_fence_of_a_newer_format_is_refused(redis: LocalRedis, prefix: str) -> None:
    grants, state = Grants(), _state(redis, prefix)
    state.raise_and_write(grants(1), rows({"a": 1}))
    redis.client().hset(f"{{{prefix}}}:fence", "format", 2)
    with pytest.raises(StateError, match="format 2, but this version supports 1"):
        state.raise_and_write(grants(1, 2), rows({"a": 1}))


def test_clearing_a_state_deletes_only_the_data_of_this_state(redis: LocalRedis, prefix: str) -> None:
    states = [_state(redis, f"{prefix}{number}") for number in range(2)]
    for state in states:
        Grants().commit(1, state, {"a": 1})
    states[0].clear()
    assert (states[0].fence(), states[0].read(), _everything(redis, f"{prefix}0")) == (None, [], {})
    assert totals(states[1]) == {"a": 1}
    Grants().commit(7, states[0], {"a": 2})
    assert totals(states[0]) == {"a": 2}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"prefix": ""}, "without braces"),
        ({"prefix": "a{b}"}, "without braces"),
        ({"keys": "key"}, "Give a list"),
        ({"kind": "non-transactional"}, "opaque"),
    ],
)
def test_invalid_arguments_are_refused_when_the_state_is_created(wrong: dict[str, Any], message: str) -> None:
    fitting: dict[str, Any] = {"prefix": "p", "keys": ["key"], "values": {"n": Sum()}}
    with pytest.raises(ConfigError, match=message):
        RedisState("redis_default", **{**fitting, **wrong})


# --- connections -------------------------------------------------------------------------------------------------


def _define(monkeypatch: pytest.MonkeyPatch, conn_id: str, **fields: Any) -> None:
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(fields))


def test_a_state_can_use_an_airflow_connection(redis: LocalRedis, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    _define(
        monkeypatch,
        "tx_state_redis",
        conn_type="redis",
        host="127.0.0.1",
        port=redis.port,
        password=REDIS_PASSWORD,
        extra={"db": "3", "unknown": "is not passed on"},
    )
    state = RedisState("tx_state_redis", prefix=prefix, keys=["key"], values={"n": Sum()})
    Grants().commit(1, state, {"a": 1})
    assert copy.deepcopy(state).read() == pickle.loads(pickle.dumps(state)).read() == [{"key": "a", "n": 1}]
    assert state.name == f"tx_state_redis.{prefix}"
    assert redis.client(3).exists(f"{{{prefix}}}:values") == 1
    for shown in (repr(state), json.dumps(state.serialize())):
        assert "127.0.0.1" not in shown
        assert REDIS_PASSWORD not in shown


def test_the_error_about_an_invalid_connection_names_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    _define(monkeypatch, "tx_web", conn_type="http", host="example")
    _define(monkeypatch, "tx_odd", conn_type="redis", host="127.0.0.1", extra={"db": "first"})
    for conn_id, message in {"tx_web": "type redis", "tx_odd": "extra db.*Use a number"}.items():
        with pytest.raises(ConfigError, match=f"{conn_id}.*{message}"):
            RedisState(conn_id, prefix="p", keys=[], values={"n": Sum()}).read()
    with pytest.raises(ConfigError, match="hidden") as failure:
        RedisState.from_url("http://me:s3cret@host", prefix="p", keys=[], values={"n": Sum()}).read()
    assert "s3cret" not in str(failure.value)


def _uses(state: RedisState) -> list[Callable[[], Any]]:
    grant = Grants()(1)
    return [
        state.read,
        state.fence,
        state.clear,
        lambda: state.raise_fence(grant),
        lambda: state.write(grant, rows({"a": 1})),
        lambda: state.raise_and_write(grant, rows({"a": 1})),
    ]


def test_the_error_about_an_unreachable_server_does_not_show_the_password() -> None:
    server = LocalRedis()  # never started: nobody listens
    for use in _uses(_state(server)):
        with pytest.raises(StateUnavailable, match="cannot be reached.*refused") as failure:
            use()
        assert not isinstance(failure.value, StateOutcomeUnknown)
        assert REDIS_PASSWORD not in str(failure.value)
    server.close()


def test_a_wrong_password_causes_a_one_line_error_that_does_not_show_the_password(redis: LocalRedis) -> None:
    url = f"redis://:wr0ng-pass@127.0.0.1:{redis.port}/0"
    state = RedisState.from_url(url, prefix="p", keys=["key"], values={"n": Sum()})
    for use in _uses(state):
        with pytest.raises(StateUnavailable, match="invalid username-password pair") as failure:
            use()
        assert "wr0ng-pass" not in str(failure.value)
        assert "\n" not in str(failure.value)
        assert failure.value.__cause__ is None


def test_a_lost_reply_to_the_last_write_is_reported_as_an_unknown_outcome(
    redis: LocalRedis, prefix: str, pool: ThreadPoolExecutor
) -> None:
    grants, direct = Grants(), _state(redis, prefix)
    with ReplyEater(f"127.0.0.1:{redis.port}") as proxy:
        url = redis.url().replace(f"127.0.0.1:{redis.port}", proxy.hosts)
        state = RedisState.from_url(url, prefix=prefix, keys=["key"], values={"n": Sum()})
        grants.commit(1, state, {"a": 1})
        grant = grants(2)
        state.raise_fence(grant)
        run = state._server.run_scripts

        def eaten(calls: Any, **options: Any) -> Any:
            if options.get("last"):
                proxy.eat()
                pool.submit(cut_when_eaten)
            return run(calls, **options)

        def cut_when_eaten() -> None:
            if proxy.wait_eaten(_SOON):
                proxy.cut()

        state._server.run_scripts = eaten  # type: ignore[method-assign]
        with pytest.raises(StateOutcomeUnknown, match="may have been written"):
            state.write(grant, rows({"a": 1}))
    assert totals(direct) == {"a": 2}
    again = grants(2, 2)
    direct.raise_and_write(again, rows({"a": 1}))
    assert totals(direct) == {"a": 2}


def test_a_server_without_free_memory_refuses_the_whole_update(prefix: str) -> None:
    with LocalRedis() as server:
        grants, state = Grants(), _state(server, prefix)
        grants.commit(1, state, {"a": 1})
        server.client().config_set("maxmemory", 1)
        with pytest.raises(StateError, match="OOM|maxmemory"):
            grants.commit(2, state, {"a": 1})
        server.client().config_set("maxmemory", 0)
        assert totals(state) == {"a": 1}
        grants.commit(2, state, {"a": 1})
        assert totals(state) == {"a": 2}


def test_a_state_is_unchanged_if_reading_the_rows_fails(redis: LocalRedis, prefix: str) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield from rows({"a": 1})
        raise RuntimeError("the file ends here")

    grants, state = Grants(), _state(redis, prefix)
    with pytest.raises(RuntimeError, match="ends here"):
        state.raise_and_write(grants(1), broken())
    assert _everything(redis, prefix) == {}


def test_a_commit_of_many_keys_needs_few_round_trips(redis: LocalRedis, prefix: str) -> None:
    state, client = _state(redis, prefix), redis.client()
    client.config_resetstat()
    state.raise_and_write(Grants()(1), rows({f"key {number}": 1 for number in range(20_000)}))
    calls = client.info("commandstats")["cmdstat_eval"]["calls"]
    assert calls == 4 + 1 + 4  # reads, the raise, writes
