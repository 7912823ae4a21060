"""Stores of ackers: the interface, an implementation in znodes, another in Redis, their connections, and their load."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol
from urllib.parse import unquote

from airflow_tx.base.connections import (
    RedisFailure,
    airflow_connection,
    for_airflow,
    make_client,
    parameters_of_connection,
    parameters_of_url,
    redis_failures,
    server_addresses,
    wrong_type,
)
from airflow_tx.base.errors import (
    AckersRefused,
    AckersUnavailable,
    ConfigError,
    OutcomeUnknown,
    RequirementFailed,
    StaleMessage,
    StoreError,
    TooMuchMetadata,
    UnknownMessage,
)
from airflow_tx.base.inquiry import Inquiry
from airflow_tx.base.remedy import shortened_reason
from airflow_tx.ledger import (
    Create,
    Delete,
    Node,
    Phase,
    Put,
    Requirement,
    Store,
    TransactionRecord,
    Unchanged,
    Write,
)
from airflow_tx.outputs.messages.tree import Acker, Origin, Portion, Tree, TreeReport, check_number
from airflow_tx.provider_info import OPTIONS

# --- api ----------------------------------------------------------------------------------------------------------


class AckerStore(Protocol):
    """A store of the ackers of open transactions. Each method raises `AckersUnavailable` if the store does not answer.

    The call may still have been executed. Every call can be repeated with the same arguments.
    """

    def open(self, origin: Origin, birth: str, ackers: int) -> None:
        """Create the ackers of an attempt, and delete the ackers of older attempts.

        :param origin: the attempt.
        :param birth: the birth of the transaction.
        :param ackers: the number of ackers.
        :raises StaleMessage: a newer attempt is open.
        """

    def check(self, origin: Origin) -> None:
        """Check that the store accepts messages of an attempt.

        :raises StaleMessage: a newer attempt is open.
        :raises UnknownMessage: the transaction is not open.
        """

    def take(self, origin: Origin, acker: int, portion: Portion) -> list[int]:
        """Apply a portion in one atomic operation, like `Acker.take`. Return the roots that the acker does not know.

        If this method raises an error, no part of the portion was applied.

        :raises StaleMessage: a newer attempt is open.
        :raises UnknownMessage: the transaction is not open.
        :raises AckersBehind: the ackers' store has lost an earlier portion.
        """

    def fail(self, origin: Origin, reason: str) -> None:
        """Record that a message has failed. The store keeps only the first reason.

        :raises StaleMessage: a newer attempt is open.
        :raises UnknownMessage: the transaction is not open.
        """

    def report(self, origin: Origin) -> TreeReport:
        """Return the status of an attempt's trees.

        :raises StaleMessage: a newer attempt is open.
        :raises UnknownMessage: the transaction is not open.
        """

    def forget(self, origin: Origin) -> None:
        """Delete the ackers of a final transaction and of all earlier transactions, for every attempt."""

    def close(self) -> None:
        """Close the connection, if this object opened it."""


def not_open(origin: Origin) -> str:
    """Explain, as text, why a transaction is not open in the ackers."""
    return f"transaction {origin.txid} is not open: it has ended, or the store of the ackers was emptied"


# --- znodes -------------------------------------------------------------------------------------------------------
# Each acker is one znode, in ZooKeeper or in memory, which a versioned write replaces.


_PASSES = 1000
"""The maximum number of tries of a write. A try fails only if another worker has changed the znode at the same time."""


@dataclass(frozen=True)
class OpenAttempt:
    """The newest attempt of a transaction.

    :param attempt: the number of the attempt.
    :param birth: the birth of the transaction. A ledger that was reset assigns the same txids again.
    :param ackers: the number of ackers.
    :param failed: the reason why a message of the attempt failed, or None if no message failed.
    """

    attempt: int
    birth: str
    ackers: int
    failed: str | None = None

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class ZnodeAckers:
    """An `AckerStore` in the ZooKeeper of the ledgers, at `<root>.acks/<topology>@<incarnation>/<txid>`.

    :param store: the store of the znodes.
    :param root: the root of the ledgers.
    :param where: the name of the store in error messages.
    :param close: a function that closes the connection, or None if the caller closes it.
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
            if None in nodes:  # The attempt has just ended, or a newer attempt was opened.
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

    # --- a step, repeated if another write was first

    def _repeat(self, step: Callable[[], bool]) -> None:
        for _ in range(_PASSES):
            if step():
                return
            self._store.sync()
        raise AckersUnavailable(
            where=self._where, reason=f"a write was overtaken {_PASSES} times in a row"
        )

    def _sent(self, held: Sequence[Requirement], writes: Sequence[Write]) -> bool:
        """Return whether the write was applied.

        If unknown, return False: the step is repeated, and reads the result.
        """
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
            remedy = "Increase Transaction(ackers=...), emit fewer root messages, or keep the ackers in Redis."
            problem = f"an acker with so many open trees needs {error.size} bytes, but a znode can store {error.limit}"
            raise AckersRefused(where=self._where, problem=problem, remedy=remedy) from None
        except StoreError as error:
            raise AckersUnavailable(where=self._where, reason=str(error)) from error


