"""`airflow tx backfill`: create the runs of data intervals by date, and track them.

The command stores nothing outside the ledger and Airflow, so you can stop and repeat it at any time.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow.utils.platform import getuser

from airflow_tx.base import compat
from airflow_tx.base.errors import ConfigError
from airflow_tx.base.remedy import Command
from airflow_tx.ledger import LIVE_RUN_STATES, Ledger
from airflow_tx.operations.actions.dags import transactional_dag
from airflow_tx.operations.actions.request import dates_between
from airflow_tx.operations.cli import render
from airflow_tx.operations.cli.context import action, beside_rows, store_of
from airflow_tx.operations.cli.progress import Progress, Work, WorkStatus
from airflow_tx.sources import Json, key_of_interval, order_end, order_from
from airflow_tx.transaction import TransactionSpec, is_in_lane


@action
def backfill(args: Namespace) -> None:
    """`airflow tx backfill DAG --from DATE --to DATE [--in-flight N] [--dry-run]`."""

    spec, _ = transactional_dag(args.dag_id, option="DAG")
    with store_of(args, spec.conn_id) as store:
        dates = BackfilledDates(
            spec, spec.ledger(store), *dates_between(args.first, args.last, spec.zone)
        )
        dates.check_order(note=not args.dry_run)
        held_up = compat.why_none_starts(spec.dag_id)
        if args.dry_run:
            would = {WorkStatus.WAITING: "create its run"}
            rows = [
                {**_row(each), "would": would.get(each.status, "leave it")} for each in dates.read()
            ]
            render.print_rows(rows, args.output)
        if held_up:
            order = dates.order and dates.order.isoformat()
            stands = (
                f"The order of data intervals in topology {spec.topology} has reached {order}. "
                if order
                else ""
            )
            raise SystemExit(f"{stands}{held_up}, then repeat this command.")
        if args.dry_run:
            return
        told = beside_rows(args)
        in_flight = spec.window if args.in_flight is None else args.in_flight
        progress = Progress(dates, in_flight, to=told)
        try:
            left = progress.follow()
        except KeyboardInterrupt:
            left = dates.read()
        for line in left_to_do(spec, left):
            print(line, file=told)
        if args.output != "table":
            render.print_rows([_row(each) for each in left], args.output)
        if any(each.status is not WorkStatus.DONE for each in left):
            print("To continue, repeat the command.", file=told)
            raise SystemExit(1)


@dataclass(frozen=True)
class BackfilledDate:
    """A data interval of a backfill, with its run and its transaction if they exist."""

    interval: compat.ScheduledInterval
    status: WorkStatus
    run: compat.DatedRun | None
    txid: int | None

    @property
    def is_in_flight(self) -> bool:
        """Return whether the run is queued or running, and has not committed."""
        return (
            self.status is not WorkStatus.DONE
            and self.run is not None
            and self.run.state in LIVE_RUN_STATES
        )


class BackfilledDates(Work[BackfilledDate]):
    """The data intervals between two dates, with their runs in Airflow and their transactions in the ledger.

    :param spec: the `Transaction` block of the DAG.
    :param ledger: ledger of the topology.
    :param first: first moment.
    :param last: last moment.
    :ivar in_order: whether a failed date blocks all later dates.
    :ivar order: end of the last interval in the order of txids at the last reading of the ledger, or None without an
        order.
    """

    def __init__(
        self, spec: TransactionSpec, ledger: Ledger, first: datetime, last: datetime
    ) -> None:
        super().__init__(ledger)
        self.spec = spec
        if spec.source.dated is None:
            remedy = "This command needs a DataIntervalSource. For another source, use airflow backfill create."
            raise ConfigError(
                option=f"source of {spec.topology}",
                value=type(spec.source).__name__,
                remedy=remedy,
            )
        self.in_order = spec.source.in_order
        self.intervals = compat.scheduled_intervals(spec.dag_id, first, last)
        if not self.intervals:
            remedy = (
                f"The schedule of DAG {spec.dag_id} has no data interval between these dates that has already "
                "ended."
            )
            raise ConfigError(
                option="--from, --to",
                value=f"{first.isoformat()}, {last.isoformat()}",
                remedy=remedy,
            )
        self._done: dict[datetime, int] = {}
        self._txids: dict[datetime, int | None] = {}
        self.order: datetime | None = None

    def check_order(self, *, note: bool) -> None:
        """Check that the dates are the next ones in the order of txids, if the source has an order.

        In a ledger without transactions, the order begins with the first date, unless a run of an earlier date is
        waiting.

        :param note: whether to write the beginning of the order to the ledger.
        :raises ConfigError: the dates omit an interval, or one of them is late.
        """
        if not self.in_order:
            return
        start = self.intervals[0].start
        position = self.ledger.next_position()
        if not self.ledger.allocated_if_any() and not self._awaited(position, start):
            position = order_from(start)
            if note:
                self.ledger.open(self.spec.request)
                position = self.ledger.note_origin(position)
        end = order_end(position)
        stands = f"The order of data intervals has reached {end.isoformat()}."
        if self._left_out(end, start):
            raise _misplaced(
                start,
                f"{stands} The backfill cannot leave out an interval, so begin there: --from {end.isoformat()}.",
            )
        late = [each for each in self.read() if each.interval.start < end and each.txid is None]
        if late:
            raise _misplaced(late[0].interval.start, f"{stands} {self._late()}")

    def _awaited(self, position: Json, start: datetime) -> bool:
        """Return whether a run is queued or running for an interval between the order's position and a date."""
        left_out = [] if position is None else self._left_out(order_end(position), start)
        runs = compat.dated_runs(self.spec.dag_id, left_out) if left_out else {}
        return any(run.state in LIVE_RUN_STATES for run in runs.values())

    def _left_out(self, end: datetime, start: datetime) -> list[compat.ScheduledInterval]:
        between = compat.scheduled_intervals(self.spec.dag_id, end, start) if end < start else []
        return [each for each in between if end <= each.start < start]

    def _late(self) -> str:
        """Describe how the rows of a late date can be counted."""
        reset = Command.of("repair", self.spec.topology, "--reset", "--why", "TEXT")
        if self.ledger.current_if_any() == 1:
            return (
                f"No transaction is committed yet. End the runs of {self.spec.dag_id}, run `{reset}`, and repeat "
                "this command."
            )
        return (
            "This interval is late. To count it after the others, set in_order=False in the DAG, repeat this "
            f"command, and set in_order=True again. To delete all values and count again: {reset}."
        )

    def read(self) -> list[BackfilledDate]:
        """Read the current state of all dates, earliest first."""
        self.current = self.ledger.current_if_any()
        position = self.ledger.next_position() if self.in_order else None
        self.order = None if position is None else order_end(position)
        runs = compat.dated_runs(self.spec.dag_id, self.intervals)
        record = self.ledger.topology_if_any()
        yielded = {} if record is None else record.yielded
        return [self._read(each, runs.get(each.logical_date), yielded) for each in self.intervals]

    def create(self, date: BackfilledDate) -> None:
        compat.create_backfill_run(self.spec.dag_id, date.interval, getuser())

    def _read(
        self,
        interval: compat.ScheduledInterval,
        run: compat.DatedRun | None,
        yielded: Container[str],
    ) -> BackfilledDate:
        txid = self._done.get(interval.logical_date) or self._begun(interval, run)
        if txid is not None and (
            interval.logical_date in self._done or self.ledger.status(txid) is None
        ):
            self._done[interval.logical_date] = txid  # a final transaction no longer changes
            status = WorkStatus.DONE
        elif run is None:
            status = (
                # A lane processes the interval. If its transaction leaves the lane, a run is
                # created for it.
                WorkStatus.IN_FLIGHT
                if txid
                and self.in_order
                and is_in_lane(self.ledger.store, self.spec.paths, self._key(interval))
                else WorkStatus.WAITING
            )
        elif run.state in LIVE_RUN_STATES or run.run_id in yielded:
            status = WorkStatus.IN_FLIGHT
        else:
            status = WorkStatus.FAILED
        return BackfilledDate(interval, status, run, txid)

    def _begun(self, interval: compat.ScheduledInterval, run: compat.DatedRun | None) -> int | None:
        date = interval.logical_date
        # Only a lane can begin an interval without a run, and it begins intervals in order.
        is_passed = self.order is not None and interval.end <= self.order
        if run is not None or date not in self._txids or (is_passed and self._txids[date] is None):
            self._txids[date] = self._txid(interval)
        return self._txids[date]

    def _txid(self, interval: compat.ScheduledInterval) -> int | None:
        binding = self.ledger.binding(self._key(interval))
        return None if binding is None else binding.txid

    def _key(self, interval: compat.ScheduledInterval) -> str:
        return key_of_interval((interval.start, interval.end))


