"""The partition columns of a table: which columns can be one, and their values as folders spell them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from airflow_tx.state.appended import Misfit
from airflow_tx.state.columns import RESERVED
from airflow_tx.state.lake.schema import nullable, shown_type

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""The name of NULL in a folder. Hive, Spark and Delta spell it so."""
_LONGEST = 255
"""Bytes of the name of a folder, in nearly every file system."""
_TYPES = re.compile(r"string|boolean|byte|short|integer|long|date|decimal\(.*\)")
_ESCAPED = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_IMPOSSIBLE = re.compile(r"[ ,;{}()\n\t=]")


def check_columns(fields: Iterable[Mapping[str, Any]], partition_by: Sequence[str]) -> None:
    """Refuse rows that cannot become files of a table.

    :param fields: of Spark's schema of the rows.
    :raises Misfit: it names the column.
    """
    found = {str(each["name"]): each for each in fields}
    if not found:
        raise Misfit("no column of the rows has a value, so their types are unknown")
    spelled = dict[str, str]()
    for name, each in found.items():
        if not name or _IMPOSSIBLE.search(name):
            raise Misfit(f"column {name!r} has a name that a Delta table cannot have")
        if name.lower().startswith(RESERVED):
            raise Misfit(f"column {name} has a reserved name ({RESERVED}*)")
        if (other := spelled.setdefault(name.lower(), name)) != name:
            raise Misfit(f"column {name} differs from column {other} by case alone")
        nullable(each["type"], column=name)
    for name in partition_by:
        if name not in found:
            raise Misfit(f"the rows lack partition column {name}; they have {', '.join(found)}")
        kind = shown_type(found[name]["type"])
        if not _TYPES.fullmatch(kind):
            raise Misfit(
                f"partition column {name} has the type {kind}; a text, a whole number, a boolean, a date or a "
                "decimal can be one"
            )
    if len(partition_by) == len(found):
        raise Misfit("every column is a partition column, so the files would have none")


def text_of(value: Any) -> str | None:
    """Spell a value as Delta's log does; None is NULL."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, date | Decimal | int):
        return format(value, "f") if isinstance(value, Decimal) else str(value)
    return str(value)


def empty_in(name: str) -> str:
    """Say that a text of a partition column is empty."""
    return (
        f"partition column {name} has an empty text, which readers of a Delta table take for NULL: "
        "give NULL or another text"
    )


def folder_of(partition: Mapping[str, str | None]) -> str:
    """Spell the folders of a partition as Spark does: ``day=2026-01-01/``; "" for no partition."""
    return "".join(f"{_escaped(name)}={_escaped(text)}/" for name, text in partition.items())


def new_folder(partition: Mapping[str, str | None]) -> str:
    """Spell the folders of a partition, if they can be made.

    :raises Misfit: a value is too long for the name of a folder.
    """
    for name, text in partition.items():
        folder = folder_of({name: text})
        size = len(folder.encode()) - 1
        if size > _LONGEST:
            problem = f"partition column {name} has the value {str(text)[:40]!r}…"
            limit = f"a name of {size} bytes, more than {_LONGEST}"
            raise Misfit(f"{problem}, whose folder has {limit}")
    return folder_of(partition)


def values_in(folder: str) -> dict[str, str | None]:
    """Read the folders of a partition, as `folder_of` spells them."""
    found = dict[str, str | None]()
    for part in filter(None, folder.split("/")):
        name, _, text = part.partition("=")
        found[unquote(name)] = None if text == NULL_FOLDER else unquote(text)
    return found


def _escaped(text: str | None) -> str:
    if text is None:
        return NULL_FOLDER
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