# --- redis --------------------------------------------------------------------------------------------------------
# Each acker is one Redis hash, which only a script changes. `_TAKE` is `Acker.take` of `tree.py` in
# Lua.


# KEYS: the transaction, the prefix of its ackers, the set of txids. ARGV: attempt, birth, ackers, txid.
_OPEN = """
local found = redis.call('HMGET', KEYS[1], 'attempt', 'birth', 'ackers')
if found[1] and found[2] == ARGV[2] then
  if tonumber(found[1]) > tonumber(ARGV[1]) then return tonumber(found[1]) end
  if found[1] == ARGV[1] then return 0 end
end
for acker = 0, tonumber(found[3] or '0') - 1 do redis.call('DEL', KEYS[2] .. acker) end
redis.call('HDEL', KEYS[1], 'failed')
redis.call('HSET', KEYS[1], 'attempt', ARGV[1], 'birth', ARGV[2], 'ackers', ARGV[3])
redis.call('SADD', KEYS[3], ARGV[4])
return 0
"""

# KEYS: the transaction, the acker. ARGV: attempt, stream, number, emitter, number of acked
# messages, then root, XOR and count of each tree. Lua numbers have 53 bits, so the XOR is computed
# in two halves.
_TAKE = """
local newest = redis.call('HGET', KEYS[1], 'attempt')
if not newest then return {'ended'} end
if newest ~= ARGV[1] then return {'attempt', newest} end
local last = tonumber(redis.call('HGET', KEYS[2], 'number:' .. ARGV[2]) or '0')
local number = tonumber(ARGV[3])
if last == number then return {'taken'} end
if last ~= number - 1 then return {'behind', last} end
local function half(text, from) return tonumber(text:sub(from, from + 7), 16) end
local function xor(a, b)
  return bit.tohex(bit.bxor(half(a, 1), half(b, 1))) .. bit.tohex(bit.bxor(half(a, 9), half(b, 9)))
end
local answer, roots = {'taken'}, 0
for i = 6, #ARGV, 3 do
  local field, value, count = 'tree:' .. ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local owner, tree = ARGV[2], redis.call('HGET', KEYS[2], field)
  roots = roots + 1
  if tree then
    value, count = xor(value, tree:sub(1, 16)), count + tonumber(tree:match(' (-?%d+) '))
    owner = tree:match('(%x+)$')
  end
  if not tree and ARGV[4] == '' then
    answer[#answer + 1] = ARGV[i]
  elseif count == 0 and value == '0000000000000000' then
    redis.call('HDEL', KEYS[2], field)
  else
    redis.call('HSET', KEYS[2], field, value .. ' ' .. count .. ' ' .. owner)
  end
end
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[2], 'emitter:' .. ARGV[2], ARGV[4])
  redis.call('HINCRBY', KEYS[2], 'roots:' .. ARGV[2], roots)
end
redis.call('HINCRBY', KEYS[2], 'acked', ARGV[5])
redis.call('HSET', KEYS[2], 'number:' .. ARGV[2], ARGV[3])
return answer
"""

