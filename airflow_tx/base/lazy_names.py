"""Public names that a package imports when they are first used: a DAG file then loads only what it names."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

Lazy: TypeAlias = tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]


_PUBLIC = {"": "__init__.py", ".acks": "acks.py"} | {
    f".{room}": f"{room}/__init__.py" for room in ("sources", "spark", "state", "testing")
}


def lazy_names(package: str, file: str, *, gone: Mapping[str, str] | None = None) -> Lazy:
    """Make `__all__`, `__getattr__` and `__dir__` of a package from its imports for type checkers.

    :param file: the package's own, in which an `if TYPE_CHECKING` imports each public name from its home.
    :param gone: names that an earlier release had, each with what to use instead.
    """
    home = _homes(Path(file))

    def load(name: str) -> Any:
        if gone and name in gone:
            raise ImportError(gone[name])
        if name not in home:
            if room := _room_of(name):
                raise ImportError(f"{package} has no {name}. Import it from {room}.")
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home[name]), name)

    return sorted(home), load, lambda: sorted({*vars(import_module(package)), *home})


def _homes(file: Path) -> dict[str, str]:
    """Give the module of each public name of a package."""
    home: dict[str, str] = {}
    for block in ast.parse(file.read_bytes()).body:
        if isinstance(block, ast.If):
            for line in block.body:
                if isinstance(line, ast.ImportFrom):
                    home.update({each.name: str(line.module) for each in line.names})
    return home


def _room_of(name: str) -> str | None:
    """Find the package that a public name is imported from."""
    here = Path(__file__).parents[1]
    for room, file in _PUBLIC.items():
        if name in _homes(here / file):
            return f"airflow_tx{room}"
    return None
