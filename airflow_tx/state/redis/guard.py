"""Your own Redis commands, run exactly once per transaction, under a fence.

Source: Getting Started with Storm, chapter 8 (the LAST_COMMIT of RedisCommiterCommiterBolt), protocol.md §7.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from decimal import Decimal
from typing import Any, TypeAlias

from airflow_tx.base.errors import StateError
from airflow_tx.ledger import Receipt
from airflow_tx.state.api import StateKind, StateWrite, named
from airflow_tx.state.redis.fence import (
    Call,
    FencedInRedis,
    RedisFence,
    RedisTransaction,
    checked_prefix,
    grant_text,
    receipt_arguments,
)
from airflow_tx.state.redis.scripts import COMMANDS

# Maximum number of parts of a command. A longer command overflows Lua's stack.
LONGEST_COMMAND = 7_000
COMMANDS_AT_ONCE = 5_000
_PART = (str, bytes, int, float, Decimal)

RedisCommand: TypeAlias = Sequence[Any]
RedisCommands: TypeAlias = Callable[[list[dict[str, Any]]], Iterable[RedisCommand]]


class RedisGuard(FencedInRedis):
    """Redis commands that run once per transaction. The script that runs them also stores the txid.

        def commands(rows):
            for row in rows:
                yield "HINCRBY", "hashtags", row["hashtag"], row["n"]

        RedisGuard("redis_default", prefix="tweets", commands=commands)

    If a commit is tried again, the guard finds the txid and runs nothing. The fence refuses a committer that was
    declared dead. If a command fails, Redis does not undo the commands before it. A script has up to 5,000 commands.
    Once you have removed the cause, the next try continues with the same command (docs/stores.md).

    Commands that have run are not undone. So, as with every transactional state, a replay must have the same output,
    and an opaque source is refused.

    :param conn_id: Airflow connection of type redis, looked up when the state is used.
    :param prefix: prefix of the fence, at `{<prefix>}:fence`. You choose the keys of the commands.
    :param commands: function that returns the commands for the rows of an update. Each command is a sequence of texts,
        bytes or numbers.
    """

    kind = StateKind.TRANSACTIONAL
    runs_once = "commands"

    def __init__(self, conn_id: str, *, prefix: str, commands: RedisCommands) -> None:
        super().__init__(conn_id, prefix)
        self.prefix = checked_prefix(prefix, "RedisGuard")
        self.commands = commands
        self.normalize(commands=named(commands))

    def _transaction(self, write: StateWrite) -> AbstractContextManager[_CommandsOnce]:
        return nullcontext(_CommandsOnce(self._fence, write, self.commands))

    def holds(self, txid: int) -> bool:
        with self._server.client() as client:
            last, done = client.hmget(self._fence.key["fence"], ["LAST_COMMIT", "done"])
        return last is not None and int(last) == txid and int(done) > 0

    def last_txid(self) -> int | None:
        """Return the last transaction whose commands started to run, or None if there is none."""
        with self._server.client() as client:
            found = client.hget(self._fence.key["fence"], "LAST_COMMIT")
        return None if found is None else int(found)


class _CommandsOnce(RedisTransaction):
    """Runs the commands of an update unless they have already run. For a skip, it does not run commands."""

    def __init__(self, held_by: RedisFence, write: StateWrite, commands: RedisCommands) -> None:
        super().__init__(held_by, write)
        self._make = commands
        self._commands: list[list[bytes]] = []

    def put(self) -> int:
        rows = list(map(dict, self._write.listed))
        self._commands = [
            self._parts(number, command) for number, command in enumerate(self._make(rows), 1)
        ]
        return len(rows)

    def _calls(self, receipt: Receipt | None) -> list[Call]:
        commands = self._commands
        mine = [
            grant_text(self._write.grant),
            *receipt_arguments(self._write.grant, receipt),
            self._digest(),
        ]
        calls = list[Call]()
        for start in range(0, max(len(commands), 1), COMMANDS_AT_ONCE):
            portion = commands[start : start + COMMANDS_AT_ONCE]
            last = start + COMMANDS_AT_ONCE >= len(commands)
            flat = [part for command in portion for part in (len(command), *command)]
            calls.append((COMMANDS, self._fence.keys, [*mine, start, int(last), *flat]))
        return calls

    def _digest(self) -> str:
        """Return the digest of all commands. Return "" for a skip."""
        if self._write.rows is None:
            return ""
        digest = hashlib.sha256()
        for command in self._commands:
            digest.update(b"%d;" % len(command))
            for part in command:
                digest.update(b"%d;%s" % (len(part), part))
        return digest.hexdigest()

    def _check(self, reply: list[Any]) -> None:
        super()._check(reply)
        answer, *rest = reply
        if answer == b"ok":
            return
        state = self._write.state
        txid = self._write.grant.txid
        if answer == b"changed":
            problem = f"an earlier try of transaction {txid} had other commands, and some of them may have run"
            remedy = "Commands must be the same on every replay, in the same order."
            raise StateError(state=state, problem=problem, remedy=remedy)
        number, error = (part.decode(errors="replace") for part in rest)
        remedy = "Earlier commands have run and will not run again. Remove the cause and clear the commit task: it "
        remedy += "continues with this command."
        problem = f"command {number} of transaction {txid} failed: {error}"
        raise StateError(state=state, problem=problem, remedy=remedy)

    def _parts(self, number: int, command: RedisCommand) -> list[bytes]:
        if isinstance(command, (str, bytes)) or not 0 < len(command) <= LONGEST_COMMAND:
            problem = f"command {number} is {str(command)[:100]!r}, not a sequence of 1 to {LONGEST_COMMAND} parts"
        else:
            wrong = [
                part for part in command if isinstance(part, bool) or not isinstance(part, _PART)
            ]
            if not wrong:
                return [part if isinstance(part, bytes) else str(part).encode() for part in command]
            problem = f"command {number} ({command[0]}) has the part {wrong[0]!r}, not a text, bytes or a number"
        raise StateError(
            state=self._write.state,
            problem=problem,
            remedy="Nothing was run. Correct the function `commands`.",
        )
