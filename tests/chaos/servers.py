"""The servers under fire, each behind a proxy through which everybody reaches it, and the disks that run full."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_tx.testing.servers.server import LocalServer
from tests.chaos.topology import STORES
from tests.cluster.disks import SmallDisk, small_disk
from tests.cluster.ensemble import LocalEnsemble, ZooKeeperNode
from tests.cluster.hosts import Host, Network, require_network
from tests.integration.proxy import ReplyEater

ZOOKEEPER = "ZooKeeper"


@dataclass(frozen=True)
class FiredServer:
    """A server, and the proxy through which everybody reaches it.

    :param weight: how often it is hit, in proportion to others.
    """

    name: str
    server: LocalServer
    proxy: ReplyEater
    weight: float = 2.0

    @property
    def topologies(self) -> tuple[str, ...]:
        """Those that use it."""
        return tuple(name for name, stores in STORES.items() if self.is_of_zookeeper or self.name in stores)

    @property
    def victim(self) -> str:
        """What is hit, by its part in the world at this moment."""
        if not self.is_of_zookeeper:
            return self.name
        return f"{ZOOKEEPER}, the leader" if self.leads else f"{ZOOKEEPER}, a follower"

    @property
    def leads(self) -> bool:
        return isinstance(self.server, ZooKeeperNode) and self.server.running and self.server.mode == "leader"

    @property
    def is_of_zookeeper(self) -> bool:
        return isinstance(self.server, ZooKeeperNode)

    def close(self) -> None:
        self.proxy.__exit__(None, None, None)
        self.server.close()


@dataclass(frozen=True)
class FiredDisk:
    """A disk that runs full.

    :param server: whose data lie on it; None: files of tasks do.
    """

    victim: str
    disk: SmallDisk
    topologies: tuple[str, ...]
    server: FiredServer | None = None

    @property
    def name(self) -> str:
        """What is busy while it is full; nothing else is done to its server then."""
        return self.victim if self.server is None else self.server.name

    def make_room(self) -> None:
        """Take away what filled it; a server that could not bear it is started again, as by whoever runs it."""
        self.disk.free()
        if self.server is not None:
            self.server.server.kill()
            self.server.server.start()


def own_disk(stack: ExitStack, megabytes: int) -> SmallDisk | None:
    """Make a disk that is unmounted with the stack; None: only root can, and no disk runs full."""
    try:
        return stack.enter_context(small_disk(megabytes))
    except pytest.skip.Exception as skipped:
        print(skipped, flush=True)
        return None


class FiredEnsemble:
    """Three ZooKeepers, each on a host and a disk of its own where they can be made; it ends with the stack.

    :param logs: the folder of their logs.
    """

    def __init__(self, stack: ExitStack, logs: Path) -> None:
        self._network = _network(stack)
        hosts = [] if self._network is None else [self._network.add() for _ in range(3)]
        self._disks = [own_disk(stack, 512) for _ in range(3)]
        folders = [disk.folder / "zookeeper" for disk in self._disks if disk is not None]
        self.ensemble = LocalEnsemble(on=hosts or None, folders=folders or None)
        for node in self.ensemble.nodes:
            node.log = logs / f"zookeeper-{node.number}.log"
        stack.callback(self.ensemble.close)
        self.ensemble.start()
        self.servers = [
            FiredServer(f"{ZOOKEEPER} {node.number}", node, ReplyEater(node.hosts), weight=1.5)
            for node in self.ensemble.nodes
        ]

    @property
    def beside(self) -> str:
        """The connection string beside all proxies."""
        return self.ensemble.hosts

    @property
    def hosts(self) -> str:
        return ",".join(each.proxy.hosts for each in self.servers)

    def disks(self) -> list[FiredDisk]:
        return [
            FiredDisk(f"disk of {ZOOKEEPER}", disk, server.topologies, server)
            for disk, server in zip(self._disks, self.servers, strict=True)
            if disk is not None
        ]

    def cut_off(self, server: FiredServer, *, peers: bool, clients: bool) -> Host | None:
        """Let a node lose every packet to and from others; what is to be healed. None: it has no host of its own.

        :param clients: also those of the proxies.
        """
        assert isinstance(server.server, ZooKeeperNode)
        host = server.server.host
        if host is not None and self._network is not None:
            others = [node.address for node in self.ensemble.nodes if node is not server.server] if peers else []
            host.cut(*others, *([self._network.address] if clients else []))
        return host


def _network(stack: ExitStack) -> Network | None:
    try:
        require_network()
    except pytest.skip.Exception as skipped:
        print(skipped, flush=True)
        return None
    return stack.enter_context(Network())
