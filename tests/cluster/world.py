"""An ensemble of three on hosts of their own, a database, and workers on two more hosts."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from kazoo.client import KazooClient  # type: ignore[import-untyped]
from typing_extensions import Self

from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.failpoints import Armed, Failpoints
from tests.cluster.committer import Committer, expected
from tests.cluster.ensemble import LocalEnsemble
from tests.cluster.hosts import Host, Network
from tests.cluster.runs import ROWS
from tests.servers.postgres import LocalPostgres


class SharedPostgres(LocalPostgres):
    """A database that other hosts reach.

    :param address: at which they do.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def url(self, database: str = "postgres") -> str:
        return super().url(database).replace("127.0.0.1", self._address)

    def _command(self) -> list[str]:
        return [*super()._command(), "-c", "listen_addresses=*"]

    def _make_data(self) -> None:
        super()._make_data()
        with (self.data_dir / "data" / "pg_hba.conf").open("a") as file:
            file.write("host all all all md5\n")


class World:
    """Where a test's transactions live; a context manager.

    :ivar near, far: two hosts for workers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failpoints = Failpoints(folder / "failpoints")
        self._stack = ExitStack()
        self._topologies = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.network = stack.enter_context(Network())
            self.near, self.far = self.network.add(), self.network.add()
            self.postgres = stack.enter_context(SharedPostgres(self.network.address))
            self.ensemble = stack.enter_context(LocalEnsemble(on=[self.network.add() for _ in range(3)]))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._stack.__exit__(*failure)

    @property
    def zookeepers(self) -> list[str]:
        """The addresses of the ensemble's hosts."""
        return [node.address for node in self.ensemble.nodes]

    def topology(self) -> Topology:
        """A new one."""
        self._topologies += 1
        return Topology(self, f"flights{self._topologies}")


class Topology:
    """One topology of the world, and its workers' processes; a context manager that ends them."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self._url = world.postgres.url(world.postgres.new_database())
        self._committers: list[Committer] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        for each in self._committers:
            each.close()
        for host in (self.world.near, self.world.far):
            host.kill()  # a driver outlives its task
        for host in (self.world.near, self.world.far, *(node.host for node in self.world.ensemble.nodes if node.host)):
            host.heal()

    def committer(self, host: Host, **options: Any) -> Committer:
        """A worker's process on a host."""
        env = {**self.world.failpoints.environment, **(options.pop("env", None) or {})}
        made = Committer(
            self.world.folder,
            self.world.ensemble.hosts,
            self._url,
            host=host,
            env=env,
            topology=self.name,
            **options,
        )
        self._committers.append(made)
        return made

    def paused(self, committer: Committer, run: str, at: str) -> tuple[Armed, Any]:
        """Let a committer commit a run that it has processed, up to a failpoint; its answer comes later."""
        armed = self.world.failpoints.arm(at, "pause", topology=self.name)
        answer = committer.ask("commit", run)
        eventually(lambda: armed.reached, 240, f"the committer has come to {at}")
        return armed, answer

    def processed(self, committer: Committer, run: str) -> None:
        """Let it begin a run, or replay it, and process it."""
        committer("begin", run)
        committer("work", run)

    def totals(self) -> dict[str, int]:
        """What is in the database, by nobody's process."""
        with sa.create_engine(self._url, poolclass=sa.pool.NullPool).connect() as connection:
            if not sa.inspect(connection).has_table(self.name):
                return {}
            return {str(word): int(n) for word, n in connection.execute(sa.text(f"SELECT word, n FROM {self.name}"))}

    def exact(self, *attempts: str) -> bool:
        """Whether every transaction is in, once, as the attempt that committed."""
        return self.totals() == {**expected(len(attempts)), **{f"of {each}": 1 for each in attempts}}

    def count(self) -> int:
        """How many transactions are in the database: each once and whole, and nothing else."""
        totals = self.totals()
        rows = totals.get("count", 0)
        assert totals.get("all", 0) == sum(range(1, rows + 1)), totals
        assert sum(n for word, n in totals.items() if word.startswith("of ")) == rows // ROWS, totals
        return rows // ROWS

    def await_more(self, than: int) -> None:
        """Wait until more transactions are in than that."""
        eventually(lambda: self.count() > than, 240, "transactions go on")

    def await_no_owner(self) -> None:
        """Wait until ZooKeeper has ended the session of whoever held the turn."""
        node = next(node for node in self.world.ensemble.nodes if node.mode)
        client = KazooClient(node.hosts)
        client.start(240)
        try:
            folder = f"/airflow_tx/{self.name}/coordinator"
            eventually(lambda: "owner-" not in str(client.get_children(folder)), 240, "the session has ended")
        finally:
            client.stop()
            client.close()
