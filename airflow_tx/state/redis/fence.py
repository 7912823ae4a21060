"""The fence of a Redis state: a Redis hash that is updated with compare-and-set.

Its rules are in `airflow_tx.state.fence`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from airflow_tx.base.connections import (
    RedisFailure,
    make_client,
    parameters_of_connection,
    parameters_of_url,
    redis_dataset,
    redis_failures,
)
from airflow_tx.base.dataset import Dataset
from airflow_tx.base.errors import (
    ConfigError,
    FenceOutranked,
    OutputChanged,
    SkipRefused,
    StateBehind,
    StateDiffers,
    StateError,
    StateOutcomeUnknown,
    StateUnavailable,
)
from airflow_tx.base.failpoints import failpoint
from airflow_tx.ledger import Receipt, Token
from airflow_tx.state import fence
from airflow_tx.state.api import (
    TRIES,
    Addressed,
    Fence,
    FenceMoved,
    Grant,
    StateKind,
    StateWrite,
    StoredReceipt,
    StoredState,
)
from airflow_tx.state.redis.scripts import KEYS, RAISE, RECEIPTS_KEPT, RECOUNT, UNDO

# --- connection ---------------------------------------------------------------------------------------------------
# The client through which a state uses a Redis server.


class RedisServer:
    """A Redis server. Its failures are raised as errors of this package.

    :param parameters: parameters of `redis.Redis`.
    :param state: name of the state, for messages.
    :param where: name of the server in messages, without address or password.
    """

    def __init__(self, parameters: Mapping[str, Any], *, state: str, where: str) -> None:
        self._parameters = parameters
        self._state = state
        self._where = where

    def dataset(self, key: str) -> Dataset:
        return redis_dataset(self._parameters, key)

    @contextmanager
    def client(self, *, last: bool = False) -> Iterator[Any]:
        """Yield the client. It never retries a command.

        :param last: whether the response decides if the update is complete.
        :raises StateUnavailable: the server does not respond, or refuses the connection.
        :raises StateOutcomeUnknown: the server does not respond to the last call.
        :raises StateError: the server refuses a command.
        """
        with redis_failures(self._parameters, partial(self._error, last=last)):
            yield self._client

    def _error(self, failure: RedisFailure, *, last: bool) -> StateError:
        if failure.away:
            kind = StateOutcomeUnknown if last and failure.sent else StateUnavailable
            return kind(state=self._state, where=self._where, reason=failure.text)
        return self.refused(f"{'the server says: ' if failure.answered else ''}{failure.text}")

    def run_scripts(
        self,
        calls: list[tuple[str, list[str], list[Any]]],
        *,
        whole: bool = False,
        last: bool = False,
    ) -> Any:
        """Run several scripts, in order, in one round trip. Return the reply of each script.

        :param calls: script, keys and arguments of each call.
        :param whole: whether the scripts run as one transaction.
        :param last: whether the response decides if the update is complete, as for `client`.
        """
        with self.client(last=last) as client:
            if len(calls) == 1:
                ((script, keys, arguments),) = calls
                return [client.eval(script, len(keys), *keys, *arguments)]
            pipeline = client.pipeline(transaction=whole)
            for script, keys, arguments in calls:
                pipeline.eval(script, len(keys), *keys, *arguments)
            # Raise errors here. If the pipeline raised an error, its message would contain the
            # whole command.
            replies = pipeline.execute(raise_on_error=False)
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
            return replies

    def refused(
        self, problem: str, remedy: str = "No value of this update was committed."
    ) -> StateError:
        return StateError(state=self._state, problem=problem, remedy=remedy)

    def restarted(self) -> StateUnavailable:
        reason = "the server was restarted or replaced after the fence was raised, and may have lost written values"
        return StateUnavailable(state=self._state, where=self._where, reason=reason)

    @cached_property
    def _client(self) -> Any:
        return make_client(self._parameters, needed_by=self._state)


def server_of(conn_id: str, url: str | None, *, state: str) -> RedisServer:
    """Return the server of a URL. Without a URL, return the server of a connection id."""
    if url is not None:
        return RedisServer(parameters_of_url(url), state=state, where="Redis server")
    return RedisServer(
        parameters_of_connection(conn_id, what="RedisState"),
        state=state,
        where=f"connection {conn_id}",
    )


def checked_prefix(prefix: str, what: str) -> str:
    """Refuse a prefix that cannot be the hash tag of a Redis key."""
    if not prefix or "{" in prefix or "}" in prefix:
        raise ConfigError(
            option=f"{what}(prefix=)", value=prefix, remedy="Give a text without braces."
        )
    return prefix


# --- fence --------------------------------------------------------------------------------------------------------


_FORMAT = 1
Call = tuple[str, list[str], list[Any]]


@dataclass(frozen=True)
class FenceReading:
    """The content of a fence in Redis, and the schema of its state.

    :param row: the fence; None if no grant has raised it.
    :param identity: the grant, as the text that scripts compare.
    :param schema: names and types of the columns; None before the first update.
    """

    row: Fence | None
    identity: str
    schema: bytes | None

    def is_of(self, txid: int) -> bool:
        return self.row is not None and self.row.token.txid == txid


def grant_text(row: Fence | Grant) -> str:
    """Return a grant as text, for scripts to compare."""
    token = row.token
    return "|".join(map(str, (row.incarnation, *token.rank, token.nonce)))


def receipt_arguments(grant: Grant, receipt: Receipt | None) -> list[Any]:
    """Return the four script arguments that store a receipt. For None, the script does not store a receipt."""
    text = ["", ""] if receipt is None else [receipt.text, receipt.hash]
    return [grant.txid, grant.token.attempt, *text]


def _stored_receipt(fields: Mapping[bytes, bytes]) -> StoredReceipt:
    text = {name.decode(): value.decode() for name, value in fields.items()}
    return StoredReceipt(int(text["txid"]), int(text["attempt"]), text["receipt"], text["hash"])


class RedisFence:
    """The fence of one state. Its Redis keys begin with the state's prefix, in braces."""

    def __init__(self, server: RedisServer, *, prefix: str, state: str, kind: StateKind) -> None:
        self.keys = [f"{{{prefix}}}:{name}" for name in KEYS]
        self.key = dict(zip(KEYS, self.keys, strict=True))
        self.server = server
        self._state = state
        self._kind = kind

    def read(self) -> FenceReading:
        """Read the fence and the schema at the same moment."""
        with self.server.client() as client:
            pipeline = client.pipeline(transaction=True)
            pipeline.hgetall(self.key["fence"])
            pipeline.get(self.key["schema"])
            found, schema = pipeline.execute()
        fields = {name.decode(): value.decode() for name, value in found.items()}
        row = self._row(fields) if fields else None
        return FenceReading(row, "" if row is None else grant_text(row), schema)

    def raised(self, held: FenceReading, grant: Grant) -> Fence:
        """Return the raised fence, by the rules that all states share."""
        # Only the script can check the values, because other writers may change them until it runs.
        return fence.raised(held.row, grant, state=self._state, holds=lambda: False)

    def raise_calls(
        self, held: FenceReading, row: Fence, grant: Grant, *, undoing: bool
    ) -> list[Call]:
        token = row.token
        # Values that a repair has accepted may be incomplete.
        accept = fence.owns(grant, state=self._state)
        if held.row is not None:
            accept = fence.accepted(held.row, grant, state=self._state)
        fields = {
            "format": _FORMAT,
            "state": row.state,
            "incarnation": row.incarnation,
            **token.to_json(),
        }
        fields |= {"applied": int(row.applied), "batch": row.batch}
        opaque = self._kind is StateKind.OPAQUE
        arguments = [held.identity, grant_text(grant), grant.txid, int(opaque), int(accept)]
        arguments.append(int(not opaque and self._if_held(held, grant) is not None))
        arguments.append(int(undoing))
        return [
            (RAISE, self.keys, [*arguments, *(part for pair in fields.items() for part in pair)])
        ]

    def has_raised(self, reply: list[Any], held: FenceReading, grant: Grant) -> bool:
        """Return whether the script has raised the fence, according to its reply.

        Finish a long roll-back. If the result is False, the caller must read the fence again.

        :raises StateBehind: the state has lost keys.
        :raises StateDiffers: the state has values but no fence.
        :raises OutputChanged: the state already has rows of the transaction that this grant does not write.
        :raises SkipRefused: the grant skips the transaction, and the state has rows of it that cannot be undone.
        """
        if reply[0] == b"moved":
            return False
        if reply[0] == b"held" and (refusal := self._if_held(held, grant)) is not None:
            raise refusal
        if reply[0] == b"counts":
            raise (
                self._of_nobody() if held.row is None else self._behind(grant, self.vanished(reply))
            )
        cursor = reply[1]
        while cursor != b"0":
            ((answer, *rest),) = self.server.run_scripts(
                [(UNDO, self.keys, [grant_text(grant), cursor])]
            )
            if answer == b"outranked":
                raise self.outranked(grant)
            (cursor,) = rest
        return True

    def _if_held(self, held: FenceReading, grant: Grant) -> OutputChanged | SkipRefused | None:
        return None if held.row is None else fence.if_held(held.row, grant, state=self._state)

    def outranked(self, grant: Grant) -> FenceOutranked:
        """Return the error for a refused write. It names the grant that the fence currently holds."""
        try:
            fence.check_write(self.read().row, grant, state=self._state)
        except FenceOutranked as error:
            return error
        return FenceOutranked(
            state=self._state, token=str(grant.token), found="another grant during the write"
        )

    def vanished(self, reply: list[Any]) -> str:
        """Return a description of the mismatch that the reply "counts" reports."""
        found, noted = (list(map(int, part.split(b":"))) for part in reply[1:])
        if found == noted:
            return (
                f"{noted[0]} keys of values, but the value of one key has changed "
                "(an older copy, or changed by hand)"
            )
        return (
            f"{noted[0]} keys of values and {noted[1] + noted[2]} notes for a roll-back, "
            f"but Redis has {found[0]} and {found[1] + found[2]} (evicted, expired, or changed by hand)"
        )

    def _of_nobody(self) -> StateDiffers:
        # Values in Redis have no txid, so the remedy cannot be to remove their txids.
        problem = (
            "it has values but no fence, as if it were a copy of another state. Nothing was written"
        )
        keys = " ".join(json.dumps(key, ensure_ascii=False) for key in self.keys)
        remedy = f"Give it another prefix, or delete them in Redis and clear the commit task: UNLINK {keys}"
        return StateDiffers(state=self._state, problem=problem, remedy=remedy)

    def _behind(self, grant: Grant, found: str) -> StateBehind:
        expected = grant.last_txids.get(self._state, "nothing")
        return StateBehind(
            state=self._state, topology=grant.topology, expected=expected, found=found
        )

    def _row(self, fields: Mapping[str, str]) -> Fence:
        if fields.get("format") != str(_FORMAT):
            problem = (
                f"its fence has format {fields.get('format')}, but this version supports {_FORMAT}"
            )
            raise StateDiffers(
                state=self._state, problem=problem, remedy="Upgrade airflow-provider-tx."
            )
        generation, txid, attempt, epoch = (
            int(fields[name]) for name in ("generation", "txid", "attempt", "epoch")
        )
        token = Token(generation, txid, attempt, epoch, fields["nonce"], fields["birth"])
        return Fence(
            fields["incarnation"], token, fields["applied"] == "1", fields["batch"], fields["state"]
        )