# KEYS: the transaction. ARGV: attempt, reason.
_FAIL = """
local newest = redis.call('HGET', KEYS[1], 'attempt')
if newest == ARGV[1] then redis.call('HSETNX', KEYS[1], 'failed', ARGV[2]) end
return newest
"""

# KEYS: the transaction, the prefix of its ackers. ARGV: attempt.
_REPORT = """
local found = redis.call('HMGET', KEYS[1], 'attempt', 'ackers', 'failed')
local ackers = {}
if found[1] == ARGV[1] then
  for acker = 0, tonumber(found[2]) - 1 do ackers[acker + 1] = redis.call('HGETALL', KEYS[2] .. acker) end
end
return {found[1], found[3], ackers}
"""

# KEYS: the transaction, the prefix of its ackers, the set of txids. ARGV: txid.
_FORGET = """
for acker = 0, tonumber(redis.call('HGET', KEYS[1], 'ackers') or '0') - 1 do redis.call('DEL', KEYS[2] .. acker) end
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[3], ARGV[1])
"""


class RedisAckers:
    """An `AckerStore` on a Redis server. In a cluster, all keys of a topology are in one slot.

    If a server without persistence loses data, the ackers detect the loss. The transaction is not committed, and needs
    a replay.

    :param parameters: the arguments of `redis.Redis`.
    :param where: the server name in error messages, without a password.
    :param prefix: the prefix of all keys.
    """

    def __init__(
        self, parameters: Mapping[str, Any], *, where: str, prefix: str = "airflow_tx.acks"
    ) -> None:
        self._parameters = parameters
        self._where = where
        self._prefix = prefix
        self._client = make_client(parameters, needed_by=f"the ackers at {where}")

    def open(self, origin: Origin, birth: str, ackers: int) -> None:
        keys = [*self._keys(origin), self._txids(origin)]
        newest = self._eval(_OPEN, keys, [origin.attempt, birth, ackers, origin.txid])
        if newest:
            raise StaleMessage(**origin.words, newest=newest)

    def check(self, origin: Origin) -> None:
        with self._errors():
            newest = self._client.hget(self._keys(origin)[0], "attempt")
        self._check(origin, newest)

    def take(self, origin: Origin, acker: int, portion: Portion) -> list[int]:
        transaction, ackers = self._keys(origin)
        arguments: list[Any] = [
            origin.attempt,
            portion.stream,
            portion.number,
            portion.emitter,
            portion.acked,
        ]
        for root, (value, count) in portion.changes.items():
            arguments += (f"{root:016x}", f"{value:016x}", count)
        answer, *found = self._eval(_TAKE, [transaction, f"{ackers}{acker}"], arguments)
        if answer == b"behind":
            check_number(origin, portion, found[0])
        elif answer != b"taken":
            self._check(origin, found[0] if found else None)
        return [int(root, 16) for root in found]

    def fail(self, origin: Origin, reason: str) -> None:
        self._check(
            origin,
            self._eval(
                _FAIL, self._keys(origin)[:1], [origin.attempt, shortened_reason(reason, 500)]
            ),
        )

    def report(self, origin: Origin) -> TreeReport:
        newest, failed, ackers = self._eval(_REPORT, self._keys(origin), [origin.attempt])
        self._check(origin, newest)
        return TreeReport.of(map(_acker, ackers), None if failed is None else failed.decode())

    def forget(self, origin: Origin) -> None:
        txids = self._txids(origin)
        with self._errors():
            known = self._client.smembers(txids)
        for each in sorted(int(each) for each in known):
            if each <= origin.txid:
                self._eval(_FORGET, [*self._keys(origin._replace(txid=each)), txids], [each])

    def close(self) -> None:
        self._client.close()

    def _keys(self, origin: Origin) -> list[str]:
        """Return the key of the transaction, and the key prefix of its ackers."""
        tag = self._txids(origin)
        return [f"{tag}:{origin.txid}", f"{tag}:{origin.txid}:"]

    def _txids(self, origin: Origin) -> str:
        return f"{{{self._prefix}:{origin.place}}}"

    def _check(self, origin: Origin, newest: bytes | None) -> None:
        if newest is not None and int(newest) > origin.attempt:
            raise StaleMessage(**origin.words, newest=int(newest))
        if newest is None or int(newest) < origin.attempt:
            raise UnknownMessage(**origin.words, problem=not_open(origin))

    def _eval(self, script: str, keys: list[str], arguments: list[Any]) -> Any:
        with self._errors():
            return self._client.eval(script, len(keys), *keys, *arguments)

    def _errors(self) -> AbstractContextManager[None]:
        return redis_failures(self._parameters, self._error)

    def _error(self, failure: RedisFailure) -> Exception:
        if failure.away or not failure.answered:
            return AckersUnavailable(where=self._where, reason=failure.text)
        remedy = "Check the log of the server. Until the server works, no transaction with messages is committed."
        return AckersRefused(where=self._where, problem=failure.text, remedy=remedy)


