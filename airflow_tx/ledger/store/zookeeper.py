"""The store of a ledger in ZooKeeper. Each step is one multi. Source: docs/protocol.md §1."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import partial
from typing import Any

from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import (  # type: ignore[import-untyped]
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
    ZookeeperError,
)
from kazoo.handlers.threading import KazooTimeoutError  # type: ignore[import-untyped]
from kazoo.protocol.states import Callback, KeeperState, ZnodeStat  # type: ignore[import-untyped]

from airflow_tx.base.errors import OutcomeUnknown, RequirementFailed, StoreError, StoreUnavailable
from airflow_tx.ledger.api import (
    ANY_VERSION,
    Absent,
    Children,
    Create,
    Delete,
    Node,
    Put,
    Requirement,
    Store,
    Unchanged,
    Watch,
    Write,
)
from airflow_tx.ledger.store.client import (
    check_proven,
    request_refused,
    send_proven,
    with_parents,
)
from airflow_tx.ledger.store.memory import LIMIT, check_sizes, explain_loss

# --- zookeeper ----------------------------------------------------------------------------------------------------


_LOST = (ConnectionLoss, SessionExpiredError, SessionMovedError, OperationTimeoutError)


class ZooKeeperStore(Store):
    """A `Store` on a connected kazoo client. It is thread-safe.

    A write is never sent twice, even if its response is lost. Since ZooKeeper keeps the order of one session, a `sync`
    and a read by the same store then show whether the write happened. Another client's read could be too early to show
    it.

    :param client: a client from `airflow_tx.ledger.store.client.connect`, which the caller closes.
    :param conn: id of the Airflow connection, for messages.
    :param hosts: hosts of the connection, for messages.
    :param read_timeout: seconds for which reads are retried while the connection is lost.
    :param write_timeout: seconds after which the outcome of an unanswered write is unknown.
    :param limit: maximum bytes of one request, as in the servers' jute.maxbuffer.
    """

    def __init__(
        self,
        client: KazooClient,
        *,
        conn: str = "none",
        hosts: str = "",
        read_timeout: float = 30.0,
        write_timeout: float = 30.0,
        limit: int = LIMIT,
    ) -> None:
        self._client = client
        self._conn = conn
        self._hosts = hosts or ",".join(f"{host}:{port}" for host, port in client.hosts)
        self._read_timeout = read_timeout
        self._write_timeout = write_timeout
        self._limit = limit
        self._state = threading.Condition()
        self._requests = 0
        self._lost_at: float | None = None
        # ZooKeeper cannot cancel a watch, so one callback serves all waiters in this list.
        self._waiting: list[tuple[tuple[str, ...], threading.Event]] = []
        self._announced: dict[str, bytes] = {}
        client.add_listener(self._on_state)

    @property
    def where(self) -> str:
        return f"ZooKeeper {self._hosts} (connection {self._conn})"

    @property
    def requests(self) -> int:
        """Number of requests that this store has sent. A multi counts as one request."""
        return self._requests

    @property
    def ended(self) -> bool:
        """Whether the client is closed or permanently refused, so that it can never reconnect."""
        return self._client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED)

    @property
    def connected(self) -> bool:
        """Whether the client is connected now."""
        return bool(self._client.connected)

    @property
    def lost_for(self) -> float:
        """Seconds since the connection was lost; 0 while the client is connected."""
        lost_at = self._lost_at
        return 0.0 if lost_at is None or self._client.connected else time.monotonic() - lost_at

    def get(self, path: str) -> Node | None:
        try:
            data, stat = self._read(path, lambda: self._client.get_async(path))
        except NoNodeError:
            return None
        return node_of(data, stat)

    def children(self, path: str) -> Children | None:
        try:
            names, stat = self._read(
                path, lambda: self._client.get_children_async(path, include_data=True)
            )
        except NoNodeError:
            return None
        return Children(tuple(sorted(names)), stat.version)

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        size = check_sizes(
            requirements, writes, limit=self._limit, prefix=len(self._client.chroot or "")
        )
        operations = [*_checks(requirements, writes), *writes]
        if not operations:
            return
        transaction = self._client.transaction()
        for operation in operations:
            _add(transaction, operation)
        self._await_connection(time.monotonic() + self._read_timeout)
        try:
            results = self._sent(transaction.commit_async).get(timeout=self._write_timeout)
        except (KazooException, KazooTimeoutError) as error:
            raise OutcomeUnknown(
                paths=_named(writes), reason=explain_loss(self._reason(error), size)
            ) from error
        self._raise_refusal(operations, results)

    def sync(self) -> None:
        self._read("/", lambda: self._client.sync_async("/"))

    def ensure(self, path: str) -> None:
        if self._read(path, lambda: self._client.exists_async(path)) is not None:
            return
        for each in with_parents(path):
            results = self._read(each, partial(send_proven, self._client, each))
            check_proven(results, hosts=self._hosts, connection=self._conn, path=each)

    @contextmanager
    def watch(self, *paths: str) -> Iterator[Watch]:
        # A lost connection must also wake the waiter, since ZooKeeper reports no earlier changes
        # after a reconnect.
        self._settle()
        waiting = (paths, threading.Event())
        with self._state:
            self._waiting.append(waiting)
        try:
            for path in paths:
                self._read(path, partial(self._client.exists_async, path, watch=self._on_event))
            yield waiting[1]
        finally:
            with self._state:
                self._waiting.remove(waiting)

    @contextmanager
    def announce(self, path: str, data: bytes) -> Iterator[None]:
        # Create an ephemeral node. The store does not wait for the response and ignores errors.
        with self._state:
            self._announced[path] = data
            self._show(path)
        try:
            yield
        finally:
            with self._state:  # A new session must not create the node again.
                del self._announced[path]
                self._tell(lambda: self._client.delete_async(path))

    # --- requests ------------------------------------------------------------------------------------------------

    def _sent(self, request: Callable[[], Any]) -> Any:
        with self._state:
            self._requests += 1
        return request()

    def _read(self, path: str, request: Callable[[], Any]) -> Any:
        """Send a request that may be sent twice, and return its response."""
        deadline = time.monotonic() + self._read_timeout
        while True:
            self._await_connection(deadline)
            try:
                return self._sent(request).get(timeout=max(deadline - time.monotonic(), 0.0))
            except _LOST as error:
                if time.monotonic() >= deadline:
                    raise self._unavailable(self._reason(error)) from error
            except KazooTimeoutError as error:
                raise self._unavailable(self._reason(error)) from error
            except (NoNodeError, NodeExistsError):
                raise
            except ZookeeperError as error:
                raise self._refused(path, error) from error

    def _settle(self) -> None:
        """Wait until all events that have already arrived are delivered to the waiters.

        kazoo reports events in its own thread, and an old event must not wake the next watch on the same path.
        """
        if not self.ended:
            settled = threading.Event()
            self._client.handler.dispatch_callback(Callback("watch", settled.set, ()))
            settled.wait(self._read_timeout)

    def _show(self, path: str) -> None:
        self._tell(lambda: self._client.create_async(path, self._announced[path], ephemeral=True))

    def _tell(self, request: Callable[[], Any]) -> None:
        with suppress(Exception):  # A node that exists only for display must never stop a commit.
            self._sent(request)

    # --- connection ----------------------------------------------------------------------------------------------

    def _on_state(self, _state: Any) -> None:
        with self._state:
            if self._client.connected:
                self._lost_at = None
                for path in self._announced:
                    self._show(path)  # A new session has no such node.
            elif self._lost_at is None:
                self._lost_at = time.monotonic()
            self._state.notify_all()

    def _on_event(self, event: Any) -> None:
        with self._state:
            for paths, changed in self._waiting:
                # The path is None if the connection is lost.
                if event.path is None or event.path in paths:
                    changed.set()

    def _await_connection(self, deadline: float) -> None:
        with self._state:
            self._state.wait_for(
                lambda: self._client.connected or self.ended, max(deadline - time.monotonic(), 0.0)
            )
        if not self._client.connected:
            raise self._unavailable(
                "the client has ended its session"
                if self.ended
                else f"no connection within {self._read_timeout:g} s"
            )

    def _reason(self, error: BaseException) -> str:
        return "no answer in time" if isinstance(error, KazooTimeoutError) else type(error).__name__

    def _unavailable(self, reason: str) -> StoreUnavailable:
        return StoreUnavailable(hosts=self._hosts, connection=self._conn, reason=reason)

    def _refused(self, path: str, error: BaseException) -> StoreError:
        return request_refused(error, hosts=self._hosts, connection=self._conn, path=path)

    def _raise_refusal(
        self, operations: Sequence[Requirement | Write], results: Sequence[Any]
    ) -> None:
        # The multi's other operations only report that they were rolled back.
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, KazooException) and not isinstance(
                result, (RolledBackError, RuntimeInconsistency)
            ):
                raise _refusal(operation, result) or self._refused(operation.path, result)


def node_of(data: bytes, stat: ZnodeStat) -> Node:
    """Create a `Node` from a ZooKeeper response. The modification time comes from the server's clock."""
    return Node(data, stat.version, datetime.fromtimestamp(stat.mtime / 1000, timezone.utc))


