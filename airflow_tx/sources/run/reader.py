"""Sources that read, with a function of the user, what the run itself stands for.

The function is known by its path, since a Spark driver must find it, too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow_tx.errors import ConfigError
from airflow_tx.sources.api import Source, SourceKind, source_kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_tx.compat import RunInfo

_REMEDY = (
    "Give a function at the top of a module that workers and Spark drivers can import (not of a DAG file), "
    "or its path, such as package.module.function."
)


_Self = TypeVar("_Self", bound="ReaderSource")


class ReaderSource(Source):
    """Which part of the data a run stands for, its subclasses say; what rows that part has, the reader does.

    :param reader: a function at the top of an importable module, or its path ``package.module.function``.
    :param options: further arguments for it, plain JSON.
    :param kind: ``transactional`` if it reads the same rows for a part whenever it is asked, else ``opaque``.
    """

    kind: SourceKind  # type: ignore[misc]  # an argument says it, so it is the instance's
    per_run: ClassVar[bool] = True

    def __init__(
        self,
        reader: str | Callable[..., Any],
        options: Mapping[str, Any] | None = None,
        kind: str = "transactional",
    ) -> None:
        name = type(self).__name__
        self.reader = _path(reader, name)
        self.options = dict(options or {})
        self.kind = source_kind(kind, name)
        try:
            json.dumps(self.options)
        except (TypeError, ValueError) as error:
            remedy = f"They travel to Spark applications: give plain JSON ({error})."
            raise ConfigError(option=f"options of {name}", value=sorted(self.options), remedy=remedy) from None
        self._key = self._whose = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"reader": self.reader, "options": self.options, "kind": self.kind.value}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reader!r})"

    def for_run(self: _Self, run: RunInfo) -> _Self:
        bound = self.for_key(self.key(run))
        bound._whose = f" of run {run.run_id}"
        return bound

    def for_key(self: _Self, key: str) -> _Self:
        bound = copy(self)
        bound._key = key
        return bound

    def asking_key(self) -> str:
        """The key of the run that asks for its batch.

        :raises SourceError: if there is none.
        """
        if not self._key:
            raise self.refused("it was asked for a batch without a run", "Ask source.for_run(run).")
        return self._key

    def read(self, spark: SparkSession | None, *place: Any, **options: Any) -> DataFrame | Iterable[Mapping[str, Any]]:
        """Call the reader.

        :raises SourceError: if it cannot be imported, or gives nothing that could be rows.
        """
        module, _, name = self.reader.rpartition(".")
        try:
            reader = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            remedy = "Install its module where this task and its Spark driver run, or correct the path."
            raise self.refused(f"its reader cannot be imported ({error})", remedy) from None
        rows: Any = reader(*place, spark=spark, **options, **self.options)
        if not hasattr(rows, "write") and (isinstance(rows, (str, Mapping)) or not isinstance(rows, Iterable)):
            remedy = "Let it return a DataFrame, or rows as mappings."
            raise self.refused(f"its reader gave a {type(rows).__name__}", remedy)
        return rows  # type: ignore[no-any-return]


def _path(reader: str | Callable[..., Any], source: str) -> str:
    """The path `package.module.function` of a reader. A path that is given as such is imported when it is read.

    :param source: whose argument it is, for the message.
    :raises ConfigError: if nobody else could import it.
    """
    if isinstance(reader, str):
        parts = reader.split(".")
        if len(parts) < 2 or not all(part.isidentifier() for part in parts):
            raise _unusable(reader, source)
        return reader
    module, name = getattr(reader, "__module__", None), getattr(reader, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise _unusable(type(reader).__name__, source)
    path = f"{module}.{name}"
    if getattr(sys.modules.get(module), name, None) is not reader or not _importable(module):
        raise _unusable(path, source)
    return path


def _importable(module: str) -> bool:
    """Whether another process finds it: a DAG file is in `sys.modules` by a name that only Airflow's parser knows."""
    top = module.partition(".")[0]
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return module != "__main__" and any(finder.find_spec(top, None) for finder in finders)


def _unusable(value: str, source: str) -> ConfigError:
    return ConfigError(option=f"reader of {source}", value=value, remedy=_REMEDY)
