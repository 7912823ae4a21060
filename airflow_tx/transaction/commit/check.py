"""Checks of the output that a transaction is about to commit.

A kind of check is a class with `find`, which the committer calls once for all checks of that kind. `SqlCheck` runs a
DuckDB query over the rows of one acked output.
"""

from __future__ import annotations

import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

from airflow_tx.base.errors import (
    ConfigError,
    TxError,
)
from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.base.remedy import Command, shortened_reason
from airflow_tx.base.rows import (
    NoTable,
    check_names,
    exact_table,
    first_line,
    shown_value,
    typed_batch,
)
from airflow_tx.ledger import CheckNote, Processed, TransactionAttempt, digest
from airflow_tx.outputs import StagingArea, check_readable, open_output, read_batches, read_schema

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    from airflow_tx.state import AppendTable
else:
    pa = LazyModule("pyarrow")
    pc = LazyModule("pyarrow.compute")


# --- check --------------------------------------------------------------------------------------------------------


ERROR = "error"
WARN = "warn"
_refused_rows = logging.getLogger("airflow_tx.refused_rows")
"""The logger for refused rows only. The Transactions page uses its name to find these rows in a task's log."""


class ChecksFailed(TxError):
    """An output did not pass its checks. It is not committed unless a person accepts the findings.

    :param problem: the findings as text.
    :param names: the names of the failed checks.
    :param checks: the note of each check, by name.
    """

    for_good = of_values = True
    template = (
        "Commit of transaction {txid}.{attempt} refused: {problem}.",
        "Correct the code, then replay it: ",
        Command.of("replay", "{topology}", "{txid}"),
        ". Or count its rows nowhere: ",
        Command.of("skip", "{topology}", "{txid}", "--why", "TEXT"),
        ". Or accept the output: ",
        Command.of("accept-check", "{topology}", "{txid}", "{names}", "--why", "TEXT"),
    )


@dataclass(frozen=True)
class FailedCheck:
    """A check that failed.

    :param found: the finding, with counts but without values of rows, since errors, records and receipts keep it.
    :param digest: the digest of the rule and of the checked rows, or "" if a person cannot accept the finding.
    :param samples: rows that failed, or values of rows. Only the log of the task shows them.
    """

    check: Check
    found: str
    digest: str = ""
    samples: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the name and the finding of the check as a clause."""
        return f"check {self.check.name!r} failed: {self.found}"

    def log_samples(self) -> None:
        """Write the samples of the failed check to the log of the task."""
        if self.samples:
            _refused_rows.warning(
                "Rows that check %r refuses: %s", self.check.name, "; ".join(self.samples)
            )

    @property
    def note(self) -> CheckNote:
        """Return the failed check in the form stored in records and receipts."""
        severity = "" if self.check.severity == ERROR else self.check.severity
        return CheckNote(False, self.found, self.digest, severity)


@dataclass(frozen=True)
class CheckedCommit:
    """The attempt whose output the checks read.

    :param processed: the acks of the attempt.
    :param rows: a function that returns the rows of an acked output, by its XComArg.
    """

    processed: Processed
    rows: Callable[[Any], OutputRows]


@dataclass(frozen=True)
class Check(ABC):
    """A rule for the output that a transaction commits.

    :param name: the name of the check.
    :param severity: "error" to refuse the commit, "warn" to only note the finding.
    :param input: the XComArg of the output that the check reads, or None if it reads no output.
    """

    name: str
    severity: str = ERROR
    input: Any = None

    @classmethod
    @abstractmethod
    def find(cls, checks: Sequence[Any], commit: CheckedCommit) -> Iterable[FailedCheck]:
        """Run all checks of this kind, and return the failed ones.

        :raises ConfigError: a check cannot be run.
        """


def find_all(checks: Sequence[Check], commit: CheckedCommit) -> Iterator[FailedCheck]:
    """Run checks of all kinds, and return the failed ones.

    :raises ConfigError: a check cannot be run.
    """
    kinds: dict[type[Check], None] = dict.fromkeys(map(type, checks))
    for kind in kinds:
        yield from kind.find([each for each in checks if type(each) is kind], commit)


def checked_checks(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Return the checks of a committer as a tuple.

    :raises ConfigError: the argument is not a list of checks.
    """
    option = "CommitOperator(checks=)"
    if not isinstance(checks, Iterable) or isinstance(checks, str):
        raise ConfigError(option=option, value=checks, remedy="Give a list: checks=[check(...)].")
    found = tuple(checks)
    for each in found:
        if not isinstance(each, Check):
            raise ConfigError(
                option=option, value=each, remedy='Give check("name", output, rows="...").'
            )
    return found


