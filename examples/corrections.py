"""Corrections of daily orders: one wrong day, a wrong week while new days are running, and a new version of the DAG."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial

from airflow_tx.ledger.api import Store
from airflow_tx.testing.airflow import LocalAirflow
from airflow_tx.testing.eventually import eventually
from examples.example import Example, differences
from examples.ledger import history
from examples.servers import database
from examples.stored import rows

DAG_ID = "daily_orders"
NEW_DAG_ID = "daily_orders_v2"
FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)
RIGHT = 'amounts[order["product"]] += order["amount"]'
WRONG = 'amounts[order["product"]] += 100 * order["amount"]'
_TIMEOUT = 300


class Corrections(Example):
    """Commits days whose totals are wrong because of a bug, corrects the job, and restates the days."""

    name = "corrections"
    topology = DAG_ID
    files = ("daily_orders.py", "order_book.py")

    def prepare(self) -> None:
        """Write a new version of the DAG next to the old one, with a bug."""
        self._dags = self.folder / "dags"
        text = (self._dags / "daily_orders.py").read_text()
        assert RIGHT in text, "the job has changed: correct the line of this example that adds up the amounts"
        new = text.replace(f'"{DAG_ID}"', f'"{NEW_DAG_ID}"').replace(RIGHT, WRONG)
        (self._dags / "daily_orders_v2.py").write_text(new)

    def drive(self, airflow: LocalAirflow, store: Store) -> None:
        """Run the three parts of the example, one after the other."""
        self._wrong: list[str] = []
        for dag_id in (DAG_ID, NEW_DAG_ID):
            eventually(partial(airflow.call, "GET", f"dags/{dag_id}"), 90, "the DAG is known", interval=0.3)
        airflow.pause(DAG_ID, False)
        self._correct_a_day(airflow)
        self._correct_a_week(airflow, store)
        self._compare_versions(airflow)

    def wrong(self) -> list[str]:
        """Return the differences found by the checks of the three parts."""
        return self._wrong

    def verdict(self) -> str:
        """Return the verdict in one line, with its figures."""
        return f"{self._orders} of {self._orders} orders of {self._days} days counted once, with every correction"

    # --- the stories -------------------------------------------------------------------------------------------------

    def _correct_a_day(self, airflow: LocalAirflow) -> None:
        self._backfill(airflow, DAG_ID, 1, 2)
        with self._bug(f"{DAG_ID}.py"):
            self._backfill(airflow, DAG_ID, 3, 3)
        self._expect(DAG_ID, airflow, exact=False, when="after a day with a bug")
        self.say("day 3 was committed by a job with a bug; the bug is now fixed, and the day is restated")
        self._restate(airflow, DAG_ID, 3, 3, why="the job counted cents")
        self._expect(DAG_ID, airflow, exact=True, when="after day 3 was restated")

    def _correct_a_week(self, airflow: LocalAirflow, store: Store) -> None:
        with self._bug(f"{DAG_ID}.py"):
            self._backfill(airflow, DAG_ID, 4, 9)
        self._expect(DAG_ID, airflow, exact=False, when="after six days with a bug")
        last = max(entry.txid for entry in history(store, self.paths))
        killed = self.failpoints.arm("commit.before_mark", "kill", topology=DAG_ID, txid=last + 2)
        self.say("days 4 to 9 are restated while days 10 to 12 commit; a committer and the scheduler are killed")
        with ThreadPoolExecutor(1) as pool:
            restated = pool.submit(self._restate, airflow, DAG_ID, 4, 9, why="the job counted cents")
            airflow.end_backfills(DAG_ID)
            # Use the REST API. The command would pause the DAG, and a paused DAG cannot be
            # restated.
            airflow.create_backfill(DAG_ID, _day(10), _day(12))
            eventually(
                lambda: killed.reached,
                _TIMEOUT,
                "a committer is killed after its write and before it records the commit",
            )
            self._kill_scheduler(airflow)
            restated.result(_TIMEOUT)
        self._ended(airflow, DAG_ID)
        self._restate(airflow, DAG_ID, 4, 9, why="the job counted cents")
        self.say("the same command again: a second correction of days that are already correct")
        self._expect(DAG_ID, airflow, exact=True, when="after days 4 to 9 were restated, twice")

    def _compare_versions(self, airflow: LocalAirflow) -> None:
        airflow.pause(NEW_DAG_ID, False)
        self._backfill(airflow, NEW_DAG_ID, 1, 12)
        self._diff(airflow, equal=False)
        self.say("the new version has the bug: the bug is fixed, and the days of the new version are restated")
        path = self._dags / "daily_orders_v2.py"
        path.write_text(path.read_text().replace(WRONG, RIGHT))
        self._restate(airflow, NEW_DAG_ID, 1, 12, why="the new version counted cents")
        scheduled = sorted({start for start in self._starts(airflow, NEW_DAG_ID) if start > _day(12)})
        for start in scheduled:
            self._restate_dates(airflow, NEW_DAG_ID, start, start, why="the new version counted cents")
        self._expect(NEW_DAG_ID, airflow, exact=True, when="after the new version was restated")
        self._diff(airflow, equal=True)

    # --- what people do ----------------------------------------------------------------------------------------------

    @contextmanager
    def _bug(self, name: str) -> Iterator[None]:
        """Add a bug to the job until the `with` block ends."""
        path = self._dags / name
        kept = path.with_suffix(".kept")
        shutil.copy(path, kept)
        path.write_text(path.read_text().replace(RIGHT, WRONG))
        yield
        kept.replace(path)

    def _backfill(self, airflow: LocalAirflow, dag_id: str, first: int, last: int) -> None:
        airflow.end_backfills(dag_id)
        airflow.backfill(dag_id, _day(first), _day(last))
        self._ended(airflow, dag_id)
        self.say(f"{dag_id}: days {first} to {last} are committed")

    def _restate(self, airflow: LocalAirflow, dag_id: str, first: int, last: int, *, why: str) -> None:
        self._restate_dates(airflow, dag_id, _day(first), _day(last), why=why)

    def _restate_dates(self, airflow: LocalAirflow, dag_id: str, first: datetime, last: datetime, *, why: str) -> None:
        dates = ["--from", first.date().isoformat(), "--to", last.date().isoformat()]
        self.say(f'airflow tx restate {dag_id} {" ".join(dates)} --why "{why}"')
        airflow.command("tx", "restate", dag_id, *dates, "--why", why, timeout=_TIMEOUT)
        self._ended(airflow, dag_id)

    def _kill_scheduler(self, airflow: LocalAirflow) -> None:
        airflow.kill_component("scheduler")
        airflow.start_component("scheduler")

    def _diff(self, airflow: LocalAirflow, *, equal: bool) -> None:
        try:
            told = airflow.command("tx", "diff", *self._states(), timeout=_TIMEOUT)
            found = True
        except AssertionError as error:
            told = str(error)
            found = False
        self.say(f"airflow tx diff: {told.strip().splitlines()[-1]}")
        if found != equal:
            self._wrong.append(f"airflow tx diff says equal={found}, expected {equal}: {told[-500:]}")

    def _states(self) -> list[str]:
        return [DAG_ID, NEW_DAG_ID]

    # --- what comes out ----------------------------------------------------------------------------------------------

    def _expect(self, dag_id: str, airflow: LocalAirflow, *, exact: bool, when: str) -> None:
        """Record the differences between the totals and the orders of all days that have a run."""
        expected = self._computed(airflow, dag_id)
        query = f"SELECT product, orders, amount FROM {dag_id}"
        found: dict[object, tuple[int, int]] = {
            product: (int(orders), int(amount)) for product, orders, amount in rows(database(self.folder), query)
        }
        wrong = differences(expected, found)
        self.say(f"{when}: {len(wrong)} of {len(expected)} totals of {dag_id} are wrong")
        if exact:
            self._wrong += [f"{when}: {each}" for each in wrong]
        elif not wrong:
            self._wrong.append(f"{when}: the bug has no effect")

    def _computed(self, airflow: LocalAirflow, dag_id: str) -> dict[object, tuple[int, int]]:
        sys.path.insert(0, str(self._dags))
        from order_book import orders  # type: ignore[import-not-found]

        counts: Counter[str] = Counter()
        amounts: Counter[str] = Counter()
        starts = self._starts(airflow, dag_id)
        for start in starts:
            for order in orders(start, start + timedelta(days=1)):
                counts[order["product"]] += 1
                amounts[order["product"]] += order["amount"]
        self._orders = counts.total()
        self._days = len(starts)
        return {product: (counts[product], amounts[product]) for product in counts}

    def _starts(self, airflow: LocalAirflow, dag_id: str) -> set[datetime]:
        return {datetime.fromisoformat(run["data_interval_start"]) for run in airflow.runs(dag_id)}

    def _ended(self, airflow: LocalAirflow, dag_id: str) -> None:
        def states() -> list[str]:
            return sorted(run["state"] for run in airflow.runs(dag_id))

        eventually(lambda: set(states()) == {"success"}, _TIMEOUT, "all runs succeed", explain=lambda: str(states()))


def _day(number: int) -> datetime:
    return FIRST + timedelta(days=number - 1)
