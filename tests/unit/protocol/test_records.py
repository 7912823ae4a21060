"""How records are written, how they are called, and what is random in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import inspect, structs

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.api import Paths, SystemClock, SystemIds, ack_element, ack_name, decode_name, encode_name
from airflow_tx.ledger.attempt import Grant, Token, TransactionAttempt
from airflow_tx.ledger.batch import Batch, Outside
from airflow_tx.ledger.json_text import Record, digest, dumps, read_as, replace
from airflow_tx.ledger.receipt import Deed, DeedOfAttempt, Replaced
from airflow_tx.ledger.records import (
    Binding,
    Counter,
    Phase,
    Restating,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    Wish,
    decode,
    encode,
)
from airflow_tx.ledger.steps.replay import BeginPass
from airflow_tx.ledger.views.status import view_unreadable
from tests.finals import final_record

WHEN = "2013-01-01T00:00:00+00:00"
DEED = Deed("ada", WHEN, "why")
AGAIN = DeedOfAttempt("ada", WHEN, "why", 1)


def test_equal_values_have_equal_text_and_an_equal_digest() -> None:
    assert dumps({"b": [1, {"d": 1, "c": 2}], "a": None}) == '{"a":null,"b":[1,{"c":2,"d":1}]}'
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})
    assert digest(None) == hashlib.sha256(b"null").hexdigest()[:32]


def test_a_record_is_unchanged_after_it_is_written_and_read() -> None:
    record = TransactionRecord(
        txid=1,
        key="k",
        run_id="r",
        request="t",
        attempt=1,
        epoch=1,
        op="o",
        phase=Phase.COMMITTING,
        base="b",
        ended="e",
        rows_digest="d",
        tasks={"p": "1"},
        created=WHEN,
        began=WHEN,
        changed=[AGAIN],
    )
    assert decode(TransactionRecord, "/x", encode(record)) == record
    assert record.to_change == AGAIN


RECORD = TransactionRecord(
    txid=1,
    key="k",
    run_id="r",
    request="t",
    attempt=1,
    epoch=1,
    op="o",
    phase=Phase.PROCESSING,
    base="b",
    ended="e",
    rows_digest="d",
    tasks={},
    created=WHEN,
    began=WHEN,
)
HISTORY = final_record(
    txid=7,
    began=WHEN,
    ended=WHEN,
    rows=1,
)


@pytest.mark.parametrize(
    "record",
    [
        Binding(7),
        RECORD,
        HISTORY,
        Skipped("k", "r", [], DEED, "o"),
        TopologyRecord("i", "dag", "opaque", 4),
    ],
)
def test_records_of_other_transactions_contain_no_fields_of_restatements(record: Any) -> None:
    words = ("entry", "journal", "renamed", "replaces", "restates", "restating")
    assert not any(f'"{word}"' in encode(record).decode() for word in words)
    assert decode(type(record), "/x", encode(record)) == record


@pytest.mark.parametrize(
    "record",
    [
        Binding(7, "2013-01-01/7-ab", Restating(9, "b")),
        replace(RECORD, journal="2013-01-01/9-cd", replaces=Replaced(7, "2013-01-01/7-ab")),
        replace(HISTORY, replaces=Replaced(7, "2013-01-01/7-ab")),
        Skipped("k", "r", None, DEED, "o", replaces=7),
        TopologyRecord("i", "dag", "opaque", 4, renamed={"s": "t"}),
        Wish(7, "k", "r", "ada", WHEN, "a bug", "o", changed_rows=True),
    ],
)
def test_the_restatement_fields_of_a_record_are_unchanged_after_it_is_written_and_read(record: Any) -> None:
    assert decode(type(record), "/x", encode(record)) == record


def test_the_record_of_a_topology_in_utc_contains_no_time_zone() -> None:
    assert b"zone" not in encode(TopologyRecord("i", "dag", "opaque", 4))
    zoned = TopologyRecord("i", "dag", "opaque", 4, zone="Europe/Berlin")
    assert decode(TopologyRecord, "/x", encode(zoned)) == zoned


def test_the_text_of_a_restatement_names_the_transaction_that_it_replaces() -> None:
    text = encode(replace(RECORD, replaces=Replaced(7, "e"))).decode()
    assert '"replaces":{"entry":"e","txid":7}' in text


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a record"),
        (b"[]", "not a record"),
        (b"7", "not a record"),
        (b"{}", "not a record"),
        (b'{"format":2,"txid":1}', "it has format 2, this version reads format 1"),
        (b'{"format":1,"txid":1,"new":1}', r"it is no Counter: Object contains unknown field `new` \(.*\)"),
    ],
)
def test_data_that_is_not_a_record_of_the_class_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableRecord, match=f"/x.*{reason}"):
        decode(Counter, "/x", data)
    with pytest.raises(UnreadableRecord, match='/x cannot be read: its field end does not fit: .*"LOST"'):
        decode(TransactionRecord, "/x", b'{"format":1,"end":{"outcome":"LOST","when":""}}')


# --- what is stored has the types of its fields ------------------------------------------------------------------


def classes(of: type[Record] = Record) -> Iterator[type[Record]]:
    """All records, and all values within records."""
    for each in of.__subclasses__():
        yield each
        yield from classes(each)


CLASSES = list(classes())
TYPED = [
    pytest.param(cls, each.encode_name, id=f"{cls.__name__}.{each.name}")
    for cls in CLASSES
    for each in structs.fields(cls)
    if each.type is not Any
]
SAMPLES: dict[type[inspect.Type], Any] = {
    inspect.StrType: "x",
    inspect.IntType: 1,
    inspect.BoolType: True,
    inspect.ListType: [],
    inspect.DictType: {},
    inspect.AnyType: None,
    inspect.UnionType: None,
    inspect.CustomType: WHEN,
}


def stored(kind: Any) -> Any:
    """The least that a record of this type may say."""
    if isinstance(kind, inspect.StructType):
        return {each.encode_name: stored(each.type) for each in kind.fields if each.required}
    return next(iter(kind.cls)).value if isinstance(kind, inspect.EnumType) else SAMPLES[type(kind)]


def refusal(cls: type[Record], value: dict[str, Any]) -> str:
    with pytest.raises(UnreadableRecord) as refused:
        read_as(cls, value, "/x")
    (line,) = str(refused.value).splitlines()
    return line


@pytest.mark.parametrize("cls", CLASSES)
def test_a_record_with_only_its_required_fields_can_be_read(cls: type[Record]) -> None:
    read_as(cls, stored(inspect.type_info(cls)), "/x")


@pytest.mark.parametrize(("cls", "name"), TYPED)
def test_the_error_for_a_field_of_another_type_shows_its_path_and_its_name_and_its_value(
    cls: type[Record], name: str
) -> None:
    line = refusal(cls, stored(inspect.type_info(cls)) | {name: 1.5})
    assert line.startswith(f"Record /x cannot be read: its field {name} does not fit: ")
    assert f"({name} = 1.5)" in line


@pytest.mark.parametrize("when", [None, 0, [], "yesterday", "2026-01-01T00:00:00"])
def test_an_invalid_time_in_a_record_is_refused(when: Any) -> None:
    line = refusal(Deed, {"who": "ada", "when": when, "why": "so"})
    assert f"(when = {dumps(when)})" in line


@pytest.mark.parametrize("cls", CLASSES)
def test_the_error_for_an_unknown_field_shows_its_path_and_its_name(cls: type[Record]) -> None:
    line = refusal(cls, stored(inspect.type_info(cls)) | {"a_later_field": 1})
    assert line.startswith(f"Record /x cannot be read: it is no {cls.__name__}: ")
    assert "`a_later_field`" in line


def test_the_error_for_a_nested_value_that_lacks_a_field_names_the_outer_field() -> None:
    skip = {"who": "ada", "when": WHEN}
    data = json.dumps(json.loads(encode(RECORD)) | {"skip": skip}).encode()
    with pytest.raises(UnreadableRecord) as refused:
        decode(TransactionRecord, "/x", data)
    assert str(refused.value).startswith("Record /x cannot be read: its field skip does not fit: ")
    assert f"`why` (skip = {dumps(skip)})" in str(refused.value)


@pytest.mark.parametrize(("name", "why"), [("skip", "Expected `object"), ("began", "it is not a time")])
def test_the_view_of_an_unreadable_record_shows_no_value_of_the_record(name: str, why: str) -> None:
    data = json.dumps(json.loads(encode(RECORD)) | {name: "a private word"}).encode()
    with pytest.raises(UnreadableRecord, match="a private word") as refused:
        decode(TransactionRecord, "/x", data)
    shown = view_unreadable(1, refused.value).document.error
    assert shown is not None
    assert shown.startswith(f"Record /x cannot be read: its field {name} does not fit: {why}")
    assert "private" not in shown


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "a b", "a/b", ".", "..", "ä.%", ""])
def test_any_name_can_be_encoded_as_one_element_of_a_path(name: str) -> None:
    element = encode_name(name)
    assert decode_name(element) == name
    assert "/" not in element
    assert element not in ("", ".", "..")
    assert ack_element(ack_name(name, 7)) == (name, 7)


def test_every_record_has_its_own_path_and_every_folder_is_listed_after_its_parent() -> None:
    paths = Paths("/tx/", "a/b")
    assert paths.base == "/tx/a%2Fb"
    assert paths.acks("7.1-x") == "/tx/a%2Fb/coordinator/acks/7.1-x"
    assert paths.owner("n") == "/tx/a%2Fb/coordinator/owner-n"
    assert len({*paths.folders}) == 8
    parents = [path.rpartition("/")[0] for path in paths.folders]
    assert all(parent in paths.folders[:place] for place, parent in enumerate(parents) if place)


def test_random_ids_have_the_documented_length(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = SystemIds()
    assert len(ids.nonce()) == 32
    found = {ids.message_id() for _ in range(100)}
    assert len(found) == 100
    assert max(found) < 2**64
    monkeypatch.setattr("os.urandom", lambda count: bytes(count))
    assert ids.message_id() == 1
    assert SystemClock().now().tzinfo is not None


def test_a_token_and_its_grant_are_unchanged_after_they_are_stored_as_json() -> None:
    token = Token(2, 7, 3, 4, "n", "b")
    assert Token.from_json(token.to_json()) == token
    assert Token.from_json({"generation": 2, "txid": 7, "attempt": 3, "epoch": 4, "nonce": "n"}).birth == ""
    grant = Grant("t", "i", token, {})
    assert (grant.txid, grant.attempt, grant.attempt.birth) == (7, TransactionAttempt(7, 3), "b")


def test_the_payload_for_the_tasks_of_a_run_is_unchanged_after_it_is_stored_as_json() -> None:
    begun = Begun(TransactionAttempt(7, 2, "b"), [0, 1], 1, "d", True)
    read: Any = Begun.from_json(begun.to_json())
    assert (read, read.attempt.birth, read.txid) == (begun, "b", 7)
    assert "replaces" not in begun.to_json()


def test_the_payload_for_the_tasks_of_a_restatement_names_the_replaced_transaction() -> None:
    begun = Begun(TransactionAttempt(9, 1, "b"), [0], 1, "d", False, replaces=Replaced(7, "2013-01-01/7-ab"))
    assert Begun.from_json(json.loads(json.dumps(begun.to_json()))) == begun


@dataclass(frozen=True)
class Remembering:
    """A reader that keeps what it is asked about."""

    about: list[object]

    def ask(self, kind: str, about: object, call: object) -> None:
        self.about.append(about)


def test_a_query_to_the_source_is_identified_by_its_arguments_and_not_by_its_attempt() -> None:
    read: Any = Remembering([])
    nothing: Any = None
    outside = Outside(nothing, nothing)
    begins = BeginPass(read, nothing, nothing, nothing, nothing, outside)
    for attempt in (TransactionAttempt(7, 1), TransactionAttempt(7, 2)):
        for rows in (3, 4):
            begins.next_batch(attempt, rows)
            begins.current_batch(attempt, rows)
    assert read.about[:4] == read.about[4:]
    assert len({*read.about}) == 4


def test_a_batch_without_a_count_has_no_size() -> None:
    assert Batch(None, None).size is None
    assert Batch(None, None, count=0, reason="why", unit="files").size == {"files": 0, "why": "why"}
    assert Batch(None, None, count=3, at_most=True).size == {"rows": 3, "why": "", "at_most": True}
