"""Task output between processing and commit: a folder per topology, txid, attempt, task and try.

::

    <root>/<ledger>/<incarnation>/<topology>/<txid>/<attempt>/<task>@<map index>/<try>/

Each folder has a single writer, so no file is ever overwritten. A driver that outlives its task writes into a folder
that no task reads.

Each commit deletes the output of earlier transactions. The output of a transaction stays while its run is live, since a
task outside the block may read it. Other installations may use the same place, with the same names of connections and
topologies. Only their incarnations differ, so a topology deletes data only in the folder of its incarnation.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias
from urllib.parse import quote

from airflow_tx.base.config import Settings
from airflow_tx.base.errors import (
    ConfigError,
    RowsDiffer,
    StagingError,
    StagingNotRemoved,
    StagingUnavailable,
    StagingUnreachable,
)
from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.base.rows import NoTable, lacking, reader_of
from airflow_tx.ledger import RowsDigest, RowsRead, TaskTry, TransactionAttempt, form_of_columns
from airflow_tx.outputs.staging.descriptor import Descriptor
from airflow_tx.outputs.staging.files import Files, open_files
from airflow_tx.outputs.staging.row_hash import digest_of_batch

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]
else:
    pa = LazyModule("pyarrow")
    pq = LazyModule("pyarrow.parquet")


# --- area ---------------------------------------------------------------------------------------------------------


DESCRIPTOR = "_descriptor.json"
JOURNAL = "@journal"
"""The folder of the journal of a topology. No topology can have this name."""
KEPT = "@kept"
TAKEN = "@taken"
"""The folder of messages that a source has taken from a queue. No topology can have this name."""
PROBE = "@probe"


def quoted(part: str) -> str:
    """Quote a text as one part of a path, without separators, and never as `.` or `..`."""
    text = quote(part, safe="")
    return text if text.strip(".") else text.replace(".", "%2E")


@dataclass(frozen=True)
class TryDir:
    """The folder of one try of one task. Its name is relative to the root of the area's files."""

    topology: str
    attempt: TransactionAttempt
    task: TaskTry
    files: Files = field(compare=False, repr=False)
    name: str

    @property
    def uri(self) -> str:
        return self.files.uri(self.name)

    @property
    def transaction(self) -> str:
        return f"{quoted(self.topology)}/{self.attempt.txid}"

    def child(self, name: str) -> str:
        """Return the name of a file or folder in this folder, relative to the root of the area."""
        return f"{self.name}/{name}"


