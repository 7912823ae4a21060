"""Task output between processing and commit: a folder per topology, txid, attempt, task and try.

::

    <root>/<ledger>/<incarnation>/<topology>/<txid>/<attempt>/<task>@<map index>/<try>/

No two writers share a folder: nothing is ever overwritten, and a driver that outlives its task writes into a folder
that is not read. The area is swept at every commit: a task beside or after the block may read output of its
transaction as long as its run lives, and such a driver may write even later. Other installations may stage in the same
place, with the same names of connections and topologies. Only the incarnation of a topology tells them apart, so a
topology sweeps only what is below its own.
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
"""Folder of the journal of a topology. No topology has its name."""
KEPT = "@kept"
TAKEN = "@taken"
"""Folder of what a source has taken out of a queue. No topology has its name."""
PROBE = "@probe"


def quoted(part: str) -> str:
    """Quote any text as one part of a path: never a separator, never `.` or `..`."""
    text = quote(part, safe="")
    return text if text.strip(".") else text.replace(".", "%2E")


@dataclass(frozen=True)
class TryDir:
    """The folder of one try of one task; its name is relative to the root of the area's files."""

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
        """Name a file or folder in it, relative to the root of the area."""
        return f"{self.name}/{name}"


class StagingArea:
    """The staging area below one root.

    :param root_uri: a path, or a URI of a store that every worker and every Spark driver reaches.
    :param ledger: short name of the ledger, the first part of every path; None: `root_uri` names it already, as the
        `root` of another area does.
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
        """Open the area that `[tx] staging` names for one ledger: a path in a ZooKeeper connection."""
        home = os.path.expanduser(os.environ.get("AIRFLOW_HOME") or "~/airflow")
        ledger = hashlib.sha256(f"{conn_id}\n{root.rstrip('/')}".encode()).hexdigest()[:12]
        return cls(Settings.load().staging or os.path.join(home, "tx_staging"), ledger)

    @property
    def root(self) -> str:
        return self.files.root

    def of_topology(self, incarnation: str) -> StagingArea:
        """Open the part that belongs to one topology.

        :param incarnation: of the topology, as its record has it.
        """
        return StagingArea(f"{self.root}/{quoted(incarnation)}")

    @property
    def kept(self) -> StagingArea:
        """An area beside, for what is read after its transaction is committed. No topology has its name."""
        return StagingArea(f"{self.root}/{KEPT}")

    def __repr__(self) -> str:
        return f"StagingArea({self.root!r})"

    def check(self) -> None:
        """Refuse a root to which nothing can be written, before anything depends on it."""
        with self._usable():
            self.files.write(PROBE, b"")  # no topology has its name

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
        """Name the folder of one try; it is not made here."""
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
        """Remove the output of every transaction before `before`, of all attempts, that no task may read any more.

        To be called at every commit: what is read now, and what a driver writes late, goes at a later one.

        :return: the txids whose output is still read.
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
        """Give the next transaction of a rebuilt ledger the messages that runs took while the ledger was lost.

        The broker has forgotten these messages. The source recognizes ids that it knows, so you may repeat this.

        :param made_anew: the incarnation of the ledger that `begin` has made in place of the lost one.
        :param incarnation: of the lost one.
        """
        theirs = f"{quoted(made_anew)}/{TAKEN}"
        for queue in self.files.list(theirs):
            own = f"{quoted(incarnation)}/{TAKEN}/{queue}"
            numbers = [
                int(at)
                for folder in ("ids", "messages")
                for at in self.files.list(f"{own}/{folder}")
            ]
            # The next transaction looks at this number and at all after it: the last ids are those before its own.
            place = f"{own}/messages/{max(numbers, default=0)}"
            for number in self.files.list(f"{theirs}/{queue}/messages"):
                folder = f"{theirs}/{queue}/messages/{number}"
                for name in self.files.list(folder):
                    self.files.copy(f"{folder}/{name}", f"{place}/{int(number):020}-{name}")

    def forget(self, incarnation: str) -> None:
        """Remove everything that a topology has staged, kept, journaled and taken out of queues: its life is over.

        :raises StagingNotRemoved: something is still there.
        """
        own = quoted(incarnation)
        self.files.remove_tree(own)
        if self.files.list(own):
            raise StagingNotRemoved(uri=self.files.uri(own))


