"""`airflow tx list | show`: list the topologies of all ledgers, or the transactions of one topology."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar

from airflow_tx.base.errors import TxError, UnknownTransaction, UnreadableRecord
from airflow_tx.ledger import (
    AlarmNote,
    ChainStages,
    Ledger,
    Metadata,
    Outcome,
    Paths,
    ReadOnlyLedger,
    Store,
    TakenRanges,
    TopologyView,
    TransactionDetails,
    is_shortened,
    topologies,
    topology_view,
    transaction_details,
)
from airflow_tx.operations.actions.dags import elsewhere, transactional_dag
from airflow_tx.operations.actions.ledger_places import LedgerPlace, LedgerPlaces
from airflow_tx.operations.cli import render
from airflow_tx.operations.cli.context import (
    command,
    conn_id_of,
    ledger_at,
    paths_of,
    print_table,
    root_of,
    staging_of,
    store_of,
    with_known_run_ends,
    wrong_usage,
)
from airflow_tx.outputs import JournalArea, forgotten_details
from airflow_tx.sources import Lag, LagUnknown, SourcePosition, lags

_T = TypeVar("_T")

WATCH_EVERY = 2.0
"""Seconds between two outputs of `--watch`."""
LAGS_WITHIN = 10.0
"""Seconds to wait for the responses of all sources."""


@command
def list_transactions(args: Namespace) -> None:
    """`airflow tx list [TOPOLOGY] [--status STATUS] [--watch]`."""
    known = render.TOPOLOGY_STATUSES if args.topology is None else render.TRANSACTION_STATUSES
    if args.status is not None and args.status not in known:
        wrong_usage(
            f"--status {args.status}: there is no such status. Give one of {', '.join(known)}."
        )
    with store_of(args) as store:
        if not args.watch:
            _print_list(args, store)
            return
        args.no_lag = True  # querying the lag would parse DAG files every two seconds
        with suppress(KeyboardInterrupt):
            while True:
                if sys.stdout.isatty():  # overwrite the previous list in the terminal
                    print("\033[2J\033[H", end="")
                _print_list(args, store)
                time.sleep(WATCH_EVERY)


def _print_list(args: Namespace, store: Store) -> None:
    if args.topology is not None:
        (view,) = with_known_run_ends([topology_view(store, paths_of(args), recent=args.limit)])
        waiters = render.waiters(view) if args.status in (None, "open") else []
        wished = render.wished(view) if args.status in (None, "committed") else []
        some = [each for each in view.transactions if render.has_status(each, args.status)]
        rows = [*waiters, *map(render.transaction, some), *wished]
        print_table(args, rows, render.TRANSACTION_IN_SHORT, "waiting_for", "note", "behind")
        return
    # Print the rows of each ledger as soon as it responds. An unresponsive ledger then delays no
    # other.
    found = (
        [each for each in some if args.status in (None, each["state"])]
        for some in _topology_rows(args, store)
    )
    whole = found if args.output == "table" else [list(chain.from_iterable(found))]
    is_printed = False
    for rows in filter(None, whole):
        print_table(args, rows, render.TOPOLOGY_IN_SHORT, "problem", "reads")
        is_printed = True
    if not is_printed:
        print_table(args, [], render.TOPOLOGY_IN_SHORT, "problem")


@dataclass(frozen=True)
class ListedTopology:
    """A topology whose ledger can be read.

    :param view: view of the topology, including the name that commands accept.
    :param ledger: ledger of the topology.
    :param conn_id: connection of the ZooKeeper servers.
    :param alarms: current alerts.
    """

    view: TopologyView
    ledger: Ledger
    conn_id: str
    alarms: Mapping[str, AlarmNote]


def _topology_rows(args: Namespace, store: Store) -> Iterator[list[render.TableRow]]:
    """Yield the rows of each ledger as soon as it responds. The named ledger is first, then other ledgers of DAGs."""
    is_empty = True
    for found in _listed_ledgers(args, store):
        is_empty = is_empty and not found
        readable = [each for each in found if isinstance(each, ListedTopology)]
        lags_found = _lags(args, readable)
        views = iter(with_known_run_ends([each.view for each in readable]))
        yield [
            render.topology(next(views), lags_found.get(each.view.name), each.alarms)
            if isinstance(each, ListedTopology)
            else each
            for each in found
        ]
    if is_empty:
        _say_nothing_found(args)


def _listed_ledgers(
    args: Namespace, store: Store
) -> Iterator[list[ListedTopology | render.TableRow]]:
    def away(place: LedgerPlace, error: TxError) -> ListedTopology | render.TableRow:
        return render.unreadable(place.name, str(error))

    return asked_ledgers(args, store, _listed, away)


def asked_ledgers(
    args: Namespace,
    store: Store,
    ask: Callable[[Store, LedgerPlace], _T],
    away: Callable[[LedgerPlace, TxError], _T],
) -> Iterator[list[_T]]:
    """Yield the results of each ledger as soon as it responds. The named ledger is first, then other ledgers of DAGs.

    :param ask: function that returns the result for one topology.
    :param away: function that returns the result for a topology whose ledger cannot be reached.
    """
    places = defaultdict[str, list[LedgerPlace]](list)
    if not (args.root or args.conn_id):
        known = LedgerPlaces()
        for place in map(known.named, known.elsewhere()):
            places[place.conn_id].append(place)
    with ExitStack() as stores, ThreadPoolExecutor(len(places) + 1) as pool:
        asked = [
            pool.submit(_asked_there, stores, conn_id, some, ask, away)
            for conn_id, some in places.items()
        ]
        root = root_of(args)
        conn_id = conn_id_of(args)
        yield [
            ask(store, LedgerPlace(name, conn_id, Paths(root, name)))
            for name in topologies(store, root)
        ]
        for answer in as_completed(asked):
            yield answer.result()


def _say_nothing_found(args: Namespace) -> None:
    """Print that the ledgers have no topology.

    :raises SystemExit: the command names a ledger without a topology.
    """
    where = f"There is no topology below {root_of(args)} of connection {conn_id_of(args)!r}"
    if args.root or args.conn_id:
        raise SystemExit(f"{where}. Check --root and --conn-id.")
    print(f"{where}. No topology has begun yet, or [tx] root is wrong.", file=sys.stderr)


def _listed(store: Store, place: LedgerPlace) -> ListedTopology | render.TableRow:
    try:
        return _readable(store, place)
    except (UnreadableRecord, UnknownTransaction) as error:
        # list the other topologies even if this one fails
        return render.unreadable(place.name, str(error))


def _readable(store: Store, place: LedgerPlace) -> ListedTopology:
    ledger = ReadOnlyLedger(store, place.paths)
    view = replace(topology_view(store, place.paths, recent=0), name=place.name)
    view = replace(view, ahead=_ahead(ledger, view))
    alarms = ledger.raised_alarms()
    return ListedTopology(view, ledger_at(store, place.paths), place.conn_id, alarms)


def _ahead(ledger: ReadOnlyLedger, view: TopologyView) -> int | str | None:
    """Count the upstream transactions that are in no range yet. See `TakenRanges.ahead`."""
    with suppress(UnreadableRecord):
        return TakenRanges(ledger).ahead() if view.record.upstream else None
    return None


def _asked_there(
    stores: ExitStack,
    conn_id: str,
    places: Sequence[LedgerPlace],
    ask: Callable[[Store, LedgerPlace], _T],
    away: Callable[[LedgerPlace, TxError], _T],
) -> list[_T]:
    """Return the results for the topologies of another ledger."""
    from airflow_tx.hooks import ZooKeeperHook

    try:
        store = stores.enter_context(ZooKeeperHook(conn_id).store())
        # A topology that is not in its ledger has not begun yet.
        return [
            ask(store, each) for each in places if ReadOnlyLedger(store, each.paths).is_listed()
        ]
    except TxError as error:
        return [away(each, error) for each in places]


def _lags(args: Namespace, listed: Sequence[ListedTopology]) -> Mapping[str, Lag | LagUnknown]:
    """Return the lags, unless `--no-lag` is set.

    Print the reasons for unknown lags to stderr, since the output may be piped.
    """
    found = {} if args.no_lag else lags_of(listed)
    for lag in found.values():
        is_old = isinstance(lag, LagElsewhere) and args.topology is None
        if isinstance(lag, LagUnknown) and not is_old:
            print(lag, file=sys.stderr)
    return found


class LagElsewhere(LagUnknown):
    """Signals that a lag is not queried, since the topology's DAG now has another topology."""