class RedisTransaction:
    """One write to a state. Each of its scripts compares the fence before it changes anything.

    If the write raises the fence, its first script runs in the same transaction of the server.

    :cvar scripts_at_once: number of scripts that are sent before the reply to the first one is read.
    """

    scripts_at_once = 1

    def __init__(self, held_by: RedisFence, write: StateWrite) -> None:
        self._fence = held_by
        self._write = write
        self._held = held_by.read()
        if write.raising:
            self._raised = held_by.raised(self._held, write.grant)
        else:
            fence.check_write(self._held.row, write.grant, state=write.state)
        if write.undoing:
            assert self._held.row is not None
            self._raised = replace(self._held.row, applied=False)

    def put(self) -> int:
        """Prepare the data for the scripts to write. Return the number of keys."""
        raise NotImplementedError

    def end(self, receipt: Receipt | None) -> None:
        """Send the scripts to the server."""
        write = self._write
        only_raises = write.rows is None and not write.complete
        calls = [] if only_raises else self._calls(receipt)
        if write.raising or write.undoing:
            calls = self._raise_with(calls)
        self._send(calls)

    def _calls(self, receipt: Receipt | None) -> list[Call]:
        """Return the scripts of the write; there is at least one."""
        raise NotImplementedError

    def _check(self, reply: list[Any]) -> None:
        """Raise the error that a script's reply names."""
        answer = reply[0]
        if answer == b"outranked":
            raise self._fence.outranked(self._write.grant)
        if answer == b"restarted":
            raise self._fence.server.restarted()

    def _raise_with(self, calls: list[Call]) -> list[Call]:
        """Raise the fence and run the first script. Return the other scripts."""
        grant = self._write.grant
        raising = self._fence.raise_calls(
            self._held, self._raised, grant, undoing=self._write.undoing
        )
        raised, *replies = self._fence.server.run_scripts(
            [*raising, *calls[:1]], whole=True, last=len(calls) == 1
        )
        if not self._fence.has_raised(raised, self._held, grant):
            raise FenceMoved
        for reply in replies:
            if reply[0] == b"undoing":  # the roll-back was too long for one script
                return calls
            self._check(reply)
        return calls[1:]

    def _send(self, calls: list[Call]) -> None:
        # Send the script that completes the update only after all other scripts have replied.
        others = len(calls) - 1 if self._write.complete else len(calls)
        for start in range(0, others, self.scripts_at_once):
            for reply in self._fence.server.run_scripts(
                calls[start : min(start + self.scripts_at_once, others)]
            ):
                self._check(reply)
            failpoint("redis_state.between_portions", state=self._write.state)
        for call in calls[max(others, 0) :]:
            (reply,) = self._fence.server.run_scripts([call], last=True)
            self._check(reply)