def _misplaced(date: datetime, remedy: str) -> ConfigError:
    return ConfigError(option="--from", value=date.isoformat(), remedy=remedy)


def _row(each: BackfilledDate) -> render.TableRow:
    return {
        "interval": f"{each.interval.start.isoformat()}/{each.interval.end.isoformat()}",
        "status": each.status.value,
        "txid": each.txid,
        "run_id": each.run.run_id if each.run else None,
    }


def left_to_do(spec: TransactionSpec, dates: Sequence[BackfilledDate]) -> list[str]:
    """Return the lines that describe the remaining work."""
    failed = [each for each in dates if each.status is WorkStatus.FAILED and each.run is not None]
    lines = [_failure(spec, each) for each in failed]
    if any(each.txid is not None for each in failed):
        replay = Command.of("replay", spec.topology, "--failed")
        lines.append(f"To replay the failed transactions: {replay}")
    for status in (WorkStatus.IN_FLIGHT, WorkStatus.WAITING):
        some = [each.interval.start.isoformat() for each in dates if each.status is status]
        if some:
            lines.append(f"{len(some)} {status.value}: {some[0]} to {some[-1]}")
    return lines or [f"All {len(dates)} intervals are done."]


def _failure(spec: TransactionSpec, each: BackfilledDate) -> str:
    assert each.run is not None
    why = (
        Command.of("show", spec.topology, each.txid)
        if each.txid
        else "read the log of its `begin` task, then clear the run"
    )
    return (
        f"{each.interval.start.isoformat()}: run {each.run.run_id} ended as {each.run.state}: {why}"
    )
