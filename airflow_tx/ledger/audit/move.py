"""Actions on a whole topology: rename it, give it to another DAG, delete it. Source: docs/protocol.md §1.

A ledger may have more records than one multi can change. The first multi therefore closes the ledger: it replaces the
topology record with a mark. Every other step then fails with an error that names the command. After a crash, you can
repeat the command.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_tx.base.errors import (
    MoveRefused,
    OutcomeUnknown,
    RequirementFailed,
    UnknownTransaction,
)
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger.answers import Done, Repaired
from airflow_tx.ledger.api import Create, Delete, Paths, Put, Store, Unchanged, Write, names_below
from airflow_tx.ledger.json_text import dumps, replace
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import RECORD_FORMAT, Counter, TopologyRecord, decode, encode
from airflow_tx.ledger.steps.step import (
    Audit,
    Decision,
    Stamp,
    check_not_rolling,
    check_raw_not_rolling,
)

RENAME = "rename"
_TOGETHER = 100  # Maximum number of writes in a multi.
_BYTES = 200_000


def mark_of(data: bytes) -> Mapping[str, Any] | None:
    """Read the mark of a closed topology. Return None if the topology is not closed."""
    try:
        found = json.loads(data)
        return found if "moving" in found else None
    except (ValueError, TypeError):
        return None


class Mover:
    """User actions on a whole topology.

    :param ledger: the ledger of the topology.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._store: Store = ledger.store
        self._paths = ledger.paths

    def record(self) -> TopologyRecord:
        """Read the topology record, even while the topology is being renamed or deleted.

        :raises UnknownTransaction: there is no such topology.
        :raises UnreadableRecord: the record is damaged, or the topology is being reset.
        """
        node = self._store.get(self._paths.record)
        if node is None:
            raise UnknownTransaction(
                what=f"topology {self._paths.topology!r}", path=self._paths.record
            )
        mark = mark_of(node.data)
        data = (
            node.data
            if mark is None
            else dumps({"format": RECORD_FORMAT, **mark["record"]}).encode()
        )
        return decode(TopologyRecord, self._paths.record, data)

    # --- another name -----------------------------------------------------------------------------------------------

    def claim(self, dag_id: str, audit: Audit) -> Repaired:
        """Assign the topology to another DAG without renaming it."""

        def step(read: Reader, stamp: Stamp, paths: Paths) -> Decision[Repaired]:
            record = read.get(TopologyRecord, paths.record)
            check_not_rolling(paths, record)
            after = replace(record, dag_id=dag_id, op=stamp.op)
            current = read.peek(Counter, paths.current).txid
            summary = f"it belongs to DAG {dag_id}, and belonged to DAG {record.dag_id}"
            writes = [Put(paths.record, encode(after))]
            return audit.repair(
                read,
                stamp,
                paths,
                writes,
                what=RENAME,
                after=after,
                current=current,
                summary=summary,
            )

        return self._ledger.run(step)

    def rename(self, new: Paths, dag_id: str, audit: Audit) -> Repaired:
        """Rename the topology. Its incarnation stays, so that its states still accept it.

        :param new: paths under the new name. If the renamed DAG has already created a ledger there, it is replaced,
            provided that it has committed nothing.
        :raises MoveRefused: a ledger under the new name has committed transactions.
        """
        old = self._paths
        command = str(Command("rename", old.topology, (new.topology,), ("--why", "TEXT")))
        self._store.ensure(new.root)
        moved = Mover(Ledger(self._store, new, clock=self._ledger.clock, ids=self._ledger.ids))
        record = self.record()
        if not self.is_at(new, record):
            op = self._close(f"being renamed to {new.topology}: {command}", new, command)
            moved._guarded(op, moved._emptied())
            moved._guarded(op, self._copied(new))
            moved._finish(old, op, record, dag_id, audit)
        self.delete()
        current = Reader(self._store).peek(Counter, new.current).txid
        return Repaired(
            record.generation, current, f"topology {old.topology} is called {new.topology} now"
        )

    def is_at(self, new: Paths, record: TopologyRecord) -> bool:
        """Return whether an earlier call has renamed the topology, but may have left some of the old records."""
        node = self._store.get(new.record)
        if node is None or mark_of(node.data) is not None:
            return False
        return decode(TopologyRecord, new.record, node.data).incarnation == record.incarnation

    def _close(
        self, title: str, new: Paths | None, command: str, allocated: int | None = None
    ) -> str:
        """Write the marks that close the topology, and return the nonce of this call.

        A later call replaces the marks.

        :param allocated: last allocated transaction when the runs were examined; None allows any.
        """
        old = self._paths
        op = self._ledger.ids.nonce()

        def step(read: Reader, stamp: Stamp, paths: Paths) -> Decision[Done]:
            node = read.raw(old.record)
            if node is None:
                raise UnknownTransaction(what=f"topology {old.topology!r}", path=old.record)
            check_raw_not_rolling(paths, node)
            before = mark_of(node)
            if before is not None and before["moving"] != command:
                raise self._refused(
                    f"the topology is {before['format']}", "Let that command finish first."
                )
            record = before["record"] if before is not None else json.loads(node)
            if before is None:
                decode(TopologyRecord, old.record, node)  # A damaged record raises an error.
                self._check_allocated(read, allocated)
            mark = dumps(
                {"format": title, "moving": command, "record": record, "by": op, "op": stamp.op}
            ).encode()
            writes: list[Write] = [Put(old.record, mark)]
            if new is not None:
                there = self.check_free(read, new)
                writes += [] if read.exists(new.base) else [Create(new.base, b"")]
                writes.append(Put(new.record, mark) if there else Create(new.record, mark))
            return Decision(Done(), tuple(writes), old.record)

        self._ledger.run(step)
        return op

    def _check_allocated(self, read: Reader, allocated: int | None) -> None:
        found = None if allocated is None else read.find(Counter, self._paths.allocated)
        if found is not None and found.txid != allocated:
            problem = f"transaction {found.txid} has begun since the command checked the runs of open transactions"
            raise self._refused(problem, "Pause the DAG, end its runs, and repeat.")

    def check_name(self, new: Paths) -> None:
        """Raise an error if the topology cannot use a name. Raises the errors of `check_free`."""
        self.check_free(Reader(self._store), new)

    def check_free(self, read: Reader, new: Paths) -> bool:
        """Return whether the new name already has a ledger, which the rename may replace.

        :raises MoveRefused: a ledger under the new name has committed transactions.
        """
        node = read.raw(new.record)
        if node is None:
            return False
        mark = mark_of(node)
        if mark is not None:
            if mark["record"]["incarnation"] != self.record().incarnation:
                raise self._refused(
                    f"topology {new.topology} is {mark['format']}", "Let that command finish first."
                )
            return True
        record = decode(TopologyRecord, new.record, node)
        current = read.find(Counter, new.current)
        if record.states or (current is not None and current.txid > 1):
            raise self._refused(
                f"topology {new.topology} of DAG {record.dag_id!r} has committed transactions of its own",
                f"Choose another name. If topology {new.topology} is no longer used, delete it: "
                + Command.of("delete", new.topology, "--why", "TEXT"),
            )
        return True

    def _copied(self, new: Paths) -> Iterator[Write]:
        old = self._paths
        for path, data in self._below(old.base):
            if path not in (old.base, old.record):
                yield Create(new.base + path.removeprefix(old.base), data)

    def _finish(
        self, old: Paths, op: str, record: TopologyRecord, dag_id: str, audit: Audit
    ) -> None:
        """Write the new topology record. From this moment on, the topology has its new name."""
        new = self._paths

        def step(read: Reader, stamp: Stamp, paths: Paths) -> Decision[Repaired]:
            self._check_mine(
                read.raw(new.record), op
            )  # a later call of the command replaces both marks in one multi
            after = replace(record, dag_id=dag_id, op=stamp.op)
            summary = f"it was called {old.topology}, of DAG {record.dag_id}"
            writes = [Put(new.record, encode(after))]
            return audit.repair(
                read, stamp, new, writes, what=RENAME, after=after, current=0, summary=summary
            )

        self._ledger.run(step)

    # --- an end -----------------------------------------------------------------------------------------------------

    def allocated(self) -> int | None:
        """Read the last allocated transaction. Return None if its counter is already deleted."""
        found = Reader(self._store).peek_if_any(Counter, self._paths.allocated)
        return None if found is None else found.txid

    def close_for_deletion(self, allocated: int | None = None) -> None:
        """Close the topology. Every later step fails with an error that names the command.

        :param allocated: last allocated transaction when the runs were examined; None allows any. A transaction that
            has begun since then would be lost, although it may have acked messages in a queue.
        :raises UnknownTransaction: there is no such topology.
        :raises MoveRefused: a transaction has begun since the runs were examined.
        """
        command = str(Command("delete", self._paths.topology, options=("--why", "TEXT")))
        self._close(f"being deleted: {command}", None, command, allocated)

    def delete(self) -> None:
        """Delete every record of a closed topology."""
        record = self._paths.record
        node = self._store.get(record)
        if node is None:
            return
        mark = mark_of(node.data)
        assert mark is not None, "the topology is closed before its records are deleted"
        self._guarded(mark["by"], self._emptied())
        try:
            self._store.multi([], [Delete(record), Delete(self._paths.base)])
        except (RequirementFailed, OutcomeUnknown):
            self._store.sync()
            if self._store.get(record) is not None:
                raise

    # --- portions ---------------------------------------------------------------------------------------------------

    def _emptied(self) -> Iterator[Write]:
        """Yield the writes that delete all records of the topology except the topology record. Children come first."""
        below = [path for path, _ in self._below(self._paths.base)]
        return (
            Delete(path)
            for path in reversed(below)
            if path not in (self._paths.base, self._paths.record)
        )

    def _guarded(self, op: str, writes: Iterator[Write]) -> None:
        """Write in portions. Raise an error if a later call has replaced the mark."""
        portion: list[Write] = []
        size = 0
        for write in writes:
            portion.append(write)
            size += len(write.path) + (len(write.data) if isinstance(write, Create) else 0)
            if len(portion) >= _TOGETHER or size >= _BYTES:
                self._send(op, portion)
                portion = []
                size = 0
        if portion:
            self._send(op, portion)

    def _send(self, op: str, portion: list[Write]) -> None:
        node = self._store.get(self._paths.record)
        self._check_mine(None if node is None else node.data, op)
        assert node is not None
        try:
            self._store.multi([Unchanged(self._paths.record, node.version)], portion)
        except (RequirementFailed, OutcomeUnknown) as error:
            problem = f"its records changed, or ZooKeeper did not answer ({error})"
            raise self._refused(problem, "Repeat the command: it resumes.") from error

    def _check_mine(self, data: bytes | None, op: str) -> None:
        mark = None if data is None else mark_of(data)
        if mark is None or mark["by"] != op:
            raise self._refused(
                "another call of the command has taken over",
                "That call continues; there is nothing to do.",
            )

    def _below(self, path: str) -> Iterator[tuple[str, bytes]]:
        """Yield the record at `path` and all records below it, parents first."""
        node = self._store.get(path)
        if node is None:
            return
        yield path, node.data
        for name in names_below(self._store, path):
            yield from self._below(f"{path}/{name}")

    def _refused(self, problem: str, remedy: Remedy | str) -> MoveRefused:
        return MoveRefused(topology=self._paths.topology, problem=problem, remedy=remedy)
