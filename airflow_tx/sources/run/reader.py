"""Sources that read the part of a run with a function of the user.

The function is known by its path, since a Spark driver must find it, too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow_tx.sources.api import EmittedRows, Source, source_kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_tx.compat import RunInfo

_REMEDY = (
    "Give a function at the top of a module, not of a DAG file. Workers and Spark drivers import the module. "
    "Or give its path, such as package.module.function."
)
_Self = TypeVar("_Self", bound="ReaderSource")


class ReaderSource(Source):
    """A source by a function: subclasses say which part of the data a run has, the function reads its rows.

    :param reader: a function at the top of an importable module, or its path ``package.module.function``; None: tasks
        of the block read the rows themselves.
    :param options: further arguments for it, plain JSON.
    :param kind: ``transactional`` if it reads the same rows for a part every time, else ``opaque``.
    :param connections: ids of the Airflow connections that the function looks up.
    """

    per_run: ClassVar[bool] = True
    keeps_rows: ClassVar[bool] = False
    always_written = ("options", "kind")
    in_repr: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        reader: str | Callable[..., Any] | None = None,
        options: Mapping[str, Any] | None = None,
        kind: str = "transactional",
        connections: Sequence[str] = (),
    ) -> None:
        self.reader = "" if reader is None else self._path(reader)
        self.options = dict(options or {})
        self.kind = source_kind(kind, type(self).__name__)
        try:
            json.dumps(self.options)
        except (TypeError, ValueError) as error:
            remedy = f"They travel to Spark applications: give plain JSON ({error})."
            raise self.unusable("options", sorted(self.options), remedy) from None
        if isinstance(connections, str):
            raise self.unusable(
                "connections", connections, f"Give a list: connections=[{connections!r}]."
            )
        self.conn_ids = tuple(connections)
        self.normalize(reader=self.reader or None, options=self.options)
        self._key = self._whose = ""

    def _path(self, reader: str | Callable[..., Any]) -> str:
        """Find the path of a reader that other processes can import; a text is imported when it is read."""
        if isinstance(reader, str):
            parts = reader.split(".")
            if len(parts) < 2 or not all(part.isidentifier() for part in parts):
                raise self.unusable("reader", reader, _REMEDY)
            return reader
        module = getattr(reader, "__module__", None)
        name = getattr(reader, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(name, str):
            raise self.unusable("reader", type(reader).__name__, _REMEDY)
        path = f"{module}.{name}"
        if getattr(sys.modules.get(module), name, None) is not reader or not _importable(module):
            raise self.unusable("reader", path, _REMEDY)
        return path

    def connections(self) -> dict[str, str]:
        return dict.fromkeys(self.conn_ids, "generic")

    def for_run(self: _Self, run: RunInfo) -> _Self:
        bound = self.for_key(self.key(run))
        bound._whose = f" of run {run.run_id}"
        return bound

    def for_key(self: _Self, key: str) -> _Self:
        bound = copy(self)
        bound._key = key
        return bound

    def key_of_run(self) -> str:
        """Return the key of the run whose batch is decided; refuse if there is none."""
        if not self._key:
            raise self.refused("it has no run to decide a batch for", "Use source.for_run(run).")
        return self._key

    def read(self, spark: SparkSession | None, *part: Any, **options: Any) -> EmittedRows:
        """Call the reader; refuse if it cannot be imported, or gives nothing that could be rows."""
        if not self.reader:
            raise self.refused(
                "it has no reader that gives rows",
                "Let a task of the block read them and return current_batch().stage(rows); or name a reader.",
            )
        module, _, name = self.reader.rpartition(".")
        try:
            reader = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            remedy = (
                "Install its module where this task and its Spark driver run, or correct the path."
            )
            raise self.refused(f"its reader cannot be imported ({error})", remedy) from None
        rows: Any = reader(*part, spark=spark, **options, **self.options)
        if not hasattr(rows, "write") and (
            isinstance(rows, (str, Mapping)) or not isinstance(rows, Iterable)
        ):
            remedy = "Let it return a DataFrame, or rows as mappings."
            raise self.refused(f"its reader gave a {type(rows).__name__}", remedy)
        return rows  # type: ignore[no-any-return]


def _importable(module: str) -> bool:
    """Check whether another process finds it: a DAG file has a name in `sys.modules` that only Airflow knows."""
    top = module.partition(".")[0]
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return module != "__main__" and any(finder.find_spec(top, None) for finder in finders)
