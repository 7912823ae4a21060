"""The ledger, read at most once a second for all viewers together."""

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
# The client of each ZooKeeper in an api-server process. No request waits long for it, and it reconnects by itself.


log = logging.getLogger(__name__)

LEDGER_PATIENCE = 2.0
"""Seconds that a question waits for ZooKeeper at most."""
STEP_PATIENCE = 10.0
_GRACE = 0.5


class LedgerAway(TxError):
    """The ledger cannot be read now. The error names no host, because a browser shows it."""

    template = (
        "The ledger cannot be read now: {reason}.",
        "This page continues by itself as soon as it can.",
    )


SILENT = "ZooKeeper does not answer"
_UNUSABLE = "its connection cannot be used, see the log of the api-server"


class LedgerClient:
    """Connects in a thread of its own, as long as there are requests.

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

        :raises LedgerAway: ZooKeeper does not answer, or refuses; at once, if that is known.
        """
        with self._changed:
            if self._kept.is_dead:
                self._store = None
            if self._store is None:
                self._start()
                # While the first attempt is under way it may succeed any moment.
                known = self._failed_at > float("-inf")
                self._changed.wait_for(
                    lambda: self._store is not None, 0.0 if known else LEDGER_PATIENCE
                )
            elif self._kept.is_due:
                self._start()
                # A secrets backend may be slow: then the next request finds the client of the new connection.
                self._changed.wait_for(lambda: not self._tries, LEDGER_PATIENCE)
            store = self._store
        if store is None:
            raise LedgerAway(reason=self._reason)
        if store.lost_for > _GRACE or time.monotonic() - self._failed_at < _GRACE:
            raise LedgerAway(reason=SILENT)
        return store

    def store_of_steps(self) -> ZooKeeperStore:
        """Return a store on the same client that remembers nothing, as steps need it. Raises as `store`."""
        self.store()
        return self._kept.store()

    def failed(self) -> None:
        """Note that a question was not answered: questions right after it are not asked."""
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
        except Exception as error:  # noqa: BLE001 - whatever it is, the next one who asks tries again
            log.warning("The client of ZooKeeper cannot be made: %s", error)
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
    """Return the client of this process for a connection; a child that was forked makes its own."""
    key = os.getpid(), conn_id
    with _lock:
        found = _clients.get(key)
        if found is None:
            found = _clients[key] = LedgerClient(conn_id)
        return found


# --- shared answers -----------------------------------------------------------------------------------------------
# Answers that viewers share: each is made once a second, and all of them together take a bounded amount of memory.


MOST_ANSWERED = 32 * 2**20
"""Size of all answers that are kept."""
# Seconds to wait for the answer that another viewer's thread makes.
_PATIENCE = 10.0


@dataclass(frozen=True)
class _Answer:
    at: float
    body: bytes


class SharedAnswers:
    """Bodies of answers by what was asked.

    :param age: seconds for which an answer is given again.
    :param most: bytes that are kept.
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
        """Count the bytes that are kept."""
        return self._size

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Give the answer, or make it, unless another thread is making it.

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
        """Drop what is old, and then the oldest answers until the others fit."""
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
# Final transactions that an api-server remembers: a bounded number, however many viewers have looked at.


MOST_REMEMBERED = 2_000
"""Of one topology: more than a timeline and the figures of one moment show."""
MOST_OF_ALL = 10_000


class FinalViews:
    """The final transactions of one topology that viewers have looked at. Thread-safe.

    A committed transaction never changes, so it is read once, without a watch. The time at which a transaction ended
    never changes either, and takes little memory: it is remembered of all transactions that the ledger has.
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
        """Give a committed transaction; None: it is not remembered."""
        return self._views.get(txid)

    def ended(self, txid: int) -> datetime | None:
        """Say when a transaction ended; None: that is not remembered."""
        return self._ended.get(txid)

    def is_skipped(self, txid: int) -> bool:
        """Whether it was skipped, so that it may still change: it can be re-admitted."""
        return txid in self._skipped

    def note(self, view: TransactionView) -> None:
        """Remember a transaction, and forget the one that was noted first if there are too many."""
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
        """Forget transactions that the ledger has forgotten."""
        with self._lock:
            for known in (self._views, self._ended):
                for txid in known.keys() - txids:
                    del known[txid]
            self._skipped.intersection_update(txids)

    def clear(self) -> None:
        """Forget the transactions; when they ended is remembered."""
        with self._lock:
            self._views.clear()


