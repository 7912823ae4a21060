"""Makes the pictures of the board for the documentation, from a run on servers of its own. See script/screenshots."""

from __future__ import annotations

import csv
import random
import re
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import expect

from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.airflow.browser import NARROW, Person, chromium
from tests.servers.postgres import LocalPostgres

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
_DAGS = Path(__file__).parent / "pictured"
FILES = {"orders": 12, "payments": 5, "returns": 3}
BROKEN = ("payments", 3)
_TIMEOUT = 300
RANGE = 600
"""Seconds that the timelines show: a range that the page has a button for."""


def write_files(folder: Path) -> None:
    """Write the files of the shop; one of them has a row without an amount."""
    chance = random.Random(1)
    for name, files in FILES.items():
        (folder / name).mkdir()
        for number in range(1, files + 1):
            with (folder / name / f"{number:02}.csv").open("w", newline="") as file:
                rows = csv.writer(file)
                rows.writerow(["product", "customer", "amount"])
                for index in range(chance.randrange(200, 900)):
                    broken = (name, number, index) == (*BROKEN, 17)
                    amount = "" if broken else chance.randrange(1, 100)
                    rows.writerow([chance.choice(["bolts", "nuts", "screws"]), f"c{chance.randrange(40)}", amount])


def work(airflow: LocalAirflow) -> None:
    """Start the runs, and wait until the broken one has failed and others are under way."""
    for name in FILES:
        airflow.wait_dag(name)
    for number in range(1, max(FILES.values()) + 1):
        for name, files in FILES.items():
            if number <= files:
                airflow.trigger(name, f"{name}-{number:02}")
    eventually(lambda: _in_state(airflow, BROKEN[0], "failed"), _TIMEOUT, "the broken file has failed its run")
    half = FILES["orders"] // 2
    eventually(lambda: _in_state(airflow, "orders", "success") >= half, _TIMEOUT, "half of the orders are committed")


def _in_state(airflow: LocalAirflow, name: str, state: str) -> int:
    return sum(run["state"] == state for run in airflow.runs(name))


def take(airflow: LocalAirflow) -> None:
    """Take the pictures."""
    name, txid = BROKEN
    with chromium() as browser:
        person, dark = Person(browser, airflow, "admin"), Person(browser, airflow, "admin", dark=True)
        person.page.set_viewport_size({"width": 1280, "height": 480})
        person.open()
        expect(person.board.get_by_role("link", name="orders", exact=True)).to_be_visible()
        _save(person, "overview")
        for one, picture in ((person, "timeline"), (dark, "timeline_dark")):
            one.page.set_viewport_size({"width": 1280, "height": 860})
            one.open(topology="orders", range=RANGE)
            one.row(4).wait_for()
            expect(one.board.get_by_role("img", name=re.compile("^Throughput"))).to_be_visible()
            _save(one, picture)
        person.page.set_viewport_size({"width": 1280, "height": 760})
        person.open(topology=name, txid=txid)
        expect(person.board).to_contain_text("Waits for a replay")
        _save(person, "transaction")
        person.page.set_viewport_size({"width": 1280, "height": 560})
        person.board.get_by_role("button", name="Skip").click()
        expect(person.page.get_by_role("dialog")).to_contain_text("What will happen")
        _save(person, "preview")
        person.page.keyboard.press("Escape")
        person.page.set_viewport_size(NARROW)
        person.open(topology=name, range=RANGE)
        person.row(txid).wait_for()
        _save(person, "phone")


def _save(person: Person, picture: str) -> None:
    person.page.wait_for_load_state("networkidle")
    person.page.screenshot(path=PICTURES / f"{picture}.png", animations="disabled")


def main() -> None:
    """Make all of them again."""
    PICTURES.mkdir(exist_ok=True)
    # It can be read in the pictures, so it is the same each time.
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
            with LocalAirflow(folder / "home", dags, env) as airflow:
                work(airflow)
                take(airflow)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
