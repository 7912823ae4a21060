"""Which part of a task's work takes its processor time: a clock that every part stops as long as it works itself.

Imported by the first line of a DAG file: what the process has computed by then is Airflow's, or was imported ahead.
"""

from __future__ import annotations

import importlib.machinery
import inspect
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any


class _Own(threading.local):
    """What a thread works at, and up to when it is counted."""

    def __init__(self) -> None:
        self.within: list[str] = []
        self.last = 0.0


class Parts:
    """Processor seconds by part; of parts within parts each has its own, and the process what belongs to none."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._own = _Own()

    def read(self) -> dict[str, float]:
        """Return what was found until now."""
        return {"process": time.process_time() - sum(self._seconds.values()), **self._seconds}

    @contextmanager
    def within(self, part: str) -> Iterator[None]:
        """Count the block as this part's."""
        self._advance()
        self._own.within.append(part)
        try:
            yield
        finally:
            self._advance()
            self._own.within.pop()

    def _advance(self) -> None:
        now = time.thread_time()
        if self._own.within:
            self._seconds[self._own.within[-1]] += now - self._own.last
        self._own.last = now

    def measured(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, counted as a part's; so is what it returns, if that is an iterator or a context."""

        @wraps(function)
        def counted(*args: Any, **options: Any) -> Any:
            with self.within(part):
                result = function(*args, **options)
            if inspect.isgenerator(result):
                return self._iterated(part, result)
            return self._entered(part, result) if isinstance(result, AbstractContextManager) else result

        return counted

    def _iterated(self, part: str, rows: Iterator[Any]) -> Iterator[Any]:
        end = object()
        while True:
            with self.within(part):
                row = next(rows, end)
            if row is end:
                return
            yield row

    @contextmanager
    def _entered(self, part: str, block: Any) -> Iterator[Any]:
        with self.within(part):
            entered = block.__enter__()
        error: Any = (None, None, None)
        try:
            yield entered
        except BaseException as raised:
            error = (type(raised), raised, raised.__traceback__)
            raise
        finally:
            with self.within(part):
                block.__exit__(*error)


PARTS = Parts()

# By module, classes and their methods through which one gets into a part; "": functions of the module.
_DOORS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "airflow.sdk.execution_time.comms": ("Airflow's API", {"CommsDecoder": ("send",)}),
    "airflow_tx.hooks.zookeeper": ("ZooKeeper", {"ZooKeeperHook": ("store",)}),
    "airflow_tx.ledger.store.zookeeper": (
        "ZooKeeper", {"ZooKeeperStore": ("get", "children", "multi", "sync", "ensure", "watch", "announce")},
    ),
    "airflow_tx.sources.files.source": (
        "source", {"FileSource": ("decide", "emit_batch", "begun", "committed", "cleanup_before", "close")},
    ),
    "airflow_tx.transaction.processing.batch": ("source", {"CurrentBatch": ("read",)}),
    "airflow_tx.outputs.staging.files": ("staging", {"LocalFiles": ("write", "read", "list", "remove_tree")}),
    "airflow_tx.outputs.staging.area": ("staging", {"StagingArea": ("check", "sweep")}),
    "airflow_tx.transaction.commit.write": ("staging", {"StagedRows": ("__init__", "__iter__", "batches")}),
    "airflow_tx.state.sql.state": (
        "state", {"SqlState": ("raise_fence", "write", "raise_and_write", "pass_over", "fence")},
    ),
    "airflow_tx.spark.app": ("Spark", {"BatchApp": ("run",)}),
    "airflow_tx.spark.connect": ("Spark", {"": ("session", "process")}),
}  # fmt: skip


def _fit_doors(name: str) -> None:
    part, classes = _DOORS.pop(name)
    for of, methods in classes.items():
        holder = getattr(sys.modules[name], of) if of else sys.modules[name]
        for method in methods:
            setattr(holder, method, PARTS.measured(part, getattr(holder, method)))


def _count_imports(loader: Any) -> None:
    execute = loader.exec_module

    @wraps(execute)
    def counted(self: Any, module: Any) -> None:
        with PARTS.within("imports"):
            execute(self, module)
        if module.__name__ in _DOORS:
            _fit_doors(module.__name__)

    loader.exec_module = counted


for _loader in (importlib.machinery.SourceFileLoader, importlib.machinery.ExtensionFileLoader):
    _count_imports(_loader)
for _name in [*_DOORS]:
    if _name in sys.modules:
        _fit_doors(_name)
