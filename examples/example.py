"""Runs one of the examples in `dags/` on its own servers, with faults, and prints whether the result was exact."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from airflow_tx.ledger.api import Paths, Store
from airflow_tx.testing.airflow import LocalAirflow
from airflow_tx.testing.failpoints import Failpoints
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from examples.ledger import opened
from examples.servers import ROOT, copy_dags, make_airflow

Say = Callable[[str], None]


class Example(ABC):
    """An example: the files that it needs, the faults that it causes, and the expected result.

    :param folder: the folder of the example's data. Its tasks read it from AIRFLOW_TX_DATA.
    """

    name: ClassVar[str]
    topology: ClassVar[str]
    """The name of the example's topology. Defaults to `name`."""
    files: ClassVar[tuple[str, ...]]
    """The files of `dags/` that the example needs."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "topology" not in vars(cls):
            cls.topology = cls.name

    def __init__(self, folder: Path, say: Say, failpoints: Failpoints) -> None:
        self.folder = folder
        self.say = say
        self.failpoints = failpoints
        self.zookeeper: LocalZooKeeper | None = None
        """The server of the ledgers, or None before it has started."""

    @abstractmethod
    def prepare(self) -> None:
        """Write the first data, before the servers start."""

    @abstractmethod
    def drive(self, airflow: LocalAirflow, store: Store) -> None:
        """Add data, cause faults, and act as the user, until all data is committed.

        :raises AssertionError: not all data was committed in time.
        """

    @abstractmethod
    def wrong(self) -> list[str]:
        """Return one line for each difference between the result and a direct computation over all written data."""

    @abstractmethod
    def verdict(self) -> str:
        """Return the verdict if there is no difference, as one line, such as `9 of 9 orders counted once`."""

    @property
    def paths(self) -> Paths:
        """Return the paths of the example's ledger."""
        return Paths(ROOT, self.topology)


def run(example: type[Example], home: Path) -> int:
    """Run an example: write its data, start the servers, and print the verdict.

    :param home: the folder for all files of the example, which is emptied first
    :return: the exit status.
    """
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:4.0f} s] {text}", flush=True)

    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    dags = copy_dags(example.files, home)
    failpoints = Failpoints(home / "failpoints")
    made = example(home, say, failpoints)
    made.prepare()
    say("starting ZooKeeper and Airflow")
    with LocalZooKeeper(home / "zookeeper") as zookeeper:
        made.zookeeper = zookeeper
        with make_airflow(home, dags, zookeeper.hosts, failpoints) as airflow, opened(zookeeper.hosts) as store:
            say(f"Airflow is up: {airflow.address} (login {airflow.user}, password {airflow.password})")
            made.drive(airflow, store)
    return judge(made)


def judge(example: Example) -> int:
    """Print the differences and the verdict. Return the exit status."""
    wrong = example.wrong()
    verdict = "" if wrong else example.verdict()
    if not wrong and not counts_something(verdict):
        wrong = [f"nothing was counted, so the example shows nothing: {verdict}"]
    for line in wrong[:15]:
        print(f"DIFFERS: {line}")
    print(f"\nnot exact: {len(wrong)} differences" if wrong else f"\n{verdict}")
    return 1 if wrong else 0


def counts_something(verdict: str) -> bool:
    """Return whether a verdict contains `N of N` with equal numbers above 0. Without data, nothing would differ."""
    found = re.findall(r"\b(\d+) of (\d+)\b", verdict)
    return bool(found) and all(some == all_ and int(all_) for some, all_ in found)


def differences(expected: Mapping[object, object], found: Mapping[object, object]) -> list[str]:
    """Return one line for each key whose value differs from the expected value."""
    return [
        f"{key}: expected {expected.get(key)}, found {found.get(key)}"
        for key in sorted(expected.keys() | found.keys(), key=str)
        if expected.get(key) != found.get(key)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line of script/example."""
    from examples import EXAMPLES

    parser = argparse.ArgumentParser(prog="script/example", description=__doc__)
    parser.add_argument("name", choices=sorted(EXAMPLES))
    parser.add_argument(
        "--home", type=Path, default=Path(".demo"), help="folder for all files of the example; it is emptied first"
    )
    options = parser.parse_args(arguments)
    try:
        return run(EXAMPLES[options.name], options.home.resolve() / options.name)
    except AssertionError as error:  # A server or a DAG has not started, or an expected event has not happened.
        print(f"\nThe example could not continue: {error}", file=sys.stderr)
        return 1
