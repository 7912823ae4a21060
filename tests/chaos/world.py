"""What is under fire: real servers behind proxies that cut, the processes of the topologies, and their source data."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import sqlalchemy as sa
from typing_extensions import Self

from airflow_tx.testing.eventually import NotInTime, eventually
from airflow_tx.testing.failpoints import Failpoints
from airflow_tx.testing.processes import signal_process
from airflow_tx.testing.servers.server import LocalServer
from tests.chaos.bug import content_of
from tests.chaos.dags.under_fire import ROWS
from tests.chaos.dates import day_of
from tests.chaos.kafka import FiredKafka
from tests.chaos.mutant import VARIABLE
from tests.chaos.scheduler import LittleRun, LittleScheduler
from tests.chaos.servers import FiredDisk, FiredEnsemble, FiredServer, own_disk
from tests.chaos.spark import LocalSpark
from tests.chaos.stacks import say_where
from tests.chaos.topology import COORDINATED, DATED, ROOT, STORES, UPSTREAM, is_used
from tests.integration.proxy import ReplyEater
from tests.servers.mariadb import LocalMariaDB
from tests.servers.postgres import LocalPostgres
from tests.servers.redis import REDIS_PASSWORD, LocalRedis

SESSION = 5.0
"""Seconds of silence after which ZooKeeper ends a session."""
_QUESTIONS = 4


class Unanswered(AssertionError):
    """A question that the run itself has about the world."""


class World:
    """Everything that is shot at; it begins anew with each `with`.

    :param mutant: a rule that is taken out of the product, see `mutant.py`; "": none.
    """

    components: tuple[str, ...] = ()
    """What there is of Airflow besides tasks."""

    def __init__(self, folder: Path, *, mutant: str = "") -> None:
        self.folder = folder
        self.failpoints = Failpoints(folder / "failpoints")
        self.postgres = LocalPostgres()
        self.redis = LocalRedis(persistence="aof")
        # What was answered is not to be lost with the process.
        self.mariadb = LocalMariaDB(settings={"innodb-flush-log-at-trx-commit": "2", "innodb-doublewrite": "1"})
        self.kafka = FiredKafka()
        self.spark = LocalSpark(folder / "driver")
        self.numbers = dict.fromkeys(STORES, 0)
        """How many numbers, from 0 on, each source has been given."""
        self._mutant = mutant
        self._names = itertools.count(1)
        for name in ("files", "late_files", "sparked", "logs"):
            (folder / name).mkdir()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._begin(stack)
            self._stack = stack.pop_all()
        return self

    def _begin(self, stack: ExitStack) -> None:
        self._find_disks(stack)
        self.zookeeper = FiredEnsemble(stack, self.folder / "logs")
        self.servers = {each.name: each for each in self.zookeeper.servers}
        disk = own_disk(stack, 512)
        if disk is not None:
            self.postgres.data_dir = disk.folder / "postgres"
        for name, server in self._servers.items():
            server.log = self.folder / "logs" / f"{server.slug}.log"
            proxy = ReplyEater(f"127.0.0.1:{server.port}")
            # A driver takes longest to start.
            self.servers[name] = FiredServer(name, server, proxy, weight=0.7 if name == "Spark" else 2.0)
            if isinstance(server, FiredKafka):
                server.advertised = proxy.hosts
            server.start()
        for each in self.servers.values():
            stack.callback(each.close)
        self.disks += self.zookeeper.disks()
        if disk is not None:
            hit = self.servers["PostgreSQL"]
            self.disks.append(FiredDisk("disk of PostgreSQL", disk, hit.topologies, hit))
        self.url = self.postgres.url(self.postgres.new_database())
        with sa.create_engine(self.url).begin() as connection:
            connection.execute(sa.text("CREATE TABLE numbers (id BIGSERIAL PRIMARY KEY, number BIGINT NOT NULL)"))
            counts = "n BIGINT NOT NULL, total BIGINT NOT NULL, txid BIGINT NOT NULL"
            connection.execute(sa.text(f"CREATE TABLE guarded_rows (key TEXT PRIMARY KEY, {counts})"))
        os.environ.update(self._environment())
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.chaos.preloaded"])
        self.scheduler = self._make_scheduler()
        stack.callback(self._end_processes)
        for name in STORES:
            self.feed(name)
        for name in COORDINATED:
            self.coordinate(name)

    def _find_disks(self, stack: ExitStack) -> None:
        """Have what tasks write, and the state in a file, on small disks, where these can be made."""
        self.disks: list[FiredDisk] = []
        self._on_disk = dict.fromkeys(("staging", "SQLite"), self.folder)
        users = {"staging": tuple(STORES), "SQLite": tuple(name for name in STORES if "disk" in STORES[name])}
        for name, topologies in users.items():
            disk = own_disk(stack, 128)
            if disk is not None:
                self._on_disk[name] = disk.folder
                self.disks.append(FiredDisk(f"disk of {name}", disk, topologies))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _end_processes(self) -> None:
        self.scheduler.close()
        for _, _, pid in self.scheduler.processes():
            signal_process(pid, 9)

    def _make_scheduler(self) -> LittleScheduler:
        return LittleScheduler(self._address, self._spawn)

    @property
    def _address(self) -> str:
        return str(self.folder / "questions")

    @property
    def _servers(self) -> Mapping[str, LocalServer]:
        """Those besides ZooKeeper."""
        optional: dict[str, LocalServer] = {"MariaDB": self.mariadb, "Kafka": self.kafka, "Spark": self.spark}
        used = {name: server for name, server in optional.items() if is_used(name)}
        return {"PostgreSQL": self.postgres, "Redis": self.redis, **used}

    def _environment(self) -> dict[str, str]:
        ports = {name: int(each.proxy.hosts.partition(":")[2]) for name, each in self.servers.items()}
        redis = {"conn_type": "redis", "password": REDIS_PASSWORD, "extra": {"socket_timeout": 5}}
        connections: dict[str, dict[str, Any]] = {
            "ZOOKEEPER_DEFAULT": {"conn_type": "zookeeper", "host": self.zookeeper.hosts},
            "FIRE_SQLITE": {"conn_type": "sqlite", "host": str(self._on_disk["SQLite"] / "state.db")},
            "FIRE_POSTGRES": _database("postgres", self.url, ports["PostgreSQL"]),
            "FIRE_REDIS": {**redis, "host": "127.0.0.1", "port": ports["Redis"]},
        }
        if "MariaDB" in ports:
            connections["FIRE_MARIADB"] = _database("mysql", self.mariadb.url(), ports["MariaDB"])
        if "Kafka" in ports:
            extra = {"bootstrap.servers": self.kafka.advertised}
            connections["FIRE_KAFKA"] = {"conn_type": "kafka", "extra": extra}
        if "Spark" in ports:
            connections["FIRE_SPARK"] = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": ports["Spark"]}
        settings = {
            "ROOT": ROOT,
            "STAGING": (self._on_disk["staging"] / "staging").as_uri(),
            "SESSION_TIMEOUT": str(SESSION),
            "CONNECT_TIMEOUT": "5",
            "WARM_WAIT": "2",
        }
        return {
            "AIRFLOW_HOME": str(self.folder / "home"),
            "AIRFLOW_TX_DATA": str(self.folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            **{f"AIRFLOW_CONN_{name}": json.dumps(told) for name, told in connections.items()},
            **{f"AIRFLOW__TX__{name}": value for name, value in settings.items()},
            **self.failpoints.environment,
            VARIABLE: self._mutant,
        }

    def _spawn(self, program: str, dag_id: str, task: dict[str, Any]) -> Any:
        from tests.chaos import worker

        log = str(self.folder / "logs" / f"{dag_id}.log")
        arguments = (self._address, program, dag_id, task, log)
        process = self._context.Process(target=worker.main, args=arguments, daemon=True)
        process.start()
        return process

    def kill_component(self, name: str) -> None:
        """Kill one of `components`."""
        raise NotImplementedError

    def component(self, name: str) -> int | None:
        """The process of one of `components`; None: there is none now."""
        raise NotImplementedError

    def keep_up(self) -> None:
        """Start again what has ended by itself, as whoever runs servers does."""

    def disarm(self) -> None:
        """Let no failpoint act that nobody has come by."""
        (self.folder / "failpoints" / "rules").write_text("")

    # --- what happens besides the fire

    def feed(self, name: str) -> None:
        """Give a source a few batches more; one that is another topology's table gets what that topology is given."""
        if name in UPSTREAM:
            return
        for _ in range(3):
            first = self.numbers[name]
            for each in (name, *(reader for reader, read in UPSTREAM.items() if read == name)):
                self.numbers[each] += ROWS
            self._put(name, range(first, first + ROWS))

    def batch(self, name: str) -> int:
        """How many numbers a transaction takes at most."""
        return 2 * ROWS if name == "late_files" else ROWS

    def _put(self, name: str, numbers: range) -> None:
        if name == DATED:
            return  # they are where they always were; whoever backfills takes more of them
        if name == "rows":
            with sa.create_engine(self.url, poolclass=sa.pool.NullPool).begin() as connection:
                rows = [{"number": number} for number in numbers]
                connection.execute(sa.text("INSERT INTO numbers (number) VALUES (:number)"), rows)
        elif name == "stream":
            pipe = self.redis.client().pipeline(transaction=True)
            for number in numbers:
                pipe.xadd("numbers", {"number": number})
            pipe.execute()
        elif name == "events":
            self.kafka.add(numbers)
        else:
            new = self.folder / name / ".new"
            new.write_text(content_of(numbers))
            new.rename(self.folder / name / f"{numbers.start:08}.csv")

    def coordinate(self, name: str) -> None:
        """Let a coordinator run for a topology, unless one does."""
        if not any(run.is_live for run in self.scheduler.of(name, "coordinate")):
            self.scheduler.start(name, f"coordinator-{next(self._names)}", "coordinate")

    def trigger(self, name: str) -> LittleRun:
        """Trigger a run, as a person does."""
        return self.scheduler.start(name, f"run-{next(self._names)}")

    def act(self, name: str, action: str, txid: int | None = None, **conf: Any) -> LittleRun:
        """Let a person do something to a transaction."""
        return self.scheduler.start(name, f"person-{next(self._names)}", "act", action=action, txid=txid, **conf)

    def backfill(self, number: int = 0) -> None:
        """Let a person backfill the dates from that of a number on."""
        dates = (day_of(number), day_of(self.numbers[DATED] - 1))
        self.act(DATED, "backfill", dates=[each.isoformat() for each in dates])

    def ask(self, name: str, program: str, key: str, **conf: Any) -> Any:
        """Let a process find something out, to its end; what it says.

        :raises Unanswered: each time it failed, or did not end.
        """
        for _ in range(_QUESTIONS):
            run = self.scheduler.start(name, f"question-{next(self._names)}", program, **conf)

            def ended(run: LittleRun = run) -> bool:
                self.scheduler.step()
                return not run.is_live

            with contextlib.suppress(NotInTime):
                eventually(ended, 120, f"{program} of {name} has ended")
            if run.state == "success":
                return run.tasks[program].xcoms[key]
            self._end_question(run)
        raise Unanswered(f"{program} of {name} has no answer:\n{self.logs(name)}")

    def _end_question(self, run: LittleRun) -> None:
        run.state = "failed"
        for own, _, pid in self.scheduler.processes():
            if own is run:
                say_where(pid)
                time.sleep(1)
                signal_process(pid, 9)

    def logs(self, name: str, lines: int = 60) -> str:
        """The last lines of what the processes of a topology said."""
        path = self.folder / "logs" / f"{name}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""


def _database(kind: str, at: str, port: int) -> dict[str, Any]:
    """A connection to a database through a proxy."""
    url = sa.make_url(at)
    login = {"login": url.username, "password": url.password, "schema": url.database}
    return {"conn_type": kind, "host": "127.0.0.1", "port": port, **login}


def chosen(random_: random.Random, weights: Mapping[str, float]) -> str:
    """One of the names, by their weights."""
    return random_.choices(list(weights), list(weights.values()))[0]
