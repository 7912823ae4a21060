"""Creates the screenshots of the Transactions page for the documentation, on its own servers.

See script/screenshots.
"""

from __future__ import annotations

import csv
import random
import re
import shutil
import subprocess
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.airflow.browser import NARROW, Person, chromium
from tests.integration.board.server import SAME_ORIGIN
from tests.servers.postgres import LocalPostgres

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
MOST_BYTES = 150_000
"""The maximum size of a screenshot."""
_DAGS = Path(__file__).parent / "pictured"
FILES = {"orders": 10, "payments": 5, "returns": 3}
AT_FIRST = 8
"""The number of order files in the first runs."""
BROKEN = ("payments", 3)
"""The file in which a row has no amount. It is never corrected."""
UNPRICED = 3
"""The file of orders that is processed before its prices are known, so that its first try fails."""
RESTATED = 2
"""The file of orders that is corrected after its commit."""
_TIMEOUT = 300
_FILLED = 0.97
"""The share of the width of a timeline that its transactions fill."""


Row = dict[str, Any]


class Shop:
    """Runs the DAGs of a shop, and performs user actions on its transactions.

    :param folder: the folder of the files.
    """

    def __init__(self, airflow: LocalAirflow, person: Person, folder: Path) -> None:
        self._airflow, self._person, self._folder = airflow, person, folder
        self._unpriced = folder / "unpriced" / f"{UNPRICED:02}"

    def rows(self, name: str) -> dict[int, Row]:
        """Return the transactions of a topology by txid, as returned to the page, or {} before the first has begun."""
        answer = self._person.page.request.get(f"/tx/api/v1/topologies/{name}/transactions?limit=1000")
        return {row["txid"]: row for row in answer.json()["transactions"]} if answer.ok else {}

    def fail(self) -> None:
        """Run payments and returns. A wrong file of payments fails in two attempts, and later files wait for it."""
        name, txid = BROKEN
        for each in ("payments", "returns"):
            self._trigger(each, 1, FILES[each])
        self._wait_for(name, {txid: "FAILED", FILES[name]: "PROCESSED"})
        self._act(name, "replay", txid, why="the file was to be delivered again")
        eventually(lambda: self._is_failed(name, txid, attempt=2), _TIMEOUT, "the second attempt has also failed")
        self._wait_for("returns", {FILES["returns"]: "COMMITTED"})

    def tell(self) -> None:
        """Run orders with overlapping processing, replay a failed transaction, and restate another while others run."""
        self._unpriced.touch()
        # Open the page now, since the lags of sources are requested only while a user views it.
        self._person.open(topology="orders")
        self._trigger("orders", 1, AT_FIRST)
        waiting = range(UNPRICED + 1, UNPRICED + 4)
        self._wait_for("orders", {UNPRICED: "FAILED", **dict.fromkeys(waiting, "PROCESSED")})
        self._unpriced.unlink()
        self._act("orders", "replay", UNPRICED, why="the prices have arrived")
        self._wait_for("orders", {AT_FIRST - 2: "COMMITTED"})
        self._trigger("orders", AT_FIRST + 1, FILES["orders"])
        # The restatement gets the next txid.
        eventually(lambda: FILES["orders"] in self.rows("orders"), _TIMEOUT, "the last orders have begun", interval=0.5)
        write_file(self._folder / "orders" / f"{RESTATED:02}.csv", random.Random(7))
        self._act("orders", "restate", RESTATED, why="the file was corrected", changed_rows=True)
        self._wait_for("orders", dict.fromkeys(range(1, FILES["orders"] + 2), "COMMITTED"))

    def check(self) -> None:
        """Check that the timeline of the orders shows everything that the caption of its screenshot describes.

        :raises AssertionError: something is missing. On a slow machine the runs may not overlap.
        """
        rows = self.rows("orders")
        work = [_work(row) for row in rows.values()]
        most = max(sum(begin <= at < end for begin, end in work) for at, _ in work)
        assert most >= 3, (
            f"{most} runs were processed at once, not three: repeat the command when the machine is less busy"
        )
        assert len(rows[UNPRICED]["attempts"]) == 2, "the orders without prices were not replayed once"
        assert any(task["state"] == "failed" for task in rows[UNPRICED]["tasks"]), "no try has failed"
        assert rows[RESTATED]["restated_by"], "no orders were restated"
        ends = [_seconds(row["commit"]["end"]) for _, row in sorted(rows.items())]
        assert ends == sorted(ends), "commits are not in order"

    def wait_for_lags(self) -> None:
        """Wait until the lag of every source is known. Lags are requested only while a page is open."""

        def known() -> bool:
            answer = self._person.page.request.get("/tx/api/v1/topologies").json()
            return all(line["lag"]["value"] is not None for line in answer["topologies"])

        eventually(known, _TIMEOUT, "every source has answered", interval=0.5)

    def window(self, name: str) -> dict[str, int]:
        """Return the URL parameters of a timeline whose width fits the transactions."""
        moments = [at for row in self.rows(name).values() for at in _moments(row)]
        first, last = min(moments), max(moments)
        seconds = max(round((last - first) / _FILLED), 60)
        return {"range": seconds, "until": round((last + (seconds - (last - first)) / 2) * 1000)}

    def _trigger(self, name: str, first: int, last: int) -> None:
        for number in range(first, last + 1):
            self._airflow.trigger(name, f"{name}-{number:02}")

    def _act(self, name: str, action: str, txid: int, *, why: str, **body: Any) -> None:
        """Perform an action through the API, like a button on the page. `airflow tx` would take longer."""
        path = f"topologies/{name}/actions/{action}"
        body["txids"] = [txid]
        version = self._post(f"{path}/preview", body)["version"]
        self._post(path, {**body, "version": version, "why": why})

    def _post(self, path: str, body: Row) -> Row:
        answer = self._person.page.request.post(f"/tx/api/v1/{path}", data=body, headers=SAME_ORIGIN)
        assert answer.ok, f"{path}: {answer.text()}"
        found: Row = answer.json()
        return found

    def _wait_for(self, name: str, phases: dict[int, str]) -> None:
        def reached() -> bool:
            rows = self.rows(name)
            return all(txid in rows and rows[txid]["phase"] == phase for txid, phase in phases.items())

        eventually(reached, _TIMEOUT, f"{name}: {phases}", interval=0.5, explain=lambda: repr(self.rows(name)))

    def _is_failed(self, name: str, txid: int, *, attempt: int) -> bool:
        row = self.rows(name)[txid]
        return bool(row["phase"] == "FAILED" and row["attempt"] == attempt)