class FencedInRedis(Addressed[RedisFence], StoredState):
    """A state in Redis that has a fence."""

    prefix: str
    can_clear = True
    receipts_kept = RECEIPTS_KEPT

    def fence(self) -> Fence | None:
        return self._fence.read().row

    def receipts(self) -> list[StoredReceipt]:
        with self._server.client() as client:
            found = client.xrange(self._fence.key["receipts"])
        return sorted((_stored_receipt(fields) for _, fields in found), key=lambda each: each.txid)

    def accept_values(self, change: int = 0) -> None:
        for _ in range(TRIES):
            held = self._fence.read()
            batch = "" if held.row is None else fence.with_change(held.row, change).batch
            arguments = [held.identity, batch]
            ((answer, *_),) = self._server.run_scripts([(RECOUNT, self._fence.keys, arguments)])
            if answer != b"moved":
                return
        raise self._server.refused("commits write to it without a pause")

    def fence_of(self, old: str) -> Fence | None:
        moved = RedisFence(
            self._server,
            prefix=old.removeprefix(f"{self.conn_id}."),
            state=self.name,
            kind=self.kind,
        )
        return self.fence() or moved.read().row

    def take_over(self, old: str) -> None:
        place = old.removeprefix(f"{self.conn_id}.")
        with self._server.client() as client:
            moved = [
                (f"{{{place}}}:{name}", own)
                for name, own in zip(KEYS, self._fence.keys, strict=True)
            ]
            pipeline = client.pipeline(transaction=True)
            for key, own in moved:
                if client.exists(key):
                    pipeline.rename(key, own)
            pipeline.execute()

    def clear(self) -> None:
        with self._server.client() as client:
            client.unlink(*self._fence.keys)

    def _open(self) -> RedisFence:
        server = server_of(self.conn_id, self._url, state=self.name)
        return RedisFence(server, prefix=self.prefix, state=self.name, kind=self.kind)

    @property
    def _fence(self) -> RedisFence:
        return self._store

    @property
    def _server(self) -> RedisServer:
        return self._store.server
