"""What the tests of the operators share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.bench import CountingStore


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def log() -> Any:
    lines: list[str] = []

    def info(text: str, *arguments: Any) -> None:
        lines.append(text % arguments)

    return SimpleNamespace(info=info, warning=info, lines=lines)