class RememberedViews:
    """The final transactions of all topologies. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[str, tuple[tuple[str, int], FinalViews]] = {}

    def of(self, name: str, record: TopologyRecord, final: Collection[int]) -> FinalViews:
        """Give the transactions of one topology that its ledger remembers.

        :param final: the txids that the ledger remembers.
        """
        # A ledger that was reset or repaired gives txids again.
        life = (record.incarnation, record.generation)
        with self._lock:
            known = self._of.get(name)
            if known is None or known[0] != life:
                known = self._of[name] = (life, FinalViews())
        known[1].keep_only(set(final))
        return known[1]

    def keep_only(self, names: Collection[str]) -> None:
        """Forget topologies that there are no more."""
        with self._lock:
            for name in self._of.keys() - set(names):
                del self._of[name]

    def forget_oldest(self, name: str) -> None:
        """Forget transactions of the topologies that were looked at longest ago, if there are too many.

        :param name: the topology that is looked at now.
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
"""Seconds for which a snapshot is shown."""
HOURS = 24
MOST_LATER = 10
"""Transactions that are looked at for the time at which one before them ended."""


@dataclass(frozen=True)
class TopologySnapshot:
    """One topology at one moment.

    :param view: its open transactions, and the skipped ones that may still be re-admitted; None: it cannot be read.
    :param final: the txids of the final transactions that are remembered, in order.
    :param alarms: the raised ones.
    :param finals: what is known of final transactions; shared by all snapshots of a ledger.
    :param unwatched: the store without a memory, for what never changes; None: `store`.
    :param problem: why it cannot be read.
    :param quotes: whether it has the words of errors, which may quote rows.
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

    def without_errors(self) -> TopologySnapshot:
        """Leave out what errors said, for a viewer who may not read the logs of its tasks."""
        if self.view is None:
            return replace(self, quotes=False)
        shown = tuple(each.without_errors() for each in self.view.transactions)
        return replace(self, quotes=False, view=replace(self.view, transactions=shown))

    def shown(self, view: TransactionView) -> TransactionView:
        """Give what the viewer of this snapshot may see of a transaction that was read for it."""
        return view if self.quotes else view.without_errors()

    @property
    def opened(self) -> tuple[TransactionView, ...]:
        """Give the open transactions, the one whose turn it is first."""
        return () if self.view is None else self.view.opened

    @cached_property
    def open_by_txid(self) -> Mapping[int, TransactionView]:
        """Give the open transactions by txid."""
        return {each.txid: each for each in self.opened}

    def with_view(self, view: TopologyView) -> TopologySnapshot:
        """Show another view; the same snapshot, with everything derived of it, for the same view."""
        return self if view is self.view else replace(self, view=view)

    @cached_property
    def health(self) -> TopologyState:
        """Say how the topology is, and what a person can do."""
        if self.view is None:
            return TopologyState(code=HealthCode.UNREADABLE, sentence=self.problem or "")
        # Commands find a topology of another ledger by this name, also where the first one has a namesake.
        return topology_health(replace(self.view, name=self.name), self.alarms)

    def final_view(self, txid: int) -> TransactionView | None:
        """Read a final transaction; None: it is not remembered any more."""
        found = self._read_final(txid)
        if found is None or not found.is_unreadable:
            return found
        # A person may have written the record since: it ended before the next one did.
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
        """Read transactions, with the names of their batches, and their restatements, if they are remembered."""
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
        """Name the batch of an open transaction, which has a name as long as the ledger keeps its rows."""
        if not view.open or self.store is None:
            return view
        path = self.paths.meta(view.txid)
        try:
            with whole_record(path):
                batch = LedgerView(self.store, self.paths).kept_batch(view.txid)
                name = "" if batch is None else batch_in_words(batch.rows)
        except UnreadableRecord:
            return view  # its page shows the error
        return replace(view, batch=name) if name else view

    def neighbours(self, txid: int) -> tuple[int | None, int | None]:
        """Find the transactions before and after this one; None: the ledger knows none."""
        known = [*self.final, *self.open_by_txid]
        before = bisect_left(known, txid)
        after = bisect_right(known, txid)
        return known[before - 1] if before else None, known[after] if after < len(known) else None

    def first_since(self, moment: datetime, *, start: int = 0) -> int:
        """Find the index in `final` of the first transaction that ended at this time or later: they end in order."""

        def ended(txid: int) -> datetime:
            known = self.finals.ended(txid)
            found = None if known is not None else self.final_view(txid)
            # Without it, the ledger has forgotten it since: it is one of the oldest.
            return known or (found.ended if found is not None else None) or _EVER

        return bisect_left(self.final, moment, lo=start, key=ended)

    def commits_per_hour(self, now: datetime) -> list[int]:
        """Count the transactions that became final in each of the last hours, the oldest first.

        The record counts them also beyond the history; of hours before it began to count, the history knows more.
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
    """Ask Airflow how runs ended, which changes nothing in the ledger: an answer is not kept."""
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
    """The memory: a name of one kind is never taken for one of another kind."""

    NAMES = "names"
    TOPOLOGY = "topology"
    CHECK = "check"


