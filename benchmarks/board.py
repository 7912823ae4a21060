"""The board in a real browser: how long until something is drawn, and how smoothly a long timeline scrolls.

A real ledger: one topology with many transactions, and many with one, in an Airflow of which only the api-server runs.
Usage: script/bench board [transactions [topologies]]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks import topology
from benchmarks.figures import machine, quiet, spread
from benchmarks.requests import Silent
from tests.airflow.browser import Person, chromium

TRANSACTIONS, TOPOLOGIES = 1000, 50
LONG, TASK, VISITS = "long", "count", 5

# Scrolls from the newest to the oldest row, a third of a screen with each frame; gives the milliseconds between frames.
_SCROLL = """async list => {
  const box = list.parentElement, gaps = [];
  let before = performance.now();
  while (box.scrollTop + box.clientHeight < box.scrollHeight - 1) {
    box.scrollTop += box.clientHeight / 3;
    await new Promise(requestAnimationFrame);
    gaps.push(performance.now() - before);
    before = performance.now();
  }
  return gaps;
}"""


def fill(hosts: str, folder: Path, name: str, count: int) -> None:
    """Begin, process and commit transactions of a topology."""
    from airflow_tx.transaction.commit.committer import Commit
    from airflow_tx.transaction.commit.turn import commit_in_turn

    with topology.connected(hosts) as store:
        spec = topology.DirectSpec(
            *(name, name, topology.Numbers()), max_pending=4, tasks=(TASK,), hosts=hosts, folder=str(folder), kept=store
        )
        spec = replace(spec, root="/airflow_tx")
        updates = [topology.update(TASK, topology.state(f"sqlite:///{folder / name}.db"))]
        for number in range(count):
            begun: Any = topology.begin(spec, f"run{number:05}")
            topology.process(spec, begun, TASK)
            ti = topology.TaskInstance("commit", f"run{number:05}", xcom=topology.output(begun))
            commit = Commit(spec, begun, updates, spec.ledger(store), ti, Silent())
            assert commit_in_turn(commit, store, patience=0) is None


def visits(browser: Browser, airflow: LocalAirflow, role: str, first: str, **address: Any) -> list[float]:
    """Open a page, each time in a browser that knows nothing of it; seconds until its first line is drawn."""
    seconds = []
    for _ in range(VISITS):
        person = Person(browser, airflow, "admin")
        person.page.goto("/")
        person.page.wait_for_load_state("networkidle")
        started = time.perf_counter()
        person.open(**address)
        person.board.get_by_role(role, name=first).first.wait_for()  # type: ignore[arg-type]
        seconds.append(time.perf_counter() - started)
        person.page.context.close()
    return seconds


def scroll(browser: Browser, airflow: LocalAirflow, transactions: int) -> list[float]:
    """Scroll through all transactions; milliseconds between frames."""
    person = Person(browser, airflow, "admin")
    person.open(topology=LONG, range=2592000)
    person.row(transactions).wait_for()
    gaps: list[float] = person.board.get_by_role("list", name="Transactions").evaluate(_SCROLL)
    person.row(1).wait_for()
    assert person.errors == []
    return gaps


def main() -> None:
    """Print how long it takes."""
    transactions = int(sys.argv[1]) if len(sys.argv) > 1 else TRANSACTIONS
    topologies = int(sys.argv[2]) if len(sys.argv) > 2 else TOPOLOGIES
    quiet()
    with tempfile.TemporaryDirectory() as name, LocalZooKeeper(Path(name, "zookeeper"), fsync=False) as zookeeper:
        folder = Path(name)
        fill(zookeeper.hosts, folder, LONG, transactions)
        for number in range(1, topologies):
            fill(zookeeper.hosts, folder, f"short_{number:02}", 1)
        env = {"AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=zookeeper.hosts)}
        (folder / "dags").mkdir()
        with LocalAirflow(folder / "home", folder / "dags", env) as airflow, chromium() as browser:
            print(f"the board, {transactions} transactions and {topologies} topologies; {machine()}")
            print(f"  overview, first line    {spread(visits(browser, airflow, 'link', LONG))}")
            print(f"  timeline, first row     {spread(visits(browser, airflow, 'listitem', '', topology=LONG))}")
            gaps = scroll(browser, airflow, transactions)
            print(f"  scrolling, {len(gaps)} frames   {spread([gap / 1000 for gap in gaps])}")
            print(f"  frames a second {1000 / statistics.mean(gaps):.0f}")


if __name__ == "__main__":
    main()
