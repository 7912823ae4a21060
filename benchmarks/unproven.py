"""What the reader of files leaves to the rule, by cause, and whether both read the same.

Usage: script/bench unproven [folder ...]

The flights of New York as csv files and JSON lines; and all csv and JSON files below folders, such as a checkout of
DuckDB's `data` or of JSONTestSuite. Each file is a batch, which is read as it is, and by the rule alone. A csv file
has the separator that its first line has most, and the types of its first rows. JSON lines have the types that Arrow
finds in them. A JSON file is also the value of a key, with several types.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from airflow_tx.base.errors import TxError
from airflow_tx.base.rows import NotProven, blocks
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.files.rows import CsvRows, JsonRows
from airflow_tx.sources.files.source import FileSource
from benchmarks.values import source_of, write

ATTEMPT = TransactionAttempt(1, 1)
CSV, JSON = (".csv", ".tsv", ".csv.gz"), (".json", ".ndjson", ".jsonl")
SEPARATORS = ",;|\t"
OF_A_VALUE = (
    "STRING",
    "BIGINT",
    "DOUBLE",
    "DECIMAL(38,10)",
    "BOOLEAN",
    "TIMESTAMP",
    "ARRAY<STRING>",
    "STRUCT<a: BIGINT>",
)


@dataclass
class Counted:
    """What a corpus has, and what of it the rule has read."""

    batches: int = 0
    refused: int = 0
    blocks: int = 0
    columns: int = 0
    unproven: Counter[str] = field(default_factory=Counter)
    """Blocks that went to the rule, by cause."""
    by_text: Counter[str] = field(default_factory=Counter)
    """Columns of the other blocks whose texts went to the rule, by cause."""
    differences: list[str] = field(default_factory=list)

    def show(self, name: str) -> None:
        """Print it."""
        if not self.batches:
            return
        print(f"{name}: {self.batches:,} batches, {self.refused:,} refused")
        print(f"  blocks {self.blocks:,}, to the rule {self.unproven.total():,}")
        for cause, count in self.unproven.most_common():
            print(f"    {count:6,} {cause}")
        print(f"  columns of the other blocks {self.columns:,}, to the rule {self.by_text.total():,}")
        for cause, count in self.by_text.most_common():
            print(f"    {count:6,} {cause}")
        print(f"  differences {len(self.differences)}", *self.differences, sep="\n    ", flush=True)


def main() -> None:
    """Count and print."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write(folder, 1)
        for form in ("csv", "json"):
            counted = Counted()
            read_both(source_of(form, folder), counted, form)
            counted.show(f"flights, {form}")
        for corpus in map(Path, sys.argv[1:]):
            _csv_files(corpus)
            _json_lines(corpus)
            _json_values(corpus, folder / "value.json")


# --- corpora ------------------------------------------------------------------------------------------------------


def _csv_files(corpus: Path) -> None:
    for several in (False, True):
        counted = Counted()
        for path in _files(corpus, CSV):
            options = {"sep": _separator(path), "inferSchema": True, "multiLine": several}
            read_both(FileSource(_literal(path), options=options), counted, str(path.relative_to(corpus)))
        counted.show(f"{corpus.name}, csv{', multiLine' if several else ''}")


def _json_lines(corpus: Path) -> None:
    counted = Counted()
    for path in _files(corpus, JSON):
        if schema := _schema_of(path):
            read_both(FileSource(_literal(path), format="json", schema=schema), counted, str(path.relative_to(corpus)))
    counted.show(f"{corpus.name}, JSON lines")


def _json_values(corpus: Path, made: Path) -> None:
    counted = Counted()
    for path in _files(corpus, JSON):
        made.write_bytes(b'{"a":' + path.read_bytes().strip(b"\n") + b'}\n{"a":null}\n')
        for kind in OF_A_VALUE:
            source = FileSource(str(made), format="json", schema=f"a {kind}")
            read_both(source, counted, f"{path.relative_to(corpus)} as {kind}")
    counted.show(f"{corpus.name}, JSON files as the value of a key")


def _files(corpus: Path, ends: tuple[str, ...]) -> Iterator[Path]:
    found = (each for each in corpus.rglob("*") if each.name.endswith(ends) and each.is_file())
    return iter(sorted(each for each in found if ":" not in each.name))