class StagingArea:
    """The staging area below one root.

    :param root_uri: a path, or a URI of a store that every worker and every Spark driver reaches.
    :param ledger: a short name of the ledger. It is the first part of every path. None if `root_uri` already contains
        this name, such as the `root` of another area.
    """

    def __init__(self, root_uri: str, ledger: str | None = None) -> None:
        if not root_uri.strip():
            raise ConfigError(
                option="[tx] staging",
                value=root_uri,
                remedy="Name a folder or an object storage URI.",
            )
        self._given = root_uri
        if ledger is not None:
            root_uri = f"{root_uri}{'' if root_uri.endswith('/') else '/'}{quoted(ledger)}"
        with self._usable():
            self.files = open_files(root_uri)

    @classmethod
    def of_ledger(cls, conn_id: str, root: str) -> StagingArea:
        """Open the area in `[tx] staging` for the ledger at this path in a ZooKeeper connection."""
        home = os.path.expanduser(os.environ.get("AIRFLOW_HOME") or "~/airflow")
        ledger = hashlib.sha256(f"{conn_id}\n{root.rstrip('/')}".encode()).hexdigest()[:12]
        return cls(Settings.load().staging or os.path.join(home, "tx_staging"), ledger)

    @property
    def root(self) -> str:
        return self.files.root

    def of_topology(self, incarnation: str) -> StagingArea:
        """Open the staging area of one topology.

        :param incarnation: the incarnation in the topology record.
        """
        return StagingArea(f"{self.root}/{quoted(incarnation)}")

    @property
    def kept(self) -> StagingArea:
        """Return the area for output that tasks read after the commit. No topology can have the name of this area."""
        return StagingArea(f"{self.root}/{KEPT}")

    def __repr__(self) -> str:
        return f"StagingArea({self.root!r})"

    def check(self) -> None:
        """Raise a ConfigError if the root is not writable, before a transaction depends on it."""
        with self._usable():
            self.files.write(PROBE, b"")  # No topology can have this name.

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            where = "to a folder, or an object storage URI, that all workers can write to"
            why = (
                error.__cause__
                if isinstance(error, (StagingUnavailable, StagingUnreachable))
                else error
            )
            remedy = f"{type(why).__name__}: {why}. Set it in airflow.cfg or by AIRFLOW__TX__STAGING {where}."
            raise ConfigError(option="[tx] staging", value=self._given, remedy=remedy) from error

    def try_dir(self, topology: str, attempt: TransactionAttempt, task: TaskTry) -> TryDir:
        """Return the folder of one try, without creating it."""
        of_task = f"{quoted(task.task_id)}@{task.map_index}"
        name = (
            f"{quoted(topology)}/{attempt.txid}/{attempt.attempt}/{of_task}/{quoted(task.task_try)}"
        )
        return TryDir(topology=topology, attempt=attempt, task=task, files=self.files, name=name)

    def sweep(
        self,
        topology: str,
        before: int = sys.maxsize,
        is_read: Callable[[int], bool] = lambda txid: False,
    ) -> list[int]:
        """Remove the output of earlier transactions, for all attempts, once no task reads it.

        Call this method at every commit. A later call removes output that is still read, or that a driver writes late.

        :param before: remove output of transactions before this txid.
        :param is_read: a function that returns whether a task may still read the output of a transaction.
        :return: the txids whose output a task may still read.
        """
        below = quoted(topology)
        old = sorted(
            int(name) for name in self.files.list(below) if name.isdecimal() and int(name) < before
        )
        read = [txid for txid in old if is_read(txid)]
        for txid in old:
            if txid not in read:
                self.files.remove_tree(f"{below}/{txid}")
        return read

    def adopt_taken(self, made_anew: str, incarnation: str) -> None:
        """Give the rebuilt ledger the messages that runs took from queues while the ledger was lost.

        The broker no longer has them. The source recognizes the ids of messages, so the call can be repeated.

        :param made_anew: the incarnation of the ledger that `begin` has created in place of the lost ledger.
        :param incarnation: the incarnation of the lost ledger.
        """
        theirs = f"{quoted(made_anew)}/{TAKEN}"
        for queue in self.files.list(theirs):
            own = f"{quoted(incarnation)}/{TAKEN}/{queue}"
            numbers = [
                int(at)
                for folder in ("ids", "messages")
                for at in self.files.list(f"{own}/{folder}")
            ]
            # Folders with this number or a higher one are still read by the next transaction.
            place = f"{own}/messages/{max(numbers, default=0)}"
            for number in self.files.list(f"{theirs}/{queue}/messages"):
                folder = f"{theirs}/{queue}/messages/{number}"
                for name in self.files.list(folder):
                    self.files.copy(f"{folder}/{name}", f"{place}/{int(number):020}-{name}")

    def forget(self, incarnation: str) -> None:
        """Remove all data of a deleted topology: staged and kept output, journal, and messages taken from queues.

        :raises StagingNotRemoved: the folder still has files.
        """
        own = quoted(incarnation)
        self.files.remove_tree(own)
        if self.files.list(own):
            raise StagingNotRemoved(uri=self.files.uri(own))


def write_descriptor(area: StagingArea, descriptor: Descriptor) -> str:
    """Write a descriptor to the folder of its try. Return its URI, which is short enough for a command line."""
    name = dir_of(area, descriptor).child(DESCRIPTOR)
    area.files.write(name, descriptor.to_json().encode())
    return area.files.uri(name)


def read_descriptor(uri: str) -> Descriptor:
    """Read the descriptor at a URI. Raise ConfigError if it is missing or has another format."""
    folder, _, name = uri.rpartition("/")
    try:
        return Descriptor.from_json(open_files(folder).read(name).decode())
    except FileNotFoundError:
        remedy = "The task that submits the application writes it. It is removed when the transaction ends."
        raise ConfigError(
            option="the descriptor of the batch",
            value=uri,
            remedy=f"This file does not exist. {remedy}",
        ) from None


def dir_of(area: StagingArea, descriptor: Descriptor) -> TryDir:
    """Return the folder of the try that a descriptor names."""
    return area.try_dir(descriptor.topology, descriptor.attempt, descriptor.task)


# --- output -------------------------------------------------------------------------------------------------------
# The output of a task consists of files, which references in XComs and in the ledger name.