def lags_of(listed: Iterable[ListedTopology]) -> dict[str, Lag | LagUnknown]:
    """Return the lag of each topology, or the reason why its lag is unknown."""
    sources: dict[str, SourcePosition] = {}
    found: dict[str, Lag | LagUnknown] = {}
    for each in listed:
        name = each.view.name
        try:
            sources[name] = _source_of(each)
        except LagUnknown as unknown:
            found[name] = unknown
        except TxError as error:
            found[name] = LagUnknown(topology=name, reason=str(error))
        except Exception as error:  # noqa: BLE001  # a DAG file may raise anything
            found[name] = LagUnknown(topology=name, reason=f"{type(error).__name__}: {error}")
    return {**found, **lags(sources, seconds=LAGS_WITHIN)}


def _source_of(listed: ListedTopology) -> SourcePosition:
    dag_id = listed.view.record.dag_id
    spec, _ = transactional_dag(dag_id, anywhere=False, option="DAG")
    if reason := elsewhere(spec, listed.ledger.paths, listed.conn_id):
        raise LagElsewhere(topology=listed.view.name, reason=reason)
    return spec.source, listed.ledger.position()


@command
def show(args: Namespace) -> None:
    """`airflow tx show TOPOLOGY [TXID]`."""
    with store_of(args) as store:
        if args.txid is not None:
            row = render.details(_details(args, store), args.output, _stages(args, store))
        else:
            found = _readable(store, LedgerPlace(args.topology, conn_id_of(args), paths_of(args)))
            lag = _lags(args, [found]).get(found.view.name)
            (view,) = with_known_run_ends([found.view])
            row = render.topology_details(view, lag, found.alarms)
    render.print_row(row, args.output)


