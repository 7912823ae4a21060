"""Trident's word count. A Spark application fails once, a committer is killed, and each commit phase runs a query."""

from __future__ import annotations

from collections import Counter

from airflow_tx.ledger.api import Store
from airflow_tx.testing.airflow import LocalAirflow
from examples.example import Example, differences
from examples.ledger import history
from examples.sentences import counted, write_sentences
from examples.servers import database
from examples.stored import rows

FILES = 3
# The same sentence is in the DAG file.
ASKED = frozenset("cat the dog jumped".split())


class TridentWords(Example):
    """Counts the words of a few files with Spark, and queries the counts."""

    name = "trident_words"
    files = ("trident_words.py",)

    def prepare(self) -> None:
        """Write one file for each transaction."""
        self.answers: dict[object, object] = {}
        write_sentences(self.folder / "sentences", FILES)

    def drive(self, airflow: LocalAirflow, store: Store) -> None:
        """Let a Spark application fail once, and kill a committer."""
        airflow.wait_dag(self.name)
        failed = self.failpoints.arm("spark.batch", "raise", topology=self.name, txid=1)
        killed = self.failpoints.arm("commit.before_mark", "kill", topology=self.name, txid=2)
        for number in range(1, FILES + 1):
            airflow.trigger(self.name, f"r{number}")
        self.say(
            "the Spark application of transaction 1 fails once; the last task of transaction 2 is killed before it "
            "records the commit"
        )
        for number in range(1, FILES + 1):
            airflow.wait_run(self.name, f"r{number}", timeout=300)
        assert failed.reached
        assert killed.reached
        for entry in history(store, self.paths):
            answer = airflow.xcom(self.name, entry.run_id, "commit_phase.words")
            self.answers[f"answer of transaction {entry.txid}"] = answer
            commonest = airflow.xcom(self.name, entry.run_id, "commit_phase.commonest")
            self.answers[f"commonest of transaction {entry.txid}"] = commonest
            self.say(f"transaction {entry.txid}: run {entry.run_id}; {' '.join(sorted(ASKED))}: {answer}")

    def wrong(self) -> list[str]:
        """Compare the counts and the query results with the files."""
        batches = counted(self.folder / "sentences")
        found: dict[object, object] = {word: int(count) for word, count in self._stored()}
        expected, so_far = dict[object, object](), Counter[object]()
        for txid, batch in enumerate(batches, 1):
            so_far.update(batch)
            expected[f"answer of transaction {txid}"] = sum(so_far[word] for word in ASKED)
            expected[f"commonest of transaction {txid}"] = max(batch, key=lambda word: (so_far[word], word))
        return differences({**so_far, **expected}, {**found, **self.answers})

    def verdict(self) -> str:
        """Return the verdict with its figures, in one line."""
        total = sum(int(count) for _, count in self._stored())
        return f"{total} of {total} words counted once, {FILES} of {FILES} queries exact"

    def _stored(self) -> list[tuple[str, int]]:
        return [(row[0], row[1]) for row in rows(database(self.folder), "SELECT word, count FROM trident_words")]
