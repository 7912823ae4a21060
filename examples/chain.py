"""A chain of three stages.

Days are corrected in the first stage, and later stages follow, even if processes are killed.
"""

from __future__ import annotations

import csv
import random
from collections import Counter
from pathlib import Path

from airflow_tx.ledger.api import Paths, Store
from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.state import DeltaTable
from airflow_tx.testing.airflow import LocalAirflow
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.failpoints import Armed
from examples.example import Example, differences
from examples.ledger import history
from examples.servers import ROOT, database
from examples.stored import rows

DAYS = 30
ORDERS = 100
PRODUCTS = ("bolts", "nuts", "screws")
STAGES = ("chain_orders", "chain_cleaned", "chain_totals", "chain_largest")
TWICE, READ = 5, 12
"""TWICE is the day that is corrected twice, and READ is the last of the first days.

The day after READ is corrected while the second stage reads it.
"""
_WAIT = 600


class Chain(Example):
    """Writes days of orders, corrects some days, skips one, and kills committers, the scheduler and ZooKeeper."""

    name = "chain"
    topology = "chain_orders"
    files = ("chain.py",)

    def prepare(self) -> None:
        """Write the orders of the first days."""
        self._random = random.Random(1)
        self._orders: dict[int, list[tuple[str, str]]] = {}
        self._away: int | None = None
        for day in range(1, READ + 1):
            self._write(day)

    def drive(self, airflow: LocalAirflow, store: Store) -> None:
        """Run all parts of the example, each until no stage has an open transaction."""
        self._store = store
        for stage in STAGES:
            airflow.wait_dag(f"{stage}_coordinator")
        killed = [self._kill(stage, txid) for stage, txid in (("chain_orders", 3), ("chain_cleaned", 2))]
        self._rests("the first days")
        assert all(each.reached for each in killed)
        self.say(
            "a committer of each of the first two stages was killed after its write and before it recorded the commit"
        )
        self._correct_twice(airflow)
        self._correct_what_is_read(airflow)
        self._skip_a_day(airflow)
        self._lower_a_maximum(airflow)
        for stage in STAGES:
            final = history(store, Paths(ROOT, stage))
            self.say(f"{stage}: {len(final)} transactions, {sum(e.restates is not None for e in final)} restatements")

    # --- the story ---------------------------------------------------------------------------------------------------

    def _correct_twice(self, airflow: LocalAirflow) -> None:
        for amount in ("1000", "2000"):
            self._change(TWICE, amount)
            self._restate(airflow, TWICE, "an order was missing")
        airflow.kill_component("scheduler")
        airflow.start_component("scheduler")
        assert self.zookeeper is not None
        self.zookeeper.kill()
        self.zookeeper.start()
        self.say("the scheduler and ZooKeeper were killed and started again")
        self._rests("two corrections of one day")

    def _correct_what_is_read(self, airflow: LocalAirflow) -> None:
        txid = self._allocated("chain_cleaned") + 1
        paused = self.failpoints.arm("process.before_ack", "pause", topology="chain_cleaned", txid=txid)
        for day in range(READ + 1, DAYS - 4):
            self._write(day)
        eventually(lambda: paused.reached, _WAIT, "the second stage has read the next days")
        first = READ + 1
        self._change(first, "3000")
        self._restate(airflow, first, "the amount was wrong")
        self._committed("chain_orders")
        paused.release()
        self.say(f"day {first} was restated after the second stage had read it and before its ack")
        self._rests("a correction of a day that is being read")

    def _skip_a_day(self, airflow: LocalAirflow) -> None:
        txid = self._allocated("chain_orders") + 1
        paused = self.failpoints.arm("commit.before_write", "pause", topology="chain_orders", txid=txid)
        self._write(DAYS - 4)
        eventually(lambda: paused.reached, _WAIT, "a day is about to be written")
        airflow.command("tx", "skip", "chain_orders", str(txid), "--why", "the shop was closed", "--yes")
        paused.release()
        self._away = DAYS - 4
        for day in range(DAYS - 3, DAYS + 1):
            self._write(day)
        self._rests("the last days")
        self._away = None
        self.say("a day was skipped and is now re-admitted")
        skipped = [each.txid for each in history(self._store, self.paths) if each.status == "SKIPPED"]
        for each in skipped:
            airflow.command("tx", "readmit", "chain_orders", str(each), "--why", "it was open", "--yes", timeout=_WAIT)
        self._rests("the re-admitted day")

    def _lower_a_maximum(self, airflow: LocalAirflow) -> None:
        kept = self._found_largest()
        self._change(TWICE, None)
        self._restate(airflow, TWICE, "the large order did not exist")
        self._rests("a correction that a maximum cannot take back")
        self._reported = airflow.command("tx", "list", "chain_largest")
        assert self._found_largest() == kept, "the maximum was taken back"
        self.say("the totals contain this correction; the maxima are reported as behind it")

    # --- what people do ----------------------------------------------------------------------------------------------

    def _write(self, day: int) -> None:
        orders = [(self._random.choice(PRODUCTS), str(self._random.randint(1, 99))) for _ in range(ORDERS)]
        orders[0] = (orders[0][0], "unknown")
        self._orders[day] = orders
        self._store_day(day)

    def _change(self, day: int, amount: str | None) -> None:
        """Set the extra order of a day to this amount, or remove it if the amount is None."""
        kept = self._orders[day][:ORDERS]
        self._orders[day] = kept if amount is None else [*kept, ("bolts", amount)]
        self._store_day(day)

    def _store_day(self, day: int) -> None:
        folder = self.folder / "orders"
        folder.mkdir(parents=True, exist_ok=True)
        partial_file = folder / f".{day:02}.csv"
        with partial_file.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["day", "product", "amount"])
            writer.writerows([f"{day:02}", *order] for order in self._orders[day])
        # The rename is atomic, since the source may list the folder at this moment.
        partial_file.rename(folder / f"{day:02}.csv")

    def _restate(self, airflow: LocalAirflow, day: int, why: str) -> None:
        counts = self._counts("chain_orders")[day]
        self.say(f'airflow tx restate chain_orders {counts} --changed-rows --why "{why}"')
        airflow.command("tx", "restate", "chain_orders", str(counts), "--changed-rows", "--why", why, timeout=_WAIT)
        self._committed("chain_orders")

    def _counts(self, stage: str) -> dict[int, int]:
        """Return, for each day, the transaction whose rows count."""
        found = dict[int, int]()
        for each in history(self._store, Paths(ROOT, stage)):
            receipt = each.receipt
            if receipt is not None and each.status == "COMMITTED":
                found[int(Path(str(receipt.metadata["files"][0]["name"])).stem)] = each.txid
        return found

    def _kill(self, stage: str, txid: int) -> Armed:
        return self.failpoints.arm("commit.before_mark", "kill", topology=stage, txid=txid)

    # --- waits -------------------------------------------------------------------------------------------------------

    def _allocated(self, stage: str) -> int:
        return ReadOnlyLedger(self._store, Paths(ROOT, stage)).allocated_if_any() or 0

    def _committed(self, stage: str) -> None:
        ledger = ReadOnlyLedger(self._store, Paths(ROOT, stage))
        eventually(lambda: not ledger.open_records() and not ledger.wishes(), _WAIT, f"{stage} has no open transaction")

    def _rests(self, what: str) -> None:
        """Wait until the totals equal the totals of the files and no stage has an open transaction."""
        eventually(
            lambda: not self._wrong_totals(),
            _WAIT,
            f"the totals contain {what}",
            interval=0.5,
            explain=lambda: "; ".join(self._wrong_totals()[:5]),
        )
        for stage in STAGES:
            self._committed(stage)
        self.say(f"the totals contain {what}: {len(self._orders)} days")

    # --- results -----------------------------------------------------------------------------------------------------

    def wrong(self) -> list[str]:
        """Compute the values of each stage directly from the files, and return the differences."""
        raw: Counter[object] = Counter(
            (f"{day:02}", *order) for day, orders in self._orders.items() for order in orders
        )
        stored: Counter[object] = Counter(rows(database(self.folder), "SELECT day, product, amount FROM chain_orders"))
        clean: Counter[object] = Counter(
            (f"{day:02}", product, int(amount))
            for day, orders in self._orders.items()
            for product, amount in orders
            if amount.isdecimal()
        )
        table = DeltaTable(f"{self.folder / 'lake'}/chain_cleaned")
        published: Counter[object] = Counter((row["day"], row["product"], row["amount"]) for row in table.read())
        found = [f"orders: {each}" for each in differences(raw, stored)]
        found += [f"cleaned: {each}" for each in differences(clean, published)]
        found += self._wrong_totals()
        if "behind" not in self._reported:
            found.append("the maxima are behind a correction, but airflow tx list does not report it")
        return found

    def verdict(self) -> str:
        """Return the verdict with its figures, in one line."""
        total = sum(map(len, self._orders.values()))
        return f"{total} of {total} orders of {DAYS} days are once in each of three stages, with all corrections"

    def _wrong_totals(self) -> list[str]:
        expected: dict[object, object] = {}
        for day, orders in self._orders.items():
            if day == self._away:
                continue
            amounts = [int(amount) for _, amount in orders if amount.isdecimal()]
            expected[f"{day:02}"] = (len(amounts), sum(amounts))
        found: dict[object, object] = {
            day: (int(orders), int(amount))
            for day, orders, amount in rows(database(self.folder), "SELECT day, orders, amount FROM chain_totals")
        }
        return [f"totals: {each}" for each in differences(expected, found)]

    def _found_largest(self) -> dict[str, int]:
        found = rows(database(self.folder), "SELECT product, amount FROM chain_largest")
        return {product: int(amount) for product, amount in found}
