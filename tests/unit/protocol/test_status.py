"""What is said of one transaction: in what state it is, and what has to happen next."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.ledger.reading import LedgerReading
from airflow_tx.ledger.receipt import Deed, DeedOfAttempt, Outcome
from airflow_tx.ledger.records import (
    Ack,
    BatchRows,
    BlockMark,
    Phase,
    ReplayNote,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    Yield,
)
from airflow_tx.ledger.views.status import (
    PersonOfAttempt,
    TransactionView,
    deed,
    forgotten,
    moment,
    person,
    size_in_words,
    view_final,
    view_open,
    with_run_end,
)
from tests.finals import final_record

SKIP = Deed("ada", "2013-01-02", "broken")
AGAIN = DeedOfAttempt("ada", "2013-01-02", "broken", 1)
CHANGED = PersonOfAttempt(attempt=1, **deed(SKIP))
TO_ITS_COMMITTER = "its committer"


def record(txid: int = 2, **changes: Any) -> TransactionRecord:
    fields: dict[str, Any] = {
        "phase": Phase.PROCESSING, "base": "", "ended": "", "rows_digest": "", "tasks": {"count": "0"},
        "created": "", "began": "2013-01-01",
    }  # fmt: skip
    own: dict[str, Any] = {
        "txid": txid,
        "key": "key",
        "run_id": f"r{txid}",
        "request": "try",
        "attempt": 1,
        "epoch": 1,
        "op": "op",
    }
    return TransactionRecord(**{**own, **fields, **changes})


def view(
    own: TransactionRecord,
    acks: dict[tuple[str, int], Ack] | None = None,
    *,
    current: int = 1,
    earlier: bool = True,
    **topology: Any,
) -> TransactionView:
    """Transaction 2 as it is shown; transaction 1 is processing."""
    opened = {1: record(1), 2: own} if earlier else {2: own}
    made = TopologyRecord("life", "dag", "opaque", 8, **topology)
    ledger = LedgerReading(topology=made, current=current, allocated=2, opened=opened, base="")
    return view_open("flights", 2, ledger, acks or {})


def acked(**fields: Any) -> Ack:
    return Ack("try", "op", done=True, **fields)


FIRST = "transaction 1.1 (run r1, PROCESSING)"
YIELDED = {"r2": Yield(1, 2, "")}
COMMIT_FAILED = "its committer, which has failed: airflow tx replay flights 2, or clear its failed task"
GAVE_ITS_SLOT = "the run of transaction 1, to which it gave its run slot; then it is started again"
TO_A_PERSON = (
    "a person: it is replayed no more (it broke): airflow tx replay flights 2, or airflow tx skip flights 2 --why TEXT"
)
BLOCKED = BlockMark(2, 1, "it broke", "2013-01-02")


@pytest.mark.parametrize(
    ("changes", "line", "text"),
    [
        ({}, {}, "an ack of count"),
        ({"phase": Phase.PROCESSED}, {}, FIRST),
        ({"phase": Phase.PROCESSED}, {"earlier": False}, TO_ITS_COMMITTER),
        ({"phase": Phase.PROCESSED}, {"current": 2}, TO_ITS_COMMITTER),
        ({"phase": Phase.COMMITTING}, {"current": 2}, TO_ITS_COMMITTER),
        ({"phase": Phase.COMMITTING, "error": "no"}, {"current": 2}, COMMIT_FAILED),
        ({"phase": Phase.FAILED}, {}, "a replay: airflow tx replay flights 2, or clear its failed task"),
        ({"skip": SKIP}, {}, f"{FIRST}, then it is skipped"),
        ({"skip": SKIP}, {"current": 2}, "its skip"),
        ({"skip": SKIP}, {"earlier": False}, "its skip"),
        ({"skip": SKIP, "yielded": 1}, {"yielded": YIELDED}, f"{FIRST}, then it is skipped"),
        ({"yielded": 1}, {"yielded": YIELDED}, GAVE_ITS_SLOT),
        ({}, {"blocked": BLOCKED}, TO_A_PERSON),
        ({"skip": SKIP}, {"blocked": BLOCKED}, f"{FIRST}, then it is skipped"),
        ({"attempt": 2}, {"blocked": BLOCKED}, "an ack of count"),
        (
            {"base": "another"},
            {},
            "a replay, since its batch does not start where transaction 1 ended: airflow tx replay flights 2",
        ),
    ],
)
def test_an_open_transaction_shows_the_step_that_it_waits_for(changes: Any, line: Any, text: str) -> None:
    assert view(record(**changes), **line).waiting_for == text


REPLAYED = "a replay, since its run r2 {}: airflow tx replay flights 2{}"
CLEARED = ", or clear the run"


@pytest.mark.parametrize(
    ("changes", "state", "text"),
    [
        ({}, "failed", REPLAYED.format("ended as failed", CLEARED)),
        ({"phase": Phase.PROCESSED}, "success", REPLAYED.format("ended as success", CLEARED)),
        ({}, None, REPLAYED.format("was deleted", "")),
        ({"phase": Phase.FAILED}, "failed", "a replay: airflow tx replay flights 2, or clear its failed task"),
        ({"phase": Phase.FAILED}, None, REPLAYED.format("was deleted", "")),
    ],
)
def test_a_transaction_whose_run_has_ended_has_failed_and_waits_for_a_replay(
    changes: Any, state: str | None, text: str
) -> None:
    shown = with_run_end("flights", view(record(**changes)), state)
    assert (shown.failed, shown.waiting_for) == (True, text)


def test_a_transaction_whose_run_is_about_to_start_is_not_shown_as_failed() -> None:
    coming = view(record(request=""))
    assert with_run_end("flights", coming, None) == coming


def test_the_id_of_the_first_open_transaction_is_empty_if_no_transaction_is_open() -> None:
    topology = TopologyRecord("life", "dag", "opaque", 8)
    assert LedgerReading(topology=topology, opened={1: record(1)}).first == FIRST
    assert LedgerReading(topology=topology).first == ""


def test_a_fully_acked_transaction_waits_for_its_committer_or_for_messages() -> None:
    assert view(record(), {("count", -1): acked()}).waiting_for == TO_ITS_COMMITTER
    waiting = view(record(), {("count", -1): acked(trees=2), ("audit", -1): acked(trees=1)}).waiting_for
    assert waiting == "acks of its messages (3 trees), and its committer"


def test_a_mapped_task_counts_as_acked_if_all_its_instances_have_acked() -> None:
    started, done = Ack("try", "op"), acked()
    assert view(record(), {("count", 0): done}).waiting_for == TO_ITS_COMMITTER
    assert view(record(), {("count", 0): done, ("count", 1): done}).waiting_for == TO_ITS_COMMITTER
    assert view(record(), {("count", 0): done, ("count", 1): started}).waiting_for == "an ack of count[1]"
    assert view(record(), {("count", -1): started}).waiting_for == "an ack of count"


def test_the_view_of_an_open_transaction_shows_every_field_of_its_record() -> None:
    told: dict[str, Any] = {
        "size": {"rows": 5, "why": ""}, "lost": ["row 7"], "changed": [AGAIN], "pinned": True,
        "failures": 3, "error": "no", "processed": "2013-01-01", "replay": ReplayNote(1, 1, "2013-01-02", "it failed"),
    }  # fmt: skip
    counted = BatchRows(5, {"python": "python:02", "xxh64-1": "xxh64-1:01"})
    shown = view(record(counted=counted, **told), {("count", -1): acked(rows=3), ("audit", -1): acked(rows=5)})
    assert {name: getattr(shown.document, name) for name in told} == told
    assert (shown.changed, shown.processed) == ((CHANGED,), moment(told["processed"]))
    assert (shown.rows, shown.document.digest) == (5, "python:02 xxh64-1:01")
    assert (view(record()).rows, view(record()).document.digest) == (None, "")


@pytest.mark.parametrize(("phase", "granted"), [(Phase.COMMITTING, "2013-01-03"), (Phase.PROCESSING, None)])
def test_the_time_of_the_grant_is_shown_while_the_transaction_has_the_turn(phase: Phase, granted: str | None) -> None:
    assert view(record(phase=phase, granted_at="2013-01-03")).granted == moment(granted)


def test_a_yielded_transaction_shows_to_which_turn_it_yielded_until_its_run_is_started_again() -> None:
    assert view(record(yielded=1), yielded=YIELDED).document.yielded == 1
    assert view(record(yielded=1)).document.yielded is None


TIMES = {"began": "2013-01-01", "processed": "2013-01-02", "granted_at": "2013-01-03", "ended": "2013-01-04"}


def history(**changes: Any) -> TransactionRecord:
    fields: dict[str, Any] = {**TIMES, "rows": 5}
    return final_record(
        txid=2,
        attempt=3,
        run_id="r2",
        **{**fields, "op": "op", **changes},
    )


def test_the_view_of_a_final_transaction_shows_every_field_of_its_history_record() -> None:
    told: dict[str, Any] = {
        "size": {"rows": 5, "why": ""}, "lost": ["row 7"], "changed": [AGAIN], "failures": 1,
        "skip": SKIP, "digest": "python:02", "readmitted_as": 9,
    }  # fmt: skip
    shown = view_final(history(**told), None)
    own = shown.document
    assert (own.size, own.lost, own.failures, own.digest) == (told["size"], ["row 7"], 1, "python:02")
    assert (shown.changed, shown.skip, shown.readmitted_as) == ((CHANGED,), person(SKIP), 9)
    assert (shown.txid, shown.document.attempt, shown.status, shown.document.run_id) == (2, 3, "COMMITTED", "r2")
    assert [shown.began, shown.processed, shown.granted, shown.ended] == [moment(each) for each in TIMES.values()]
    assert (shown.waiting_for, shown.open, shown.readmit, shown.document.error) == (None, False, None, None)


@pytest.mark.parametrize(
    ("readmit", "again", "outcome", "waits"),
    [
        (None, None, Outcome.SKIPPED, False),
        (SKIP, None, Outcome.SKIPPED, True),
        (SKIP, 9, Outcome.READMITTED, False),
    ],
)
def test_the_skip_of_a_transaction_beyond_the_history_is_still_shown(
    readmit: Any, again: int | None, outcome: Outcome, waits: bool
) -> None:
    skipped = Skipped("key", "r2", [0, 5], SKIP, "op", readmit, again)
    found = forgotten(2, skipped)
    assert (found.final.outcome, found.final.when, found.attempt) == (outcome, "2013-01-02", 0)
    shown = view_final(found, skipped)
    assert (shown.waiting_for is not None, shown.readmit, shown.readmitted_as) == (waits, person(readmit), again)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ({"rows": 5, "why": ""}, "5 rows"),
        ({"rows": 5, "why": "batch_size"}, "5 rows (batch_size)"),
        ({"rows": 5, "files": 2}, "5 rows, 2 files"),
        ({"rows": 5, "at_most": True, "why": "offsets"}, "at most 5 rows (offsets)"),
        ({"rows": 5, "at_most": False}, "5 rows"),
    ],
)
def test_the_size_of_a_batch_is_shown_in_words(size: Any, text: str) -> None:
    assert size_in_words(size) == text
