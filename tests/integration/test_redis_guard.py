"""Commands of one's own in Redis, once per transaction, whatever fails in between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_tx.base.errors import (
    FenceForeign,
    FenceOutranked,
    LedgerBehind,
    OutputChanged,
    SkipRefused,
    StateBehind,
    StateError,
    StateUnavailable,
)
from airflow_tx.state import StateKind
from airflow_tx.state.redis import guard as module
from airflow_tx.state.redis.fence import RedisTransaction
from airflow_tx.state.redis.guard import RedisCommand, RedisGuard
from airflow_tx.testing.suites.state_tools import Grants, about_to_skip, about_to_write
from tests.servers.redis import LocalRedis


def _guard(server: LocalRedis, prefix: str) -> RedisGuard:
    def commands(rows: list[dict[str, Any]]) -> Iterator[RedisCommand]:
        for row in rows:
            yield "HINCRBY", f"{prefix}:hashtags", row["hashtag"], row["n"]

    return RedisGuard.from_url(server.url(), prefix=prefix, commands=commands)


def _rows(updates: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"hashtag": hashtag, "n": n} for hashtag, n in updates.items()]


def _hashtags(server: LocalRedis, prefix: str) -> dict[str, int]:
    return {name.decode(): int(n) for name, n in server.client().hgetall(f"{prefix}:hashtags").items()}


def test_a_guard_counts_each_transaction_once_although_it_is_written_repeatedly(redis: LocalRedis, prefix: str) -> None:
    grants, guard = Grants(), _guard(redis, prefix)
    assert (guard.kind, guard.last_txid()) == (StateKind.TRANSACTIONAL, None)
    for txid in (1, 2):
        for attempt in (1, 2):
            grant = grants(txid, attempt)
            for _ in range(2):
                assert guard.raise_and_write(grant, _rows({"#storm": 2, "#redis": txid})) == 2
                guard.raise_fence(grant)
                assert guard.write(grant, _rows({"#storm": 2, "#redis": txid})) == 2
        grants.final(grant, guard)
        assert guard.last_txid() == txid
    assert _hashtags(redis, prefix) == {"#storm": 4, "#redis": 3}
    assert redis.client().hget(f"{{{prefix}}}:fence", "LAST_COMMIT") == b"2"


def test_a_late_committer_cannot_run_a_command(redis: LocalRedis, prefix: str) -> None:
    grants, guard = Grants(), _guard(redis, prefix)
    old, new = grants(1), grants(1, 2)
    guard.raise_fence(old)
    guard.raise_and_write(new, _rows({"a": 1}))
    for late in (_rows({"a": 1}), _rows({"b": 1}), []):
        for use in (guard.write, guard.raise_and_write):
            with pytest.raises(FenceOutranked):
                use(old, late)
    grants.final(new, guard)
    guard.raise_and_write(grants(2), _rows({"a": 1}))
    with pytest.raises((FenceOutranked, LedgerBehind)):
        guard.write(new, _rows({"a": 1}))
    with pytest.raises(FenceForeign):
        guard.raise_fence(Grants()(2))
    assert _hashtags(redis, prefix) == {"a": 2}


def test_simultaneous_tries_of_the_same_grant_run_the_commands_of_the_guard_once(
    redis: LocalRedis, prefix: str
) -> None:
    grant = Grants()(1)
    _guard(redis, prefix).raise_fence(grant)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: _guard(redis, prefix).write(grant, _rows({"a": 1})), range(8)))
    assert _hashtags(redis, prefix) == {"a": 1}


def test_the_next_try_continues_with_the_failed_command(redis: LocalRedis, prefix: str) -> None:
    grants, guard, client = Grants(), _guard(redis, prefix), redis.client()
    client.hset(f"{prefix}:hashtags", "b", "no number")
    for attempt in (1, 2):
        with pytest.raises(StateError, match="command 2 of transaction 1 failed: .*not an integer.*continues with"):
            guard.raise_and_write(grants(1, attempt), _rows({"a": 1, "b": 1, "c": 1}))
        fence = guard.fence()
        assert fence is not None
        assert not fence.applied
    client.hset(f"{prefix}:hashtags", "b", 5)
    with pytest.raises(StateError, match="had other commands, and some"):
        guard.raise_and_write(grants(1, 3), _rows({"b": 1, "a": 1, "c": 1}))
    guard.raise_and_write(grants(1, 4), _rows({"a": 1, "b": 1, "c": 1}))
    assert _hashtags(redis, prefix) == {"a": 1, "b": 6, "c": 1}


def test_a_replay_may_use_other_commands_if_no_command_of_the_transaction_has_run(
    redis: LocalRedis, prefix: str
) -> None:
    grants, guard, client = Grants(), _guard(redis, prefix), redis.client()
    client.hset(f"{prefix}:hashtags", "b", "no number")
    with pytest.raises(StateError, match="command 1 of transaction 1 failed"):
        guard.raise_and_write(grants(1), _rows({"b": 1, "a": 1}))
    assert not guard.holds(1)
    guard.raise_and_write(grants(1, 2), _rows({"a": 2}))
    assert guard.holds(1)
    assert client.hget(f"{prefix}:hashtags", "a") == b"2"


def test_a_guard_refuses_a_skip_or_another_output_after_its_commands_have_run(redis: LocalRedis, prefix: str) -> None:
    grants, guard = Grants(), _guard(redis, prefix)
    guard.raise_fence(about_to_write(grants(1), guard, "never run"))
    guard.raise_and_write(about_to_write(grants(1), guard, "one"), _rows({"a": 1}))
    with pytest.raises(OutputChanged):
        guard.raise_and_write(about_to_write(grants(1, 2), guard, "other"), _rows({"a": 2}))
    with pytest.raises(SkipRefused):
        guard.raise_fence(about_to_skip(grants(1, 2)))
    guard.raise_and_write(about_to_write(grants(1, 3), guard, "one"), _rows({"a": 1}))
    assert _hashtags(redis, prefix) == {"a": 1}


def test_the_next_try_continues_after_a_long_series_of_commands_was_interrupted(
    redis: LocalRedis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMMANDS_AT_ONCE", 5)
    many = {f"#{number}": 1 for number in range(12)}
    grants, guard = Grants(), _guard(redis, prefix)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RedisTransaction, "_send", die)
        with pytest.raises(KeyboardInterrupt):
            guard.raise_and_write(grants(1), _rows(many))
    assert len(_hashtags(redis, prefix)) == 5
    guard.raise_and_write(grants(1, 2), _rows(many))
    assert _hashtags(redis, prefix) == many


@pytest.mark.parametrize("persistence", ["aof", "none"])
def test_a_guard_refuses_a_write_after_its_server_has_restarted_between_raise_and_write(
    persistence: str, prefix: str
) -> None:
    with LocalRedis(persistence=persistence) as server:
        grants, guard = Grants(), _guard(server, prefix)
        first = grants(1)
        guard.raise_and_write(first, _rows({"a": 1}))
        grants.final(first, guard)
        second = grants(2)
        guard.raise_fence(second)
        server.restart()
        with pytest.raises((StateUnavailable, FenceOutranked)):
            guard.write(second, _rows({"a": 1}))
        if persistence == "none":
            with pytest.raises(StateBehind):
                guard.raise_and_write(grants(2, 2), _rows({"a": 1}))
        else:
            guard.raise_and_write(grants(2, 2), _rows({"a": 1}))
            assert _hashtags(server, prefix) == {"a": 2}


@pytest.mark.parametrize("command", ["SET a b", [], ["SET", "a", None], ["SET", "a", True], ["RPUSH", *["a"] * 8000]])
def test_an_invalid_command_is_reported_and_no_command_runs(redis: LocalRedis, prefix: str, command: Any) -> None:
    def commands(rows: list[dict[str, Any]]) -> list[Any]:
        return [("INCR", f"{prefix}:n"), command]

    guard = RedisGuard.from_url(redis.url(), prefix=prefix, commands=commands)
    with pytest.raises(StateError, match=r"command 2 .*Nothing was run"):
        guard.raise_and_write(Grants()(1), [])
    assert redis.client().exists(f"{prefix}:n") == 0


def test_a_write_with_only_a_part_of_the_update_is_refused(redis: LocalRedis, prefix: str) -> None:
    grant, guard = Grants()(1), _guard(redis, prefix)
    guard.raise_fence(grant)
    with pytest.raises(StateError, match="a part of an update"):
        guard.write(grant, _rows({"a": 1}), complete=False)
    guard.clear()
    assert (guard.fence(), guard.last_txid(), _hashtags(redis, prefix)) == (None, None, {})
