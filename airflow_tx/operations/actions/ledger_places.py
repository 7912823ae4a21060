"""Find the ledgers and the coordinators of all topologies of this Airflow. The serialized DAGs name them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow.models.dag import DagModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from sqlalchemy import and_, func, select

from airflow_tx.base.config import Settings
from airflow_tx.ledger import Paths
from airflow_tx.transaction import LEDGER_PLACE, coordinator_id

BEGIN = "BeginTransactionOperator"
PLACES_EVERY = 10.0
"""Minimum number of seconds between two queries of Airflow's database, regardless of the number of viewers."""


@dataclass(frozen=True)
class LedgerPlace:
    """The ledger of one topology.

    :param name: name of the topology. It includes the connection and root if they differ from the `[tx]` options.
    :param conn_id: connection of the ZooKeeper servers.
    :param paths: ZooKeeper paths of the ledger.
    """

    name: str
    conn_id: str
    paths: Paths


@dataclass(frozen=True)
class _Task:
    """A task whose arguments name a topology.

    :param begins: True for a `begin` task, False for a task of a coordinator.
    """

    dag_id: str
    begins: bool
    place: LedgerPlace


class LedgerPlaces:
    """The topologies that the DAGs of this Airflow define. A DAG is read again only after it has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._hashes: dict[str, str] = {}
        self._tasks: dict[str, list[_Task]] = {}
        self._elsewhere: dict[str, _Task] = {}
        self._coordinators: dict[LedgerPlace, str] = {}

    @cached_property
    def settings(self) -> Settings:
        # Cache the options. Reading them for each topology would take longer than the rest of the
        # response.
        return Settings.load()

    def named(self, name: str) -> LedgerPlace:
        """Return the ledger for a topology name, even if no such topology exists."""
        self._refresh()
        found = self._elsewhere.get(name)
        return self._at_home(name) if found is None else found.place

    def elsewhere(self) -> dict[str, str]:
        """Return the topologies outside the ledger from `[tx]`, each with the DAG of its transactions."""
        self._refresh()
        return {name: task.dag_id for name, task in sorted(self._elsewhere.items())}

    def found_for(self, name: str) -> list[LedgerPlace]:
        """Return the ledgers that have a topology of this name, except the ledger from `[tx]`."""
        self._refresh()
        exact = self._elsewhere.get(name)
        places = [
            task.place for task in self._elsewhere.values() if task.place.paths.topology == name
        ]
        return places if exact is None else [exact.place]

    def coordinator(self, place: LedgerPlace) -> str:
        """Return the DAG that coordinates a topology. If no DAG does, return the default dag_id of a coordinator."""
        self._refresh()
        return self._coordinators.get(place) or coordinator_id(place.paths.topology)

    def coordinator_at(self, conn_id: str, paths: Paths) -> str:
        """Return the DAG that coordinates the topology at these paths. See `coordinator`."""
        return self.coordinator(self._place(paths.topology, conn_id, paths.root))

    def dag_of(self, place: LedgerPlace) -> str | None:
        """Return the DAG whose runs begin a topology's transactions. Return None if there is not exactly one."""
        self._refresh()
        begins = {
            task.dag_id
            for dag_id in self._hashes
            for task in self._tasks[dag_id]
            if task.begins and task.place == place
        }
        return begins.pop() if len(begins) == 1 else None

    def begun_by(self, dag_id: str) -> LedgerPlace | None:
        """Return the ledger of the topology that a DAG defines, or None.

        The topology may not have a transaction yet.
        """
        return self._named_in(dag_id, begins=True)

    def coordinated_by(self, dag_id: str) -> LedgerPlace | None:
        """Return the ledger of the topology that a DAG coordinates. Return None if the DAG is not a coordinator."""
        return self._named_in(dag_id, begins=False)

    def _named_in(self, dag_id: str, *, begins: bool) -> LedgerPlace | None:
        self._refresh()
        tasks = self._tasks[dag_id] if dag_id in self._hashes else []
        return next((task.place for task in tasks if task.begins is begins), None)

    def _at_home(self, topology: str) -> LedgerPlace:
        return LedgerPlace(
            topology, self.settings.zookeeper_conn_id, Paths(self.settings.root, topology)
        )

    def _refresh(self) -> None:
        with self._lock:
            if time.monotonic() - self._read_at < PLACES_EVERY:
                return
            self._hashes, changed = _serialized_tasks(self._hashes)
            self._tasks.update(
                {dag_id: list(self._named_by(dag_id, tasks)) for dag_id, tasks in changed}
            )
            tasks = [task for dag_id in self._hashes for task in self._tasks[dag_id]]
            self._elsewhere = {
                task.place.name: task
                for task in tasks
                if task.begins and task.place != self._at_home(task.place.name)
            }
            self._coordinators = {task.place: task.dag_id for task in tasks if not task.begins}
            self._read_at = time.monotonic()

    def _named_by(self, dag_id: str, tasks: Iterable[Mapping[str, Any]]) -> Iterator[_Task]:
        for task in tasks:
            noted = task.get(LEDGER_PLACE)
            if noted is not None:
                yield _Task(dag_id, task["task_type"] == BEGIN, self._place(**json.loads(noted)))

    def _place(self, topology: str, conn_id: str, root: str) -> LedgerPlace:
        home = self._at_home(topology)
        conn_id = conn_id or home.conn_id
        paths = Paths(root or home.paths.root, topology)
        if (conn_id, paths.base) == (home.conn_id, home.paths.base):
            return home
        return LedgerPlace(f"{topology}@{conn_id}/{paths.root.strip('/')}", conn_id, paths)


_places = LedgerPlaces()


def ledger_places() -> LedgerPlaces:
    """Return the `LedgerPlaces` of this process."""
    return _places


def _serialized_tasks(
    known: Mapping[str, str],
) -> tuple[dict[str, str], list[tuple[str, list[dict[str, Any]]]]]:
    """Read the newest serialized versions of all DAGs.

    :param known: hash of each DAG that was already read, by dag_id, to skip unchanged DAGs.
    :return: the hashes of all DAGs, and the tasks of each changed DAG.
    """
    newest = select(SerializedDagModel.dag_id, func.max(SerializedDagModel.created_at).label("at"))
    last = newest.group_by(SerializedDagModel.dag_id).subquery()
    query = (
        select(SerializedDagModel.dag_id, SerializedDagModel.dag_hash, SerializedDagModel.id)
        .join(
            last,
            and_(
                SerializedDagModel.dag_id == last.c.dag_id,
                SerializedDagModel.created_at == last.c.at,
            ),
        )
        .join(DagModel, DagModel.dag_id == SerializedDagModel.dag_id)
        .where(DagModel.is_stale.is_(False))
    )
    with create_session() as session:
        rows = session.execute(query).all()
        found = []
        for dag_id, digest, number in rows:
            if known.get(dag_id) != digest:
                serialized = session.get(SerializedDagModel, number)
                data: Any = None if serialized is None else serialized.data
                found.append(
                    (
                        dag_id,
                        [each["__var"] for each in (data or {}).get("dag", {}).get("tasks", ())],
                    )
                )
                session.expunge_all()  # free the memory of each DAG before the next one
    return {dag_id: digest for dag_id, digest, _ in rows}, found
