"""The corrected file: a person lets the rows of a transaction be decided anew, on the record, over every store."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from airflow_tx.base.errors import AlreadyFinal, ChangeRefused, FailedTransaction, Outranked, RowsChanged
from airflow_tx.ledger.answers import Begun, Granted, NotYet
from airflow_tx.ledger.api import Store
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.batch import Batch, BeginRequest, Outside, TopologyRequest
from airflow_tx.ledger.records import Phase, TransactionRecord, decode
from airflow_tx.ledger.steps import commit, end, replay
from airflow_tx.ledger.steps.commit import AcquireRequest
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.views.view import transaction_details
from tests.integration.pipeline import Pipeline

AUDIT = Audit("ann", "the file is mended")
STATE = "tx_state.totals"


class Files(Pipeline):
    """A pipeline on numbered files, whose rows say what was in them when they were decided."""

    def __init__(self, store: Store, root: str, kind: str = "transactional", *, partitioned: bool = False) -> None:
        super().__init__(store, root, kind=kind)
        self.request = TopologyRequest("dag", kind, 8, partitioned)
        self.partitioned = partitioned
        self.contents: dict[int, str] = {}
        self.numbers = itertools.count(1)

    def _rows(self, number: int) -> Any:
        row = [number, self.contents.get(number, "good")]
        return {"p": row} if self.partitioned else row

    def decide(self, attempt: TransactionAttempt, position: Any) -> Batch:
        number = ((position or {}).get("p", 0) if self.partitioned else position or 0) + 1
        return Batch(self._rows(number), {"p": number} if self.partitioned else number)

    def decide_again(self, attempt: TransactionAttempt, metadata: Any) -> Any:
        return self._rows(metadata["p"][0] if self.partitioned else metadata[0])

    def begin(self, run: str) -> Begun:
        request = BeginRequest(self.request, run, run, f"{next(self.numbers):06}", False, {"task0": "1"})
        begun = self.ledger.begin(
            request, Outside(decide=self.decide, decide_again=self.decide_again, run_state=lambda run_id: "failed")
        )
        assert isinstance(begun, Begun)
        return begun

    def grant(self, begun: Begun, *states: str) -> Granted | NotYet:
        epoch = self.process(begun).epoch
        answer = self.ledger.run(commit.acquire, AcquireRequest(begun.attempt, epoch, begun.rows_digest, {}, states))
        assert isinstance(answer, (Granted, NotYet))
        return answer

    def finish(self, begun: Begun) -> None:
        self.mark(self.acquire(begun, self.process(begun)))

    def skip(self, txid: int) -> None:
        answer = self.ledger.run(end.grant_skip, txid, {})
        assert isinstance(answer, Granted)
        self.ledger.run(end.commit_skip, answer.grant.token, states=[])

    def record(self, txid: int) -> TransactionRecord:
        node = self.store.get(self.paths.transaction(txid))
        assert node is not None
        return decode(TransactionRecord, "", node.data)

    def final(self, txid: int) -> TransactionRecord:
        node = self.store.get(self.paths.history(txid))
        assert node is not None
        return decode(TransactionRecord, "", node.data)


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_replay_for_changed_rows_takes_the_current_rows_and_keeps_its_end_position(
    each_store: Store, zookeeper_root: str, *, partitioned: bool
) -> None:
    files = Files(each_store, zookeeper_root, partitioned=partitioned)
    files.contents[1] = "bad"
    bad, after = files.begin("r1"), files.begin("r2")
    files.contents[1] = "mended"
    assert files.begin("r1").metadata == bad.metadata  # without a word of a person the rows stay
    files.ledger.run(replay.note_changed, 1, {}, audit=AUDIT)
    assert files.record(1).phase is Phase.FAILED

    mended = files.begin("r1")
    assert (mended.metadata, mended.position) == (files._rows(1), bad.position)
    files.contents[1] = "changed again"
    again = files.begin("r1")
    assert again.metadata == mended.metadata  # once
    files.finish(again)
    files.finish(after)  # what follows it starts where it ended, and was not touched
    (told,) = files.final(1).changed
    assert (told.who, told.why, told.attempt) == ("ann", "the file is mended", 2)
    assert files.final(2).changed == []
    (shown,) = transaction_details(files.store, files.paths, 1).transaction.changed
    assert shown.why == "the file is mended"


def test_a_commit_is_refused_while_a_person_wants_its_rows_decided_again(
    each_store: Store, zookeeper_root: str
) -> None:
    files = Files(each_store, zookeeper_root)
    begun = files.begin("r1")
    request = AcquireRequest(begun.attempt, files.process(begun).epoch, begun.rows_digest)
    files.ledger.run(replay.note_changed, 1, {}, audit=AUDIT)
    with pytest.raises(FailedTransaction, match="its rows are to be decided again"):
        files.ledger.run(commit.acquire, request)
    # A task that lives on, or is cleared alone, brings the attempt back.
    request = AcquireRequest(begun.attempt, files.process(begun).epoch, begun.rows_digest)
    with pytest.raises(RowsChanged, match="a person wants them decided again"):
        files.ledger.run(commit.acquire, request)


def test_a_replay_for_changed_rows_outranks_the_old_grant_if_the_state_can_undo_the_rows(
    each_store: Store, zookeeper_root: str
) -> None:
    files = Files(each_store, zookeeper_root)
    begun = files.begin("r1")
    grant = files.acquire(begun, files.process(begun))
    files.ledger.run(replay.note_changed, 1, {STATE: True}, audit=AUDIT)
    with pytest.raises(Outranked):
        files.mark(grant)
    files.finish(files.begin("r1"))


@pytest.mark.parametrize("states", [{STATE: False}, {}])
def test_a_replay_for_changed_rows_is_refused_if_a_state_without_undo_may_hold_the_rows(
    each_store: Store, zookeeper_root: str, states: dict[str, bool]
) -> None:
    files = Files(each_store, zookeeper_root)
    files.grant(files.begin("r1"), STATE)
    with pytest.raises(ChangeRefused, match=f"it may be in state {STATE} already"):
        files.ledger.run(replay.note_changed, 1, states, audit=AUDIT)
    assert files.record(1).changed == []


def test_a_readmitted_batch_takes_the_current_rows_after_a_person_notes_that_rows_changed(
    each_store: Store, zookeeper_root: str
) -> None:
    files = Files(each_store, zookeeper_root)
    files.contents[1] = "bad"
    files.begin("r1")
    files.begin("r2")
    files.ledger.run(end.note_skip, 1, AUDIT)
    files.skip(1)
    files.contents[1] = "mended"
    files.ledger.run(end.note_readmission, 1, AUDIT)
    back = files.begin("r1")
    assert (back.attempt.txid, back.metadata, back.position) == (3, [1, "mended"], 2)
    files.contents[1] = "changed again"
    assert files.begin("r1").metadata == [1, "mended"]
    files.ledger.run(replay.note_changed, 3, {}, audit=AUDIT)
    assert (files.begin("r1").metadata, files.begin("r3").metadata) == ([1, "changed again"], [3, "good"])


def test_a_transaction_with_a_noted_skip_keeps_its_rows_although_a_change_of_rows_is_noted(
    each_store: Store, zookeeper_root: str
) -> None:
    files = Files(each_store, zookeeper_root)
    files.begin("r1")
    files.ledger.run(replay.note_changed, 1, {}, audit=AUDIT)
    files.ledger.run(end.note_skip, 1, AUDIT)
    files.contents[1] = "mended"
    assert files.begin("r1").metadata == [1, "good"]


def test_an_opaque_replay_takes_the_current_rows_after_a_person_notes_that_rows_changed(
    each_store: Store, zookeeper_root: str
) -> None:
    files = Files(each_store, zookeeper_root, "opaque")
    files.begin("r1")
    files.ledger.run(replay.note_changed, 1, {}, audit=AUDIT)
    files.contents[1] = "mended"
    assert files.begin("r1").metadata == [1, "mended"]
    assert [each.attempt for each in files.record(1).changed] == [1]


def test_a_change_of_rows_is_recorded_once_and_refused_for_a_final_transaction(
    each_store: Store, zookeeper_root: str
) -> None:
    files = Files(each_store, zookeeper_root)
    begun = files.begin("r1")
    for _ in range(2):
        files.ledger.run(replay.note_changed, 1, {}, audit=AUDIT)
    assert len(files.record(1).changed) == 1
    assert begun.attempt == TransactionAttempt(1, 1)
    files.finish(files.begin("r1"))
    with pytest.raises(AlreadyFinal):
        files.ledger.run(replay.note_changed, 1, {}, audit=AUDIT)