def _work(row: Row) -> tuple[float, float]:
    """Return when the processing of a transaction began and ended."""
    ends = [_seconds(task["end"]) for task in row["tasks"] if task["end"] and task["task_id"].startswith("count_")]
    return _seconds(row["attempts"][0]["begun_at"]), max(ends)


def _moments(row: Row) -> list[float]:
    """Return when a transaction began, and when it ended. For an open transaction, return when its tasks ended."""
    ends = [row["commit"]["end"]] if row["commit"] else [task["end"] for task in row["tasks"]]
    return [_seconds(each) for each in (row["attempts"][0]["begun_at"], *ends) if each]


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()


def write_files(folder: Path) -> None:
    """Write the files of the shop. One file has a row without an amount."""
    chance = random.Random(1)
    (folder / "unpriced").mkdir()
    for name, files in FILES.items():
        (folder / name).mkdir()
        for number in range(1, files + 1):
            write_file(folder / name / f"{number:02}.csv", chance, broken=(name, number) == BROKEN)


def write_file(path: Path, chance: random.Random, *, broken: bool = False) -> None:
    """Write a file with a few hundred rows."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["product", "customer", "amount"])
        for index in range(chance.randrange(200, 900)):
            amount = "" if broken and index == 17 else chance.randrange(1, 100)
            rows.writerow([chance.choice(["bolts", "nuts", "screws"]), f"c{chance.randrange(40)}", amount])


def take(shop: Shop, person: Person, dark: Person) -> None:
    """Take the screenshots of the page."""
    name, txid = BROKEN
    _resize(person, 1280, 480)
    person.open()
    shop.wait_for_lags()
    person.open()
    expect(person.board.get_by_role("link", name="orders", exact=True)).to_be_visible()
    _save(person, "overview")
    for one, picture in ((person, "timeline"), (dark, "timeline_dark")):
        _resize(one, 1280, 860)
        one.open(topology="orders", **shop.window("orders"))
        one.row(1).first.wait_for()
        expect(one.board).to_contain_text(re.compile("throughput", re.IGNORECASE))
        _save(one, picture)
    _resize(person, 1280, 760)
    person.open(topology=name, txid=txid)
    expect(person.board).to_contain_text("has no amount")
    _save(person, "transaction")
    _resize(person, 1280, 560)
    person.board.get_by_role("button", name="Skip", exact=True).first.click()
    expect(person.page.get_by_role("dialog")).to_contain_text("counted nowhere")
    _save(person, "preview")
    person.page.keyboard.press("Escape")
    person.page.set_viewport_size(NARROW)
    person.open(topology=name, **shop.window(name))
    person.row(txid).first.wait_for()
    _save(person, "phone")


def _resize(person: Person, width: int, height: int) -> None:
    person.page.set_viewport_size({"width": width, "height": height})


def _save(person: Person, picture: str) -> None:
    person.page.wait_for_load_state("networkidle")
    path = PICTURES / f"{picture}.png"
    person.page.screenshot(path=path, animations="disabled")
    if shutil.which("pngquant"):  # This reduces the screenshot to a third of its size.
        subprocess.run(["pngquant", "--force", "--strip", "--ext", ".png", path], check=True)
    size = path.stat().st_size
    assert size <= MOST_BYTES, (
        f"{path} has {size} bytes, more than {MOST_BYTES}: install pngquant, and repeat the command"
    )


def main() -> None:
    """Replace all screenshots."""
    PICTURES.mkdir(exist_ok=True)
    # The screenshots show this path, so it must always be the same.
    folder = Path(tempfile.gettempdir(), "shop")
    folder.mkdir()
    try:
        write_files(folder)
        dags = shutil.copytree(_DAGS, folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
        with LocalPostgres() as postgres, LocalZooKeeper(folder / "zookeeper") as zookeeper:
            env = {
                "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=zookeeper.hosts),
                "AIRFLOW_CONN_TX_STATE": connection("sqlite", host=str(folder / "state.db")),
                "AIRFLOW__CORE__PARALLELISM": "16",
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": postgres.url(postgres.new_database()),
                "AIRFLOW__TX__STAGING": (folder / "staging").as_uri(),
                "AIRFLOW_TX_DATA": str(folder),
            }
            with LocalAirflow(folder / "home", dags, env) as airflow, chromium() as browser:
                for name in FILES:
                    airflow.wait_dag(name)
                person, dark = Person(browser, airflow, "admin"), Person(browser, airflow, "admin", dark=True)
                shop = Shop(airflow, person, folder)
                shop.fail()
                shop.tell()
                shop.check()
                take(shop, person, dark)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
