"""What deltalake says of a table and its store: an error is final, unless it is on the list of what passes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from airflow_tx.base.errors import StateDiffers, StateError, StateOutcomeUnknown, StateUnavailable
from airflow_tx.state import DeltaTable
from airflow_tx.state.lake.delta import DeltaStore
from airflow_tx.testing.suites.state_tools import Grants
from tests.lake import staged

# Words of errors that pass, as a person may name a folder.
NAME = "Connection timed out"


@pytest.fixture
def table(tmp_path: Path, grants: Grants) -> DeltaTable:
    made = DeltaTable(tmp_path / NAME)
    grant = grants(1)
    made.raise_and_write(grant, rows(made, grants, 1))
    grants.final(grant, made)
    return made


@pytest.fixture
def grants() -> Grants:
    return Grants()


def rows(table: DeltaTable, grants: Grants, txid: int) -> list[dict[str, Any]]:
    return staged(table, grants(txid).attempt, pa.table({"n": [txid]}))


def log(table: DeltaTable) -> list[Path]:
    return sorted(Path(table.uri, "_delta_log").glob("*.json"))


def with_a_type_that_nobody_knows(table: DeltaTable) -> None:
    for path in log(table):
        path.write_text(path.read_text().replace('\\"long\\"', '\\"connection\\"'))


def without_its_first_commit(table: DeltaTable) -> None:
    log(table)[0].unlink()


def with_a_broken_checkpoint(table: DeltaTable) -> None:
    deltalake.DeltaTable(table.uri).create_checkpoint()
    for path in Path(table.uri, "_delta_log").glob("*.checkpoint.parquet"):
        path.write_bytes(b"no Parquet")


def with_a_file_for_its_log(table: DeltaTable) -> None:
    place = Path(table.uri, "_delta_log")
    place.rename(place.with_name("log"))
    place.write_text("")


DAMAGED = [
    with_a_type_that_nobody_knows,
    without_its_first_commit,
    with_a_broken_checkpoint,
    with_a_file_for_its_log,
]


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_table_causes_a_permanent_error(
    table: DeltaTable, grants: Grants, damage: Callable[[DeltaTable], None]
) -> None:
    damage(table)
    with pytest.raises(StateDiffers, match=f"deltalake refuses the table .*{NAME}: ") as refused:
        table.raise_fence(grants(2))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"no Parquet", None])
def test_a_query_of_a_damaged_file_causes_a_permanent_error(table: DeltaTable, content: bytes | None) -> None:
    for path in Path(table.uri).rglob("*.parquet"):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
    with pytest.raises(StateDiffers, match=f"deltalake refuses the table .*{NAME}: ") as refused:
        table.read()
    assert "\n" not in str(refused.value)


def test_a_commit_into_a_damaged_table_log_causes_a_permanent_error(
    table: DeltaTable, grants: Grants, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rows(table, grants, 2)
    publish = DeltaStore.publish

    def damaged(*args: Any, **named: Any) -> None:
        with_a_file_for_its_log(table)
        publish(*args, **named)

    monkeypatch.setattr(DeltaStore, "publish", damaged)
    with pytest.raises(StateDiffers, match="deltalake refuses the table .*Invalid table version"):
        table.raise_and_write(grants(2), given)


# --- stores ---------------------------------------------------------------------------------------------------------


def on(address: str) -> DeltaTable:
    login = {"aws_access_key_id": "of the test", "aws_secret_access_key": "of the test", "aws_region": "us-east-1"}
    server = {"aws_endpoint_url": address, "aws_allow_http": "true", "max_retries": "0", "timeout": "1s"}
    return DeltaTable(f"s3://lake/{NAME}", storage_options={**login, **server})


@pytest.fixture
def answering(request: pytest.FixtureRequest) -> Iterator[DeltaTable]:
    """A table on a server that answers each request with this status."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(request.param)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield on(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


@pytest.mark.parametrize("answering", [408, 429, 500, 502, 503, 504], indirect=True)
def test_a_busy_or_broken_object_store_causes_a_retryable_error(answering: DeltaTable, grants: Grants) -> None:
    with pytest.raises(StateUnavailable, match="cannot be reached"):
        answering.raise_fence(grants(1))


@pytest.mark.parametrize("answering", [301, 400, 405, 412, 422], indirect=True)
def test_any_other_error_response_of_an_object_store_causes_a_permanent_error(
    answering: DeltaTable, grants: Grants
) -> None:
    with pytest.raises(StateError, match="deltalake refuses the table s3://lake/") as refused:
        answering.raise_fence(grants(1))
    assert not isinstance(refused.value, StateUnavailable)


@pytest.mark.parametrize("listens", [False, True])
def test_an_unreachable_object_store_causes_a_retryable_error(grants: Grants, listens: bool) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        with pytest.raises(StateUnavailable, match="cannot be reached"):
            on(f"http://127.0.0.1:{server.getsockname()[1]}").raise_fence(grants(1))


def full(*args: Any, **named: Any) -> None:
    """Write to a disk that is full."""
    with open("/dev/full", "wb", buffering=0) as out:
        out.write(b"0")


def test_a_full_disk_during_the_commit_causes_a_retryable_error_with_an_unknown_outcome(
    table: DeltaTable, grants: Grants, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rows(table, grants, 2)
    monkeypatch.setattr(DeltaStore, "publish", full)
    with pytest.raises(StateOutcomeUnknown, match="No space left on device"):
        table.raise_and_write(grants(2), given)


def test_a_full_disk_before_the_commit_causes_a_retryable_error_with_a_known_outcome(
    table: DeltaTable, grants: Grants, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rows(table, grants, 2)
    monkeypatch.setattr(DeltaStore, "name_fence", full)
    with pytest.raises(StateUnavailable, match="No space left on device") as refused:
        table.raise_and_write(grants(2), given)
    assert not isinstance(refused.value, StateOutcomeUnknown)
