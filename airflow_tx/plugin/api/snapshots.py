"""Snapshots of the ledger for all viewers. The ledger is read at most once a second."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeout
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow_tx.base.errors import (
    StoreError,
    StoreUnavailable,
    TxError,
    UnknownTransaction,
    UnreadableRecord,
)
from airflow_tx.hooks import KeptClient
from airflow_tx.ledger import (
    HOUR,
    AlarmNote,
    HealthCode,
    LedgerView,
    Outcome,
    Paths,
    ReadOnlyLedger,
    Store,
    TopologyRecord,
    TopologyState,
    TopologyView,
    TransactionDetails,
    TransactionView,
    batch_in_words,
    topologies,
    topology_health,
    topology_view,
    transaction_details,
    whole_record,
)
from airflow_tx.operations import LedgerPlace, LedgerPlaces, ledger_places, with_run_ends

if TYPE_CHECKING:
    from airflow_tx.ledger import WatchedStore, ZooKeeperStore


# --- ledger client ------------------------------------------------------------------------------------------------
# The client of each ZooKeeper in an api-server process. It reconnects itself, so no request waits
# long for it.


log = logging.getLogger(__name__)

LEDGER_PATIENCE = 2.0
"""The seconds that a request waits for ZooKeeper."""
STEP_PATIENCE = 10.0
_GRACE = 0.5


class LedgerAway(TxError):
    """The ledger cannot be read now. The error names no host, since a browser shows it."""

    template = (
        "The ledger cannot be read now: {reason}.",
        "This page continues automatically once the ledger answers.",
    )


SILENT = "ZooKeeper does not answer"
_UNUSABLE = "its connection to ZooKeeper cannot be used; see the log of the api-server"


class LedgerClient:
    """Connects to one ZooKeeper on demand, in a separate thread.

    :param conn_id: the connection of the ZooKeeper.
    """

    def __init__(self, conn_id: str) -> None:
        self._kept = KeptClient(conn_id, connect_timeout=LEDGER_PATIENCE, patience=STEP_PATIENCE)
        self._changed = threading.Condition()
        self._store: WatchedStore | None = None
        self._thread: threading.Thread | None = None
        self._tries = False
        self._failed_at = float("-inf")
        self._reason = SILENT

    def store(self) -> WatchedStore:
        """Return the store.

        :raises LedgerAway: ZooKeeper does not respond, or refuses the connection. After a failed try, this method does
            not wait.
        """
        with self._changed:
            if self._kept.is_dead:
                self._store = None
            if self._store is None:
                self._start()
                # Wait only for the first try. After a failure, raise the error immediately.
                known = self._failed_at > float("-inf")
                self._changed.wait_for(
                    lambda: self._store is not None, 0.0 if known else LEDGER_PATIENCE
                )
            elif self._kept.is_due:
                self._start()
                # A secrets backend may be slow, so only a later request may get the client of the
                # new connection.
                self._changed.wait_for(lambda: not self._tries, LEDGER_PATIENCE)
            store = self._store
        if store is None:
            raise LedgerAway(reason=self._reason)
        if store.lost_for > _GRACE or time.monotonic() - self._failed_at < _GRACE:
            raise LedgerAway(reason=SILENT)
        return store

    def store_of_steps(self) -> ZooKeeperStore:
        """Return a store on the same client without a cache, which the steps need. Raise the errors of `store`."""
        self.store()
        return self._kept.store()

    def failed(self) -> None:
        """Record that ZooKeeper did not respond. No further request is sent for half a second."""
        self._failed_at = time.monotonic()

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._tries = True
            self._thread = threading.Thread(target=self._try, name="airflow_tx-ledger", daemon=True)
            self._thread.start()

    def _try(self) -> None:
        store = None
        reason = SILENT
        try:
            store = self._kept.watched(patience=LEDGER_PATIENCE)
        except StoreUnavailable as unavailable:
            log.warning("%s", unavailable)
        except Exception as error:  # noqa: BLE001 - the next request tries again
            log.warning("A client of ZooKeeper cannot be created: %s", error)
            reason = _UNUSABLE
        with self._changed:
            self._tries = False
            self._reason = reason
            self._store = store
            self._failed_at = float("-inf") if store is not None else time.monotonic()
            self._changed.notify_all()


_clients: dict[tuple[int, str], LedgerClient] = {}
_lock = threading.Lock()


def ledger_client(conn_id: str) -> LedgerClient:
    """Return the client of this process for a connection. A forked child process creates its own client."""
    key = os.getpid(), conn_id
    with _lock:
        found = _clients.get(key)
        if found is None:
            found = _clients[key] = LedgerClient(conn_id)
        return found


# --- shared answers -----------------------------------------------------------------------------------------------
# Responses that viewers share. Each is created at most once a second, and their total size is
# limited.


MOST_ANSWERED = 32 * 2**20
"""The maximum size of all cached responses, in bytes."""
# The seconds to wait for a response that another viewer's thread creates.
_PATIENCE = 10.0


@dataclass(frozen=True)
class _Answer:
    at: float
    body: bytes


class SharedAnswers:
    """A cache for response bodies, by request.

    :param age: the seconds for which a response is reused.
    :param most: the maximum size of all cached responses, in bytes.
    :param clock: a function that returns monotonic seconds.
    """

    def __init__(
        self,
        age: float,
        *,
        most: int = MOST_ANSWERED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._age = age
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        # The oldest answer is first.
        self._answers: dict[Hashable, _Answer] = {}
        self._making: dict[Hashable, Future[bytes]] = {}
        self._size = 0

    @property
    def size(self) -> int:
        """Return the size of all cached answers, in bytes."""
        return self._size

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Return the cached response, or create it. If another thread is already creating it, wait for that thread.

        :raises LedgerAway: the other thread takes too long.
        """
        with self._lock:
            self._drop()
            if key in self._answers:
                return self._answers[key].body
            other = self._making.get(key)
            own = self._making[key] = Future[bytes]() if other is None else other
        return self._make(key, own, make) if other is None else _waited_for(other)

    def _make(self, key: Hashable, own: Future[bytes], make: Callable[[], bytes]) -> bytes:
        try:
            body = make()
        except BaseException as error:
            with self._lock:
                del self._making[key]
            own.set_exception(error)
            raise
        with self._lock:
            del self._making[key]
            self._answers[key] = _Answer(self._clock(), body)
            self._size += len(body)
            self._drop()
        own.set_result(body)
        return body

    def _drop(self) -> None:
        """Drop outdated responses, then the oldest ones until the size is below the limit."""
        now = self._clock()
        for key, answer in list(self._answers.items()):
            if now - answer.at < self._age and self._size <= self._most:
                return
            del self._answers[key]
            self._size -= len(answer.body)