def _checks(requirements: Sequence[Requirement], writes: Sequence[Write]) -> list[Requirement]:
    """Return the requirements that ZooKeeper must check explicitly.

    Creating a record already checks that it does not exist.
    """
    created = {write.path for write in writes if isinstance(write, Create)}
    for requirement in requirements:
        if isinstance(requirement, Absent) and requirement.path not in created:
            raise ValueError(
                f"Absent({requirement.path!r}) needs a Create of the same path in its multi"
            )
    return [requirement for requirement in requirements if not isinstance(requirement, Absent)]


def _add(transaction: Any, operation: Requirement | Write) -> None:
    if isinstance(operation, Unchanged):
        transaction.check(operation.path, operation.version)
    elif isinstance(operation, Create):
        transaction.create(operation.path, operation.data)
    elif isinstance(operation, Put):
        transaction.set_data(operation.path, operation.data)
    elif isinstance(operation, Delete):
        transaction.delete(operation.path)


def _named(writes: Sequence[Write]) -> str:
    named = ", ".join(write.path for write in writes[:20])
    return f"{named} and {len(writes) - 20} more" if len(writes) > 20 else named


def _refusal(operation: Requirement | Write, error: KazooException) -> StoreError | None:
    path = operation.path
    expected = "a record"
    found = "nothing"
    if isinstance(error, BadVersionError) and isinstance(operation, Unchanged):
        expected = f"version {operation.version}"
        found = "another version"
    elif isinstance(error, NodeExistsError):
        expected = "nothing"
        found = "a record"
    elif isinstance(error, NotEmptyError):
        expected = "no children"
        found = "children"
    elif isinstance(error, NoNodeError) and isinstance(operation, Create):
        path = path.rpartition("/")[0]
    elif isinstance(error, NoNodeError) and isinstance(operation, Unchanged):
        expected = expected if operation.version == ANY_VERSION else f"version {operation.version}"
    elif not isinstance(error, NoNodeError):
        return None
    return RequirementFailed(path=path, expected=expected, found=found)


