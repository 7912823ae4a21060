"""The map suite on every backing map we have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.state import MemoryMap, OpaqueValue, TransactionalValue
from airflow_tx.state.keys import Key
from airflow_tx.testing.suites.map_suite import MapSuite
from airflow_tx.testing.suites.map_tools import MakeBacking


class TestMemoryMap(MapSuite):
    @pytest.fixture
    def make_backing(self) -> MakeBacking:
        stores: dict[str, dict[Key, Any]] = {}
        return lambda kind: MemoryMap(stores.setdefault(kind, {}))


class JsonFile:
    """A store that somebody wrote: two methods over a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        stored = self._load()
        return [_revived(stored.get(json.dumps(key))) for key in keys]

    def multi_put(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        stored = self._load()
        for key, value in zip(keys, values, strict=True):
            plain = [type(value).__name__, asdict(value)] if hasattr(value, "txid") else ["plain", value]
            stored[json.dumps(key)] = plain
        self.path.write_text(json.dumps(stored))

    def _load(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        return loaded


def _revived(plain: Any) -> Any:
    if plain is None:
        return None
    name, value = plain
    made = {"OpaqueValue": OpaqueValue, "TransactionalValue": TransactionalValue}
    return made[name](**value) if name in made else value


class TestAMapOfTwoMethods(MapSuite):
    examples = 25

    @pytest.fixture
    def make_backing(self, tmp_path: Path) -> MakeBacking:
        return lambda kind: JsonFile(tmp_path / kind)
