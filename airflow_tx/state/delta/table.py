"""A Delta table with a fence in a row of its own: a change is one MERGE, which lands under that fence only.

Delta has no lock and no statement that reads one row to decide about others. What it has is a version per application
id (`txnAppId`, `txnVersion`): a write whose version is not larger than the stored one does nothing, and of two writes
at once that carry the same application id one fails. So the versions are numbered without gaps: who has read number
n writes n + 1, and that write lands exactly if nothing has changed since. It is a compare-and-set on the table's log.
"""

from __future__ import annotations

import copy
import json
import math
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from airflow_tx.errors import StateDiffers, StateError, StateOutcomeUnknown, StateUnavailable
from airflow_tx.failpoints import failpoint
from airflow_tx.protocol.attempt import Token
from airflow_tx.state.api import Fence
from airflow_tx.state.arrow import from_arrow, to_arrow
from airflow_tx.state.delta.appended import DeltaRows
from airflow_tx.state.delta.rows import FENCE, VALUE, Change

_FORMAT = 1
# Rows of one portion of a whole table: what a driver holds at once.
_ROWS_AT_ONCE = 200_000
# Never another one: its versions are the fence's numbers.
APP_ID = "airflow_tx"
_APP = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_ABSENT = (
    "PATH_NOT_FOUND",
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_PATH_DOES_NOT_EXIST",
)
_NO_DELTA = (
    "DATA_SOURCE_NOT_FOUND",
    "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY",
    "DELTA_CONFIGURE_SPARK_SESSION",
)
_FOREIGN = ("UNRESOLVED_COLUMN", "DELTA_TABLE_ONLY_OPERATION", "DELTA_NOT_A_DELTA_TABLE")
# Another change came between, and nothing of this one is there.
_CHANGED = (
    "DELTA_CONCURRENT",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
    "DELTA_TABLE_ALREADY_EXISTS",
)
_OVERTAKEN = (
    *_CHANGED,
    "ConcurrentTransactionException",
    "MetadataChangedException",
    "ProtocolChangedException",
)
# The columns as Spark has them; what is a text here is one in Arrow, too.
DDL: Mapping[str, str] = {
    "bigint": "BIGINT",
    "double": "DOUBLE",
    "numeric": "STRING",
    "text": "STRING",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp": "TIMESTAMP_NTZ",
    # Of the two, TIMESTAMP is the one that a setting of the session names.
    "timestamptz": "TIMESTAMP_LTZ",
    "bytes": "BINARY",
    "json": "STRING",
}
SESSION: Mapping[str, str] = {
    # Texts of times are not involved, but Arrow brings times with and without zone.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
}


@dataclass(frozen=True)
class TableReading:
    """What the table's fence row held when it was read: the fence, if a grant has raised it, the number of the last
    change, and what the values are."""

    exists: bool
    row: Fence | None = None
    number: int = 0
    definition: Mapping[str, Any] | None = None
    operation: str = ""