def write_descriptor(area: StagingArea, descriptor: Descriptor) -> str:
    """Put the descriptor into the folder of its try; returns its URI, short enough for a command line."""
    name = dir_of(area, descriptor).child(DESCRIPTOR)
    area.files.write(name, descriptor.to_json().encode())
    return area.files.uri(name)


def read_descriptor(uri: str) -> Descriptor:
    """Read the descriptor at the URI that `write_descriptor` returned; a ConfigError if this version cannot."""
    folder, _, name = uri.rpartition("/")
    try:
        return Descriptor.from_json(open_files(folder).read(name).decode())
    except FileNotFoundError:
        remedy = "It is written by the task that submits the application, and removed when its transaction ends."
        raise ConfigError(
            option="the descriptor of the batch", value=uri, remedy=f"No such file. {remedy}"
        ) from None


def dir_of(area: StagingArea, descriptor: Descriptor) -> TryDir:
    """Name the folder that the output of a descriptor's try goes to."""
    return area.try_dir(descriptor.topology, descriptor.attempt, descriptor.task)


# --- output -------------------------------------------------------------------------------------------------------
# The output of a task, as data: references that travel in XComs and in the ledger, and the files that they name.


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


def refuse(
    where: TryDir, output: str, problem: str, remedy: str, rows: NoTable | None = None
) -> StagingError:
    """Make the error that names an output, its task and its transaction; `rows`: why they cannot be staged."""
    if rows is not None and rows.passes:
        given = f"What gives the rows of output {output!r} of task {where.task}"
        return StagingUnreachable(uri=given, reason=str(rows))
    problem = problem if rows is None else f"{problem} ({rows})"
    remedy = (rows and rows.remedy) or remedy
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


# --- small rows ---------------------------------------------------------------------------------------------------
# The rows of a small output as JSON, beside their files: who reads them needs no library for files of columns.


SMALL_ROWS = 100
SMALL_SIZE = 8_192
"""Characters of JSON."""
_FROM_JSON: Mapping[str, Callable[[str], Any]] = {"date": date.fromisoformat, "decimal": Decimal}


def rows_as_json(batches: Sequence[pa.RecordBatch]) -> str:
    """Write rows, exactly; "" if they are many, or have a type or a note that JSON has not."""
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
    """Read the rows that `rows_as_json` wrote.

    :param columns: the wanted ones; None: all columns.
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
# Parquet files as Arrow, staged ones and a user's: INT96 times, as Spark writes them by default, are
# moments to the microsecond, of any year that Spark has.


def read_schema(opened: BinaryIO) -> pa.Schema:
    """Read the columns of a file and their types, as `batches_in` gives them."""
    return _schema(_open(opened))


def batches_in(opened: BinaryIO, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Read the rows of a file.

    :param columns: the wanted ones; None: all columns.
    """
    file = _open(opened)
    schema = _schema(file)
    as_it_is = schema == file.schema_arrow
    for batch in batches_by_group(file, columns or None):
        wanted = pa.schema(map(schema.field, batch.schema.names))
        yield batch if as_it_is else batch.cast(wanted)


