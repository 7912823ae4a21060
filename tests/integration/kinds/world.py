"""Makes the ledger: every topology of a list lives its life. It runs in the process of the commands."""

from __future__ import annotations

import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from airflow_tx.base import compat
from tests.integration.kinds import fates
from tests.integration.kinds.life import Topology
from tests.integration.kinds.topologies import KINDS, LONG_KINDS, Kind

ROWS = 12
"""How many rows a source has: a life takes fewer, so that there is a lag."""


@dataclass(frozen=True)
class World:
    """Where the sources of the topologies are.

    :param home: the folder of files; `dags`: of DAG files; `database`: of SQLite; `redis`: a URL.
    """

    home: str
    dags: str
    database: str
    redis: str

    def live(self, kind: Kind) -> None:
        """Let a topology live its life."""
        if not kind.trickles:
            for number in range(1, ROWS + 1):
                self.arrive(kind, number)
        file = Path(self.dags, f"{kind.name}.py")
        own = Topology(kind, file, _airflow, lambda number: self.arrive(kind, int(number)))
        getattr(fates, kind.fate)(own)

    def arrive(self, kind: Kind, number: int) -> None:
        """Let the source of a topology have a row."""
        if "File" in kind.source:
            for folder in (Path(self.home, kind.name), *(Path(self.home, kind.name, f"day={day}") for day in (0, 1))):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{number:02}.csv").write_text("key,n\nall,1\n")
        elif "Sql" in kind.source:
            connected = sqlite3.connect(self.database)
            for table in (f"{kind.name}_in", f"{kind.name}_more"):
                connected.execute(
                    f"CREATE TABLE IF NOT EXISTS {table} (id INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER)"
                )
                connected.execute(f"INSERT INTO {table} (n) VALUES (1)")
            connected.commit()
            connected.close()
        elif "Redis" in kind.source:
            self._arrive_in_redis(kind, number)

    def _arrive_in_redis(self, kind: Kind, number: int) -> None:
        from redis import Redis

        client: Any = Redis.from_url(self.redis)
        key = f"{kind.name}_in"
        if "List" in kind.source:
            client.rpush(key, f"m{number}")
        elif "Stream" in kind.source:
            client.xadd(key, {"text": f"m{number}"}, id=f"{number}-1")
        else:
            client.mset({f"{key}:{number}": f"m{number}", f"{key}:NEXT_WRITE": number + 1})
        client.close()


def live(home: str, dags: str, database: str, redis: str, *names: str) -> None:
    """Let topologies live, each after the other."""
    own = {each.name: each for each in (*KINDS, *LONG_KINDS)}
    world = World(home, dags, database, redis)
    connected = sqlite3.connect(database)
    connected.execute("CREATE TABLE IF NOT EXISTS guarded (key TEXT, n INTEGER)")
    connected.commit()
    connected.close()
    # Without a scheduler, every try is the current one, and no run of an earlier date is on its way.
    current = patch.object(compat, "is_current_try", lambda task_try: True)
    with current, patch.object(compat, "earlier_live_run", lambda dag_id, date: None):
        for name in names:
            world.live(own[name])


def _airflow(*arguments: str) -> None:
    from airflow.cli import cli_parser

    sys.argv = ["airflow", *arguments]
    parsed = cli_parser.get_parser().parse_args(list(arguments))
    parsed.func(parsed)
