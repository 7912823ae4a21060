"""The output of one try: named folders of Parquet files, visible once a manifest says that it is whole.

The manifest is written last and at once, so a try that was killed midway has none and is refused. A reference to an
output is plain JSON: it travels in XComs and in the ledger, and is checked against the manifest when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_tx.errors import RowsDiffer
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.consumers import RowsRead
from airflow_tx.protocol.rows_digest import RowsDigest, form_of_columns
from airflow_tx.rows.arrow import NoTable, table_of
from airflow_tx.staging.area import StagingArea, TryDir, quoted
from airflow_tx.staging.output import (
    Output,
    OutputRef,
    RowsInTable,
    StagedFile,
    check_name,
    identity,
    make_ref,
    refuse,
)
from airflow_tx.staging.parquet import batches_in
from airflow_tx.staging.row_hash import digest_of_batch
from airflow_tx.staging.small_rows import SMALL_ROWS, rows_as_json, rows_from_json

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

Ref: TypeAlias = OutputRef | Mapping[str, Any]
MANIFEST_FORMAT = 1
MANIFEST = "_manifest.json"


def scan_output(where: TryDir, name: str) -> Output:
    """Read the footers of the Parquet files in an output's folder; no row is read."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

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
) -> Output:
    """Write an output of a Python task: one Parquet file.

    :param rows: dicts, or a frame of pandas, polars or pyarrow.
    :param file: its name, if several may write this output.
    :raises StagingError: if the name cannot be used, or a file would change a value.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = check_name(where, name)
    sink = pa.BufferOutputStream()
    try:
        table = table_of(rows)
        pq.write_table(table, sink, coerce_timestamps="us")
    except (NoTable, pa.ArrowException) as error:
        problem = f"its rows are no table ({str(error).splitlines()[0]})"
        remedy = (
            "Change what the task gives: each column has a text as its name and values of one type."
        )
        raise refuse(where, name, problem, remedy) from None
    content = sink.getvalue().to_pybytes()
    where.files.write(f"{folder}/{file}", content)
    return Output((StagedFile(file, len(content), table.num_rows),), tuple(table.column_names))


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
        raise refuse(
            where,
            output,
            problem,
            "Use one version of airflow-provider-tx in Airflow and in Spark.",
        )
    found = {key: document[key] for key in identity(where)}
    if found != identity(where):
        problem = f"its manifest is of {_name(found)}, not of {_name(identity(where))}"
        raise refuse(where, output, problem, f"Clear task {where.task}.")
    outputs = {key: _output(value) for key, value in document["outputs"].items()}
    read = tuple(RowsRead.from_json(each) for each in document.get("read", ()))
    code = document.get("code", "")
    trees = document.get("trees", 0)
    unproven = tuple(document.get("unproven", ()))
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
    return (row for batch in batches for row in batch.to_pylist())


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
    import pyarrow as pa

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
            raise refuse(
                where,
                name,
                f"file {path} {state}",
                f"Clear task {where.task}: it writes its output again.",
            )


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
