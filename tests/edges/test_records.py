"""Values in records: a number stays a number, and what JSON or this version has no form for is refused."""

from __future__ import annotations

import enum
import json
from typing import Any

import numpy as np
import pytest

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.ledger.records import Metadata, TransactionRecord, decode, encode
from tests.finals import final_record, plain_receipt

WHEN = "2026-01-01T00:00:00+00:00"


class Offset(int):
    """A number of a client library."""


class Level(enum.IntEnum):
    HIGH = 3


class Name(str):
    """A text of a client library."""


@pytest.mark.parametrize("value", [np.float64(1.5), Offset(7), Level.HIGH, np.str_("a"), Name("b"), float("inf")])
def test_a_value_of_a_subclass_is_stored_as_json_serializes_it(value: Any) -> None:
    stored = encode(Metadata(1, {"at": [value]}, value))
    again = decode(Metadata, "/meta", stored)
    assert json.dumps([again.rows, again.position]) == json.dumps([{"at": [value]}, value])


@pytest.mark.parametrize("value", [np.int64(7), object(), 1j], ids=["int64", "object", "complex"])
def test_a_value_that_json_cannot_represent_is_refused_and_not_stored_as_a_text(value: Any) -> None:
    with pytest.raises(TypeError):
        encode(Metadata(1, None, value))


@pytest.mark.parametrize("found", [2, "1", True])
def test_a_history_record_with_a_receipt_of_another_format_is_refused_with_its_path(found: Any) -> None:
    receipt = plain_receipt().hashed()
    history = final_record(
        began=WHEN,
        ended=WHEN,
        rows=1,
        receipt=receipt,
    )
    stored = json.loads(encode(history))
    stored["receipt"]["format"] = found
    with pytest.raises(UnreadableRecord, match=r"/history cannot be read: its field receipt .* `\$\.format`"):
        decode(TransactionRecord, "/history", json.dumps(stored).encode())