_Key = tuple[_Kind, str]


class LedgerSnapshots:
    """The snapshots of an api-server: a viewer who comes while one is read waits for that one.

    The existing topologies bound the memory, not the names that viewers ask for.
    """

    def __init__(self, places: LedgerPlaces | None = None) -> None:
        self._places = places or ledger_places()
        self._kept: dict[_Key, _Kept[Any]] = {}
        self._answers = SharedAnswers(AGE)
        # The topology that was read longest ago is first.
        self._finals = RememberedViews()
        self._lock = threading.Lock()

    def all(self) -> tuple[TopologySnapshot, ...]:
        """Read every topology: at the place in `[tx]`, and at the places of other DAGs of this Airflow.

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
            # One ZooKeeper of several: the topologies of the others are still shown.
            record = TopologyRecord("", dag_id, "unknown", 0)
            return TopologySnapshot(record, self._places.named(name), None, None, problem=str(away))

    def find(self, name: str) -> TopologySnapshot | None:
        """Read one topology; None: there is none of this name.

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
        """Read a topology again when a viewer asks for it next: a person has acted on it."""
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
        """Read the topologies of the runs of a DAG: the one that its file names first, then earlier ones."""
        place = self._places.begun_by(dag_id)
        own = None if place is None else self.find(place.name)
        earlier = [each for each in self.all() if place is None or each.name != place.name]
        found = [*([] if own is None else [own]), *earlier]
        return tuple(each for each in found if each.record.dag_id == dag_id)

    def transaction(self, snapshot: TopologySnapshot, txid: int) -> TransactionDetails | None:
        """Read one transaction, whole; None: there is none, or it is forgotten."""

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
        """Ask about a name that one viewer gives: the answer is not kept, and no watch is set.

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
        """Give the body of an answer about a topology to all who ask the same within a second.

        :param key: what was asked, and the rights by which the answer differs.
        """
        conn_id = snapshot.place.conn_id
        whose = (snapshot.name, snapshot.record.dag_id, snapshot.quotes)
        return self._answers.get(
            (*whose, key), lambda: self._asked(lambda store: answer(), conn_id)
        )

    def _check(self, conn_id: str) -> None:
        """Find out whether ZooKeeper answers: what is remembered would hide that it hangs."""
        self._once(
            (_Kind.CHECK, conn_id),
            lambda store: ledger_client(conn_id).store().check(),
            conn_id,
        )

    def _once(
        self, key: _Key, question: Callable[[Store], T], conn_id: str, *, below: str = ""
    ) -> T:
        """Ask at most once a second, and while nothing has changed below a path, not at all."""
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
            return None  # its DAG is unknown, so no user may see it
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
        """Say as much of a topology whose record, or counter, cannot be read as its line in a list needs."""
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
