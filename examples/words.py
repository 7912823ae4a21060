"""Words in two databases. A committer dies between its writes to the first and the second database."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from airflow_tx.ledger.api import Store
from airflow_tx.testing.airflow import LocalAirflow
from examples.example import Example, differences
from examples.sentences import counted, write_sentences
from examples.stored import rows

FILES = 3


class Words(Example):
    """Counts the words of a few files."""

    name = "words"
    files = ("words.py",)

    def prepare(self) -> None:
        """Write one file for each transaction."""
        write_sentences(self.folder / "sentences", FILES)

    def drive(self, airflow: LocalAirflow, store: Store) -> None:
        """Kill the commit of transaction 2 between the two databases."""
        for number, path in enumerate(self._databases):
            # Create the connections like `airflow connections add` does.
            kept = {"connection_id": f"tx_words_{number}", "conn_type": "sqlite", "host": str(path)}
            airflow.call("POST", "connections", json=kept)
        airflow.wait_dag(self.name)
        where = {"topology": self.name, "txid": 2, "state": "tx_words_1.word_counts"}
        paused = self.failpoints.arm("commit.before_write", "pause", **where)
        killed = self.failpoints.arm("commit.before_write", "kill", **where)
        runs = [f"r{number}" for number in range(1, FILES + 1)]
        for run_id in runs:
            airflow.trigger(self.name, run_id)
        airflow.wait_for(lambda: paused.reached, 120, "the second database is about to be written", self.name, "r2")
        ahead = [sum(self._stored(path).values()) for path in self._databases]
        self.say(f"transaction 2 is in the first database and not in the second: they hold {ahead} words")
        paused.release()
        self.say("its committer is now killed")
        for run_id in runs:
            airflow.wait_run(self.name, run_id)
        assert killed.reached

    def wrong(self) -> list[str]:
        """Compare the counts with the files."""
        found, expected = dict[object, object](), dict[object, object]()
        for path in self._databases:
            found.update(self._stored(path))
        expected.update(sum(counted(self.folder / "sentences"), Counter[Any]()))
        return differences(expected, found)

    def verdict(self) -> str:
        """Return the verdict with its figures, in one line."""
        total = sum(sum(counted(self.folder / "sentences"), Counter[Any]()).values())
        both = " + ".join(str(sum(self._stored(path).values())) for path in self._databases)
        return f"{total} of {total} words counted once, {both} in two databases"

    @property
    def _databases(self) -> list[Path]:
        return [self.folder / f"words_{number}.db" for number in (0, 1)]

    @staticmethod
    def _stored(path: Path) -> Counter[Any]:
        return Counter({word: int(count) for word, count in rows(path, "SELECT word, count FROM word_counts")})
