"""What is done to servers, to the network between them, and to the disks below them."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

from airflow_tx.testing.processes import signal_process
from tests.chaos.pending import LONGEST, PendingFaults
from tests.chaos.record import Fault
from tests.chaos.servers import FiredServer
from tests.chaos.world import World, chosen

# How often a fault of a ZooKeeper seeks the leader, of which one in three is the leader anyhow.
_LEADER = 0.3
_FREEZING = ("Kafka", "Spark")
_STOP, _CONTINUE, _KILL = 19, 18, 9


class ServerFaults:
    """One fault with each call, if its victim is there, and nothing else is done to it.

    :param note: takes a fault into the record: victim, how, moment, topologies.
    """

    def __init__(
        self,
        world: World,
        random_: random.Random,
        note: Callable[[str, str, str, list[str]], Fault],
        pending: PendingFaults,
    ) -> None:
        self._world, self._random, self._note, self._pending = world, random_, note, pending

    def _server(self, names: Collection[str] | None = None) -> FiredServer | None:
        """One to which nothing else is done; ZooKeeper's leader is chosen on purpose now and then.

        :param names: of those that may be chosen besides ZooKeeper; None: all.
        """
        busy, found = self._pending.busy, self._world.servers.items()
        free = {
            name: each.weight
            for name, each in found
            if name not in busy and (names is None or each.is_of_zookeeper or name in names)
        }
        return self._rather_leader(self._world.servers[chosen(self._random, free)]) if free else None

    def _node(self) -> FiredServer | None:
        busy = self._pending.busy
        free = [each for each in self._world.zookeeper.servers if each.name not in busy]
        return self._rather_leader(self._random.choice(free)) if free else None

    def _rather_leader(self, found: FiredServer) -> FiredServer:
        if found.is_of_zookeeper and self._random.random() < _LEADER:
            busy = self._pending.busy
            for each in self._world.zookeeper.servers:
                if each.name not in busy and each.leads:
                    return each
        return found

    def cut(self) -> None:
        """Cut the connections of a server; new ones work."""
        hit = self._server()
        if hit is not None:
            victim = hit.victim
            hit.proxy.cut()
            self._note(victim, "cut", "connections", list(hit.topologies))

    def lose_replies(self) -> None:
        """Let what a server answers arrive nowhere for a moment."""
        hit = self._server()
        if hit is not None:
            victim = hit.victim
            hit.proxy.eat()
            fault = self._note(victim, "lost replies", "connections", list(hit.topologies))
            self._pending.add(fault, self._random.uniform(0.1, 1.5), hit.proxy.cut, hit.name)

    def kill(self) -> None:
        """Kill a server, and start it again after a moment."""
        hit = self._server()
        if hit is not None and hit.server.running:
            victim = hit.victim
            hit.server.kill()
            fault = self._note(victim, "kill", "server", list(hit.topologies))
            self._pending.add(fault, self._random.uniform(0.0, 2.0), hit.server.start, hit.name)

    def freeze(self) -> None:
        """Let a ZooKeeper, a broker of Kafka or a driver of Spark hang."""
        hit = self._server(_FREEZING)
        if hit is None or not hit.server.running:
            return
        victim, pid = hit.victim, hit.server.pid
        if signal_process(pid, _STOP):
            fault = self._note(victim, "freeze", "server", list(hit.topologies))
            until = self._random.uniform(1.0, LONGEST)
            self._pending.add(fault, until, lambda: signal_process(pid, _CONTINUE), hit.name)

    def kill_executor(self) -> None:
        """Kill what works for Spark's driver; that one has another one started."""
        found = self._executor()
        if found is not None and signal_process(found[1], _KILL):
            self._note(found[0], "kill", "server", list(self._world.servers["Spark"].topologies))

    def freeze_executor(self) -> None:
        """Let what works for Spark's driver hang."""
        found = self._executor()
        if found is not None and signal_process(found[1], _STOP):
            victim, pid = found
            fault = self._note(victim, "freeze", "server", list(self._world.servers["Spark"].topologies))
            self._pending.add(fault, self._random.uniform(1.0, LONGEST), lambda: signal_process(pid, _CONTINUE), victim)

    def _executor(self) -> tuple[str, int] | None:
        busy = self._pending.busy
        found = [each for each in self._world.spark.workers() if each[0] not in busy]
        return self._random.choice(found) if found else None

    def cut_off(self) -> None:
        """Let a ZooKeeper lose the others, or its clients, or all of them, in silence."""
        hit = self._node()
        if hit is None:
            return
        victim, whom = hit.victim, self._random.choice(("the others", "clients", "all"))
        host = self._world.zookeeper.cut_off(hit, peers=whom != "clients", clients=whom != "the others")
        if host is not None:
            fault = self._note(victim, f"cut off from {whom}", "network", list(hit.topologies))
            self._pending.add(fault, self._random.uniform(1.0, LONGEST), host.heal, hit.name)

    def fill_disk(self) -> None:
        """Let a disk run full."""
        free = [each for each in self._world.disks if each.name not in self._pending.busy]
        if not free:
            return
        hit = self._random.choice(free)
        hit.disk.fill()
        fault = self._note(hit.victim, "full", "disk", list(hit.topologies))
        self._pending.add(fault, self._random.uniform(1.0, LONGEST), hit.make_room, hit.name)