def batches_by_group(file: Any, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """Read a `ParquetFile`: Arrow keeps what it reads ahead until an iteration ends, so each group is one."""
    names = None if columns is None else list(columns)
    for number in range(file.num_row_groups):
        yield from file.iter_batches(row_groups=[number], columns=names)


def _open(opened: BinaryIO) -> Any:
    # Arrow's own unit for INT96 ends in 2262, and begins again in 1677.
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
    """Give the INT96 times in a type their zone: its leaves come in the order of the columns of the file."""
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
# The output of one try: named folders of Parquet files, visible once a manifest says that it is whole.
#
# The manifest is written last and at once, so a try that was killed midway has none and is refused. A reference to an
# output is plain JSON. It travels in XComs and in the ledger, and is checked against the manifest when it is read.


Ref: TypeAlias = OutputRef | Mapping[str, Any]
MANIFEST_FORMAT = 1
MANIFEST = "_manifest.json"
WRITTEN_AT_ONCE = 65_536
"""Rows that are written at once at least, if there are so many."""
_ONE_TYPE = "Change what the task gives: each column has a text as its name and values of one type."


def scan_output(where: TryDir, name: str) -> Output:
    """Read the footers of the Parquet files in an output's folder; no row is read."""
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
    """Take the rows of a small output into it, in the order of its files.

    :raises RowsDiffer: they are not the emitted ones.
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
    """Write an output of a Python task: one Parquet file.

    :param rows: dicts, or a frame of pandas, polars, DuckDB or pyarrow. A stream is never whole in memory.
    :param file: its name, if several may write this output.
    :param digested: whether to digest the rows, too.
    :raises StagingError: if the name cannot be used, or a file would change a value.
    """
    path = f"{check_name(where, name)}/{file}"
    try:
        with NoTable.of_libraries():
            reader = reader_of(rows)
            with where.files.writing(path) as sink:
                found = _write_parquet(sink, reader, digested)
    except NoTable as error:
        raise refuse(where, name, "its rows are no table", _ONE_TYPE, error) from error
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
    """Give the rows in portions of like size: a frame may be one batch, and a stream may have batches of a row."""
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
    """Write an output of a Python task with the digest of its rows, so that readers prove what they have read.

    :raises StagingError: as `write_rows`.
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
    """Make the try's output visible; the last thing a task writes.

    :param consumed_rows: how many rows of the batch the task read, if it knows.
    :param read: the counted rows that it read of the batch and of outputs.
    :param code: digest of the code that wrote it; "": unknown. `trees`: of messages, whose roots it has emitted.
    :param unproven: why the rows that it consumed are not proven.
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
    """The description of the output of a finished try."""

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
    """Read the manifest of a try; a StagingError, which names `output`, if there is none, or one of another try."""
    name = where.child(MANIFEST)
    try:
        document = json.loads(where.files.read(name))
        found_format = document["format"]
    except FileNotFoundError:
        if not where.files.list(where.transaction):
            remedy = f"Clear the whole run; if transaction {where.attempt.txid} is committed, its output was removed "
            remedy += "permanently when its run had ended: read the state."
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
    """Check a reference against what is there; no row is read.

    :param columns: columns the reader needs.
    :param attempt: the attempt the reader works for.
    :raises StagingError: if exactly this output is not there whole.
    """
    ref = ref if isinstance(ref, OutputRef) else OutputRef.from_json(ref)
    own = TransactionAttempt(ref.txid, ref.attempt)
    where = area.try_dir(ref.topology, own, ref.task)
    if attempt is not None and attempt != own:
        problem = f"it is of attempt {own}, and this is attempt {attempt}"
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
    """Refuse to read an output whose rows are in a table, and whose files only list theirs.

    :raises StagingError: it is one.
    """
    if output.appended is not None:
        problem = (
            f"its rows are appended to table {output.appended.uri} when the transaction commits"
        )
        raise refuse(
            where, name, problem, "Emit the rows under another name as well, and read that."
        )


def read_batches(
    area: StagingArea,
    ref: Ref,
    *,
    columns: Sequence[str] | None = None,
    attempt: TransactionAttempt | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the rows of an output as pyarrow record batches, once `open_output` has checked it.

    :raises RowsDiffer: after the last one: they are not the emitted ones.
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
    """Read the rows of an output as dicts, once `open_output` has checked it."""
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
    """Read the rows of an output that `open_output` has checked.

    :raises RowsDiffer: after the last one: they are not the emitted ones.
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
    """Compare what was read of an output with what was emitted.

    :raises RowsDiffer: it is not the same.
    """
    if found.agrees(emitted):
        return
    problem = f"of output {name!r} of task {where.task} {found} were read, and {emitted} emitted"
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
    # An output without rows may come without a file, and then without columns.
    missing = [column for column in columns or () if column not in output.columns]
    if missing and (output.rows or output.columns):
        problem = f"it has columns {', '.join(output.columns)}, and lacks {', '.join(missing)}"
        raise refuse(
            where, name, problem, "Name the columns in the application as the state names them."
        )


def _name(identity: Mapping[str, Any]) -> str:
    return "{topology} {txid}.{attempt} {task_id}[{map_index}] try {task_try}".format(**identity)
