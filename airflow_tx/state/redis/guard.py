"""Redis commands of one's own, exactly once per transaction: the LAST_COMMIT of the book's committer, under a fence.

Source: book chapter 8 (RedisCommiterCommiterBolt), protocol.md §7.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

from airflow_tx.errors import StateError
from airflow_tx.protocol.receipt import Written
from airflow_tx.state import fence
from airflow_tx.state.api import Grant, StateKind, named
from airflow_tx.state.redis.connection import checked_prefix
from airflow_tx.state.redis.fence import RACES, Call, FencedInRedis, grant_text, receipt_arguments
from airflow_tx.state.redis.scripts import COMMANDS
from airflow_tx.state.row_tally import RowTally

# A longer command overflows Lua's stack.
LONGEST_COMMAND = 7_000
COMMANDS_AT_ONCE = 5_000
_PART = (str, bytes, int, float, Decimal)

Command: TypeAlias = Sequence[Any]
Commands: TypeAlias = Callable[[list[dict[str, Any]]], Iterable[Command]]


class RedisGuard(FencedInRedis):
    """Commands that run once per transaction, in one script with the note of its txid.

        def commands(rows):
            for row in rows:
                yield "HINCRBY", "hashtags", row["hashtag"], row["n"]

        RedisGuard("redis_default", prefix="tweets", commands=commands)

    A commit that is tried again finds the txid and runs nothing; a committer thought dead is refused by the fence.
    Redis does not take back the commands before one that fails, nor those of earlier scripts (5,000 each): the next try
    goes on behind them, with the same commands, once the cause is removed (docs/stores.md).

    What has run is not undone: a replay must have the same output, as with every transactional state, and an opaque
    source is refused.

    :param conn_id: Airflow connection of type redis; looked up when the state is used.
    :param prefix: the fence is at `{<prefix>}:fence`; the keys of the commands are yours.
    :param commands: gives the commands for the rows of an update, each a sequence of its parts: texts,
        bytes or numbers.
    """

    kind = StateKind.TRANSACTIONAL

    def __init__(self, conn_id: str, *, prefix: str, commands: Commands) -> None:
        super().__init__(conn_id, prefix)
        self.prefix = checked_prefix(prefix, "RedisGuard")
        self.commands = commands

    def _parameters(self) -> dict[str, Any]:
        return {"conn_id": self.conn_id, "prefix": self.prefix, "commands": named(self.commands)}

    def raise_fence(self, grant: Grant) -> None:
        self._raise(grant, [])

    def write(self, grant: Grant, rows: Iterable[Mapping[str, Any]], *, chunk: int = 0, complete: bool = True) -> int:
        if not complete:
            problem = "it was given a part of an update, and its commands run once"
            raise StateError(state=self.name, problem=problem, remedy="Give all rows in one write.")
        tally = RowTally.of(rows)
        given = list(map(dict, tally))
        calls = self._calls(grant, given, tally)
        fence.check_write(self._fence.read().row, grant, state=self.name)
        self._run(calls, grant)
        return len(given)

    def raise_and_write(self, grant: Grant, rows: Iterable[Mapping[str, Any]]) -> int:
        tally = RowTally.of(rows)
        given = list(map(dict, tally))
        first, *more = self._calls(grant, given, tally)
        replies = self._raise(grant, [first], last=not more)
        self._check(replies[0], grant)
        self._run(more, grant)
        return len(given)

    def pass_over(self, grant: Grant) -> None:
        fence.check_write(self._fence.read().row, grant, state=self.name)
        receipt = receipt_arguments(grant, self.name, Written())
        self._run([(COMMANDS, self._fence.keys, [grant_text(grant), *receipt, "", 0, 1])], grant)

    def holds(self, txid: int) -> bool:
        with self._server.client() as client:
            last, done = client.hmget(self._fence.key["fence"], ["LAST_COMMIT", "done"])
        return last is not None and int(last) == txid and int(done) > 0

    def last_txid(self) -> int | None:
        """Read the last transaction whose commands ran, or of which some did; None: there was none."""
        with self._server.client() as client:
            found = client.hget(self._fence.key["fence"], "LAST_COMMIT")
        return None if found is None else int(found)

    def _raise(self, grant: Grant, calls: list[Call], *, last: bool = False) -> list[Any]:
        for _ in range(RACES):
            held = self._fence.read()
            row = self._fence.raised(held, grant)
            raising = self._fence.raise_calls(held, row, grant)
            raised, *replies = self._server.run([*raising, *calls], whole=True, last=last)
            if self._fence.has_raised(raised, held, grant):
                return list(replies)
        raise self._server.refused(f"the fence changed {RACES} times in a row", "Clear the task.")

    def _calls(self, grant: Grant, rows: list[dict[str, Any]], tally: RowTally) -> list[Call]:
        commands = [self._parts(number, command) for number, command in enumerate(self.commands(rows), 1)]
        digest = hashlib.sha256()
        for command in commands:
            digest.update(b"%d;" % len(command))
            for part in command:
                digest.update(b"%d;%s" % (len(part), part))
        receipt = receipt_arguments(grant, self.name, tally.written(len(rows)))
        mine = [grant_text(grant), *receipt, digest.hexdigest()]
        calls = list[Call]()
        for start in range(0, max(len(commands), 1), COMMANDS_AT_ONCE):
            portion = commands[start : start + COMMANDS_AT_ONCE]
            last = start + COMMANDS_AT_ONCE >= len(commands)
            flat = [part for command in portion for part in (len(command), *command)]
            calls.append((COMMANDS, self._fence.keys, [*mine, start, int(last), *flat]))
        return calls

    def _run(self, calls: list[Call], grant: Grant) -> None:
        for call in calls:
            (reply,) = self._server.run([call], last=call is calls[-1])
            self._check(reply, grant)

    def _check(self, reply: list[bytes], grant: Grant) -> None:
        answer, *rest = reply
        if answer == b"ok":
            return
        if answer == b"outranked":
            raise self._fence.outranked(grant)
        if answer == b"restarted":
            raise self._server.restarted()
        if answer == b"changed":
            problem = f"transaction {grant.txid} gave other commands in an earlier try, which may have run"
            remedy = "Commands must be the same on every replay, in the same order."
            raise StateError(state=self.name, problem=problem, remedy=remedy)
        number, error = (part.decode(errors="replace") for part in rest)
        remedy = "Those before it have run and will not run again. Remove the cause and clear the commit task: it "
        remedy += "goes on with this command."
        problem = f"command {number} of transaction {grant.txid} failed: {error}"
        raise StateError(state=self.name, problem=problem, remedy=remedy)

    def _parts(self, number: int, command: Command) -> list[bytes]:
        if isinstance(command, (str, bytes)) or not 0 < len(command) <= LONGEST_COMMAND:
            problem = f"command {number} is {str(command)[:100]!r}: not a sequence of 1 to {LONGEST_COMMAND} parts"
        else:
            wrong = [part for part in command if isinstance(part, bool) or not isinstance(part, _PART)]
            if not wrong:
                return [part if isinstance(part, bytes) else str(part).encode() for part in command]
            problem = f"command {number} ({command[0]}) has the part {wrong[0]!r}: not a text, bytes or number"
        raise StateError(state=self.name, problem=problem, remedy="Nothing was run. Correct the function `commands`.")
