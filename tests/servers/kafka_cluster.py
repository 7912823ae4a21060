"""A real cluster of Kafka nodes, of which a test ends some."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from typing_extensions import Self

from airflow_tx.testing.servers.server import free_ports
from tests.servers.kafka import LocalKafka, new_cluster_id


class KafkaNode(LocalKafka):
    """One node of a cluster, broker and controller.

    :param number: its id in the cluster.
    :param ports: those of its broker and of its controller.
    """

    def __init__(self, number: int, cluster: str, ports: Sequence[int]) -> None:
        super().__init__(settings={"node.id": str(number)}, start_timeout=120.0)
        self.number = number
        self.port, self._controller_port = ports
        self._cluster = cluster
        self._voters = ""

    @property
    def voter(self) -> str:
        """Where the other nodes find its controller."""
        return f"{self.number}@127.0.0.1:{self._controller_port}"

    def join(self, nodes: Sequence[KafkaNode]) -> None:
        """Let these nodes, itself among them, be its cluster."""
        self._voters = ",".join(node.voter for node in nodes)

    def _addresses(self) -> dict[str, str]:
        found = super()._addresses()
        del found["controller.quorum.bootstrap.servers"]
        return {**found, "controller.quorum.voters": self._voters}

    def _format(self) -> list[str]:
        return [f"--cluster-id={self._cluster}"]


class LocalKafkaCluster:
    """Three Kafka nodes with the ids 1, 2 and 3; a context manager. Two of them are a majority."""

    def __init__(self) -> None:
        cluster = new_cluster_id()
        # Chosen together, because two nodes must not get the same one.
        ports = free_ports(6)
        self.nodes = {number: KafkaNode(number, cluster, ports[2 * number - 2 : 2 * number]) for number in (1, 2, 3)}
        for node in self.nodes.values():
            node.join(list(self.nodes.values()))

    @property
    def bootstrap(self) -> str:
        """The connection string for clients, with all nodes."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    def __enter__(self) -> Self:
        try:
            # One node alone is no majority, and serves nobody.
            with ThreadPoolExecutor(len(self.nodes)) as pool:
                list(pool.map(KafkaNode.start, self.nodes.values()))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all nodes."""
        for node in self.nodes.values():
            node.kill()
            node.close()