@dataclass(frozen=True)
class OutputRef:
    """A reference to one output of one try, stored as plain JSON in XComs and in the ledger.

    :param path: the folder of the output, relative to the root of the staging area.
    :param digest: the digest of the files' names, sizes and row counts. It identifies one write, not the content.
    :param row_digest: the digest of the rows, as `RowsDigest.text`, or "" if the rows were not hashed.
    :param reliable: whether a reader must read each row once.
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
        """Create a reference from the result of `to_json`. Raise StagingError for any other value."""
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
    """Rows that a task has written to a table's folder. The commit of the transaction adds them to the table.

    :param uri: the URI of the table.
    :param folder: the folder of the files, relative to the table.
    :param rows: the number of rows.
    :param row_digest: the digest of the rows, as `RowsDigest.text`.
    :param partition: the partition columns, as fields of Spark's schema.
    :param listed: whether the output lists the files with these rows.
    """

    uri: str
    folder: str
    rows: int
    row_digest: str = ""
    partition: tuple[Mapping[str, Any], ...] = ()
    listed: bool = False

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RowsInTable:
        """Create the description of the rows from the JSON form of `asdict`."""
        return cls(**{**value, "partition": tuple(value["partition"])})


@dataclass(frozen=True)
class Output:
    """One named output of a try.

    :param row_digest: see `OutputRef`.
    :param reliable: see `OutputRef`.
    :param content: the rows of a small output as the text of `rows_as_json`, or "" if the rows are only in files.
    :param appended: the rows that are in a table's folder, or None. If set, the output's own files only list the files
        of the table.
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
        """Return the output as plain JSON."""
        plain = asdict(self)
        if self.appended is None:
            del plain["appended"]
        return plain

    @property
    def digest(self) -> str:
        text = json.dumps([[file.name, file.size, file.rows] for file in self.files]) + self.content
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def refuse(
    where: TryDir, output: str, problem: str, remedy: str, rows: NoTable | None = None
) -> StagingError:
    """Return the error that names an output, its task and its transaction.

    :param rows: what is wrong with the rows, or None if they are correct.
    """
    if rows is not None and rows.passes:
        given = f"The origin of the rows of output {output!r} of task {where.task}"
        return StagingUnreachable(uri=given, reason=str(rows))
    problem = problem if rows is None else f"{problem} ({rows})"
    remedy = (rows and rows.remedy) or remedy
    own = {"task": str(where.task), "txid": where.attempt.txid, "attempt": where.attempt.attempt}
    return StagingError(output=output, **own, problem=problem, remedy=remedy)


def check_name(where: TryDir, name: str) -> str:
    """Return the folder of the output `name`. Raise StagingError for a forbidden name."""
    # Spark and pyarrow ignore names that start with _ or . and Airflow uses `return_value`.
    if not name or name[0] in "_." or name == "return_value":
        remedy = "Use a name that begins with a letter. Airflow reserves `return_value`."
        raise refuse(where, name, "this name is not allowed", remedy)
    return where.child(quoted(name))


def identity(where: TryDir) -> dict[str, Any]:
    """Return the fields of manifests and references that identify the try."""
    return {
        "topology": where.topology,
        "txid": where.attempt.txid,
        "attempt": where.attempt.attempt,
        "task_id": where.task.task_id,
        "map_index": where.task.map_index,
        "task_try": where.task.task_try,
    }


def make_ref(where: TryDir, name: str, output: Output) -> OutputRef:
    """Return the reference to an output of a try."""
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


# --- small rows ---------------------------------------------------------------------------------------------------
# The rows of a small output are also stored as JSON, so that a reader does not need pyarrow.


SMALL_ROWS = 100
SMALL_SIZE = 8_192
"""The maximum size of a small output, in characters of JSON."""
_FROM_JSON: Mapping[str, Callable[[str], Any]] = {"date": date.fromisoformat, "decimal": Decimal}


