"""Trident's word count in Memcached.

A committer is killed between its two states, and another before it marks a commit.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from airflow_tx.ledger.api import Store
from airflow_tx.state import MemcachedState
from airflow_tx.testing.airflow import LocalAirflow
from examples.example import Example, differences
from examples.ledger import history
from examples.sentences import counted, write_sentences
from tests.servers.memcached import LocalMemcached

FILES = 3


class MemcachedWords(Example):
    """Counts the words of a few files, and the letters of the words."""

    name = "memcached_words"
    files = ("memcached_words.py",)

    def prepare(self) -> None:
        """Write one file for each transaction."""
        write_sentences(self.folder / "sentences", FILES)

    def drive(self, airflow: LocalAirflow, store: Store) -> None:
        """Kill the commit of transaction 2 between its two states, and the commit of transaction 3 before its mark."""
        with LocalMemcached() as server:
            kept = {"connection_id": "tx_cache", "conn_type": "memcached", "host": "127.0.0.1", "port": server.port}
            airflow.call("POST", "connections", json=kept)
            airflow.wait_dag(self.name)
            where = {"topology": self.name, "txid": 2, "state": "letters"}
            between = self.failpoints.arm("commit.before_write", "kill", **where)
            unmarked = self.failpoints.arm("commit.before_mark", "kill", topology=self.name, txid=3)
            runs = [f"r{number}" for number in range(1, FILES + 1)]
            for run_id in runs:
                airflow.trigger(self.name, run_id)
            for run_id in runs:
                airflow.wait_run(self.name, run_id)
            assert between.reached
            assert unmarked.reached
            self.say(
                "committers were killed: one after its write to Memcached and before the files, one before it "
                "recorded the commit"
            )
            self._seen = airflow.xcom(self.name, history(store, self.paths)[-1].run_id, "seen")
            self._stored = self._read(server)

    def wrong(self) -> list[str]:
        """Compare the counts with the files."""
        words = self._words()
        expected: dict[object, object] = {**words, **Counter("".join(words.elements()))}
        expected["answer"] = sum(words[word] for word in "cat the dog jumped".split())
        return differences(expected, {**self._stored, "answer": self._seen})

    def verdict(self) -> str:
        """Return the verdict with its figures, in one line."""
        total = sum(self._words().values())
        return f"{total} of {total} words counted once in Memcached, and their letters in files"

    def _words(self) -> Counter[Any]:
        return sum(counted(self.folder / "sentences"), Counter[Any]())

    def _read(self, server: LocalMemcached) -> dict[object, object]:
        """Read the values of both states without a committer."""
        import pickle

        words = sorted(self._words())
        state = MemcachedState.opaque([server.address], prefix="words:").make_state({}, 0, 1)
        found = dict(zip(words, state.multi_get([(word,) for word in words]), strict=True))
        files = [file for file in (self.folder / "letters").iterdir() if "$" not in file.name]
        return {**found, **{file.name: pickle.loads(file.read_bytes()).value for file in files}}
