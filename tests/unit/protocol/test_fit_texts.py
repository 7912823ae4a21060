"""Half a surrogate pair, which is no character of UTF-8, in what people and errors say, and in names."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from airflow_tx.base.errors import (
    ConfigError,
    TransactionDefinitionError,
    UnreadableRecord,
)
from airflow_tx.base.remedy import without_controls
from airflow_tx.ledger.api import Paths, decode_name, encode_name
from airflow_tx.ledger.json_text import digest, replace
from airflow_tx.ledger.receipt import Deed, Outcome, Replayed
from airflow_tx.ledger.records import Metadata, Skipped, TransactionRecord, decode, encode
from airflow_tx.sources.files.source import FileSource
from airflow_tx.transaction.spec import TransactionSpec
from tests.finals import final_record, plain_receipt

HALF = "gr\udcf6sse"
SHOWN = "gr\\udcf6sse"
WHEN = "2026-01-01T00:00:00+00:00"
DEED = Deed(HALF, WHEN, HALF)
SKIPPED = Skipped(key=HALF, run_id="r1", rows={"files": [{"name": HALF}]}, skip=DEED, op="op")
RECEIPT = plain_receipt(outcome="SKIPPED", run_id="r1", granted=WHEN, replays=[Replayed(1, WHEN, HALF)])
HISTORY = final_record(
    run_id="r1",
    outcome=Outcome.SKIPPED,
    began=WHEN,
    ended=WHEN,
    skip=DEED,
)


def test_an_unpaired_surrogate_in_a_stored_text_is_shown_as_its_escape_sequence() -> None:
    assert without_controls(HALF) == SHOWN
    assert str(ConfigError(option="x", value=1, remedy=HALF)).endswith(SHOWN)


def test_an_unpaired_surrogate_in_text_from_a_person_is_stored_as_its_escape_sequence() -> None:
    read = decode(Skipped, "/x", encode(SKIPPED))
    assert read.skip == Deed(SHOWN, WHEN, SHOWN)


def test_names_and_rows_of_a_batch_are_stored_unchanged() -> None:
    read = decode(Skipped, "/x", encode(SKIPPED))
    assert (read.key, read.rows) == (SKIPPED.key, SKIPPED.rows)
    batch = Metadata(1, {"files": [{"name": HALF}]}, {"error": 1})
    assert digest(decode(Metadata, "/x", encode(batch)).rows) == digest(batch.rows)


def test_a_receipt_is_stored_with_the_same_values_that_were_hashed() -> None:
    history = replace(HISTORY, receipt=RECEIPT)
    assert decode(TransactionRecord, "/x", encode(history)).receipt == history.receipt


@pytest.mark.parametrize("text", [HALF, "a\x00b"])
def test_a_run_id_that_the_airflow_database_cannot_store_is_escaped(text: str) -> None:
    record = json.loads(encode(HISTORY)) | {"run_id": text}
    run_id = decode(TransactionRecord, "/x", json.dumps(record).encode()).run_id
    assert "\x00" not in run_id
    assert run_id.encode().decode() == run_id != text


@pytest.mark.parametrize("name", [HALF, "\ud83d", "a/b.c", "", "é", "%"])
def test_a_name_is_unchanged_after_it_is_encoded_in_a_path_and_decoded(name: str) -> None:
    assert decode_name(encode_name(name)) == name
    assert Paths("/tx", name).record.isascii()


def test_a_node_name_that_another_program_has_written_can_be_decoded() -> None:
    assert decode_name("%FF") == "\ufffd"


@pytest.mark.parametrize("name", [HALF, "a\x00b", "a\u202eb", "a\nb"])
def test_a_topology_name_with_unprintable_characters_is_refused(name: str) -> None:
    with pytest.raises(TransactionDefinitionError, match="its name has characters") as refused:
        TransactionSpec(topology=name, dag_id="d", source=FileSource("/data/*.csv"))
    assert str(refused.value).isprintable()


LOGGED = """
import io
from airflow.sdk.log import configure_logging
import structlog
output = io.BytesIO()
configure_logging(json_output=True, output=output, sending_to_supervisor=True)
log = structlog.get_logger("task")
log.info("begin")
from airflow_tx.base import compat
compat.make_log_fit()
compat.make_log_fit()
try:
    raise ValueError("gr\\udcf6sse") from KeyError("\\ud83d")
except ValueError:
    log.exception("failed", found=["gr\\udcf6sse"])
print(output.getvalue().decode())
"""


def test_the_log_of_a_task_accepts_an_error_with_an_unpaired_surrogate() -> None:
    """Airflow's own log raises another error there, and the process of the task ends."""
    done = subprocess.run([sys.executable, "-c", LOGGED], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.strip().splitlines()
    line = json.loads(last)
    assert (line["found"], line["exception"][0]["exc_value"]) == ([SHOWN], SHOWN)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("txid", "two"),
        ("txid", 10**400),
        ("txid", float("nan")),
        ("failures", None),
        ("lost", "text"),
        ("end", {"outcome": "LOST", "when": WHEN}),
        ("run_id", 5),
    ],
)
def test_a_field_of_the_wrong_type_makes_a_record_unreadable(field: str, value: Any) -> None:
    record = json.loads(encode(HISTORY)) | {field: value}
    with pytest.raises(UnreadableRecord, match="/x cannot be read"):
        decode(TransactionRecord, "/x", json.dumps(record).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("end", {"outcome": "SKIPPED", "when": "10000-01-01T00:00:00+00:00"}),
        ("end", {"outcome": "SKIPPED", "when": "2026-01-01T00:00:00"}),
        ("began", "yesterday"),
        ("skip", {"who": "ada"}),
        ("size", {"rows": 10**400}),
        ("receipt", {"replays": [{"attempt": 1}]}),
    ],
)
def test_values_inside_a_field_are_checked_when_the_record_is_read(field: str, value: Any) -> None:
    record = json.loads(encode(HISTORY)) | {field: value}
    with pytest.raises(UnreadableRecord, match=f"/x cannot be read: its field {field} does not fit: "):
        decode(TransactionRecord, "/x", json.dumps(record).encode())