def _stages(args: Namespace, store: Store) -> ChainStages | None:
    """Read the path of a transaction through a chain of topologies.

    Return None if its ledger cannot be read.
    """
    with suppress(UnreadableRecord):
        return ChainStages.of(ReadOnlyLedger(store, paths_of(args)), args.txid)
    return None


def _details(args: Namespace, store: Store) -> TransactionDetails:
    """Read one transaction from the ledger, or from the journal if the ledger has forgotten it."""
    paths = paths_of(args)

    def journal() -> JournalArea:
        incarnation = ReadOnlyLedger(store, paths).existing_topology().incarnation
        return JournalArea(staging_of(args), incarnation)

    def forgotten() -> TransactionDetails | None:
        with suppress(TxError):  # if the journal is unavailable, report the ledger's error
            return forgotten_details(store, paths, journal(), args.txid)
        return None

    try:
        found = transaction_details(store, paths, args.txid)
    except UnknownTransaction:
        told = forgotten()
        if told is not None:
            return told
        raise
    receipt = found.receipt
    if receipt is None and found.transaction.status == Outcome.COMMITTED.value:
        # The ledger has only a line in the book of ends. A journal entry has more facts.
        return forgotten() or found
    if found.batch is None and receipt is not None and is_shortened(receipt.metadata):
        with suppress(TxError):  # if the journal is unavailable, show the digest of the batch
            entry = journal().read(receipt.journal or "")
            found = replace(found, batch=Metadata(0, entry.metadata, None))
    record = ReadOnlyLedger(store, paths).existing_topology()
    alone = TopologyView(paths.topology, record, 0, 0, (found.transaction,), rotating_state="")
    return replace(found, transaction=with_known_run_ends([alone])[0].transactions[0])
