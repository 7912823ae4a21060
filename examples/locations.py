"""Trident's LocationDB. Users are seen at places, a committer dies after its write, and a query returns the places."""

from __future__ import annotations

import csv
import random

from airflow_tx.ledger.api import Store
from airflow_tx.testing.airflow import LocalAirflow
from examples.example import Example, differences
from examples.stored import rows

FILES = 3
ROWS = 100
PLACES = ("Berlin", "Nairobi", "Quito", "Seoul")


class Locations(Example):
    """Stores the last location of each user."""

    name = "locations"
    files = ("locations.py",)

    def prepare(self) -> None:
        """Write one file for each transaction."""
        chosen, self.answers = random.Random(1), dict[object, object]()
        folder = self.folder / "seen"
        folder.mkdir()
        for number in range(1, FILES + 1):
            with (folder / f"{number:02}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["user", "location"])
                writer.writerows([chosen.randint(1, 40), chosen.choice(PLACES)] for _ in range(ROWS))

    def drive(self, airflow: LocalAirflow, store: Store) -> None:
        """Kill the committer of transaction 2 between its write and its mark."""
        airflow.wait_dag(self.name)
        killed = self.failpoints.arm("commit.before_mark", "kill", topology=self.name, txid=2)
        for number in range(1, FILES + 1):
            airflow.trigger(self.name, f"r{number}")
            airflow.wait_run(self.name, f"r{number}")
            told = airflow.xcom(self.name, f"r{number}", "whereabouts")
            self.answers[f"r{number}"] = {row["user"]: row["location"] for row in told}
            self.say(f"run r{number} is committed and has queried {len(told)} users")
        assert killed.reached
        self.say("the committer of transaction 2 was killed after its write and before it recorded the commit")

    def wrong(self) -> list[str]:
        """Compare the locations with the files."""
        last, expected = dict[object, object](), dict[object, object]()
        for number, path in enumerate(sorted((self.folder / "seen").glob("*.csv")), 1):
            with path.open(newline="") as file:
                batch: dict[object, object] = {int(row["user"]): row["location"] for row in csv.DictReader(file)}
            last.update(batch)
            expected[f"r{number}"] = batch
        found = dict(rows(self.folder / "locations.db", "SELECT user, location FROM locations"))
        return [*differences(last, found), *differences(expected, self.answers)]

    def verdict(self) -> str:
        """Return the verdict with its figures, in one line."""
        (users,) = rows(self.folder / "locations.db", "SELECT count(*) FROM locations")[0]
        return f"{users} of {users} users have their last seen location, {FILES} of {FILES} queries exact"