def _literal(path: Path) -> str:
    """Write a path as a glob that finds it alone."""
    return re.sub(r"([*?[])", r"[\1]", str(path))


def _separator(path: Path) -> str:
    with path.open("rb") as file:
        first = file.readline(100_000).decode("latin-1")
    return max(SEPARATORS, key=first.count)


def _schema_of(path: Path) -> str | None:
    """Declare the columns that Arrow finds; None: it finds none that Spark has."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.json as pa_json  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    raw = path.read_bytes()
    # Arrow dies of a line that is null, and of 50,000 brackets in one another.
    if not raw.lstrip().startswith(b"{") or raw.count(b"{") > 500 + raw.count(b"\n") * 100:
        return None
    try:
        found = from_arrow_schema(pa_json.read_json(path).schema)
    except (pa.ArrowException, PySparkException):
        return None
    named = ((each.name.replace("`", "``"), each.dataType.simpleString()) for each in found)
    return ", ".join(f"`{name}` {kind}" for name, kind in named if "void" not in kind)


# --- one batch ----------------------------------------------------------------------------------------------------


def read_both(source: FileSource, counted: Counted, name: str) -> None:
    """Read a batch as it is, counted, and by the rule alone, and compare."""
    counted.batches += 1
    with _counting(counted):
        ours = _read(source)
    with _instead(lambda read: _nothing):
        rule = _read(source)
    counted.refused += isinstance(ours, str)
    if _plain(ours) != _plain(rule) or (isinstance(ours, str) and ours.startswith("NO REFUSAL")):
        counted.differences.append(f"{name}: {_shown(ours)} | by the rule: {_shown(rule)}")


def _read(source: FileSource) -> Any:
    """Read all rows, or say why that is refused."""
    try:
        batch = source.decide(ATTEMPT, None)
        return "no batch" if batch is None else source.emit_arrow(ATTEMPT, batch.metadata).read_all()
    except TxError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - what is no refusal is a fault, too
        return f"NO REFUSAL: {type(error).__name__} {error}"


def _plain(read: Any) -> Any:
    # As texts, since NaN is not equal to itself, and -0.0 is equal to 0.0.
    return read if isinstance(read, str) else (str(read.schema), list(map(repr, read.to_pylist())))


def _shown(read: Any) -> str:
    return read[-300:] if isinstance(read, str) else f"{read.num_rows} rows, {read.slice(0, 3).to_pylist()!r:.300}"


def _nothing(rows: Any, block: bytes) -> Any:
    raise NotProven("nothing is")


@contextmanager
def _counting(counted: Counted) -> Iterator[None]:
    by_the_rule, found, lock = blocks._by_the_rule, Counter[str](), Lock()

    def column(texts: Any, kind: Any, to: Any) -> Any:
        found[f"{kind.ddl}: {_cause(sys.exc_info()[1])}"] += 1
        return by_the_rule(texts, kind, to)

    def counting(read: Any) -> Any:
        def proven(rows: Any, block: bytes) -> Any:
            # The blocks of a large file are read in threads.
            with lock:
                counted.blocks += 1
                found.clear()
                try:
                    batch = read(rows, block)
                except (NotProven, ValueError) as error:
                    counted.unproven[_cause(error)] += 1
                    raise
                counted.columns += batch.num_columns
                counted.by_text.update(found)
                return batch

        return proven

    blocks._by_the_rule = column
    try:
        with _instead(counting):
            yield
    finally:
        blocks._by_the_rule = by_the_rule


def _cause(error: BaseException | None) -> str:
    """Say why something went to the rule, without the values."""
    if not isinstance(error, NotProven):
        return "Arrow refuses a text" if "Arrow" in type(error).__name__ else "the rule refuses a text"
    if "changed from" in str(error):
        return "JSON of another type"
    return re.sub(r"\s*(?:['\"\n#]|(?<![-\w])\d)[\s\S]*", " ...", str(error))[:80]


@contextmanager
def _instead(of: Callable[[Any], Any]) -> Iterator[None]:
    """Let blocks be read otherwise."""
    own = [(kind, kind._proven) for kind in (CsvRows, JsonRows)]
    for kind, read in own:
        kind._proven = of(read)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for kind, read in own:
            kind._proven = read  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
