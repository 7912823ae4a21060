"""Tweeted URLs in two databases. The second database dies after the first has stored the transaction.

A committer dies, too.
"""

from __future__ import annotations

import csv
import random
import re
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa

from airflow_tx.ledger.api import Store
from airflow_tx.testing.airflow import LocalAirflow
from examples.example import Example, differences
from tests.servers.mariadb import LocalMariaDB
from tests.servers.postgres import LocalPostgres

FILES = 4
TWEETS = 200
URLS = [
    f"https://{domain}/{page}"
    for domain in ("storm.example", "airflow.example", "news.example:8080")
    for page in range(12)
]


class TweetedUrls(Example):
    """Counts URLs in PostgreSQL and domains in MariaDB."""

    name = "tweeted_urls"
    files = ("tweeted_urls.py",)

    def prepare(self) -> None:
        """Write one file for each transaction."""
        chosen, folder = random.Random(1), self.folder / "tweets"
        folder.mkdir()
        self._texts = []
        for number in range(1, FILES + 1):
            texts = [f"look {' and '.join(chosen.choices(URLS, k=chosen.randint(0, 3)))}" for _ in range(TWEETS)]
            with (folder / f"{number:02}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([["text"], *([text] for text in texts)])
            self._texts += texts

    def drive(self, airflow: LocalAirflow, store: Store) -> None:
        """Kill the second database before a commit writes to it, and a committer after it has written to both."""
        with LocalPostgres() as urls, LocalMariaDB() as domains:
            for conn_id, kind, server in (("tx_urls", "postgres", urls), ("tx_domains", "mysql", domains)):
                airflow.call("POST", "connections", json=_connection(conn_id, kind, server.url()))
            airflow.wait_dag(self.name)
            where = {"topology": self.name, "txid": 2, "state": "tx_domains.tweeted_domains"}
            between = self.failpoints.arm("commit.before_write", "pause", **where)
            unmarked = self.failpoints.arm("commit.before_mark", "kill", topology=self.name, txid=3)
            runs = [f"r{number}" for number in range(1, FILES + 1)]
            for run_id in runs:
                airflow.trigger(self.name, run_id)
            airflow.wait_for(lambda: between.reached, 180, "one database has transaction 2", self.name, runs[0])
            domains.kill()
            self.say("PostgreSQL has transaction 2, but MariaDB does not have it and is killed")
            domains.start()
            between.release()
            for run_id in runs:
                airflow.wait_run(self.name, run_id, timeout=300)
            assert unmarked.reached
            self.say(
                "MariaDB was started again; the committer of transaction 3 was killed before it recorded the commit"
            )
            self._stored = {
                **_rows(urls.url(), "SELECT url, tweets FROM tweeted_urls"),
                **_rows(domains.url(), "SELECT domain, tweets FROM tweeted_domains"),
            }

    def wrong(self) -> list[str]:
        """Compare the counts with the tweets."""
        return differences(self._expected(), self._stored)

    def verdict(self) -> str:
        """Return the verdict with its figures, in one line."""
        total = sum(bool(re.search("https://", text)) for text in self._texts)
        return f"{total} of {total} tweets with URLs counted once, by URL in PostgreSQL and by domain in MariaDB"

    def _expected(self) -> dict[object, object]:
        expected = Counter[object]()
        for text in self._texts:
            found = set(re.findall(r"https://\S+", text))
            expected.update(found)
            expected.update({urlsplit(url).hostname for url in found})
        return dict(expected)


def _connection(conn_id: str, kind: str, url: str) -> dict[str, Any]:
    """Return the connection that `airflow connections add` would create, as JSON for the REST API."""
    parts = sa.make_url(url)
    at = {"host": parts.host, "port": parts.port, "login": parts.username, "password": parts.password}
    return {"connection_id": conn_id, "conn_type": kind, "schema": parts.database, **at}


def _rows(url: str, query: str) -> dict[object, object]:
    with sa.create_engine(url, poolclass=sa.pool.NullPool).connect() as connected:
        return {name: int(tweets) for name, tweets in connected.execute(sa.text(query))}