def check(
    name: str,
    output: Any,
    *,
    rows: str | None = None,
    value: str | None = None,
    severity: str = ERROR,
) -> SqlCheck:
    """Create a check that the output of a task must pass before the commit (write, audit, publish).

        checks=[check("no negative sums", counts.output["counts"], rows="amount >= 0"),
                check("some rows", counts.output["counts"], value="count(*) > 0")]

    DuckDB runs the check directly before the commit, also in a replay. Install the extra `checks`.

    :param name: the name of the check, unique in the DAG. A person accepts a failed check by its name.
    :param output: the output of a task, such as ``counts.output["counts"]``, or the result of a ``@task`` call. The
        output of a mapped task consists of the rows of all instances.
    :param rows: an SQL condition that must be TRUE for each row. NULL, NaN and a division by zero fail.
    :param value: an SQL condition that must be TRUE, with aggregates over all rows.
    :param severity: "error" to refuse the commit until a person acts, "warn" to note the finding and commit.
    :raises ConfigError: an argument cannot be used.
    """
    if not isinstance(name, str) or not name.strip() or name[0] == "-" or not name.isprintable():
        remedy = 'Give it a name: check("no negative sums", ...).'
        raise ConfigError(option="check(name)", value=name, remedy=remedy)
    if severity not in (ERROR, WARN):
        raise ConfigError(
            option=f"check({name!r}, severity=)", value=severity, remedy='Use "error" or "warn".'
        )
    if (rows is None) == (value is None):
        given = "neither of them" if rows is None else "both of them"
        remedy = 'Set rows="amount >= 0" for a condition of each row, or value="count(*) > 0" for one of all rows.'
        raise ConfigError(option=f"check({name!r}, rows=, value=)", value=given, remedy=remedy)
    sql = value if rows is None else rows
    if not isinstance(sql, str) or not sql.strip():
        option = f"check({name!r}, {'value' if rows is None else 'rows'}=)"
        raise ConfigError(option=option, value=sql, remedy="Give an SQL condition, as a text.")
    return SqlCheck(name, severity, output, sql, of_all=rows is None)


# --- rows ---------------------------------------------------------------------------------------------------------
# This section reads the rows of an acked output as Arrow batches. DuckDB may not open the files
# itself.


Batches = Callable[["Sequence[str]"], "Iterator[pa.RecordBatch]"]


class OutputRows:
    """The rows of an output of all instances of a task, as Arrow batches with one schema.

    :param parts: for each part, its schema and a function that reads the given columns of its rows.
    :ivar schema: the common schema, or None if there are no rows, which leaves the schema unknown.
    :raises NoTable: the parts have no common schema.
    """

    def __init__(self, parts: Iterable[tuple[pa.Schema, Batches]]) -> None:
        self._parts = list(parts)
        self.schema: pa.Schema | None = None
        if self._parts:
            schemas = [schema for schema, _ in self._parts]
            try:
                self.schema = pa.unify_schemas(schemas, promote_options="permissive")
            except pa.ArrowException as error:
                raise NoTable(first_line(error), place="a row") from None
            for field in (each for schema in schemas for each in schema):
                kind = self.schema.field(field.name).type
                if _rounds(field.type, kind):
                    problem = f"column {field.name} has the types {field.type} and {kind} in parts of the rows"
                    raise NoTable(f"{problem}: no type holds the values of both")

    def columns(self, mentioned: Iterable[str]) -> list[str]:
        """Return the columns with these names, ignoring case like SQL. If no name matches, return the first column."""
        assert self.schema is not None
        wanted = {name.lower() for name in mentioned}
        known: list[str] = self.schema.names
        return [name for name in known if name.lower() in wanted] or known[:1]

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read these columns of the rows."""
        assert self.schema is not None
        schema = self.of(columns)
        for own, read in self._parts:
            for batch in read([name for name in columns if name in own.names]):
                yield batch if batch.schema.equals(schema) else typed_batch(batch, schema)

    def of(self, columns: Sequence[str]) -> pa.Schema:
        """Return the schema of the columns with these names."""
        assert self.schema is not None
        return pa.schema([self.schema.field(name) for name in columns])


def _rounds(own: pa.DataType, common: pa.DataType) -> bool:
    """Return whether the common type could change a part's decimals, or is a type that DuckDB does not have."""
    if pa.types.is_decimal(own) or pa.types.is_decimal256(common):
        return not pa.types.is_decimal128(common)
    if not pa.types.is_nested(own) or not pa.types.is_nested(common):
        return False
    fields = map(own.field, range(own.num_fields))
    at = common.get_field_index if pa.types.is_struct(common) else None
    return any(
        _rounds(each.type, common.field(number if at is None else at(each.name)).type)
        for number, each in enumerate(fields)
    )


