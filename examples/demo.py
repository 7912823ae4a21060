"""The demo. It counts the flights of 2013 in twelve transactions, with faults, and checks that each is counted once."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_tx.ledger.api import Paths, Store
from airflow_tx.testing.airflow_client import AirflowClient
from airflow_tx.testing.failpoints import Failpoints
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from examples import report
from examples.example import counts_something
from examples.faults import Faults
from examples.flights import write_months
from examples.keeper import end_kept, keep
from examples.ledger import batches, history, opened, transactions
from examples.servers import ROOT, copy_dags, database, make_airflow

DAG_ID = "flights"
# The run that begins first takes the first month.
RUNS = [f"run-{number:02}" for number in range(1, 13)]
PROGRAM = "examples.demo"
PATHS = Paths(ROOT, DAG_ID)
_TIMEOUT = 600  # The seconds without a commit after which the demo fails.
_LINES = 15
_CLEARS = 2


class Demo:
    """One run of the demo.

    :param home: the folder for all files of the demo, which is emptied first
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.flights = home / "flights"
        self._started = time.monotonic()
        self._shown = ""
        self._clears: Counter[str] = Counter()
        self._batches: dict[str, str] = {}
        self._ended = False

    def say(self, text: str) -> None:
        """Print one line of progress, starting with the elapsed seconds."""
        print(f"[{time.monotonic() - self._started:4.0f} s] {text}", flush=True)

    def run(self, kept: Path | None) -> int:
        """Write the files, start the servers, count the flights, and print the verdict.

        :param kept: the file for the pid of the process that keeps the servers running, or None to stop the servers.
        :return: the exit status.
        """
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        self.say("writing the flights of 2013 as one csv file a month")
        write_months(self.flights)
        expected = report.computed(self.flights)
        self.say(f"{expected.flights} flights in {len(RUNS)} files; starting ZooKeeper and Airflow")
        failpoints = Failpoints(self.home / "failpoints")
        with LocalZooKeeper(self.home / "zookeeper") as zookeeper:
            dags = copy_dags(["flights.py"], self.home)
            with make_airflow(self.home, dags, zookeeper.hosts, failpoints) as airflow:
                with opened(zookeeper.hosts) as store:
                    status = self.judge(expected, airflow, store, failpoints)
                if kept is not None:
                    print(f"\nAirflow: {airflow.address}  login: {airflow.user}  password: {airflow.password}")
                    print("It runs until script/demo --stop.", flush=True)
                    keep(kept, airflow.mark)
                    os._exit(status)
        return status

    def judge(self, expected: report.Totals, airflow: AirflowClient, store: Store, failpoints: Failpoints) -> int:
        """Start the runs on servers that are already running, and print the verdict. Return the exit status."""
        wrong, transactions = self._count(airflow, store, failpoints)
        if self._ended:  # Incomplete totals always differ.
            wrong += report.differences(expected, report.stored(database(self.home)))
        return print_report(expected, transactions, wrong, ended=self._ended)

    def _count(
        self, airflow: AirflowClient, store: Store, failpoints: Failpoints
    ) -> tuple[list[str], list[report.Transaction]]:
        """Run the whole demo. Return the problems and the committed transactions."""
        faults = Faults(airflow, DAG_ID, self.say)
        faults.arm(failpoints)
        wrong = self._drive(airflow, store, faults)
        done = transactions(airflow, DAG_ID, history(store, PATHS), self._batches)
        wrong += report.order_violations(done)
        wrong += [f"this fault did not happen: {what}" for what in faults.missing()]
        return wrong, done

    def _drive(self, airflow: AirflowClient, store: Store, faults: Faults) -> list[str]:
        """Start the runs, and wait until all have ended. Return a line for each run that did not succeed."""
        airflow.wait_dag(DAG_ID)
        self.say(f"Airflow is up: {airflow.address} (login {airflow.user}, password {airflow.password})")
        for run_id in RUNS:
            airflow.trigger(DAG_ID, run_id)
        self.say(f"{len(RUNS)} runs triggered, at most 4 transactions in processing at once")
        last, seen = time.monotonic(), 0
        while time.monotonic() < last + _TIMEOUT:
            done = {entry.txid: entry.run_id for entry in history(store, PATHS)}
            self._batches.update(batches(store, PATHS))
            if len(done) > seen:
                last, seen = time.monotonic(), len(done)
            faults.step(done)
            # Read the states after the faults, since one of them may have just cleared a run.
            states = {run["dag_run_id"]: run["state"] for run in airflow.runs(DAG_ID)}
            self._show(airflow, done)
            if len(done) == len(RUNS) and faults.cleared and set(states.values()) == {"success"}:
                self.say("all runs have ended")
                self._ended = True
                return []
            self._clear_failed(airflow, states)
            hopeless = [run_id for run_id, state in states.items() if self._hopeless(run_id, state)]
            if hopeless:  # Later runs would wait forever.
                self.say(airflow.describe_run(DAG_ID, hopeless[0]))
                break
            time.sleep(1)
        left = [f"run {run_id} is {state}" for run_id, state in states.items() if state != "success"]
        return [f"not all runs have ended ({len(done)} of {len(RUNS)} transactions are committed)", *left]

    def _hopeless(self, run_id: str, state: str) -> bool:
        return state == "failed" and self._clears[run_id] >= _CLEARS

    def _clear_failed(self, airflow: AirflowClient, states: Mapping[str, str]) -> None:
        """Clear the failed tasks of failed runs, like a user."""
        for run_id, state in states.items():
            if state == "failed" and not self._hopeless(run_id, state):
                self._clears[run_id] += 1
                self.say(f"run {run_id} has failed; its failed tasks are cleared")
                airflow.clear_run(DAG_ID, run_id, only_failed=True)

    def _show(self, airflow: AirflowClient, done: Mapping[int, str]) -> None:
        running: dict[str, list[str]] = {"flight_counts": [], "commit": []}
        for task in airflow.task_instances(DAG_ID, "~"):
            if task["task_id"] in running and task["state"] in ("running", "deferred", "up_for_retry"):
                run_id = task["dag_run_id"]
                running[task["task_id"]].append(f"{run_id} ({self._batches.get(run_id, '?')})")
        text = (
            f"{len(done):2} of {len(RUNS)} committed | Spark: {' '.join(sorted(running['flight_counts'])) or '-'}"
            f" | committing or waiting for the turn: {' '.join(sorted(running['commit'])) or '-'}"
        )
        if text != self._shown:
            self._shown = text
            self.say(text)


