"""The output of a task, as data: references that travel in XComs and in the ledger, and the files that they name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from airflow_tx.errors import StagingError
from airflow_tx.protocol.attempt import TaskTry
from airflow_tx.staging.area import TryDir, quoted


@dataclass(frozen=True)
class OutputRef:
    """Names one output of one try; plain JSON in XComs and in the ledger.

    :param path: its folder, relative to the root of the staging area.
    :param digest: of the names, sizes and row counts of its files: of one writing, not of its contents.
    :param row_digest: of its rows, as `RowsDigest.text` gives it; "": they were not hashed.
    :param reliable: whether who reads it has to read each of its rows once.
    """

    topology: str
    txid: int
    attempt: int
    task_id: str
    map_index: int
    task_try: str
    name: str
    path: str
    rows: int
    digest: str
    row_digest: str = ""
    reliable: bool = True

    @property
    def task(self) -> TaskTry:
        return TaskTry(self.task_id, self.map_index, self.task_try)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> OutputRef:
        """Read the reference that `to_json` made; a StagingError if it is not one, as an XCom of another operator."""
        try:
            return cls(**value)
        except TypeError:
            unknown = dict.fromkeys(("output", "task", "txid", "attempt"), "?")
            problem = f"{str(value)[:120]!r} is no reference to staged output"
            remedy = 'Pass the output of a processing task, such as partial.output["counts"].'
            raise StagingError(**unknown, problem=problem, remedy=remedy) from None


@dataclass(frozen=True)
class StagedFile:
    name: str
    size: int
    rows: int


@dataclass(frozen=True)
class RowsInTable:
    """Rows that a task has written into the folder of a table, for its commit.

    :param uri: of the table.
    :param folder: of the files, relative to the table.
    :param rows: how many rows were written.
    :param row_digest: of these rows, as `RowsDigest.text` gives it.
    :param partition: the partition columns, as fields of Spark's schema.
    :param listed: whether the files of the output list the files of these rows.
    """

    uri: str
    folder: str
    rows: int
    row_digest: str = ""
    partition: tuple[Mapping[str, Any], ...] = ()
    listed: bool = False

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RowsInTable:
        """Read what `asdict` gave, once it was JSON."""
        return cls(**{**value, "partition": tuple(value["partition"])})


@dataclass(frozen=True)
class Output:
    """One named output: its files and columns, and what an `OutputRef` says of its rows.

    :param content: the rows themselves, if they are few, as `rows_as_json` wrote them; "": they are in the files alone.
    :param appended: its rows are in the folder of a table, and its own files name their files; None: they are not.
    """

    files: tuple[StagedFile, ...]
    columns: tuple[str, ...]
    row_digest: str = ""
    reliable: bool = True
    content: str = ""
    appended: RowsInTable | None = None

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Write it as plain JSON."""
        plain = asdict(self)
        if self.appended is None:
            del plain["appended"]
        return plain

    @property
    def digest(self) -> str:
        text = json.dumps([[file.name, file.size, file.rows] for file in self.files]) + self.content
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def refuse(where: TryDir, output: str, problem: str, remedy: str) -> StagingError:
    """Make the error that names an output, its task and its transaction."""
    own = {"task": str(where.task), "txid": where.attempt.txid, "attempt": where.attempt.attempt}
    return StagingError(output=output, **own, problem=problem, remedy=remedy)


def check_name(where: TryDir, name: str) -> str:
    """Name the folder for an output called `name`; a StagingError if none can be called so."""
    # Spark and pyarrow hide what begins with _ or ., and `return_value` is the XCom key Airflow itself writes.
    if not name or name[0] in "_." or name == "return_value":
        remedy = "Begin it with a letter; `return_value` is Airflow's own."
        raise refuse(where, name, "it cannot have this name", remedy)
    return where.child(quoted(name))


def identity(where: TryDir) -> dict[str, Any]:
    """Say whose output it is, in the fields that manifests and references share."""
    return {
        "topology": where.topology,
        "txid": where.attempt.txid,
        "attempt": where.attempt.attempt,
        "task_id": where.task.task_id,
        "map_index": where.task.map_index,
        "task_try": where.task.task_try,
    }


def make_ref(where: TryDir, name: str, output: Output) -> OutputRef:
    """Make the reference to an output of a try."""
    path = where.child(quoted(name))
    emitted = output.appended or output
    return OutputRef(
        **identity(where),
        name=name,
        path=path,
        rows=emitted.rows,
        digest=output.digest,
        row_digest=emitted.row_digest,
        reliable=output.reliable,
    )