def output_rows(
    values: Sequence[Any],
    area: StagingArea,
    attempt: TransactionAttempt,
    table: AppendTable | None = None,
) -> OutputRows:
    """Return the rows of an acked output.

    :param values: for each instance of the task, the return value or the reference to the emitted output.
    :param table: the table that the application writes the rows to, or None if it stages the rows.
    :raises StagingError: the output is incomplete.
    :raises NoTable: the rows do not form a table.
    """
    # DuckDB is not needed to parse a DAG
    from airflow_tx.transaction.processing.outputs import is_ref

    given = [each for each in values if each is not None and not is_ref(each)]
    plain = [row for each in given for row in (each if isinstance(each, list | tuple) else [each])]
    parts = [_plain(plain)] if plain else []
    staged = (_staged(each, area, attempt, table) for each in values if is_ref(each))
    return OutputRows([*parts, *filter(None, staged)])


def _plain(rows: Sequence[Mapping[str, Any]]) -> tuple[pa.Schema, Batches]:
    table = exact_table(rows)
    return table.schema, lambda columns: iter(table.select(columns).to_batches())


def _staged(
    ref: Mapping[str, Any],
    area: StagingArea,
    attempt: TransactionAttempt,
    table: AppendTable | None,
) -> tuple[pa.Schema, Batches] | None:
    where, output = open_output(area, ref, attempt=attempt)
    if not output.rows:
        return None
    if table is None:
        check_readable(where, ref["name"], output)
    elif output.appended is not None:
        manifest = read_batches(area, ref, attempt=attempt)
        listed = [row for batch in manifest for row in batch.to_pylist()]
        return table.staged_schema(listed), lambda columns: table.staged_rows(listed, columns)
    with where.files.open(f"{ref['path']}/{output.files[0].name}") as opened:
        schema = read_schema(opened)
    return schema, lambda columns: read_batches(area, ref, columns=columns, attempt=attempt)


# --- SQL ----------------------------------------------------------------------------------------------------------
# DuckDB can read only the relation `output`. It cannot read files, extensions or Python variables.