class DeltaTable:
    """One table, by its path, in a session of its own: the settings change while it writes."""

    def __init__(
        self, session: Any, path: str, *, state: str, errors: tuple[type[Exception], ...]
    ) -> None:
        self._spark = session
        self._path = path
        self._state = state
        self._errors = errors
        self._named = f"delta.`{path.replace('`', '``')}`"
        # One commit at a time: they share the settings of the session, and views.
        self._lock = threading.RLock()
        for name, value in SESSION.items():
            session.conf.set(name, value)

    def read(self) -> TableReading:
        """Read the fence; a StateError if the table is not one of ours, or of a newer version."""
        try:
            found = self._spark.sql(
                f"SELECT tx_fence FROM {self._named} WHERE tx_row = '{FENCE}'"
            ).collect()
        except self._errors as error:
            if any(word in str(error) for word in _ABSENT):
                return TableReading(exists=False)
            raise self._failure(error) from None
        return self._held(json.loads(found[0][0])) if found else TableReading(exists=True)

    def rows(
        self, types: Mapping[str, str], where: str = "TRUE", *, limit: int | None = None
    ) -> list[Change]:
        """Read stored rows, whole, under a condition of ours."""
        most = "" if limit is None else f" LIMIT {int(limit)}"
        try:
            query = f"SELECT * FROM {self._named} t WHERE tx_row = '{VALUE}' AND {where}{most}"
            found = self._spark.sql(query).toArrow()
        except self._errors as error:
            raise self._failure(error) from None
        return from_arrow(
            found.select([name for name in found.column_names if name in types]), types
        )

    def at_this_version(self) -> DeltaTable:
        """Look at the table as it is now, whatever is committed to it from now on."""
        commits = self.history(limit=1)
        pinned = copy.copy(self)
        if commits:
            pinned._named = f"{self._named} VERSION AS OF {commits[0]['version']}"
        return pinned

    def portions(self, types: Mapping[str, str]) -> Iterator[list[Change]]:
        """Read all stored rows, portion by portion, each of about as many rows."""
        count = math.ceil(self._size() / _ROWS_AT_ONCE)
        for number in range(count):
            yield self.rows(types, f"pmod(hash(tx_key), {count}) = {number}")

    def _size(self) -> int:
        try:
            found = self._spark.sql(
                f"SELECT count(*) FROM {self._named} WHERE tx_row = '{VALUE}'"
            ).collect()
        except self._errors as error:
            raise self._failure(error) from None
        return int(found[0][0])

    def rows_of_keys(self, types: Mapping[str, str], keys: Iterable[str]) -> list[Change]:
        with self._lock:
            self._view("tx_keys", [{"tx_key": key} for key in keys], {"tx_key": "text"})
            return self.rows(types, "tx_key IN (SELECT tx_key FROM tx_keys)")

    def stored(self, rows: DeltaRows, held: TableReading) -> StoredRows:
        return StoredRows(self, rows, held.definition is not None)

    def merge(
        self,
        held: TableReading,
        row: Fence,
        rows: DeltaRows,
        changes: list[Change],
        note: Mapping[str, Any],
    ) -> bool:
        """Put the fence and the changes into the table, in one commit, if nothing has changed since `held`.

        :return: False: something has; nothing of this is there.
        """
        number = held.number + 1
        operation = uuid.uuid4().hex
        kept = {
            "format": _FORMAT,
            "number": number,
            "operation": operation,
            "definition": rows.definition,
        }
        text = json.dumps(
            {**kept, **asdict(row), "state": row.state}, ensure_ascii=False, sort_keys=True
        )
        fence = {
            "tx_row": FENCE,
            "tx_key": FENCE,
            "tx_txid": 0,
            "tx_token": "",
            "tx_chunk": 0,
            "tx_fence": text,
        }
        failpoint(
            "delta_state.before_merge",
            state=self._state,
            txid=row.token.txid,
            attempt=row.token.attempt,
        )
        metadata = json.dumps(
            {**note, "operation": operation, "number": number}, ensure_ascii=False
        )
        with self._lock:
            try:
                if not held.exists:
                    self._create(rows)
                self._view("tx_source", [fence, *changes], rows.types)
                found = self._merged(row.token.txid if rows.pruned else None, number, metadata)
            except self._errors as error:
                if any(word in str(error) for word in _OVERTAKEN):
                    return False
                return self._find_out(held, operation, error)
        if found:
            return True  # the fence row always counts
        # A version that is taken makes Delta skip the write, without a word.
        if self.read().number == held.number:
            problem = f"its fence has number {held.number}, and Delta has seen a later one: the table was taken back"
            remedy = "RESTORE the version that it had before, or copy it to a new path."
            raise StateError(state=self._state, problem=problem, remedy=remedy)
        return False

    def history(self, *, limit: int | None = None) -> list[dict[str, Any]]:
        """Read the table's commits, the newest first.

        :param limit: at most so many; None: all that Delta keeps.
        """
        most = "" if limit is None else f" LIMIT {int(limit)}"
        columns = ("version", "timestamp", "operation", "userMetadata")
        try:
            found = (
                self._spark.sql(f"DESCRIBE HISTORY {self._named}{most}")
                .select(*columns)
                .toArrow()
                .to_pylist()
            )
        except self._errors as error:
            if any(word in str(error) for word in _ABSENT):
                return []
            raise self._failure(error) from None
        return list(found)

    def clear(self) -> None:
        """Delete all rows and forget the fence, in one commit; a StateError if the table is being changed."""
        held = self.read()
        if not held.number:
            return
        # The number grows on, or the writes of a new life would be skipped.
        kept = json.dumps({"format": _FORMAT, "number": held.number + 1, "forgotten": True})
        statement = (
            f"MERGE INTO {self._named} t USING (SELECT '{kept}' AS tx_fence) s ON t.tx_row = '{FENCE}' "
            "WHEN MATCHED THEN UPDATE SET tx_fence = s.tx_fence WHEN NOT MATCHED BY SOURCE THEN DELETE"
        )
        with self._lock, self._settings(held.number + 1, json.dumps({"cleared": True})):
            try:
                done = self._spark.sql(statement).collect()
            except self._errors as error:
                raise self._failure(error) from None
        if not done:
            raise StateError(
                state=self._state,
                problem="it is being written",
                remedy="Nothing was deleted. Try again.",
            )

    # --- the commit -----------------------------------------------------------------------------------------------

    def _create(self, rows: DeltaRows) -> None:
        columns = ", ".join(
            f"`{name.replace('`', '``')}` {DDL[kind]}" for name, kind in rows.types.items()
        )
        created = f"CREATE TABLE IF NOT EXISTS {self._named} ({columns}) USING delta PARTITIONED BY (tx_row)"
        self._spark.sql(created).collect()

    def _merged(self, txid: int | None, number: int, metadata: str) -> int:
        # Rows of a txid can be only where files say that they hold it; a key can be anywhere.
        near = "" if txid is None else f" AND (t.tx_txid = 0 OR t.tx_txid = {txid})"
        statement = (
            f"MERGE WITH SCHEMA EVOLUTION INTO {self._named} t USING tx_source s "
            f"ON t.tx_row = s.tx_row AND t.tx_key = s.tx_key{near} "
            "WHEN MATCHED AND s.tx_txid IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET * "
            "WHEN NOT MATCHED AND s.tx_txid IS NOT NULL THEN INSERT *"
        )
        with self._settings(number, metadata):
            found = self._spark.sql(statement).collect()
        return int(found[0][0]) if found else 0

    def _find_out(self, held: TableReading, operation: str, error: Exception) -> bool:
        """Find out whether a commit that ended in an error is there all the same."""
        try:
            now = self.read()
        except StateUnavailable:
            raise StateOutcomeUnknown(
                state=self._state, where=self._path, reason=_first_line(error)
            ) from None
        if now.operation == operation:
            return True
        if now.number != held.number:
            return False
        raise self._failure(error) from None

    def _view(self, name: str, rows: list[Change], types: Mapping[str, str]) -> None:
        self._spark.createDataFrame(to_arrow(rows, types)).createOrReplaceTempView(name)

    @contextmanager
    def _settings(self, number: int, metadata: str) -> Iterator[None]:
        settings = {_APP: APP_ID, _VERSION: str(number), _METADATA: metadata}
        for name, value in settings.items():
            self._spark.conf.set(name, value)
        try:
            yield
        finally:
            for name in settings:
                self._spark.conf.unset(name)

    # --- what was found -------------------------------------------------------------------------------------------

    def _held(self, kept: Mapping[str, Any]) -> TableReading:
        if kept["format"] != _FORMAT:
            problem = f"its fence row has format {kept['format']}, this version knows {_FORMAT}"
            raise StateDiffers(
                state=self._state, problem=problem, remedy="Upgrade airflow-provider-tx."
            )
        if kept.get("forgotten"):
            return TableReading(True, None, kept["number"])
        token = Token.from_json(kept["token"])
        row = Fence(kept["incarnation"], token, kept["applied"], kept["batch"], kept["state"])
        return TableReading(True, row, kept["number"], kept["definition"], kept["operation"])

    def _failure(self, error: Exception) -> StateError:
        text = str(error)
        reason = _first_line(error)
        if any(word in text for word in _FOREIGN):
            problem = f"{self._path} is not a table of a DeltaState ({reason})"
            return StateDiffers(
                state=self._state, problem=problem, remedy="Give the state a path of its own."
            )
        if any(word in text for word in _NO_DELTA):
            from airflow_tx.state.delta.session import REMEDY

            return StateError(
                state=self._state, problem=f"Spark has no Delta Lake ({reason})", remedy=REMEDY
            )
        return StateUnavailable(state=self._state, where=self._path, reason=reason)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:500]


@dataclass(frozen=True)
class StoredRows:
    """The rows of a table as an update reads them; none before the first one."""

    table: DeltaTable
    rows: DeltaRows
    there: bool

    def of_keys(self, keys: Iterable[str]) -> dict[str, Change]:
        return self._found(lambda types: self.table.rows_of_keys(types, keys))

    def of_txid(self, txid: int) -> dict[str, Change]:
        return self._found(lambda types: self.table.rows(types, f"tx_txid = {int(txid)}"))

    def _found(self, ask: Callable[[Mapping[str, str]], list[Change]]) -> dict[str, Change]:
        return {row["tx_key"]: row for row in ask(self.rows.types)} if self.there else {}
