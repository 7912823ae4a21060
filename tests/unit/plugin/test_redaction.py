"""What the board hides of a text, and what it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.models.connection import Connection
from airflow.utils.db import create_default_connections
from pydantic import TypeAdapter

from airflow_tx import compat
from airflow_tx.plugin.api import redaction
from airflow_tx.plugin.api.redaction import Redactor
from airflow_tx.plugin.api.run_answer import WhyCode, WhyNot


class Kept:
    """As a session that only keeps what is merged."""

    def __init__(self) -> None:
        self.connections: dict[str, Connection] = {}

    def scalar(self, query: Any) -> None:
        return None

    def add(self, connection: Connection) -> None:
        self.connections[str(connection.conn_id)] = connection

    def commit(self) -> None:
        pass


DEFAULTS = Kept()
create_default_connections(session=DEFAULTS)  # type: ignore[arg-type]
OWN = Connection(
    conn_id="own",
    conn_type="postgres",
    host="marked-host.example.org",
    login="someone",
    password="correct/horse",
    extra=json.dumps({"token": "marked-token", "sslmode": "verify-full"}),
)


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    def known() -> Iterator[Connection]:
        yield from DEFAULTS.connections.values()
        yield OWN

    monkeypatch.setattr(redaction, "_connections", known)


@pytest.mark.parametrize(
    "text",
    [
        "airflow tx replay flights 2",
        "Transaction 2 has failed: it broke. Its replay: airflow tx replay flights 2, or clear its failed task",
        "airflow tx repair flights --state-lost tx_state.flight_totals --why TEXT",
        "Transaction 3 waits for transaction 2.1 (run scheduled__2013-01-01T00:00:00+00:00, PROCESSED).",
        "Commit of transaction 2 refused: token 1/2.1#3 is outranked, the ledger holds 1/2.1#4.",
        "see https://airflow.apache.org/docs/ and s3://bucket/key, spark 4.2.0, postgres, mysql, redis and yarn",
        "flights@other_zookeeper/elsewhere",
    ],
)
def test_with_the_connections_that_airflow_makes_no_advice_is_hidden(text: str) -> None:
    assert len(DEFAULTS.connections) > 20
    assert Redactor().redacted(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:p@h/d", "postgresql://***@h/d"),
        ("redis://:pa/ss@w@rd@h:6379/0 is away", "redis://***@h:6379/0 is away"),
        ("host=db.example.org port=5432 user=ann password='a b'", "host=*** port=5432 user=*** password=***"),
        ('{"aws_secret_access_key": "abc/def", "x": 1}', '{"aws_secret_access_key": ***, "x": 1}'),
        (
            'FATAL: password authentication failed for user "someone"',
            "FATAL: password authentication failed for user ***",
        ),
        ("Access denied for user 'ann'@'10.1.2.3'", "Access denied for user ***@***"),
        (
            'connection to server at "db7" (10.1.2.3), port 5432 failed',
            "connection to server at *** (***), port 5432 failed",
        ),
        ("Authorization: Bearer abcdefgh.ijkl", "Authorization: Bearer ***"),
        ("marked-host.example.org:5432 is away", "***:5432 is away"),
        ("fe80:0:0:0:1:2:3:4 and 127.0.0.1 at 12:30:45", "*** and 127.0.0.1 at 12:30:45"),
    ],
)
def test_credentials_and_addresses_are_hidden_where_they_stand(text: str, shown: str) -> None:
    assert Redactor().redacted(text) == shown


@pytest.mark.parametrize("guess", ["correct/horse", "marked-token", "someone", "airflow", "verify-full"])
def test_a_text_does_not_tell_whether_a_guess_is_a_secret(guess: str) -> None:
    redactor = Redactor()
    for text in (guess, f"because of {guess}.", f"the file '{guess}'"):
        assert redactor.redacted(text) == text


def test_what_a_task_notes_of_its_failure_has_no_secret_that_airflow_gave_it() -> None:
    from airflow.sdk.log import mask_secret

    from airflow_tx.processing.failure import failure_reason
    from tests.unit.bench import FakeTi

    mask_secret("battery-staple")
    context: Any = {"ti": FakeTi("count", "r1"), "exception": ValueError("cannot log in with battery-staple")}
    assert failure_reason(context) == "task count: ValueError: cannot log in with ***"
    assert compat.masked("nothing to hide") == "nothing to hide"


def test_an_answer_is_redacted_when_it_is_sent_and_asks_no_database_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_redactor", Redactor())
    answer = WhyNot(code=WhyCode.SOURCE, sentence="marked-host.example.org:5432 is away")
    assert redaction._redactor._pattern is None
    assert TypeAdapter(WhyNot).dump_python(answer)["sentence"] == "***:5432 is away"