Forms = Callable[["Iterator[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]
SAMPLES = 3
_SAMPLE = 200
"""The maximum length of a row or a value in a message, in characters."""
_FOUND = 300
_COUNTS = ("count(", "count_star(", "approx_count_distinct(", "sum(", "avg(", "mean(")
"""Aggregates that return a count or a sum. Any other aggregate, such as max, may return the value of a row."""
_RELATION = "output"
_SETTINGS = {
    "threads": "1",
    "memory_limit": "512MB",
    "temp_directory": "",
    "TimeZone": "UTC",
    "ieee_floating_point_ops": "false",  # In DuckDB, a division by zero is NULL.
    "enable_external_access": "false",
    "lock_configuration": "true",
}
"""The DuckDB settings, in the order in which they must be set. Each of the last two locks the earlier settings."""
_NUMBER = """
CREATE MACRO tx_number(x) AS CASE
WHEN typeof(x) IN ('DOUBLE', 'FLOAT') AND CAST(x AS VARCHAR) IN ('nan', '-nan') THEN NULL ELSE x END
"""
"""A DuckDB macro that returns NULL for NaN, and any other value unchanged. Infinity minus infinity is NaN."""
_CALL: Mapping[str, Any] = {
    "class": "FUNCTION",
    "type": "FUNCTION",
    "alias": "",
    "function_name": "tx_number",
    "schema": "",
    "catalog": "",
    "filter": None,
    "order_bys": {"type": "ORDER_MODIFIER", "orders": []},
    "distinct": False,
    "is_operator": False,
    "export_state": False,
}
_SINGLE = "Write a single condition, without SELECT, FROM and a name."


@dataclass(frozen=True)
class SqlCheck(Check):
    """An SQL condition over the rows of an output.

    :param sql: the condition.
    :param of_all: whether the condition uses aggregates over all rows, and does not apply to each row.
    """

    sql: str = ""
    of_all: bool = False

    def __repr__(self) -> str:
        return f"check({self.name!r})"

    @classmethod
    def find(cls, checks: Sequence[SqlCheck], commit: CheckedCommit) -> Iterator[FailedCheck]:
        """Run the checks of each output in one pass over its rows."""
        by_output: dict[tuple[str, str], list[SqlCheck]] = {}
        for each in checks:
            by_output.setdefault((each.input.operator.task_id, each.input.key), []).append(each)
        for own in by_output.values():
            try:
                yield from SqlPass(commit.rows(own[0].input)).find(own)
            except NoTable as error:
                raise own[0].refused(f"The rows of its output are no table: {error}.") from None

    @cached_property
    def parsed(self) -> ParsedCondition:
        """Return the parsed condition.

        :raises ConfigError: the condition is not valid SQL, or it does not fit the value of `of_all`.
        """
        try:
            found = parse_condition(self.sql)
        except ValueError as error:
            raise self.refused(str(error)) from None
        if self.of_all and not found.aggregates:
            raise self.refused(
                "It has no aggregate, such as count(*). Pass a condition of each row by rows=."
            )
        if not self.of_all and found.aggregates:
            raise self.refused(f"It has an aggregate, {found.aggregates[0]}. Pass it by value=.")
        if not self.of_all and not found.columns:
            raise self.refused("It names no column of the rows.")
        return found

    @property
    def selected(self) -> list[str]:
        """Return the SQL expressions of this check, which DuckDB computes for all checks in one pass."""
        # The line break ends a comment at the end of the condition.
        condition = f"({self.parsed.sql}\n)"
        if not self.of_all:
            return [f"count(*) FILTER (WHERE {condition} IS NOT TRUE)"]
        return [condition, *self.parsed.aggregates]

    def found(self, total: int, values: Sequence[Any]) -> str:
        """Return the finding as text, or "" if the check passed.

        :param total: the number of rows.
        :param values: the results of the `selected` expressions.
        """
        sql = " ".join(self.sql.split())
        if not self.of_all:
            failed = values[0]
            text = f"{sql} does not hold for {failed} of {total} rows" if failed else ""
        elif values[0] is True:
            text = ""
        else:
            known = [text for text, is_count in self._aggregates(values) if is_count]
            text = ": ".join(filter(None, (f"{sql} is {_shown(values[0])}", ", ".join(known))))
        return shortened_reason(text, _FOUND)

    def values_of_rows(self, values: Sequence[Any]) -> tuple[str, ...]:
        """Return the texts of aggregates that may reveal a row's value, such as `max(name)`. The finding omits them."""
        return tuple(text for text, is_count in self._aggregates(values) if not is_count)

    def _aggregates(self, values: Sequence[Any]) -> Iterator[tuple[str, bool]]:
        """Yield each aggregate as text, its value, and whether it is a count or a sum."""
        pairs = zip(self.parsed.aggregates, values[1:], strict=True) if self.of_all else ()
        for name, each in pairs:
            is_count = each is None or name.lower().startswith(_COUNTS)
            yield f"{name} is {shortened_reason(_shown(each), _SAMPLE)}", is_count

    def refused(self, remedy: str) -> ConfigError:
        """Return the error for a condition that DuckDB cannot compute. The error names the condition."""
        option = f"check({self.name!r}, {'value' if self.of_all else 'rows'}=)"
        return ConfigError(option=option, value=self.sql, remedy=remedy)


class SqlPass:
    """A run of checks over the rows of one output."""

    def __init__(self, rows: OutputRows) -> None:
        self._rows = rows
        self._cursor = duckdb_engine().cursor()

    def find(self, checks: Sequence[SqlCheck]) -> Iterator[FailedCheck]:
        """Run the checks in one pass over the rows. A failed check needs a second pass for samples and digest.

        :raises ConfigError: DuckDB cannot compute a condition.
        """
        with self._cursor:
            for each in checks:
                self._bind(each)
            total, *values = self._pass(checks)
            for each in checks:
                own = [values.pop(0) for _ in each.selected]
                if found := each.found(total, own):
                    samples = (*each.values_of_rows(own), *self._samples(each))
                    yield FailedCheck(each, found, self._digest_for(each), samples)

    def _bind(self, each: SqlCheck) -> None:
        """Check the column names and the type of a condition, without reading rows."""
        known = self._rows.schema
        try:
            if known is not None:
                check_fields(
                    [known.field(name) for name in self._rows.columns(each.parsed.columns)]
                )
            kind = condition_type(each.sql, known, each.parsed.columns)
        except ValueError as error:
            raise each.refused(
                f"Its column names are ambiguous: {error}. Rename one column."
            ) from None
        except _errors() as error:
            there = "" if known is None else f" The rows have {', '.join(known.names)}."
            raise each.refused(_reason(error) + there) from None
        if known is not None and kind != "BOOLEAN":
            raise each.refused(f"It returns a {kind}, but a condition must be true or false.")

    def _pass(self, checks: Sequence[SqlCheck]) -> tuple[Any, ...]:
        selected = ["count(*)", *(name for each in checks for name in each.selected)]
        columns = {name for each in checks for name in each.parsed.columns}
        try:
            return self._ask(", ".join(selected), columns)[0]
        except _errors() as error:
            if len(checks) == 1:
                raise checks[0].refused(_reason(error)) from None
            for each in checks:
                self._pass([each])
            raise

    def _samples(self, each: SqlCheck) -> tuple[str, ...]:
        if each.of_all:
            return ()
        columns = self._rows.schema.names if self._rows.schema is not None else []
        where = f"WHERE ({each.parsed.sql}\n) IS NOT TRUE LIMIT {SAMPLES}"
        return tuple(_sample(columns, row) for row in self._ask("*", columns, where))

    def _digest_for(self, each: SqlCheck) -> str:
        """Return the digest of the rule, the columns and the rows. The order of rows does not change it.

        A warning has the digest "".
        """
        return "" if each.severity == WARN else digest([each.sql, each.of_all, *self._content])

    @cached_property
    def _content(self) -> tuple[list[list[str]], int, str]:
        schema = self._rows.schema
        if schema is None:
            return [], 0, ""
        # The hash of a row covers only its values, so the digest also includes the columns.
        columns = [[each.name, str(each.type)] for each in schema]
        selected = f"count(*), sum(hash({_RELATION}))"
        rows, hashed = self._ask(selected, schema.names, of=iter)[0]
        return columns, rows, str(hashed)

    def _ask(
        self, selected: str, columns: Iterable[str], rest: str = "", *, of: Forms | None = None
    ) -> list[tuple[Any, ...]]:
        """Run one query over the rows.

        :param selected: the expressions to select.
        :param columns: the columns to read.
        :param rest: the clauses after FROM.
        :param of: a function that converts the batches. By default, NaN becomes NULL.
        """
        failures: list[BaseException] = []
        if self._rows.schema is not None:
            reader = self._reader(
                self._rows.columns(columns), failures, of or partial(map, without_nan)
            )
            self._cursor.register(_RELATION, reader)
        try:
            query = f"SELECT {selected} FROM {_relation(self._rows.schema, columns)} {rest}"
            return list(self._cursor.execute(query).fetchall())
        except _errors():
            if failures:
                # DuckDB wraps errors of the reader. Raise the original error: an unreachable file
                # is not an error of the check.
                raise failures[0] from None
            raise

    def _reader(
        self, columns: Sequence[str], failures: list[BaseException], of: Forms
    ) -> pa.RecordBatchReader:
        def noted() -> Iterator[pa.RecordBatch]:
            try:
                yield from of(self._rows.batches(columns))
            except Exception as error:
                failures.append(error)
                raise

        return pa.RecordBatchReader.from_batches(self._rows.of(columns), noted())


def without_nan(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace NaN with NULL at every depth. In SQL, NaN would exceed every limit."""
    columns = map(_without_nan, batch.columns)
    return pa.RecordBatch.from_arrays(list(columns), schema=batch.schema)


def _without_nan(column: pa.Array) -> pa.Array:
    if pa.types.is_floating(column.type):
        return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    if re.search("float|double", str(column.type)):
        return pa.array(map(_number_or_none, column.to_pylist()), column.type)
    return column


def _number_or_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _number_or_none(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_number_or_none, value))
    return None if value != value else value


def check_fields(fields: Iterable[pa.Field]) -> None:
    """Refuse field names that SQL treats as equal, at every depth. SQL would read only the first of them.

    :raises ValueError: two names are equal in SQL.
    """
    found = list(fields)
    check_names(each.name for each in found)
    for each in found:
        kind = each.type
        check_fields(kind.field(at) for at in range(kind.num_fields))


@lru_cache(maxsize=1000)
def condition_type(sql: str, schema: pa.Schema | None, columns: frozenset[str]) -> str:
    """Return the SQL type of a condition on rows of this schema. The result is cached for lanes.

    The result is cached, since a lane checks it repeatedly.
    """
    with duckdb_engine().cursor() as cursor:
        if schema is not None:
            cursor.register(_RELATION, schema.empty_table())
        tried = cursor.execute(f"SELECT ({sql}\n) FROM {_relation(schema, columns)}")
        return str(tried.description[0][1])


def _relation(schema: pa.Schema | None, columns: Iterable[str]) -> str:
    """Return the FROM clause. Without rows, the schema is unknown, so the clause defines each column as NULL."""
    if schema is not None:
        return _RELATION
    names = sorted(columns) or ["tx_none"]
    nulls = ", ".join('NULL AS "{}"'.format(name.replace('"', '""')) for name in names)
    return f"(SELECT {nulls} WHERE false) AS {_RELATION}"


@cache
def duckdb_engine() -> Any:
    """Open the DuckDB of this process, without access to files, extensions and the network.

    :raises ConfigError: duckdb is not installed.
    """
    try:
        import duckdb
    except ImportError:
        remedy = "It needs duckdb: pip install 'airflow-provider-tx[checks]'."
        raise ConfigError(option="CommitOperator", value="checks", remedy=remedy) from None
    engine = duckdb.connect(":memory:")
    engine.execute(_NUMBER)
    for name, value in _SETTINGS.items():
        # A setting with GLOBAL also applies to cursors.
        engine.execute(f"SET GLOBAL {name} = '{value}'")
    return engine


def _errors() -> Any:
    import duckdb

    return duckdb.Error


# --- parse --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParsedCondition:
    """A parsed condition.

    :param columns: all names in the condition that may be columns.
    :param aggregates: the aggregates of the condition, as SQL.
    :param sql: the SQL text of the condition, in which a computed operand of a comparison is NULL instead of NaN.
    """

    columns: frozenset[str]
    aggregates: tuple[str, ...]
    sql: str


@cache
def parse_condition(sql: str) -> ParsedCondition:
    """Parse a condition.

    :raises ValueError: the text is not a condition. The message says how to correct the text.
    """
    with duckdb_engine().cursor() as cursor:
        parsed = json.loads(_one(cursor, "SELECT json_serialize_sql(?)", f"SELECT {sql}\n"))
        if parsed["error"]:
            reason = " ".join(parsed["error_message"].split())
            raise ValueError(f"It is no SQL: {reason.rstrip('!')}.")
        nodes = list(_nodes(_only_condition(parsed)))
        classes = {node["class"] for node in nodes}
        if "SUBQUERY" in classes:
            raise ValueError(
                "It reads a table or a file, but a check can read only the rows of its output."
            )
        if "WINDOW" in classes:
            raise ValueError(
                "It has a window function, but a check can use only one row or an aggregate."
            )
        if "STAR" in classes:
            raise ValueError("Name each column instead of *.")
        names = (
            name for node in nodes if node["class"] == "COLUMN_REF" for name in node["column_names"]
        )
        found = [node for node in nodes if node.get("function_name", "").lower() in _aggregates()]
        aggregates = tuple(dict.fromkeys(_text(cursor, parsed, node) for node in found))
        columns = frozenset(names)
        compared = [node for node in nodes if node["class"] in _COMPARING]
        changed = [_compare_numbers(node) for node in reversed(compared)]
        if any(changed):
            try:
                sql = _text(cursor, parsed, _only_condition(parsed))
            except _errors():
                raise ValueError("Write an infinite number as 'infinity'::DOUBLE.") from None
        return ParsedCondition(columns, aggregates, sql)


def _only_condition(parsed: Mapping[str, Any]) -> Any:
    """Return the single expression of a SELECT without other clauses.

    :raises ValueError: the SELECT has other clauses or expressions.
    """
    statement, *others = parsed["statements"]
    node = statement["node"]
    clauses = ("where_clause", "group_expressions", "having", "qualify", "modifiers", "sample")
    alone = not others and node["type"] == "SELECT_NODE" and len(node["select_list"]) == 1
    alone = alone and node["from_table"]["type"] == "EMPTY"
    if not alone or any(map(node.get, clauses)) or node["select_list"][0]["alias"]:
        raise ValueError(_SINGLE)
    return node["select_list"][0]


def _nodes(tree: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(tree, Mapping):
        if "class" in tree:
            yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for each in tree:
            yield from _nodes(each)


_COMPARING = ("COMPARISON", "BETWEEN", "OPERATOR")
_OPERANDS = ("left", "right", "input", "lower", "upper")


def _compare_numbers(node: Any) -> bool:
    """Wrap the computed operands of a comparison so that NaN becomes NULL.

    Return whether there is a computed operand.
    """
    before = [node[name] for name in _OPERANDS if name in node] + node.get("children", [])
    computed = [each for each in before if any(one["class"] == "FUNCTION" for one in _nodes(each))]
    for each in computed:
        inner = dict(each)
        each.clear()
        each.update(_CALL, children=[inner])
    return bool(computed)


def _text(cursor: Any, parsed: Mapping[str, Any], node: Mapping[str, Any]) -> str:
    """Return a node of a parsed condition as SQL text."""
    statement = parsed["statements"][0]
    alone = {**statement, "node": {**statement["node"], "select_list": [node]}}
    text = _one(
        cursor, "SELECT json_deserialize_sql(?)", json.dumps({**parsed, "statements": [alone]})
    )
    return text.removeprefix("SELECT ").replace("count_star()", "count(*)")


@cache
def _aggregates() -> frozenset[str]:
    query = (
        "SELECT function_name, macro_definition FROM duckdb_functions() WHERE function_type = {}"
    )
    with duckdb_engine().cursor() as cursor:
        found = {name for name, _ in cursor.execute(query.format("'aggregate'")).fetchall()}
        macros = cursor.execute(query.format("'macro'")).fetchall()
    called = re.compile(rf"\b({'|'.join(map(re.escape, found))})\(")
    return frozenset(found | {name for name, text in macros if called.search(text or "")})


def _one(cursor: Any, query: str, argument: str) -> str:
    return str(cursor.execute(query, [argument]).fetchall()[0][0])


def _reason(error: Exception) -> str:
    """Return the first line of a DuckDB error, as a sentence."""
    return f"It cannot be computed: {first_line(error).rstrip('!.')}."


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    return str(value).lower() if isinstance(value, bool) else shown_value(value)


def _sample(columns: Sequence[str], row: Sequence[Any]) -> str:
    pairs = zip(columns, row, strict=True)
    text = ", ".join(f"{name}={_shown(value)}" for name, value in pairs)
    return f"({shortened_reason(text, _SAMPLE)})"