def print_report(
    expected: report.Totals, transactions: Sequence[report.Transaction], wrong: Sequence[str], *, ended: bool
) -> int:
    """Print the transactions and the verdict. Return the exit status.

    :param ended: whether all runs have ended. Otherwise the totals were not compared.
    """
    print()
    if transactions:
        print("\n".join(report.table(transactions)))
        order = " ".join(str(one.txid) for one in sorted(transactions, key=lambda one: one.ended))
        print(
            f"\nat most {report.most_at_once(transactions)} transactions were processed at once; commit order: {order}"
        )
    if not ended:
        print("\n".join(["", *wrong[:_LINES], "", "the demo did not finish: the totals were not compared"]))
        return 1
    print(f"totals of {len(expected.groups)} (carrier, origin) pairs compared with a direct computation over the files")
    for line in wrong[:_LINES]:
        print(f"DIFFERS: {line}")
    if len(wrong) > _LINES:
        print(f"... and {len(wrong) - _LINES} more")
    verdict = f"{expected.flights} of {expected.flights} flights counted once"
    if not wrong and not (transactions and expected.groups and counts_something(verdict)):
        wrong = [f"nothing was counted, so the demo shows nothing: {verdict}, in {len(transactions)} transactions"]
        print(f"DIFFERS: {wrong[0]}")
    if wrong:
        print(f"\nnot exact: {len(wrong)} differences")
        return 1
    print(f"\n{verdict}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line of script/demo."""
    parser = argparse.ArgumentParser(prog="script/demo", description=__doc__)
    parser.add_argument(
        "--home", type=Path, default=Path(".demo"), help="folder for all files of the demo; it is emptied first"
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--keep", action="store_true", help="leave Airflow running, print its address and login")
    choice.add_argument("--stop", action="store_true", help="stop the processes that --keep left running")
    options = parser.parse_args(arguments)
    home = options.home.resolve()
    pid_file = home / "kept.pid"
    ended = end_kept(pid_file, PROGRAM)
    if options.stop:
        print("stopped" if ended else "nothing was running")
        return 0
    try:
        return Demo(home).run(pid_file if options.keep else None)
    except AssertionError as error:  # A server or a DAG has not started.
        print(f"\nThe demo could not continue: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