def _waited_for(other: Future[bytes]) -> bytes:
    try:
        return other.result(timeout=_PATIENCE)
    except FutureTimeout:
        raise LedgerAway(reason=SILENT) from None


# --- final views --------------------------------------------------------------------------------------------------
# A cache of final transactions in an api-server, with a limited size.


MOST_REMEMBERED = 2_000
"""The maximum number of cached final transactions of one topology: more than a timeline and its figures show."""
MOST_OF_ALL = 10_000
"""The maximum number of cached final transactions, over all topologies."""


class FinalViews:
    """A cache of the final transactions of one topology that viewers have requested. Thread-safe.

    A committed transaction never changes, so it is read once, without a watch. An end time never changes and needs
    little memory. So end times stay cached while the ledger has the transaction.

    :param most: the maximum number of cached transactions.
    """

    def __init__(
        self, views: Iterable[TransactionView] = (), *, most: int = MOST_REMEMBERED
    ) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._views: dict[int, TransactionView] = {}
        self._ended: dict[int, datetime] = {}
        self._skipped: set[int] = set()
        for each in views:
            self.note(each)

    def __len__(self) -> int:
        return len(self._views)

    def get(self, txid: int) -> TransactionView | None:
        """Return a committed transaction, or None if it is not cached."""
        return self._views.get(txid)

    def ended(self, txid: int) -> datetime | None:
        """Return the end of a transaction. Return None if it is not cached."""
        return self._ended.get(txid)

    def is_skipped(self, txid: int) -> bool:
        """Return whether a transaction was skipped. It may still change, since it can be readmitted."""
        return txid in self._skipped

    def note(self, view: TransactionView) -> None:
        """Cache a transaction. If there are too many, drop the transaction that was cached first."""
        with self._lock:
            if view.ended is not None:
                self._ended[view.txid] = view.ended
            if view.status != Outcome.COMMITTED.value:
                self._skipped.add(view.txid)
                return
            self._views[view.txid] = view
            if len(self._views) > self._most:
                del self._views[next(iter(self._views))]

    def keep_only(self, txids: Collection[int]) -> None:
        """Drop transactions that the ledger no longer has."""
        with self._lock:
            for known in (self._views, self._ended):
                for txid in known.keys() - txids:
                    del known[txid]
            self._skipped.intersection_update(txids)

    def clear(self) -> None:
        """Drop all transactions, but keep their end times."""
        with self._lock:
            self._views.clear()


