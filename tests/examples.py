"""How many examples Hypothesis tries."""

from __future__ import annotations

import os


def examples(few: int, many: int) -> int:
    """`few`; under `script/test --all`, `many`."""
    return many if os.environ.get("TESTS") == "all" else few
