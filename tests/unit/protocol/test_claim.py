"""What a grant writes down of its transaction for the receipt, and what the end adds."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.ledger.answers import Granted, Processed
from airflow_tx.ledger.api import Put
from airflow_tx.ledger.attempt import Grant
from airflow_tx.ledger.json_text import is_shortened, replace
from airflow_tx.ledger.receipt import (
    METADATA_KEPT,
    NOTHING_WRITTEN,
    REPLAYS_KEPT,
    Code,
    Deed,
    DeedOfAttempt,
    Receipt,
    Replayed,
    TaskRows,
    Written,
)
from airflow_tx.ledger.records import Ack, BatchRows, ReplayNote, TransactionRecord, encode
from airflow_tx.ledger.steps import commit
from airflow_tx.ledger.steps.commit import AcquireRequest
from tests.finals import plain_receipt
from tests.model.driver import Run, Topology

NOW = "2013-01-01T00:00:00.000+00:00"
ONE_ROW = Written(1, "0" * 16)
CLAIM = plain_receipt(txid=2)
REPLAYED = ReplayNote(1, 1, NOW, "its run failed")


def noted(topology: Topology, txid: int, **fields: Any) -> TransactionRecord:
    """Write more into the record of a transaction."""
    record = topology.record(txid)
    assert record is not None
    made = replace(record, **fields)
    topology.store().multi([], [Put(topology.paths.transaction(txid), encode(made))])
    return made


def receipt(topology: Topology, txid: int) -> Receipt:
    history = topology.history(txid)
    assert history is not None
    return Receipt.from_json(history.receipt)


@pytest.fixture
def second(topology: Topology) -> Run:
    """Transaction 1 is committed, and all of transaction 2 has acked."""
    Run(topology, "r1").whole(2)
    made = Run(topology, "r2", key="day 2")
    made.processed(3, {"a": 1})
    return made


def granted(run: Run, **known: Any) -> Grant:
    """The grant of a committer that knows more than that of the driver."""
    committer = run.committer()
    committer.processed()
    assert isinstance(committer.done, Processed)
    own = run.begun
    assert own is not None
    batch = {"metadata": own.metadata, "position": own.position, **known}
    request = AcquireRequest(own.attempt, committer.done.epoch, own.rows_digest, **batch)
    answer = run.topology.ledger().run(commit.acquire, request)
    assert isinstance(answer, Granted)
    return answer.grant


def test_a_receipt_identifies_its_transaction_and_lists_the_rows_that_were_processed(
    topology: Topology, second: Run
) -> None:
    told: dict[str, Any] = {"lost": ["row 1"], "changed": [DeedOfAttempt("ada", NOW, "bad rows", 0)]}
    second.committer().processed()
    record = noted(topology, 2, counted=BatchRows(3, {"python": "python:1"}), **told)
    grant = granted(second, rows=3, tasks={"p": TaskRows(1, None, {})}, code=Code("v1"))
    topology.ledger().run(commit.commit, grant.token, states=["s"], written={"s": Written(2, "f" * 16)})
    own, life = receipt(topology, 2), topology.topology
    expected = Receipt(
        topology="trace", incarnation=life.incarnation, generation=1, txid=2, attempt=1, epoch=grant.token.epoch,
        nonce=grant.token.nonce, birth=record.birth, outcome="COMMITTED", key="day 2", run_id="r2", granted=NOW,
        metadata=[2, 5], before=2, after=5, previous=receipt(topology, 1).hash, rows=3, digest="python:1",
        tasks={"p": TaskRows(1, None, {})},
        code=Code("v1"), replays=[], skip=None, written={"s": Written(2, "f" * 16)},
        size=record.size or {}, unproven=[], **told,
    )  # fmt: skip
    assert own == expected.hashed()
    assert life.receipt == own.hash


def test_a_state_adds_the_rows_that_it_has_written_to_the_receipt_of_its_grant(topology: Topology, second: Run) -> None:
    grant = granted(second)
    kept = replace(grant, written=Written(1, f"{3:016x}")).receipt("s", Written(2, f"{4:016x}"))
    topology.ledger().run(commit.commit, grant.token, states=["s"], written={"s": Written(3, f"{7:016x}")})
    assert kept.hashed() == receipt(topology, 2)


def test_a_receipt_names_a_state_without_written_rows(topology: Topology, second: Run) -> None:
    topology.ledger().run(commit.commit, granted(second).token, states=["s", "t"], written={"t": ONE_ROW})
    assert receipt(topology, 2).written == {"s": NOTHING_WRITTEN, "t": ONE_ROW}
    third = Run(topology, "r3")
    third.processed(1, {})
    topology.ledger().run(commit.commit, granted(third).token, states=["s"])
    assert receipt(topology, 3).written == {"s": NOTHING_WRITTEN}


def test_a_receipt_contains_only_digests_of_long_rows_and_long_positions(topology: Topology, second: Run) -> None:
    long = list(range(METADATA_KEPT))
    grant = granted(second, metadata=long, position=long)
    claim = Receipt.from_json(topology.record(2).receipt)  # type: ignore[union-attr]
    assert is_shortened(claim.metadata)
    assert is_shortened(claim.after)
    assert grant.token.txid == 2


def test_a_skip_has_a_receipt(topology: Topology, second: Run) -> None:
    topology.skip(2)
    own = receipt(topology, 2)
    assert (own.outcome, own.rows, own.tasks, own.previous) == ("SKIPPED", None, {}, receipt(topology, 1).hash)
    assert own.skip == Deed("ada", NOW, "rows that break the job")
    assert (own.metadata, own.before, own.after) == ([2, 5], 2, 5)


# --- why it was replayed


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "its run was cleared"),
        ({"error": "of memory"}, "of memory"),
        ({"replay": REPLAYED}, "its run failed"),
        ({"replay": replace(REPLAYED, attempt=0)}, "its run was cleared"),
        ({"replay": REPLAYED, "error": "of memory"}, "of memory"),
        ({"error": f"it broke {'x' * 300} mend it"}, f"it broke {'x' * 300} mend it"),
        ({"error": f"it broke {'x' * 3000} mend it"}, "it broke ... mend it"),
    ],
)
def test_each_attempt_records_the_reason_why_the_previous_attempt_was_replayed(
    topology: Topology, second: Run, fields: dict[str, Any], why: str
) -> None:
    granted(second)
    noted(topology, 2, **fields)
    topology.clock.advance(60)
    second.begin(3)
    record = topology.record(2)
    assert record is not None
    assert record.replays == [Replayed(1, "2013-01-01T00:01:00.000+00:00", why)]
    assert record.receipt is None
    second.process({})
    second.commit()
    assert receipt(topology, 2).replays == record.replays


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"size": None}, {}),
        ({"size": {"rows": 7, "why": "all"}}, {"rows": 7}),
        ({"size": {"files": 2, "why": "all"}}, {"size": {"files": 2}}),
        ({"size": {"rows": 7, "at_most": True}}, {"size": {"rows": 7, "at_most": True}}),
        ({"size": {"rows": 7, "at_most": True}, "receipt": replace(CLAIM, rows=5)}, {"rows": 5}),
        ({"size": {"files": 2}, "receipt": CLAIM}, {"size": {"files": 2}}),
        ({"size": {"files": 2}, "counted": BatchRows(5), "processed": NOW}, {"rows": 5}),
        # It was counted for an earlier attempt, and an opaque source has decided again since.
        ({"size": {"files": 2}, "counted": BatchRows(5), "processed": None}, {"size": {"files": 2}}),
    ],
)
def test_the_rows_of_a_replayed_attempt_are_kept_in_the_ledger(
    topology: Topology, second: Run, fields: dict[str, Any], kept: dict[str, Any]
) -> None:
    noted(topology, 2, **fields)
    second.begin(3)
    record = topology.record(2)
    assert record is not None
    assert [(each.rows, each.size) for each in record.replays] == [(kept.get("rows"), kept.get("size", {}))]


def test_only_the_last_replays_are_kept_in_the_ledger(topology: Topology, second: Run) -> None:
    for _ in range(REPLAYS_KEPT + 1):
        second.begin(3)
    record = topology.record(2)
    assert record is not None
    assert [each.attempt for each in record.replays] == list(range(2, REPLAYS_KEPT + 2))


def test_the_error_of_the_last_attempt_is_kept_completely_and_earlier_errors_are_shortened(
    topology: Topology, second: Run
) -> None:
    error = f"it broke {'x' * 300} mend it"
    for _ in range(2):
        noted(topology, 2, error=error)
        second.begin(3)
    record = topology.record(2)
    assert record is not None
    assert [each.why for each in record.replays] == ["it broke ... mend it", error]


# --- rows


def test_the_row_count_of_a_batch_is_the_highest_count_of_a_task() -> None:
    acks = {("p", index): Ack("try", "op", rows=rows) for index, rows in enumerate((3, None, 7))}
    assert Processed(1, acks).rows == 7
    assert Processed(1, {("p", -1): Ack("try", "op")}).rows is None
    assert Processed(1, {}).rows is None