# --- watched ------------------------------------------------------------------------------------------------------
# A store for repeated reads. It rereads a record only after ZooKeeper reports a change.


MOST_KEPT = 200_000
"""Maximum number of remembered records and folders."""
MOST_BYTES = 64 * 2**20
"""Maximum bytes of remembered records and names."""


class WatchedStore(ZooKeeperStore):
    """A `ZooKeeperStore` that remembers each value it reads until ZooKeeper reports a change. It is thread-safe.

    A changed value stays outdated until ZooKeeper reports the change. While the connection is lost, no values are
    remembered. Steps must read all earlier writes, so they need a plain `ZooKeeperStore`.
    """

    def __init__(self, client: KazooClient, **options: Any) -> None:
        self._kept = threading.Lock()
        self._found: dict[tuple[str, str], Any] = {}
        self._size = 0
        # One entry for each read that is in progress. A change removes the entry, so that the
        # response is not remembered.
        self._reads: dict[tuple[str, str], object] = {}
        # The number of times that all values were dropped, and the number of changes at or below
        # each path.
        self._losses = 0
        self._changes: Counter[str] = Counter()
        super().__init__(client, **options)

    @classmethod
    def beside(cls, store: ZooKeeperStore, **options: Any) -> WatchedStore:
        """Create a store that shares the client of another store."""
        return cls(store._client, conn=store._conn, hosts=store._hosts, **options)

    def get(self, path: str) -> Node | None:
        node: Node | None = self._once("data", path)
        return node

    def children(self, path: str) -> Children | None:
        children: Children | None = self._once("names", path)
        return children

    def mark(self, path: str) -> tuple[int, int]:
        """Return two numbers. One of them changes whenever a record at or below `path` changes."""
        with self._kept:
            return self._losses, self._changes[path]

    def check(self) -> None:
        """Send a request to ZooKeeper, to check that it responds.

        :raises StoreUnavailable: ZooKeeper does not respond.
        """
        self._read("/", partial(self._client.exists_async, "/"))

    def _once(self, kind: str, path: str) -> Any:
        key = (kind, path)
        with self._kept:
            if key in self._found:
                return self._found[key]
            self._reads[key] = read = object()
        found = self._under_watch(kind, path)
        with self._kept:
            if self._reads.get(key) is read:
                if len(self._found) >= MOST_KEPT or self._size >= MOST_BYTES:
                    self._found.clear()  # the watches on the dropped values stay set
                    self._size = 0
                self._found[key] = found
                self._size += _size_of(found)
        return found

    def _under_watch(self, kind: str, path: str) -> Node | Children | None:
        watch = self._on_change
        while True:
            try:
                if kind == "data":
                    data, stat = self._read(
                        path, partial(self._client.get_async, path, watch=watch)
                    )
                    return node_of(data, stat)
                request = partial(
                    self._client.get_children_async, path, watch=watch, include_data=True
                )
                names, stat = self._read(path, request)
                return Children(tuple(sorted(names)), stat.version)
            except NoNodeError:  # ZooKeeper has set no watch in this case
                if self._read(path, partial(self._client.exists_async, path, watch=watch)) is None:
                    return None

    def _on_change(self, event: Any) -> None:
        if event.path is None:
            self._forget_all()
            return
        with self._kept:
            for kind in ("data", "names"):
                self._size -= _size_of(self._found.pop((kind, event.path), None))
                self._reads.pop((kind, event.path), None)
            if len(self._changes) >= MOST_KEPT:
                self._changes.clear()
                self._losses += 1
            path = event.path
            while path:
                self._changes[path] += 1
                path = path.rpartition("/")[0]

    def _on_state(self, state: Any) -> None:
        self._forget_all()
        super()._on_state(state)

    def _forget_all(self) -> None:
        with self._kept:
            self._found.clear()
            self._size = 0
            self._reads.clear()
            self._changes.clear()
            self._losses += 1


def _size_of(found: Node | Children | None) -> int:
    if isinstance(found, Node):
        return len(found.data)
    return 0 if found is None else sum(map(len, found.names))