def _acker(pairs: list[bytes]) -> Acker:
    trees = dict[int, Tree]()
    numbers = dict[str, int]()
    emitters = dict[str, str]()
    roots = dict[str, int]()
    acked = 0
    for name, value in zip(pairs[::2], pairs[1::2], strict=True):
        kind, _, key = name.decode().partition(":")
        if kind == "tree":
            total, count, owner = value.decode().split(" ")
            trees[int(key, 16)] = Tree(int(total, 16), int(count), owner)
        elif kind == "number":
            numbers[key] = int(value)
        elif kind == "emitter":
            emitters[key] = value.decode()
        elif kind == "acked":
            acked = int(value)
        else:
            roots[key] = int(value)
    return Acker(
        trees,
        numbers,
        {stream: (emitter, roots[stream]) for stream, emitter in emitters.items()},
        acked,
    )


# --- location -----------------------------------------------------------------------------------------------------
# Ackers are located by an Airflow connection, or by a URL for a worker without Airflow.


DEFAULT_ROOT: str = OPTIONS["root"]["default"]
_OPTION = "acker_store"


@contextmanager
def ackers_of(conn_id: str | None, ledger: Store, root: str) -> Iterator[AckerStore]:
    """Connect to the ackers of a transaction, until the `with` block ends.

    :param conn_id: the id of an Airflow connection, or None if the ackers are next to the ledger.
    :param ledger: the store of the ledger.
    :param root: the root of the ledgers.
    :raises ConfigError, AckersUnavailable: see `open_ackers`.
    """
    if conn_id is None:
        yield ZnodeAckers(ledger, root)
        return
    store = open_ackers(conn_id, root=root)
    try:
        yield store
    finally:
        store.close()


_shared: dict[tuple[int, str, str], AckerStore] = {}


@contextmanager
def shared_ackers(conn_id: str | None, ledger: Store, root: str) -> Iterator[AckerStore]:
    """Connect like `ackers_of`, and keep the connection until it fails. A triggerer queries the ackers every second."""
    if conn_id is None:
        yield ZnodeAckers(ledger, root)
        return
    key = (os.getpid(), conn_id, root)
    store = _shared.get(key) or _shared.setdefault(key, open_ackers(conn_id, root=root))
    try:
        yield store
    except AckersUnavailable:
        _shared.pop(key, None)
        store.close()
        raise


def open_ackers(where: str, *, root: str = DEFAULT_ROOT) -> AckerStore:
    """Connect to the ackers. Call the store's `close` when you no longer need it.

    :param where: redis://user:password@host:port/db, zookeeper://host:port,host:port/root, or the id of an Airflow
        connection of type redis or zookeeper.
    :param root: the root of the ledgers, for a ZooKeeper connection.
    :raises ConfigError: the connection does not exist, or has another type.
    :raises AckersUnavailable: the store of the ackers does not answer.
    """
    scheme, separator, _ = where.partition("://")
    if separator and scheme == "zookeeper":
        return _of_zookeeper_url(where)
    if separator:
        return RedisAckers(parameters_of_url(where), where="redis")
    connection = airflow_connection(where, option=_OPTION, conn_type="redis")
    if connection.conn_type == "redis":
        return RedisAckers(
            parameters_of_connection(where, what=_OPTION), where=f"connection {where}"
        )
    if connection.conn_type == "zookeeper":
        return _of_zookeeper_connection(where, root)
    raise wrong_type(connection, _OPTION, "redis or zookeeper")


