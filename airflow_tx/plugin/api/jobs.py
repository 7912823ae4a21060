"""Many transactions that a person wanted at once, and what became of them: restatements and backfills.

Nothing is kept for this: the ledger says who wanted each restatement, and Airflow which runs a backfill has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from operator import attrgetter

from airflow_tx.plugin.api.airflow_runs import FailedRun, backfills, run_ends_at
from airflow_tx.plugin.api.ledger_snapshots import TopologySnapshot
from airflow_tx.protocol.person import Words
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Binding, Outcome
from airflow_tx.protocol.replay import LIVE_RUN_STATES
from airflow_tx.protocol.wish import Wish
from airflow_tx.sources.dates import interval_of_key, key_of_interval

SHOWN_FOR = timedelta(days=1)
"""After its end a job is shown for this time."""
ONE_JOB = timedelta(hours=1)
"""Restatements that one person wanted for one reason are one job, unless this time is between them."""
MOST_FINALS = 1000
"""Final transactions that are looked at, the newest ones."""
MOST_JOBS = 5
"""That are shown."""
MOST_NAMED = 100
"""Transactions that a job names: so many an action takes."""


class JobKind(str, Enum):
    """The kind of a job.

    `backfill`: of Airflow; `tx-backfill`: `airflow tx backfill`, which creates its runs one after the other.
    """

    RESTATEMENT = "restatement"
    BACKFILL = "backfill"
    TX_BACKFILL = "tx-backfill"


class _Status(Enum):
    """What became of one transaction of a job."""

    DONE = "done"
    FAILED = "failed"
    LEFT_OUT = "left out"
    UNDER_WAY = "under way"
    WAITING = "waiting"


@dataclass(frozen=True, kw_only=True)
class JobLine:
    """A job.

    :param first: of a backfill, its first date; `last`: its last one.
    :param who: wanted it; null: Airflow does not know. `why`: "" if no reason was asked for.
    :param total: how many transactions it has; of `tx-backfill`: how many runs were created until now.
    :param done: how many of them are committed; `left_out`: skipped; `waiting`: no run of theirs has been started.
    :param failed: how many have failed, of which `failed_txids` can be replayed.
    :param waiting_txids: transactions whose restatement no run has begun.
    """

    kind: JobKind
    first: datetime | None
    last: datetime | None
    who: str | None
    since: datetime
    why: Words
    total: int
    done: int
    failed: int
    left_out: int
    under_way: int
    waiting: int
    failed_txids: list[int]
    waiting_txids: list[int]


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """The jobs of a topology that are under way, or ended lately, the newest first.

    :param dated: whether its transactions have dates, so that days can be restated.
    """

    jobs: list[JobLine]
    dated: bool


@dataclass(frozen=True)
class _Wanted:
    """A restatement that a person wanted.

    :param of: the transaction that is restated; `txid`: the one that restates it; None: no run has begun that.
    """

    who: str
    when: datetime
    why: str
    of: int
    txid: int | None
    status: _Status
    ended: datetime | None = None


def jobs_of(snapshot: TopologySnapshot, now: datetime | None = None) -> Jobs:
    """List the jobs of a topology."""
    now = now or datetime.now(timezone.utc)
    newest = [*snapshot.open_by_txid][-1:] or snapshot.final[-1:]
    views = snapshot.transaction_views(newest)
    found = [*_restatements(snapshot, now), *_backfills(snapshot, now)]
    found.sort(key=attrgetter("since"), reverse=True)
    is_dated = any(interval_of_key(each.key) is not None for each in views if each.key)
    return Jobs(jobs=found[:MOST_JOBS], dated=is_dated)


# --- restatements ------------------------------------------------------------------------------------------------


def _restatements(snapshot: TopologySnapshot, now: datetime) -> Iterator[JobLine]:
    if snapshot.store is None or snapshot.view is None:
        return
    if snapshot.store.children(snapshot.paths.wishes) is None:
        return  # none was ever wanted
    for wanted in _by_person(_all_wanted(snapshot)):
        # Of a transaction that was skipped and wanted again, the newest restatement counts.
        pieces = list({each.of: each for each in wanted}.values())
        if len(pieces) > 1 and _is_shown(pieces, now):
            yield _restatement(wanted[0], pieces)


def _restatement(first: _Wanted, pieces: Sequence[_Wanted]) -> JobLine:
    counts = Counter(each.status for each in pieces)
    failed = [each for each in pieces if each.status is _Status.FAILED]
    left = [
        each.of for each in pieces if each.txid is None and each.status is not _Status.UNDER_WAY
    ]
    return JobLine(
        kind=JobKind.RESTATEMENT,
        first=None,
        last=None,
        who=first.who,
        since=first.when,
        why=first.why,
        total=len(pieces),
        done=counts[_Status.DONE],
        failed=len(failed),
        left_out=counts[_Status.LEFT_OUT],
        under_way=counts[_Status.UNDER_WAY],
        waiting=counts[_Status.WAITING],
        failed_txids=sorted(each.txid for each in failed if each.txid is not None)[:MOST_NAMED],
        waiting_txids=sorted(left)[:MOST_NAMED],
    )


def _all_wanted(snapshot: TopologySnapshot) -> Iterator[_Wanted]:
    """List what people wanted restated, by the txid of the restatement; what no run has begun is last."""
    assert snapshot.view is not None
    finals = (snapshot.final_view(txid) for txid in snapshot.final[-MOST_FINALS:])
    for view in (*finals, *snapshot.opened):
        if view is not None and view.restates is not None and view.restate is not None:
            by = view.restate
            status = _Status.UNDER_WAY
            if view.failed:
                status = _Status.FAILED
            elif not view.open:
                is_committed = view.status == Outcome.COMMITTED.value
                status = _Status.DONE if is_committed else _Status.LEFT_OUT
            yield _Wanted(
                by.who, by.when, by.why, view.restates, view.txid, status, ended=view.ended
            )
    wishes = snapshot.view.wishes
    runs = run_ends_at(snapshot.record.dag_id, [each.run_id for each in wishes]) if wishes else {}
    for wish in wishes:
        when = datetime.fromisoformat(wish.when)
        status = _status_of_wish(wish, when, *runs.get(wish.run_id, (None, None)))
        yield _Wanted(wish.who, when, wish.why, wish.txid, None, status)


def _status_of_wish(
    wish: Wish, when: datetime, state: str | None, ended: datetime | None
) -> _Status:
    """Say what became of a request that no run has begun.

    :param state: of its run, which committed before; `ended`: when the run was over last.
    """
    if state in LIVE_RUN_STATES:
        return _Status.UNDER_WAY
    has_failed = state == "failed" and ended is not None and ended > when
    return _Status.FAILED if has_failed else _Status.WAITING


def _by_person(wanted: Iterable[_Wanted]) -> list[list[_Wanted]]:
    """Put together what one person wanted for one reason at one time, in the order in which it was wanted."""
    found: dict[tuple[str, str], list[list[_Wanted]]] = {}
    for each in sorted(wanted, key=attrgetter("when")):
        jobs = found.setdefault((each.who, each.why), [])
        if jobs and each.when - jobs[-1][-1].when <= ONE_JOB:
            jobs[-1].append(each)
        else:
            jobs.append([each])
    return [job for jobs in found.values() for job in jobs]


# --- backfills ---------------------------------------------------------------------------------------------------


def _backfills(snapshot: TopologySnapshot, now: datetime) -> Iterator[JobLine]:
    for each in backfills(snapshot.record.dag_id, now - SHOWN_FOR):
        # What failed after the commit of its transaction is no failure of this transaction.
        committed = sum(_is_final(snapshot, run) for run in each.failed)
        by_run = {view.run_id: view.txid for view in snapshot.opened}
        failed = [by_run[run.run_id] for run in each.failed if run.run_id in by_run]
        if each.total:
            yield JobLine(
                kind=JobKind.BACKFILL if each.is_airflow_own else JobKind.TX_BACKFILL,
                first=each.first,
                last=each.last,
                who=each.who,
                since=each.since,
                why="",
                total=each.total,
                done=each.states.get("success", 0) + committed,
                failed=each.states.get("failed", 0) - committed,
                left_out=0,
                under_way=sum(each.states.get(state, 0) for state in LIVE_RUN_STATES),
                waiting=0,
                failed_txids=sorted(failed)[:MOST_NAMED],
                waiting_txids=[],
            )


def _is_final(snapshot: TopologySnapshot, run: FailedRun) -> bool:
    """Ask whether the transaction of a run is final."""
    store = snapshot.unwatched or snapshot.store
    keys = [run.run_id, *([] if run.interval is None else [key_of_interval(run.interval)])]
    found = [
        binding.txid
        for key in keys
        if store is not None
        and (binding := Reader(store).peek_if_any(Binding, snapshot.paths.run(key))) is not None
    ]
    return any(txid not in snapshot.open_by_txid for txid in found)


def _is_shown(pieces: Sequence[_Wanted], now: datetime) -> bool:
    is_over = all(each.status in (_Status.DONE, _Status.LEFT_OUT) for each in pieces)
    last = max((each.ended for each in pieces if each.ended is not None), default=now)
    return not is_over or now - last <= SHOWN_FOR
