"""Compare what the code writes with an example that is kept in the repository, byte for byte.

``GOLDEN=write script/test tests/golden`` keeps what the code writes now. Do that only for a format that no running
ledger, state or task holds, or for a field that older readers may ignore.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Any

from airflow_tx.ledger.json_text import dumps

FOLDER = Path(__file__).parent / "kept"


def check_golden(name: str, found: Mapping[str, Any]) -> None:
    """Compare with the file of this name.

    :param found: by a name of each example, text as it is written, or plain JSON.
    :raises AssertionError: they differ; it shows where.
    """
    file = FOLDER / f"{name}.json"
    text = json.dumps(_opened(found), indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("GOLDEN") == "write":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    kept = file.read_text() if file.exists() else "{}"
    differences = unified_diff(_lines(kept), _lines(text), "kept", "written now", lineterm="", n=1)
    changed = "\n".join(differences)
    assert not changed, f"A format has changed, and what is stored may become unreadable:\n{changed}"


def _lines(text: str) -> list[str]:
    """Sort the keys of objects: their order says nothing, and texts whose order counts are sorted by `dumps`."""
    return json.dumps(json.loads(text), indent=1, ensure_ascii=False, sort_keys=True).splitlines()


def _opened(value: Any) -> Any:
    """Show a text as the JSON that it is, if it is that of a record: sorted, and without spaces."""
    if isinstance(value, dict):
        return {key: _opened(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_opened(each) for each in value]
    try:
        read = json.loads(value) if isinstance(value, str) else None
    except ValueError:
        return value
    return {"record": read} if isinstance(read, dict) and dumps(read) == value else value
