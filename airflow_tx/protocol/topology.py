"""The step `open`: the ledger of a topology is made, or updated to its DAG. Source: docs/protocol.md §1."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_tx.errors import SourceKindChanged, SourceShapeChanged, TopologyClaimed
from airflow_tx.protocol.answers import Done
from airflow_tx.protocol.api import Create, Put, Write
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Counter, TopologyRecord, encode
from airflow_tx.protocol.step import Decision, Stamp


@dataclass(frozen=True)
class TopologyRequest:
    """What a DAG says of its topology.

    :param partitioned: whether its source has partitions.
    """

    dag_id: str
    source_kind: str
    max_pending: int
    partitioned: bool = False

    def made(self, op: str, incarnation: str | None = None) -> TopologyRecord:
        """Return the record of a topology; of a new one, unless it is to go on in an incarnation."""
        own = (self.dag_id, self.source_kind, self.max_pending)
        return TopologyRecord(incarnation or op, *own, op=op, partitioned=self.partitioned)


def open_topology(read: Reader, stamp: Stamp, paths: Paths, request: TopologyRequest) -> Decision[Done]:
    """Make the ledger of a topology, or bring what its record says of the DAG up to date.

    :raises TopologyClaimed: another DAG uses the name.
    :raises SourceKindChanged: while transactions are open.
    :raises SourceShapeChanged: its position is not one of such a source.
    """
    topology = read.find(TopologyRecord, paths.record)
    if topology is None:
        folders = [Create(path, b"") for path in paths.folders]
        counters = [Create(paths.current, encode(Counter(1))), Create(paths.allocated, encode(Counter(0)))]
        record = Create(paths.record, encode(request.made(stamp.op)))
        return Decision(Done(), (*folders, *counters, record), paths.record)
    check_claim(topology, paths, request)
    writes: list[Write] = []
    if (topology.source_kind, topology.partitioned) != (request.source_kind, request.partitioned):
        allocated = read.get(Counter, paths.allocated)
        _check_source(read, paths, topology, request, allocated.txid)
        # Written again as it is: a begin of the old kind that is just allocating is refused.
        writes.append(Put(paths.allocated, encode(allocated)))
    changed = replace(
        topology,
        source_kind=request.source_kind,
        partitioned=request.partitioned,
        max_pending=request.max_pending,
        op=stamp.op,
    )
    return Decision(Done(), (*writes, Put(paths.record, encode(changed))), paths.record)


def missing_folders(read: Reader, paths: Paths) -> list[Write]:
    """Give the writes of the folders that do not exist."""
    return [Create(path, b"") for path in paths.folders if not read.exists(path)]


def is_up_to_date(topology: TopologyRecord, request: TopologyRequest) -> bool:
    """Ask whether the record says of the DAG what the DAG says of itself."""
    found = (topology.source_kind, topology.max_pending, topology.partitioned)
    return found == (request.source_kind, request.max_pending, request.partitioned)


def check_claim(topology: TopologyRecord, paths: Paths, request: TopologyRequest) -> None:
    """Refuse the name of another DAG.

    :raises TopologyClaimed: naming it.
    """
    if topology.dag_id != request.dag_id:
        raise TopologyClaimed(topology=paths.topology, owner=topology.dag_id, dag_id=request.dag_id)


def _check_source(
    read: Reader, paths: Paths, topology: TopologyRecord, request: TopologyRequest, allocated: int
) -> None:
    if topology.partitioned != request.partitioned and allocated:
        raise SourceShapeChanged(
            topology=paths.topology,
            found="partitions" if topology.partitioned else "no partitions",
            expected="them" if request.partitioned else "none",
        )
    current = read.get(Counter, paths.current)
    if allocated >= current.txid:
        raise SourceKindChanged(
            topology=paths.topology,
            found=topology.source_kind,
            expected=request.source_kind,
            first=current.txid,
            last=allocated,
        )
