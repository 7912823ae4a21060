"""The walk of one transaction through the package: which functions run, in which files, and which calls go up.

The transaction is real: a source, a ledger and a state in memory, one processing task and one committer.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

from tests.imports.rulers import PACKAGE, ROOT

_PACKAGE = str(PACKAGE)
_DOORS = str(PACKAGE / "base" / "lazy_names.py")
_WRITE = "transaction/commit/write.py"


def layers() -> dict[str, int]:
    """Return the height of every room, as the import rules of `pyproject.toml` order them."""
    text = (ROOT / "pyproject.toml").read_text()
    lines: list[str] = ast.literal_eval(text.partition("\nlayers = ")[2].partition("\n]")[0] + "]")
    heights: dict[str, int] = {}
    for depth, line in enumerate(lines):
        for room in line.replace("|", ":").split(":"):
            heights[room.strip()] = -depth
    return heights


@dataclass
class Walk:
    """What one step of a transaction passes through.

    :ivar stays: the functions, each as its file and its name.
    :ivar climbs: calls of a function in a higher layer, each as the caller and what it calls.
    """

    stays: set[tuple[str, str]] = field(default_factory=set)
    climbs: set[tuple[tuple[str, str], tuple[str, str]]] = field(default_factory=set)

    @property
    def files(self) -> set[str]:
        """The files that it passes through."""
        return {file for file, _ in self.stays}

    def __str__(self) -> str:
        return f"{len(self.stays)} stays in {len(self.files)} files, {len(self.climbs)} climbs"


def _place(code: CodeType) -> tuple[str, str] | None:
    """Return the file and the name of a function of the package; a lambda or comprehension belongs to its function.

    A name that a door loads is an import, and no stay.
    """
    if not code.co_filename.startswith(_PACKAGE) or code.co_name.startswith("<") or code.co_filename == _DOORS:
        return None
    return str(Path(code.co_filename).relative_to(PACKAGE)), f"{code.co_name}:{code.co_firstlineno}"


def _above(frame: FrameType) -> Iterator[tuple[str, str]]:
    """Return the functions of the package that are on the way to this frame, the nearest first."""
    caller = frame.f_back
    while caller is not None:
        place = _place(caller.f_code)
        if place is not None:
            yield place
        caller = caller.f_back


@contextmanager
def _noted(walk: Walk, write: Walk | None = None) -> Iterator[None]:
    heights = layers()

    def height(place: tuple[str, str]) -> int:
        return heights[place[0].partition("/")[0].removesuffix(".py")]

    def note(frame: FrameType, event: str, argument: Any) -> None:
        place = _place(frame.f_code) if event == "call" else None
        if place is None:
            return
        callers = list(_above(frame))
        within = [walk]
        if write is not None and any(file == _WRITE for file, _ in (place, *callers)):
            within.append(write)
        for each in within:
            each.stays.add(place)
            if callers and height(place) > height(callers[0]):
                each.climbs.add((callers[0], place))

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def walks() -> dict[str, Walk]:
    """Run a transaction and return the walk of each of its steps; `write` is a part of `commit`."""
    from airflow_tx.sources.memory import MemorySource
    from airflow_tx.state import Sum
    from airflow_tx.state.memory import MemoryState
    from airflow_tx.transaction.processing.outputs import returned
    from tests.integration.spark_runs import Topology, update

    found = {name: Walk() for name in ("begin", "processing", "commit", "write")}
    rows = [{"key": "a", "n": 1}]
    state = MemoryState("sums", keys=["key"], values={"n": Sum()})
    with TemporaryDirectory() as folder:
        topology = Topology(MemorySource({"0": [*rows, *rows]}), Path(folder), "dag.py")
        # What the first run imports and makes is no part of the walk.
        for run_id, noted in (("r1", [Walk() for _ in found]), ("r2", list(found.values()))):
            begin, processing, commit, write = noted
            with _noted(begin):
                run = topology.begin(run_id)
            ti, task = run._started()
            with _noted(processing):
                task.start()
                task.ack(returned(rows, multiple=False))
            ti.pushed = {"return_value": rows}
            run._succeeded(ti)
            with _noted(commit, write):
                assert run.commit(update(state, "return_value")) is None
    return found
