"""Names and modules that are imported on first use. A DAG file then loads only the names that it uses."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

Lazy: TypeAlias = tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]


_PUBLIC = {"": "__init__.py", ".acks": "acks.py"} | {
    f".{room}": f"{room}/__init__.py" for room in ("sources", "spark", "state", "testing")
}
_BLOCK = "\nif TYPE_CHECKING:\n"
_IMPORT = re.compile(r"^    from ([\w.]+) import (\([^)]*\)|.*)", re.MULTILINE)
_NAME = re.compile(r"(\w+) as ")


class LazyModule:
    """A placeholder for a module that is slow to import. The module is imported on first use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark pickles a nested function together with the globals that it uses.
        return LazyModule, (self._name,)


def lazy_names(package: str, file: str) -> Lazy:
    """Create `__all__`, `__getattr__` and `__dir__` of a package from its imports for type checkers.

    :param file: path of the package's ``__init__.py``. Its first `if TYPE_CHECKING` block imports each public name from
        its module. A second block imports names that only other packages of the provider use. They are not in
        `__all__`.
    """
    public, home = _homes(Path(file))

    def load(name: str) -> Any:
        if name not in home:
            if room := _room_of(name):
                raise ImportError(f"{package} has no {name}. Import it from {room}.")
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home[name]), name)

    return public, load, lambda: sorted({*vars(import_module(package)), *home})


def _homes(file: Path) -> tuple[list[str], dict[str, str]]:
    """Return the public names of a package, and the module of each name.

    The function parses lines, since every package import runs it and a syntax tree takes ten times as long.
    """
    _, *blocks = file.read_text(encoding="utf-8").split(_BLOCK)
    homes = [
        {name: module for module, names in _IMPORT.findall(block) for name in _NAME.findall(names)}
        for block in blocks
    ]
    return sorted(homes[0]), {name: module for each in homes for name, module in each.items()}


def _room_of(name: str) -> str | None:
    """Find the package from which a public name can be imported."""
    here = Path(__file__).parents[1]
    for room, file in _PUBLIC.items():
        if name in _homes(here / file)[0]:
            return f"airflow_tx{room}"
    return None
