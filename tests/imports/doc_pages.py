"""The pages, and the modules that make pages of the site."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
REPORTS = ("benchmarks/FIGURES.md", "benchmarks/scale/README.md", "tests/chaos/REPORT.md", "tests/model/TRACES.md")
"""Pages for developers. The site does not have them."""
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", *REPORTS)),
        *ROOT.glob("docs/**/*.md"),
    ]
)


def hook(name: str) -> ModuleType:
    """Import a module of docs/site."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/site/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