class RememberedViews:
    """The caches of the final transactions of all topologies. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[str, tuple[tuple[str, int], FinalViews]] = {}

    def of(self, name: str, record: TopologyRecord, final: Collection[int]) -> FinalViews:
        """Return the cache of one topology.

        :param final: txids of the final transactions that the ledger has.
        """
        # After a reset or a repair, the ledger may assign a txid a second time, so start with an
        # empty cache.
        life = (record.incarnation, record.generation)
        with self._lock:
            known = self._of.get(name)
            if known is None or known[0] != life:
                known = self._of[name] = (life, FinalViews())
        known[1].keep_only(set(final))
        return known[1]

    def keep_only(self, names: Collection[str]) -> None:
        """Drop the caches of topologies that no longer exist."""
        with self._lock:
            for name in self._of.keys() - set(names):
                del self._of[name]

    def forget_oldest(self, name: str) -> None:
        """If there are too many transactions, drop the ones of the least recently viewed topologies.

        :param name: the topology that a viewer requests now.
        """
        with self._lock:
            if name in self._of:
                self._of[name] = self._of.pop(name)
            size = sum(len(known) for _, known in self._of.values())
            for _, known in list(self._of.values())[:-1]:
                if size <= MOST_OF_ALL:
                    return
                size -= len(known)
                known.clear()


# --- ledger snapshots ---------------------------------------------------------------------------------------------


T = TypeVar("T")

AGE = 1.0
"""The seconds for which viewers get the same snapshot."""
HOURS = 24
MOST_LATER = 10
"""The maximum number of later transactions that are read to find the latest possible end of an unreadable one."""


@dataclass(frozen=True)
class TopologySnapshot:
    """One topology at one moment.

    :param view: the open transactions, and the skipped ones that can be readmitted. It is None if the ledger cannot be
        read.
    :param final: txids of the final transactions that the ledger has, in order.
    :param alarms: the raised alerts, by kind.
    :param finals: the cache of final transactions, which all snapshots of a ledger share.
    :param unwatched: a store without a cache, for records that never change, or None to use `store`.
    :param problem: the reason why the ledger cannot be read.
    :param quotes: whether the snapshot contains the texts of errors, which may quote rows.
    """

    record: TopologyRecord
    place: LedgerPlace
    store: Store | None
    view: TopologyView | None
    final: tuple[int, ...] = ()
    alarms: Mapping[str, AlarmNote] = field(default_factory=dict)
    finals: FinalViews = field(default_factory=FinalViews)
    unwatched: Store | None = None
    problem: str | None = None
    quotes: bool = True
    _hours: dict[datetime, list[int]] = field(default_factory=dict, init=False, compare=False)

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def paths(self) -> Paths:
        return self.place.paths

    @property
    def as_asked(self) -> tuple[str, str, str, str]:
        """Return the DAG, the connection, the root and the topology, as required by the process for DAG files."""
        return self.record.dag_id, self.place.conn_id, self.paths.root, self.paths.topology

    def without_errors(self) -> TopologySnapshot:
        """Return a copy without error texts, for a viewer who may not read the task logs."""
        if self.view is None:
            return replace(self, quotes=False)
        shown = tuple(each.without_errors() for each in self.view.transactions)
        return replace(self, quotes=False, view=replace(self.view, transactions=shown))

    def shown(self, view: TransactionView) -> TransactionView:
        """Return a transaction with only the parts that the viewer of this snapshot may see."""
        return view if self.quotes else view.without_errors()

    @property
    def opened(self) -> tuple[TransactionView, ...]:
        """Return the open transactions in the order of txids."""
        return () if self.view is None else self.view.opened

    @cached_property
    def open_by_txid(self) -> Mapping[int, TransactionView]:
        """Return the open transactions by txid."""
        return {each.txid: each for each in self.opened}

    def with_view(self, view: TopologyView) -> TopologySnapshot:
        """Return a snapshot with another view.

        If the view is the same, return this snapshot, with its cached values.
        """
        return self if view is self.view else replace(self, view=view)

    @cached_property
    def health(self) -> TopologyState:
        """Return the health of the topology and the remedy."""
        if self.view is None:
            return TopologyState(code=HealthCode.UNREADABLE, sentence=self.problem or "")
        # Remedies need the name by which commands find the topology. Another ledger may have a
        # topology with the same name.
        return topology_health(replace(self.view, name=self.name), self.alarms)

    def final_view(self, txid: int) -> TransactionView | None:
        """Return a final transaction, or None if the ledger no longer has it."""
        found = self._read_final(txid)
        if found is None or not found.is_unreadable:
            return found
        # An unreadable record may have a wrong end time. The end is then at most the earliest end of
        # the next transactions.
        later = map(self._read_final, self.final[bisect_right(self.final, txid) :][:MOST_LATER])
        ends = [each.ended for each in later if each is not None and not each.is_unreadable]
        known = [each for each in (found.ended, *ends) if each is not None]
        return found.ended_by(min(known, default=None))

    def _read_final(self, txid: int) -> TransactionView | None:
        found = self.finals.get(txid)
        if found is None and self.store is not None:
            is_watched = self.unwatched is None or self.finals.is_skipped(txid)
            store = self.store if is_watched else self.unwatched or self.store
            found = LedgerView(store, self.paths).final_transaction(txid)
            if found is not None:
                self.finals.note(found)
        return None if found is None else self.shown(found)

    def transaction_views(self, txids: Iterable[int]) -> list[TransactionView]:
        """Return the transactions that the ledger has, with the names of their batches and their restatements."""
        found = (
            self.named(self.open_by_txid[txid])
            if txid in self.open_by_txid
            else self.final_view(txid)
            for txid in txids
        )
        views = [each for each in found if each is not None]
        return (
            views
            if self.store is None
            else LedgerView(self.store, self.paths).with_restatements(views)
        )

    def named(self, view: TransactionView) -> TransactionView:
        """Add the name of the batch to an open transaction, if the ledger has the metadata of the batch."""
        if not view.open or self.store is None:
            return view
        path = self.paths.meta(view.txid)
        try:
            with whole_record(path):
                batch = LedgerView(self.store, self.paths).kept_batch(view.txid)
                name = "" if batch is None else batch_in_words(batch.rows)
        except UnreadableRecord:
            return view  # The page of the transaction shows the error.
        return replace(view, batch=name) if name else view

    def neighbours(self, txid: int) -> tuple[int | None, int | None]:
        """Return the txids before and after this one in the ledger, each None if there is no such transaction."""
        known = [*self.final, *self.open_by_txid]
        before = bisect_left(known, txid)
        after = bisect_right(known, txid)
        return known[before - 1] if before else None, known[after] if after < len(known) else None

    def first_since(self, moment: datetime, *, start: int = 0) -> int:
        """Return the index in `final` of the first transaction that ended at this time or later.

        `final` is ordered by end.
        """

        def ended(txid: int) -> datetime:
            known = self.finals.ended(txid)
            found = None if known is not None else self.final_view(txid)
            # If the ledger no longer has the transaction, it is one of the oldest.
            return known or (found.ended if found is not None else None) or _EVER

        return bisect_left(self.final, moment, lo=start, key=ended)

    def commits_per_hour(self, now: datetime) -> list[int]:
        """Count the transactions that became final in each of the last hours, the oldest first.

        The topology record counts more transactions than the history has, but only from the hour of its first count. So
        the larger number is correct.
        """
        whole = now.astimezone(timezone.utc).replace(minute=0, second=0, microsecond=0)
        shared = self._hours.get(whole)
        if shared is not None:
            return shared
        hours = [
            (whole - timedelta(hours=hour)).isoformat()[:HOUR] for hour in range(HOURS - 1, -1, -1)
        ]
        known = self._in_history(whole)
        counts = [
            max(self.record.hours.get(hour, 0), count)
            for hour, count in zip(hours, known, strict=True)
        ]
        self._hours.clear()
        self._hours[whole] = counts
        return counts

    def _in_history(self, whole: datetime) -> list[int]:
        index = self.first_since(whole - timedelta(hours=HOURS - 1))
        counts = []
        for hour in range(HOURS - 2, -1, -1):
            following = self.first_since(whole - timedelta(hours=hour), start=index)
            counts.append(following - index)
            index = following
        return [*counts, len(self.final) - index]


def _with_run_ends(snapshots: Sequence[TopologySnapshot]) -> tuple[TopologySnapshot, ...]:
    """Add the ends of runs from Airflow. They are not cached, since a run can end without a change of the ledger."""
    views = iter(with_run_ends([each.view for each in snapshots if each.view is not None]))
    return tuple(each if each.view is None else each.with_view(next(views)) for each in snapshots)


_EVER = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


@dataclass
class _Kept(Generic[T]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    at: float = float("-inf")
    mark: Any = None
    value: Any = None


class _Kind(Enum):
    """The kind of a cached value, which is part of the cache key."""

    NAMES = "names"
    TOPOLOGY = "topology"
    CHECK = "check"


_Key = tuple[_Kind, str]


class LedgerSnapshots:
    """The snapshots of an api-server. While a snapshot is being read, other viewers wait for it.

    The cache contains only topologies that exist, so that requests for other names use no memory.
    """

    def __init__(self, places: LedgerPlaces | None = None) -> None:
        self._places = places or ledger_places()
        self._kept: dict[_Key, _Kept[Any]] = {}
        self._answers = SharedAnswers(AGE)
        # The caches are in the order of their last use. The topology that was used least recently
        # is first.
        self._finals = RememberedViews()
        self._lock = threading.Lock()

    def all(self) -> tuple[TopologySnapshot, ...]:
        """Return the snapshots of all topologies: in the ledger that `[tx]` names, and in the ledgers that DAGs name.

        :raises LedgerAway: the ZooKeeper that `[tx]` names does not answer.
        """
        settings = self._places.settings
        root = settings.root
        conn_id = settings.zookeeper_conn_id
        self._check(conn_id)
        names = self._once(
            (_Kind.NAMES, root), lambda store: topologies(store, root), conn_id, below=root
        )
        elsewhere = self._places.elsewhere()
        self._keep_only({*names, *elsewhere})
        found = [self._snapshot(self._places.named(name)) for name in names]
        found += [self._find_elsewhere(name, dag_id) for name, dag_id in elsewhere.items()]
        return _with_run_ends([each for each in found if each is not None])

    def _find_elsewhere(self, name: str, dag_id: str) -> TopologySnapshot | None:
        try:
            return self._find(name)
        except LedgerAway as away:
            # The page still shows the topologies in other ZooKeepers.
            record = TopologyRecord("", dag_id, "unknown", 0)
            return TopologySnapshot(record, self._places.named(name), None, None, problem=str(away))

    def find(self, name: str) -> TopologySnapshot | None:
        """Return the snapshot of one topology, or None if no topology has this name.

        :raises LedgerAway: ZooKeeper does not answer.
        """
        found = self._find(name)
        return None if found is None else _with_run_ends([found])[0]

    def _find(self, name: str) -> TopologySnapshot | None:
        if not name:
            return None
        place = self._places.named(name)
        self._finals.forget_oldest(name)
        self._check(place.conn_id)
        if not self._asked(
            lambda store: ReadOnlyLedger(store, place.paths).is_listed(), place.conn_id
        ):
            self.forget(name)
            return None
        return self._snapshot(place)

    def forget(self, name: str) -> None:
        """Drop the cached snapshot of a topology after a user action on it."""
        with self._lock:
            self._kept.pop((_Kind.TOPOLOGY, name), None)

    def _snapshot(self, place: LedgerPlace) -> TopologySnapshot | None:
        key = (_Kind.TOPOLOGY, place.name)
        return self._once(
            key,
            lambda store: self._topology(store, place),
            place.conn_id,
            below=place.paths.base,
        )

    def _keep_only(self, names: Collection[str]) -> None:
        with self._lock:
            for kind, name in list(self._kept):
                if kind is _Kind.TOPOLOGY and name not in names:
                    del self._kept[kind, name]
            self._finals.keep_only(names)

    def of_dag(self, dag_id: str) -> tuple[TopologySnapshot, ...]:
        """Return the topologies of a DAG's runs, starting with the one that the DAG file names."""
        place = self._places.begun_by(dag_id)
        own = None if place is None else self.find(place.name)
        earlier = [each for each in self.all() if place is None or each.name != place.name]
        found = [*([] if own is None else [own]), *earlier]
        return tuple(each for each in found if each.record.dag_id == dag_id)

    def transaction(self, snapshot: TopologySnapshot, txid: int) -> TransactionDetails | None:
        """Return all facts of one transaction, or None if the ledger does not have it."""

        def read(store: Store) -> TransactionDetails | None:
            try:
                return transaction_details(store, snapshot.paths, txid)
            except UnknownTransaction:
                return None

        found = self._asked(read, snapshot.place.conn_id)
        if found is None:
            return None
        view = found.transaction
        if snapshot.view is not None:
            alone = replace(snapshot.view, transactions=(view,))
            view = with_run_ends([alone])[0].transactions[0]
        return replace(found, transaction=snapshot.shown(view))

    def unremembered(self, snapshot: TopologySnapshot, question: Callable[[Store], T]) -> T:
        """Query the ledger without a cache or a watch, since viewers can enter any name.

        :raises LedgerAway: ZooKeeper does not answer.
        """
        return self._asked(question, snapshot.place.conn_id, keeps=False)

    def _asked(self, question: Callable[[Store], T], conn_id: str, *, keeps: bool = True) -> T:
        client = ledger_client(conn_id)
        store = client.store() if keeps else client.store_of_steps()
        try:
            return question(store)
        except StoreError as error:
            if isinstance(error, UnreadableRecord):
                raise
            client.failed()
            raise LedgerAway(reason=SILENT) from error

    def shared(
        self, snapshot: TopologySnapshot, key: Hashable, answer: Callable[[], bytes]
    ) -> bytes:
        """Return the body of a response about a topology, which viewers with the same request share for a second.

        :param key: the request, and the rights that change the answer.
        """
        conn_id = snapshot.place.conn_id
        whose = (snapshot.name, snapshot.record.dag_id, snapshot.quotes)
        return self._answers.get(
            (*whose, key), lambda: self._asked(lambda store: answer(), conn_id)
        )

    def _check(self, conn_id: str) -> None:
        """Check that ZooKeeper responds. Without the check, cached values would hide that it hangs."""
        self._once(
            (_Kind.CHECK, conn_id),
            lambda store: ledger_client(conn_id).store().check(),
            conn_id,
        )

    def _once(
        self, key: _Key, question: Callable[[Store], T], conn_id: str, *, below: str = ""
    ) -> T:
        """Query the ledger at most once a second, and only if a record below a path has changed."""
        client = ledger_client(conn_id)
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
        if not kept.lock.acquire(timeout=LEDGER_PATIENCE):
            raise LedgerAway(reason=SILENT)
        try:
            mark = client.store().mark(below) if below else None
            if time.monotonic() - kept.at >= AGE and (mark is None or mark != kept.mark):
                kept.value = self._asked(question, conn_id)
                kept.at = time.monotonic()
                kept.mark = mark
            found: T = kept.value
            return found
        finally:
            kept.lock.release()

    def _topology(self, store: Store, place: LedgerPlace) -> TopologySnapshot | None:
        paths = place.paths
        view = problem = None
        alarms: Mapping[str, AlarmNote] = {}
        try:
            view = topology_view(store, paths, recent=0)
            alarms = LedgerView(store, paths).alarms()
        except UnknownTransaction:
            return None
        except UnreadableRecord as error:
            problem = str(UnreadableRecord(path=error.path, reason=error.reason))
        record = self._bare_record(store, place) if view is None else view.record
        if record is None:
            return None  # The DAG is unknown, so no user may see the topology.
        if view is not None and problem is not None:
            view = replace(view, unreadable=(*view.unreadable, problem))
        opened = set() if view is None else {each.txid for each in view.opened}
        final = tuple(txid for txid in LedgerView(store, paths).final_txids() if txid not in opened)
        finals = self._finals.of(place.name, record, final)
        unwatched = ledger_client(place.conn_id).store_of_steps()
        return TopologySnapshot(
            record, place, store, view, final, alarms, finals, unwatched, problem
        )

    def _bare_record(self, store: Store, place: LedgerPlace) -> TopologyRecord | None:
        """Return a record for a topology with an unreadable ledger, so that it is listed.

        Return None if its DAG is unknown.
        """
        node = store.get(place.paths.record)
        try:
            found = json.loads(node.data)["dag_id"] if node is not None else None
        except (ValueError, LookupError, TypeError, RecursionError):
            found = None
        dag_id = found if isinstance(found, str) else self._places.dag_of(place)
        return None if dag_id is None else TopologyRecord("", dag_id, "unknown", 0)


_snapshots = LedgerSnapshots()


def ledger_snapshots() -> LedgerSnapshots:
    """Return the snapshots of this process."""
    return _snapshots