def _of_zookeeper_url(url: str) -> ZnodeAckers:
    from airflow_tx.ledger import ClientConfig, ZooKeeperStore, connect, disconnect

    # urlsplit supports only one host.
    netloc, _, path = url.partition("://")[2].partition("/")
    login, _, given = netloc.rpartition("@")
    user, _, password = login.partition(":")
    try:
        hosts = ",".join(server_addresses(given, 2181))
    except ValueError:
        hosts = ""
    if not hosts:
        remedy = "Use zookeeper://host:port/root, with an IPv6 address in brackets."
        raise ConfigError(option=_OPTION, value=f"zookeeper://{given}", remedy=remedy)
    try:
        client = connect(
            ClientConfig(hosts, login=unquote(user) or None, password=unquote(password) or None)
        )
    except StoreError as error:
        raise AckersUnavailable(where=f"ZooKeeper {hosts}", reason=str(error)) from error
    root = f"/{path}" if path.strip("/") else DEFAULT_ROOT
    store = ZooKeeperStore(client, hosts=hosts)
    return ZnodeAckers(store, root, where=f"ZooKeeper {hosts}", close=lambda: disconnect(client))


def _of_zookeeper_connection(conn_id: str, root: str) -> ZnodeAckers:
    from airflow_tx.hooks import ZooKeeperHook
    from airflow_tx.ledger import disconnect

    for_airflow(conn_id)
    try:
        client, store = ZooKeeperHook(conn_id).connect()
    except StoreError as error:
        raise AckersUnavailable(where=f"connection {conn_id}", reason=str(error)) from error
    return ZnodeAckers(store, root, where=f"connection {conn_id}", close=lambda: disconnect(client))


# --- load ---------------------------------------------------------------------------------------------------------
# The load of a topology's ackers is read at intervals for the metrics and the Transactions page.


@dataclass(frozen=True)
class AckerLoad:
    """The load of the ackers across all open transactions.

    :param trees: the number of incomplete message trees.
    :param acks_a_second: the number of acked messages per second since the last reading, or None for the first reading.
        A message in several trees counts once in each tree.
    """

    trees: int
    acks_a_second: float | None


class AckerWatch(Inquiry[AckerLoad]):
    """Reads the load of one topology's ackers at intervals."""

    def __init__(self, topology: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(f"ackers of {topology}", clock=clock)
        self._topology = topology
        self._acked: Mapping[Origin, int] = {}
        self._looked_at: float | None = None

    def ask_ackers(
        self,
        connect: Callable[[], AbstractContextManager[AckerStore]],
        opened: Mapping[int, TransactionRecord],
        incarnation: str,
    ) -> None:
        """Read the load of the ackers in a thread, unless an earlier thread is still waiting for a response.

        :param connect: a function that connects to the ackers for a `with` block.
        :param opened: the open transactions, by txid.
        :param incarnation: the incarnation of the topology.
        """

        def question() -> AckerLoad:
            with connect() as store:
                return self.look(store, opened, incarnation)

        self.ask(lambda: question)

    def look(
        self, store: AckerStore, opened: Mapping[int, TransactionRecord], incarnation: str
    ) -> AckerLoad:
        """Return the load of the transactions that are still waiting for messages.

        :raises AckersUnavailable: the store of the ackers does not answer.
        """
        trees = 0
        acked = dict[Origin, int]()
        for txid, record in opened.items():
            if record.phase is not Phase.PROCESSING:
                continue
            origin = Origin(self._topology, txid, record.attempt, incarnation)
            with suppress(StaleMessage, UnknownMessage):  # the attempt has just started or ended
                report = store.report(origin)
                trees += sum(report.open.values())
                acked[origin] = report.acked
        return AckerLoad(trees, self._acks_a_second(acked))

    def _acks_a_second(self, acked: Mapping[Origin, int]) -> float | None:
        now = self._clock()
        before = self._looked_at
        self._looked_at = self._clock()
        grown = sum(max(count - self._acked.get(origin, 0), 0) for origin, count in acked.items())
        self._acked = acked
        return None if before is None else grown / max(now - before, 0.001)