def rows_as_json(batches: Sequence[pa.RecordBatch]) -> str:
    """Return the rows as JSON, or "" if there are too many, or if JSON cannot express a type or its metadata."""
    kinds: dict[str, str] = {}
    for batch in batches:
        for column in batch.schema:
            kind = None if lacking(batch.schema) else _kind(column.type)
            if kind is None or kinds.setdefault(column.name, kind) != kind:
                return ""
    if sum(batch.num_rows for batch in batches) > SMALL_ROWS:
        return ""
    columns = {
        name: [value for batch in batches for value in batch.column(name).to_pylist()]
        for name in kinds
    }
    for name, kind in kinds.items():
        if kind in _FROM_JSON:
            columns[name] = [None if value is None else str(value) for value in columns[name]]
    text = json.dumps(
        {"kinds": kinds, "rows": list(zip(*columns.values(), strict=True))}, separators=(",", ":")
    )
    return text if len(text) <= SMALL_SIZE else ""


def rows_from_json(text: str, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Return the rows from the result of `rows_as_json`.

    :param columns: the columns to read, or None for all columns.
    """
    written = json.loads(text)
    names = list(written["kinds"])
    convert = {
        name: _FROM_JSON[kind] for name, kind in written["kinds"].items() if kind in _FROM_JSON
    }
    for values in written["rows"]:
        row = dict(zip(names, values, strict=True))
        for name, of in convert.items():
            row[name] = None if row[name] is None else of(row[name])
        yield row if columns is None else {name: row[name] for name in columns}


def _kind(of: pa.DataType) -> str | None:
    types = pa.types
    if types.is_null(of) or types.is_boolean(of) or types.is_integer(of) or types.is_floating(of):
        return "plain"
    if types.is_string(of) or types.is_large_string(of):
        return "plain"
    if types.is_date32(of):
        return "date"
    return "decimal" if types.is_decimal128(of) else None


# --- parquet ------------------------------------------------------------------------------------------------------
# This section reads Parquet files of the staging area and of users as Arrow batches. By default,
# Spark writes times as INT96. They are read as microseconds, for all years that Spark supports.


def read_schema(opened: BinaryIO) -> pa.Schema:
    """Read the schema of a file, with the types that `batches_in` returns."""
    return _schema(_open(opened))


def batches_in(opened: BinaryIO, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Read the rows of a file.

    :param columns: the columns to read, or None for all columns.
    """
    file = _open(opened)
    schema = _schema(file)
    as_it_is = schema == file.schema_arrow
    for batch in batches_by_group(file, columns or None):
        wanted = pa.schema(map(schema.field, batch.schema.names))
        yield batch if as_it_is else batch.cast(wanted)


def batches_by_group(file: Any, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """Read a `ParquetFile` one row group at a time, since Arrow holds all data that it reads ahead until the end."""
    names = None if columns is None else list(columns)
    for number in range(file.num_row_groups):
        yield from file.iter_batches(row_groups=[number], columns=names)


def _open(opened: BinaryIO) -> Any:
    # By default, Arrow reads INT96 as nanoseconds, which ends in 2262.
    return pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")


def _schema(file: Any) -> pa.Schema:
    found = file.schema_arrow
    columns = map(file.schema.column, range(len(file.schema)))
    leaves = [each.physical_type for each in columns]
    if "INT96" not in leaves:
        return found
    physical = iter(leaves)
    fields = _with_moments(found, physical)
    return pa.schema(fields, found.metadata)


def _with_moments(fields: Iterable[pa.Field], physical: Iterator[str]) -> list[pa.Field]:
    return [each.with_type(_moments(each.type, physical)) for each in fields]


def _moments(kind: pa.DataType, physical: Iterator[str]) -> pa.DataType:
    """Replace INT96 times in a type with UTC timestamps. `physical` has the leaf columns in file order."""
    types = pa.types
    if types.is_struct(kind):
        fields = map(kind.field, range(kind.num_fields))
        return pa.struct(_with_moments(fields, physical))
    if types.is_map(kind):
        key = _moments(kind.key_type, physical)
        item = _moments(kind.item_type, physical)
        return pa.map_(key, item)
    if types.is_list(kind):
        item = _moments(kind.value_type, physical)
        return pa.list_(kind.value_field.with_type(item))
    if next(physical) == "INT96":
        return pa.timestamp("us", tz="UTC")
    return kind


# --- manifest -----------------------------------------------------------------------------------------------------
# The output of one try consists of named folders of Parquet files. A manifest makes the output visible.
#
# The manifest is written last, and atomically, so the output of a killed try has none and is
# refused. A reader compares it with the reference in an XCom and in the ledger.


Ref: TypeAlias = OutputRef | Mapping[str, Any]
MANIFEST_FORMAT = 1
MANIFEST = "_manifest.json"
WRITTEN_AT_ONCE = 65_536
"""The number of rows in each row group except the last."""
_ONE_TYPE = "Change the rows: each column needs a text as its name and values of one type."


def scan_output(where: TryDir, name: str) -> Output:
    """Return the descriptions of the Parquet files in an output's folder, from their footers only."""
    folder = check_name(where, name)
    files = []
    columns = []
    for file, size in sorted(where.files.list(folder).items()):
        if size is None or file[0] in "_." or not file.endswith(".parquet"):
            continue
        with where.files.open(f"{folder}/{file}") as opened:
            footer = pq.ParquetFile(opened)
            columns = list(footer.schema_arrow.names)
            files.append(StagedFile(file, size, footer.metadata.num_rows))
    return Output(tuple(files), tuple(columns))


def with_content(where: TryDir, name: str, output: Output) -> Output:
    """Return the output, with its rows also in the field `content` if it is small.

    :raises RowsDiffer: the rows in the files differ from the emitted rows.
    """
    if output.rows > SMALL_ROWS:
        return output
    batches = list(batches_of(where, name, output))
    return replace(output, content=rows_as_json(batches))


def write_rows(
    where: TryDir,
    name: str,
    rows: Any,
    *,
    file: str = "part-0.parquet",
    digested: bool = False,
) -> Output:
    """Write an output of a Python task as one Parquet file.

    :param rows: dicts, or a frame of pandas, polars, DuckDB or pyarrow. A stream is never completely in memory.
    :param file: the name of the file. Several writers of an output need different names.
    :param digested: whether the digest of the rows is computed.
    :raises StagingError: the name cannot be used, or Parquet would change a value.
    """
    path = f"{check_name(where, name)}/{file}"
    try:
        with NoTable.of_libraries():
            reader = reader_of(rows)
            with where.files.writing(path) as sink:
                found = _write_parquet(sink, reader, digested)
    except NoTable as error:
        raise refuse(where, name, "its rows do not form a table", _ONE_TYPE, error) from error
    written = StagedFile(file, sink.size, found.rows)
    return Output((written,), tuple(reader.schema.names), row_digest=found.text)


def _write_parquet(sink: Any, reader: pa.RecordBatchReader, digested: bool) -> RowsDigest:
    found = RowsDigest(0)
    with pq.ParquetWriter(sink, reader.schema, coerce_timestamps="us") as writer:
        for table in _portions(reader):
            for batch in table.to_batches():
                found += digest_of_batch(batch) if digested else RowsDigest(batch.num_rows)
            writer.write_table(table)
    return found


def _portions(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Yield the rows in portions of similar size, for record batches of any size."""
    kept = list[Any]()
    rows = 0
    for batch in reader:
        for start in range(0, batch.num_rows, WRITTEN_AT_ONCE):
            kept.append(batch.slice(start, WRITTEN_AT_ONCE))
            rows += kept[-1].num_rows
            if rows >= WRITTEN_AT_ONCE:
                yield pa.Table.from_batches(kept).combine_chunks()
                kept.clear()
                rows = 0
    if kept:
        yield pa.Table.from_batches(kept).combine_chunks()


def write_digested(where: TryDir, name: str, rows: Any) -> Output:
    """Write an output of a Python task with the digest of its rows, which lets readers check that they read all rows.

    :raises StagingError: see `write_rows`.
    """
    return with_content(where, name, write_rows(where, name, rows, digested=True))


def write_manifest(
    where: TryDir,
    outputs: Mapping[str, Output],
    *,
    consumed_rows: int | None = None,
    read: Sequence[RowsRead] = (),
    code: str = "",
    trees: int = 0,
    unproven: Sequence[str] = (),
) -> dict[str, OutputRef]:
    """Make the outputs of a try visible. This is the last write of a task.

    :param consumed_rows: the number of rows that the task has read from the batch, or None if it is unknown.
    :param read: what the task has read of the batch and of outputs.
    :param code: the digest of the code that wrote the output, or "" if it is unknown.
    :param trees: the number of messages that the task has emitted.
    :param unproven: the reasons why it is not proven that all rows were read.
    :return: references to the outputs, by name.
    """
    document = {
        "format": MANIFEST_FORMAT,
        **identity(where),
        "outputs": {name: output.to_json() for name, output in outputs.items()},
        "consumed_rows": consumed_rows,
        "read": [each.to_json() for each in read],
        "code": code,
        "trees": trees,
        "unproven": list(unproven),
    }
    where.files.write(where.child(MANIFEST), json.dumps(document).encode())
    return {name: make_ref(where, name, output) for name, output in outputs.items()}


@dataclass(frozen=True)
class Manifest:
    """The manifest of a finished try, which describes its outputs."""

    where: TryDir
    outputs: Mapping[str, Output]
    consumed_rows: int | None
    read: tuple[RowsRead, ...] = ()
    code: str = ""
    trees: int = 0
    unproven: tuple[str, ...] = ()

    def refs(self) -> dict[str, OutputRef]:
        return {name: make_ref(self.where, name, output) for name, output in self.outputs.items()}


def read_manifest(where: TryDir, output: str = "*") -> Manifest:
    """Read the manifest of a try.

    :param output: the name of the output in error messages.
    :raises StagingError: the manifest is missing or damaged, or belongs to another try.
    """
    name = where.child(MANIFEST)
    try:
        document = json.loads(where.files.read(name))
        found_format = document["format"]
    except FileNotFoundError:
        if not where.files.list(where.transaction):
            remedy = f"Clear the whole run. If transaction {where.attempt.txid} is committed, its output was removed "
            remedy += "permanently after the end of its run: read the state."
            raise refuse(where, output, "no output of its transaction is staged", remedy) from None
        problem = f"it is incomplete: {where.files.uri(name)} does not exist"
        raise refuse(
            where, output, problem, f"Clear task {where.task}: its application did not finish."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise refuse(
            where, output, f"{where.files.uri(name)} is damaged", f"Clear task {where.task}."
        ) from None
    if found_format != MANIFEST_FORMAT:
        problem = f"its manifest has format {found_format}, this version reads {MANIFEST_FORMAT}"
        remedy = "Use one version of airflow-provider-tx in Airflow and in Spark."
        raise refuse(where, output, problem, remedy)
    found = {key: document[key] for key in identity(where)}
    if found != identity(where):
        problem = f"its manifest is of {_name(found)}, not of {_name(identity(where))}"
        raise refuse(where, output, problem, f"Clear task {where.task}.")
    outputs = {key: _output(value) for key, value in document["outputs"].items()}
    read = tuple(RowsRead.from_json(each) for each in document["read"])
    code, trees, unproven = document["code"], document["trees"], tuple(document["unproven"])
    return Manifest(where, outputs, document["consumed_rows"], read, code, trees, unproven)


def _output(value: Mapping[str, Any]) -> Output:
    files = tuple(StagedFile(**file) for file in value["files"])
    columns = tuple(value["columns"])
    appended = value.get("appended")
    return Output(
        files,
        columns,
        row_digest=value.get("row_digest", ""),
        reliable=value.get("reliable", True),
        content=value.get("content", ""),
        appended=None if appended is None else RowsInTable.from_json(appended),
    )


def open_output(
    area: StagingArea,
    ref: Ref,
    *,
    columns: Sequence[str] | None = None,
    attempt: TransactionAttempt | None = None,
) -> tuple[TryDir, Output]:
    """Compare a reference with the manifest and the files, without reading rows.

    :param columns: the columns that the reader needs.
    :param attempt: the attempt that the reader works for.
    :raises StagingError: the output is missing, incomplete or changed, or lacks a column.
    """
    ref = ref if isinstance(ref, OutputRef) else OutputRef.from_json(ref)
    own = TransactionAttempt(ref.txid, ref.attempt)
    where = area.try_dir(ref.topology, own, ref.task)
    if attempt is not None and attempt != own:
        problem = f"it belongs to attempt {own}, but this is attempt {attempt}"
        raise refuse(
            where, ref.name, problem, "Clear the whole run, so that its tasks work on one attempt."
        )
    manifest = read_manifest(where, ref.name)
    if ref.name not in manifest.outputs:
        emitted = ", ".join(map(repr, manifest.outputs)) or "nothing"
        raise refuse(
            where, ref.name, f"the task emitted {emitted}", "Read one of these, or emit it."
        )
    output = manifest.outputs[ref.name]
    if (ref.path, ref.digest) != (where.child(quoted(ref.name)), output.digest):
        problem = f"the output at {where.uri} is not the one that the reference names"
        raise refuse(where, ref.name, problem, f"Clear task {where.task}.")
    _check_files(where, ref.name, output)
    _check_columns(where, ref.name, output, columns)
    return where, output


def check_readable(where: TryDir, name: str, output: Output) -> None:
    """Refuse to read an output whose rows are in a table's folder. The output itself only lists those files.

    :raises StagingError: the rows are in a table.
    """
    if output.appended is not None:
        problem = (
            f"its rows are appended to table {output.appended.uri} when the transaction commits"
        )
        raise refuse(
            where, name, problem, "Emit the rows also under another name, and read that output."
        )


def read_batches(
    area: StagingArea,
    ref: Ref,
    *,
    columns: Sequence[str] | None = None,
    attempt: TransactionAttempt | None = None,
) -> Iterator[pa.RecordBatch]:
    """Check an output with `open_output`, and read its rows as pyarrow record batches.

    :raises RowsDiffer: after the last batch, if the rows differ from the emitted rows.
    """
    where, output = open_output(area, ref, columns=columns, attempt=attempt)
    return batches_of(where, _name_of(ref), output, columns)


def read_output(
    area: StagingArea,
    ref: Ref,
    *,
    columns: Sequence[str] | None = None,
    attempt: TransactionAttempt | None = None,
) -> Iterator[dict[str, Any]]:
    """Check an output with `open_output`, and read its rows as dicts."""
    where, output = open_output(area, ref, columns=columns, attempt=attempt)
    if output.content:
        return rows_from_json(output.content, columns)
    batches = batches_of(where, _name_of(ref), output, columns)
    return (row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict"))


def _name_of(ref: Ref) -> str:
    return str(ref["name"]) if isinstance(ref, Mapping) else ref.name


def batches_of(
    where: TryDir, name: str, output: Output, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Read the rows of an output that `open_output` has already checked.

    :raises RowsDiffer: after the last batch, if the rows differ from the emitted rows.
    """
    emitted = RowsDigest.of(output.rows, output.row_digest)
    found = None
    for batch in _batches(where, name, output, columns):
        same = emitted.form == form_of_columns(batch.schema.names)
        each = digest_of_batch(batch) if same else RowsDigest(batch.num_rows)
        found = each if found is None else found + each
        yield batch
    if output.reliable:
        check_emitted(where, name, found or RowsDigest(0), emitted)


def check_emitted(where: TryDir, name: str, found: RowsDigest, emitted: RowsDigest) -> None:
    """Compare the rows that were read from an output with the rows that the task emitted.

    :raises RowsDiffer: the rows differ.
    """
    if found.agrees(emitted):
        return
    problem = (
        f"{found} were read from output {name!r} of task {where.task}, but {emitted} were emitted"
    )
    remedy = f"Clear task {where.task}: it writes its output again."
    raise RowsDiffer(
        txid=where.attempt.txid, attempt=where.attempt.attempt, problem=problem, remedy=remedy
    )


def _batches(
    where: TryDir, name: str, output: Output, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    for file in output.files:
        path = where.child(f"{quoted(name)}/{file.name}")
        try:
            with where.files.reaching(path), where.files.open(path) as opened:
                yield from batches_in(opened, columns)
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            problem = f"{where.files.uri(path)} cannot be read ({str(error).splitlines()[0]})"
            raise refuse(where, name, problem, f"Clear task {where.task}.") from None


def _check_files(where: TryDir, name: str, output: Output) -> None:
    sizes = where.files.list(where.child(quoted(name)))
    for file in output.files:
        found = sizes.get(file.name)
        if found != file.size:
            state = "is missing" if found is None else f"has {found} bytes instead of {file.size}"
            path = where.files.uri(where.child(f"{quoted(name)}/{file.name}"))
            remedy = f"Clear task {where.task}: it writes its output again."
            raise refuse(where, name, f"file {path} {state}", remedy)


def _check_columns(where: TryDir, name: str, output: Output, columns: Sequence[str] | None) -> None:
    # An output without rows may have no file. Then it has no columns.
    missing = [column for column in columns or () if column not in output.columns]
    if missing and (output.rows or output.columns):
        problem = f"it has columns {', '.join(output.columns)}, but lacks {', '.join(missing)}"
        raise refuse(where, name, problem, "Use the column names of the state in the application.")


def _name(identity: Mapping[str, Any]) -> str:
    return "{topology} {txid}.{attempt} {task_id}[{map_index}] try {task_try}".format(**identity)
