"""What the board hides of a text, and what it does not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from airflow.models.connection import Connection
from airflow.utils.db import create_default_connections
from pydantic import TypeAdapter

from airflow_tx.base import compat
from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.ledger.records import Counter, decode
from airflow_tx.plugin.api import redaction
from airflow_tx.plugin.api.app import make_app
from airflow_tx.plugin.api.redaction import Redactor
from airflow_tx.plugin.api.routes import WhyCode, WhyNot


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
def test_the_default_connections_of_airflow_do_not_hide_words_in_advice(text: str) -> None:
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
def test_credentials_and_addresses_in_a_text_are_hidden(text: str, shown: str) -> None:
    assert Redactor().redacted(text) == shown


def test_a_sentence_that_pages_repeat_is_redacted_once_even_if_connections_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[str] = []

    def hidden(found: re.Match[str]) -> str:
        searched.append(found[0])
        return "***"

    monkeypatch.setattr(redaction, "_ANYWHERE", ())
    monkeypatch.setattr(redaction, "_hidden_address", hidden)
    text = "10.1.2.3 is away, and own-host.example.org"
    assert Redactor().redacted(text) == "*** is away, and own-host.example.org"
    another = Connection(conn_id="too", conn_type="http", host="own-host.example.org")
    monkeypatch.setattr(redaction, "_connections", lambda: iter([another]))
    assert Redactor().redacted(text) == "*** is away, and ***"
    assert searched == ["10.1.2.3"]


@pytest.mark.parametrize("guess", ["correct/horse", "marked-token", "someone", "airflow", "verify-full"])
def test_the_redaction_does_not_reveal_whether_a_guessed_word_is_a_secret(guess: str) -> None:
    redactor = Redactor()
    for text in (guess, f"because of {guess}.", f"the file '{guess}'"):
        assert redactor.redacted(text) == text


def test_the_failure_reason_of_a_task_contains_no_secret_that_airflow_masks() -> None:
    from airflow.sdk.log import mask_secret

    from airflow_tx.transaction.processing.task import failure_reason

    mask_secret("battery-staple")
    context: Any = {"exception": ValueError("cannot log in with battery-staple")}
    assert failure_reason(context) == "ValueError: cannot log in with ***"
    assert compat.masked("nothing to hide") == "nothing to hide"


def test_an_answer_is_redacted_when_it_is_sent_and_causes_no_earlier_database_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redaction, "_redactor", Redactor())
    answer = WhyNot(code=WhyCode.SOURCE, sentence="marked-host.example.org:5432 is away")
    assert redaction._redactor._pattern is None
    assert TypeAdapter(WhyNot).dump_python(answer)["sentence"] == "***:5432 is away"


STAYS = (
    "hive/user_id=17/day=1/2026-05-01.csv", "hive/host=web-01/day=1/x.csv", "events/token=abc/day=2/x.csv",
    "events/server=eu/x.csv", "login=2026/a.csv", "uid=5/x.parquet", "s3://bucket/user=ann/2026.csv",
    "logs/10.20.30.40/2026.csv", "version 1.2.3.4 of the file", "00:1b:63:84:45:e6 device",
    'transaction 3: the user "ann" asked', "no column named host: it was renamed",
    "column user: expected int, got str", "server: 17 rows", 'user "count_products" is a task',
    "password: must not be empty", "KeyError: 'token' in row {'token': 'abc', 'n': 1}",
    "schema {user: string, host: string}", "the topic redis:1 has ended",
    "2026-05-01T00:00:00+00:00 to 2026-05-02", "offsets 0:17 to 0:20, partition 3", "file orders@2026.csv",
    "https://data.example.org/a@b.csv", "airflow tx replay user_orders 3", 'a task of role "reader" failed',
    "fe80::1 is no file", "C:1:2:3:4:5",
)  # fmt: skip


@pytest.mark.parametrize("text", STAYS)
def test_a_text_without_credentials_and_addresses_is_shown_unchanged(text: str) -> None:
    assert Redactor().redacted(text) == text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("PGPASSWORD=hunter2 psql", "hunter2"), ("--password hunter3", "hunter3"), ("{'pwd': 'hunter5'}", "hunter5"),
        ("AKIAIOSFODNN7EXAMPLE wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalr"),
        ("password is hunter6", "hunter6"), ("jdbc:oracle:thin:scott/tiger@//db:1521/x", "tiger"),
        ("https://b.s3.amazonaws.com/k?X-Amz-Signature=abcdef01&X-Amz-Credential=AKIA", "abcdef01"),
        ("https://acc.blob.core.windows.net/c?sv=2020&sig=abcd%3D", "abcd"),
        ("mongodb+srv://a:b%40c@cluster0.mongodb.net", "b%40c"), ('"password" => "hunter8"', "hunter8"),
        ("password=\"hun'ter 9\"", "ter 9"), ("password='a\\'b c'", "b c"), ("pw hunter9", "hunter9"),
        ("passwd: hunter10", "hunter10"), ("secret: hunter11", "hunter11"), ("client_secret=hunter12", "hunter12"),
        ("private_key: -----BEGIN RSA PRIVATE KEY-----\nMIIE...\n-----END", "MIIE"),
        ("mysql -uroot -phunter13", "hunter13"), ("redis://:hunter14@redis:6379", "hunter14"),
        ("snowflake://user:pw@acct/db?warehouse=w", "user:pw"), ("token tok_12345678", "tok_"),
        ("api_key hunter15", "hunter15"), ("PASSWORD = hunter16", "hunter16"),
        ("Password for svc_orders: hunter17", "hunter17"), ("MARKED-HOST.EXAMPLE.ORG refused", "MARKED"),
        ("jdbc:postgresql://db2.x.org/x?user=a&password=b%20c d", "b%20c"),
        ("AccountKey=abc+/==;EndpointSuffix=core", "abc+"), ("2001:db8::8a2e:370:7334 refused", "8a2e"),
        ("login failed for 'sa'", "sa'"), ("ORA-01017: logon denied scott/tiger", "tiger"),
        ("[::1]:5432 10.0.0.7:5432", "10.0.0.7"), ("broker kafka-1.corp.local:9092 is down", "kafka-1"),
        ("POST https://hooks.corp.example/services/T0/SECRETPATH failed 404", "SECRETPATH"),
    ],
)  # fmt: skip
def test_a_secret_is_hidden_wherever_it_appears_in_an_answer(
    monkeypatch: pytest.MonkeyPatch, text: str, secret: str
) -> None:
    hook = Connection(conn_id="w", conn_type="http", host="https://hooks.corp.example/services/T0/SECRETPATH")
    kafka = Connection(conn_id="k", conn_type="kafka", extra='{"bootstrap.servers": "kafka-1.corp.local:9092"}')
    monkeypatch.setattr(redaction, "_connections", lambda: iter([OWN, hook, kafka]))
    shown = Redactor().redacted(text)
    assert secret in text
    assert secret not in shown
    assert redaction.HIDDEN in shown


@pytest.mark.parametrize("text", [*STAYS, "PASSWORD=x.csv", "marked-host.example.org/2026.csv"])
def test_the_name_of_a_batch_is_not_redacted_like_an_error_text(text: str) -> None:
    assert TypeAdapter(redaction.BatchName).dump_python(text) == text


def test_the_rows_of_a_batch_are_shown_without_credentials_in_their_addresses() -> None:
    rows = {"files": [{"name": "s3://AKIA:sec/ret@bucket/k.csv", "size": 7}], "https://u:p@h/x?sig=abc": None}
    shown = TypeAdapter(redaction.ShownRows).dump_python(rows)
    assert shown == {"files": [{"name": "s3://***@bucket/k.csv", "size": 7}], "https://***@h/x?sig=***": None}


@pytest.mark.parametrize("hide", [redaction.redacted, redaction.without_credentials])
def test_an_unpaired_surrogate_is_shown_as_its_escape_sequence(hide: Callable[[str], str]) -> None:
    assert hide("gr\udcf6sse") == "gr\\udcf6sse"


def test_the_redaction_leaves_enums_and_numbers_of_an_answer_unchanged() -> None:
    answer = WhyNot(code=WhyCode.FAILED, sentence="gr\udcf6sse")
    made: list[Any] = redaction.fit([answer, 1, None, {"a\ud83d": ("b\ud83d",)}])
    assert made == [replace(answer, sentence="gr\\udcf6sse"), 1, None, {"a\\ud83d": ("b\\ud83d",)}]
    assert made[0].code is WhyCode.FAILED


def test_the_answer_about_an_unreadable_record_shows_no_value_of_the_record() -> None:
    with pytest.raises(UnreadableRecord, match="a private word") as refused:
        decode(Counter, "/x", b'{"format":1,"txid":"a private word"}')
    handler = make_app().exception_handlers[UnreadableRecord]
    answer = handler(None, refused.value)  # type: ignore[arg-type]
    assert answer.status_code == 503  # type: ignore[union-attr]
    assert b"its field txid does not fit" in answer.body  # type: ignore[union-attr]
    assert b"private" not in answer.body  # type: ignore[union-attr]
