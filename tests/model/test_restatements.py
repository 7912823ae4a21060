"""A committed transaction is restated: its batch is processed again, and its contribution replaced (TRACES.md: 30)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from airflow_tx.base.errors import (
    NotTakenBack,
    Outranked,
    RestatementSkipped,
    RestateRefused,
    StaleBatch,
    UnknownTransaction,
)
from airflow_tx.ledger.answers import (
    AlreadyCommitted,
    Begun,
    Blocked,
    Committed,
    GivenUp,
    ReplayNoted,
    Restarted,
    WindowFull,
)
from airflow_tx.ledger.api import Delete, Put
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.audit.chain import ledger_evidence
from airflow_tx.ledger.audit.plan import HeldState
from airflow_tx.ledger.audit.rebuild import Repairs, note_change, rename_state, state_lost
from airflow_tx.ledger.audit.verification import verified
from airflow_tx.ledger.json_text import digest, replace
from airflow_tx.ledger.receipt import Replaced
from airflow_tx.ledger.records import Binding, Phase, Restating, Wish, encode
from airflow_tx.ledger.steps.commit import note_commit_failed
from airflow_tx.ledger.steps.end import note_readmission, withdraw_skip
from airflow_tx.ledger.steps.replay import WishRequest, want, wishes, withdraw
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.transaction.processing.begin import room
from tests.model.conftest import counts
from tests.model.driver import Run, Topology

ADA = Audit("ada", "a bug in the job")


def committed(topology: Topology, *outputs: dict[str, int]) -> list[Begun]:
    """Commit transactions 1, 2 … of the runs r1, r2 …"""
    return [Run(topology, f"r{number}").whole(2, output) for number, output in enumerate(outputs, 1)]


def restated(topology: Topology, txid: int, output: dict[str, int], key: str = "") -> Begun:
    """Want a transaction restated, and clear its run."""
    topology.want(txid, key=key)
    return Run(topology, key or f"r{txid}").whole(2, output)


def bound(topology: Topology, key: str) -> int:
    binding = topology.binding(key)
    assert binding is not None
    return binding.txid


def change(topology: Topology, keys: Sequence[str] | None = ("d1",)) -> None:
    """A person accepts that values were changed, and keys deleted."""
    receipt = topology.topology.receipt
    topology.ledger().run(note_change, "s0", {"n": -2}, keys=keys, receipt=receipt, audit=ADA)


def verify(topology: Topology) -> list[str]:
    """What it finds, except that the driver leaves the number of rows out of its receipts."""
    found = verified(ledger_evidence(topology.store(), topology.paths), ()).findings
    return [each for each in map(str, found) if "the ledger says rows" not in each]


class TestRestatement:
    def test_a_restatement_replaces_the_contribution_of_its_transaction(self, journaled: Topology) -> None:
        first, _ = committed(journaled, {"a": 10}, {"a": 1, "b": 1})
        begun = restated(journaled, 1, {"a": 12})
        assert journaled.totals() == {"a": 13, "b": 1}
        assert (begun.txid, begun.metadata) == (3, first.metadata)
        entry = begun.replaces and begun.replaces.entry
        assert begun.replaces == Replaced(1, f"2013-01-01/1-{str(entry).split('-')[-1]}")

    def test_a_second_restatement_replaces_the_whole_output_of_the_first_restatement(self, journaled: Topology) -> None:
        committed(journaled, {"a": 10})
        restated(journaled, 1, {"a": 12})
        again = restated(journaled, 2, {"a": 13}, key="r1")
        assert journaled.totals() == {"a": 13}
        assert again.replaces is not None
        assert (again.txid, again.replaces.txid) == (3, 2)

    def test_a_restatement_does_not_change_the_position_of_the_source(self, journaled: Topology) -> None:
        committed(journaled, {"a": 2}, {"b": 2})
        restated(journaled, 1, {"a": 3})
        assert journaled.position(3) == 4
        assert Run(journaled, "r3").whole(2, {"c": 2}).metadata == [4, 6]

    def test_a_cleared_run_without_a_request_finds_its_transaction_committed(self, journaled: Topology) -> None:
        committed(journaled, {"a": 2})
        assert Run(journaled, "r1").begin(2) == AlreadyCommitted(1)
        restated(journaled, 1, {"a": 3})
        assert Run(journaled, "r1").begin(2) == AlreadyCommitted(2)
        assert journaled.totals() == {"a": 3}

    def test_the_restated_transaction_counts_until_its_restatement_is_committed(self, journaled: Topology) -> None:
        committed(journaled, {"a": 2})
        journaled.want(1)
        run = Run(journaled, "r1")
        run.processed(2, {"a": 3})
        binding = journaled.binding("r1")
        record = journaled.record(2)
        assert binding is not None
        assert record is not None
        assert (binding.txid, binding.restating) == (1, Restating(2, record.birth))
        run.commit()
        history = journaled.history(2)
        assert history is not None
        assert history.receipt is not None
        assert history.receipt.journal
        assert journaled.binding("r1") == Binding(2, history.receipt.journal)

    def test_a_request_for_a_restatement_is_fulfilled_only_once(self, journaled: Topology) -> None:
        committed(journaled, {"a": 2})
        assert isinstance(journaled.want(1), Wish)
        assert [wish.txid for wish in wishes(journaled.store(), journaled.paths)] == [1]
        Run(journaled, "r1").whole(2, {"a": 3})
        assert wishes(journaled.store(), journaled.paths) == ()
        assert journaled.tree()
        assert Run(journaled, "r1").begin(2) == AlreadyCommitted(2)

    def test_history_and_receipt_of_a_restatement_name_the_person_and_the_replaced_txid(
        self, journaled: Topology
    ) -> None:
        committed(journaled, {"a": 2})
        restated(journaled, 1, {"a": 3})
        history = journaled.history(2)
        assert history is not None
        assert history.receipt is not None
        replaced, wish, journal = history.receipt.replaces, history.receipt.wish, history.receipt.journal
        assert replaced is not None
        assert wish is not None
        assert (history.restates, replaced.txid, wish.who) == (1, 1, "ada")
        assert str(journal).startswith("2013-01-01/2-")

    def test_the_binding_of_a_run_key_refers_to_a_journal_entry_after_the_first_commit(
        self, journaled: Topology
    ) -> None:
        committed(journaled, {"a": 2})
        binding = journaled.binding("r1")
        assert binding is not None
        assert journaled.journal[binding.entry] == ([0, 2], {"a": 2})

    def test_a_restatement_with_changed_rows_is_decided_again_from_the_same_position(self, journaled: Topology) -> None:
        committed(journaled, {"a": 2}, {"b": 2})
        journaled.want(1, changed_rows=True)
        run = Run(journaled, "r1")
        begun = run.begin(2, again=lambda metadata: ["late row", *metadata])
        run.process({"a": 3})
        run.commit()
        assert begun.metadata == ["late row", 0, 2]
        assert (journaled.totals(), journaled.position(3)) == ({"a": 3, "b": 2}, 4)
        assert restated(journaled, 3, {"a": 4}, key="r1").metadata == ["late row", 0, 2]
        assert journaled.totals() == {"a": 4, "b": 2}

    def test_a_replay_of_a_restatement_keeps_its_rows_and_the_transaction_that_it_restates(
        self, journaled: Topology
    ) -> None:
        committed(journaled, {"a": 2})
        journaled.want(1)
        Run(journaled, "r1").processed(2, {"a": 9})
        journaled.note_replay(2, 1)
        again = Run(journaled, "r1")
        begun = again.begin(5)
        assert (begun.attempt.attempt, begun.metadata) == (2, [0, 2])
        assert begun.replaces is not None
        again.process({"a": 3})
        again.commit()
        assert journaled.totals() == {"a": 3}

    def test_the_source_is_not_notified_of_attempts_of_a_restatement(self, journaled: Topology) -> None:
        """It was told when the rows were committed, and may have forgotten them since."""
        committed(journaled, {"a": 2})
        journaled.want(1)
        Run(journaled, "r1").processed(2, {"a": 9})
        Run(journaled, "r3").processed(2, {"a": 9})
        reported: list[int] = []
        for run_id in ("r1", "r3"):
            Run(journaled, run_id).begin(2, report=lambda attempt, *_: reported.append(attempt.txid))
        assert reported == [3]

    def test_the_journal_entry_of_an_outranked_committer_is_not_used(self, journaled: Topology) -> None:
        run = Run(journaled, "r1")
        run.processed(2, {"a": 7})
        zombie = run.written()
        journaled.note_replay(1, 1)
        Run(journaled, "r1").whole(2, {"a": 10})
        assert zombie.mark() == Committed(1, by_this_call=False)
        restated(journaled, 1, {"a": 12})
        assert journaled.totals() == {"a": 12}

    def test_an_output_that_is_acked_again_gets_a_new_journal_entry(self, journaled: Topology) -> None:
        run = Run(journaled, "r1")
        run.processed(2, {"a": 7})
        run.written()
        run.process({"a": 10})
        run.commit()
        restated(journaled, 1, {"a": 12})
        assert journaled.totals() == {"a": 12}

    def test_the_next_attempt_drops_the_journal_entry_of_the_previous_grant(self, journaled: Topology) -> None:
        run = Run(journaled, "r1")
        run.processed(2, {"a": 7})
        run.written()
        granted = journaled.record(1)
        assert granted is not None
        assert granted.journal
        journaled.note_replay(1, 1)
        Run(journaled, "r1").begin(2)
        record = journaled.record(1)
        assert record is not None
        assert record.journal is None

    def test_an_outranked_committer_of_a_restatement_is_refused(self, journaled: Topology) -> None:
        committed(journaled, {"a": 10})
        journaled.want(1)
        run = Run(journaled, "r1")
        run.processed(2, {"a": 11})
        zombie = run.written()
        journaled.note_replay(2, 1)
        again = Run(journaled, "r1")
        again.processed(2, {"a": 12})
        with pytest.raises(Outranked):
            zombie.mark()
        again.commit()
        assert (journaled.totals(), bound(journaled, "r1")) == ({"a": 12}, 2)

    def test_a_restatement_is_replayed_if_its_predecessor_ends_at_another_position(self, journaled: Topology) -> None:
        committed(journaled, {"a": 2})
        other = Run(journaled, "r2")
        other.processed(2, {"b": 2})
        journaled.want(1)
        run = Run(journaled, "r1")
        run.processed(2, {"a": 3})
        journaled.note_replay(2, 1)
        Run(journaled, "r2").whole(5, {"b": 5})
        with pytest.raises(StaleBatch):
            run.commit()
        journaled.note_replay(3, 1)
        Run(journaled, "r1").whole(2, {"a": 3})
        assert (journaled.totals(), journaled.position(3)) == ({"a": 3, "b": 5}, 7)

    def test_a_readmitted_transaction_can_be_restated(self, journaled: Topology) -> None:
        Run(journaled, "r1").begin(2)
        journaled.skip(1)
        journaled.readmit(1)
        Run(journaled, "r1").whole(2, {"a": 2})
        assert bound(journaled, "r1") == 2
        restated(journaled, 2, {"a": 5}, key="r1")
        assert journaled.totals() == {"a": 5}

    def test_two_days_can_be_restated_at_the_same_time(self, journaled: Topology) -> None:
        committed(journaled, {"a": 2}, {"a": 3})
        journaled.want(1)
        journaled.want(2)
        one, two = Run(journaled, "r1"), Run(journaled, "r2")
        two.processed(2, {"a": 30})
        one.processed(2, {"a": 20})
        two.commit()
        one.commit()
        assert (journaled.totals(), bound(journaled, "r1"), bound(journaled, "r2")) == ({"a": 50}, 4, 3)

    def test_the_run_of_a_restatement_waits_while_the_window_is_full(self, journaled: Topology) -> None:
        """It is bound to the transaction that counts, which makes no room."""
        committed(journaled, {"a": 2})
        journaled.want(1)
        others = [Run(journaled, f"r{number}") for number in range(2, 10)]
        for run in others:
            run.processed(1, {"b": 1})
        store = journaled.store()
        assert Run(journaled, "r1").begin(2) == WindowFull(2, 9, 8)
        assert room(store, journaled.paths, max_pending=8, key="r1") is None
        others[0].commit()
        assert room(store, journaled.paths, max_pending=8, key="r1") == {"current": 3}
        assert Run(journaled, "r1").begin(2).txid == 10
        # A begin that was thought dead may have taken it: whoever waits asks again.
        assert room(store, journaled.paths, max_pending=8, key="r1") == {"current": 3}


class TestVerify:
    """What `verify` says of a ledger with restatements."""

    def test_verify_reports_nothing_while_a_restatement_is_open_skipped_or_committed(self, journaled: Topology) -> None:
        committed(journaled, {"a": 2}, {"b": 2})
        journaled.want(1)
        Run(journaled, "r1").begin(2)
        assert verify(journaled) == []
        journaled.skip(3)
        assert verify(journaled) == []
        restated(journaled, 1, {"a": 3})
        assert verify(journaled) == []

    def test_verify_reports_a_binding_that_refers_to_the_journal_entry_of_another_transaction(
        self, journaled: Topology
    ) -> None:
        committed(journaled, {"a": 2}, {"b": 2})
        one, other = journaled.binding("r1"), journaled.binding("r2")
        assert one is not None
        assert other is not None
        changed = encode(replace(one, entry=other.entry))
        journaled.store().multi([], [Put(journaled.paths.run("r1"), changed)])
        assert verify(journaled) == [
            f"transaction 1: its run 'r1' names the journal entry {other.entry}, its receipt {one.entry}"
        ]


class TestSkipOfARestatement:
    def test_the_restated_transaction_counts_again_after_its_restatement_is_skipped(self, journaled: Topology) -> None:
        committed(journaled, {"a": 2})
        journaled.want(1)
        run = Run(journaled, "r1")
        run.processed(2, {"a": 3})
        run.written()
        journaled.skip(2)
        assert (journaled.totals(), bound(journaled, "r1")) == ({"a": 2}, 1)
        assert Run(journaled, "r1").begin(2) == AlreadyCommitted(1)

    def test_a_skipped_restatement_cannot_be_readmitted(self, journaled: Topology) -> None:
        committed(journaled, {"a": 2})
        journaled.want(1)
        Run(journaled, "r1").begin(2)
        journaled.skip(2)
        with pytest.raises(RestatementSkipped, match="it restated transaction 1, which counts.*restate trace 1"):
            journaled.ledger().run(note_readmission, 2, ADA)
        with pytest.raises(RestateRefused, match=r"it restated transaction 1, and was skipped.*restate trace 1 "):
            journaled.want(2, key="r1")

    def test_a_transaction_can_be_restated_again_after_its_restatement_was_skipped(self, journaled: Topology) -> None:
        committed(journaled, {"a": 2})
        journaled.want(1)
        Run(journaled, "r1").begin(2)
        journaled.skip(2)
        begun = restated(journaled, 1, {"a": 5})
        assert begun.replaces is not None
        assert (begun.txid, begun.replaces.txid) == (3, 1)
        assert (journaled.totals(), bound(journaled, "r1")) == ({"a": 5}, 3)


class TestWant:
    @pytest.mark.parametrize(
        ("before", "txid", "what"),
        [
            ("open", 2, "it is open.*airflow tx replay trace 2"),
            ("skipped", 2, "it was skipped.*airflow tx readmit trace 2"),
            ("wanted", 1, "a person has requested its restatement already.*--withdraw"),
            ("begun", 1, "transaction 2 restates it already.*airflow tx skip trace 2"),
            ("restated", 1, "transaction 2 has replaced it.*airflow tx restate trace 2 "),
            ("unjournaled", 1, "the journal has no entry for it"),
            ("lost", 1, "what it held was accepted since, so state 's0' may lack transaction 1"),
            ("unbound", 1, "run 'r1' is no longer bound to it, because the ledger was rebuilt"),
        ],
    )
    def test_a_request_for_a_transaction_that_cannot_be_restated_is_refused_in_one_line(
        self, journaled: Topology, before: str, txid: int, what: str
    ) -> None:
        journaled.journals = before != "unjournaled"
        committed(journaled, {"a": 2})
        if before in ("open", "skipped"):
            Run(journaled, "r2").begin(2)
        if before == "skipped":
            journaled.skip(2)
        if before in ("wanted", "begun", "restated"):
            journaled.want(1)
        if before == "begun":
            Run(journaled, "r1").begin(2)
        if before == "restated":
            Run(journaled, "r1").whole(2, {"a": 1})
        if before == "lost":
            journaled.ledger().run(state_lost, "s0", ADA)
        if before == "unbound":
            journaled.store().multi([], [Delete(journaled.paths.run("r1"))])
        with pytest.raises(RestateRefused, match=what) as refused:
            journaled.want(txid, key=f"r{txid}")
        assert "\n" not in str(refused.value)

    @pytest.mark.parametrize("txid", [0, 2])
    def test_a_request_for_a_txid_that_was_never_allocated_is_refused_as_unknown(
        self, journaled: Topology, txid: int
    ) -> None:
        committed(journaled, {"a": 2})
        with pytest.raises(UnknownTransaction):
            journaled.want(txid)

    def test_a_request_for_a_transaction_older_than_the_journal_is_refused(self, journaled: Topology) -> None:
        committed(journaled, {"a": 2})
        request = WishRequest(1, "r1", "r1", first_day="2013-01-02")
        with pytest.raises(RestateRefused, match="older than the `journal` option of the DAG allows"):
            journaled.ledger().run(want, request, ADA)

    def test_a_request_can_be_withdrawn_until_its_restatement_begins(self, journaled: Topology) -> None:
        committed(journaled, {"a": 2})
        journaled.want(1)
        journaled.ledger().run(withdraw, 1)
        assert Run(journaled, "r1").begin(2) == AlreadyCommitted(1)
        journaled.want(1)
        Run(journaled, "r1").begin(2)
        with pytest.raises(RestateRefused, match="no one asked for it, or its restatement has begun"):
            journaled.ledger().run(withdraw, 1)

    def test_a_reset_deletes_all_requests_for_restatements(self, journaled: Topology) -> None:
        """The next life gives the txid to another transaction."""
        committed(journaled, {"a": 2})
        journaled.want(1)
        Repairs(journaled.ledger()).reset(journaled.request, ADA, clear=journaled.states[0].clear)
        committed(journaled, {"a": 5})
        assert wishes(journaled.store(), journaled.paths) == ()
        assert Run(journaled, "r1").begin(2) == AlreadyCommitted(1)

    def test_an_empty_batch_can_be_restated_with_rows_and_then_without_rows(self, journaled: Topology) -> None:
        run = Run(journaled, "r1")
        run.processed(2, {"a": 1})
        journaled.note_replay(1, 1)
        Run(journaled, "r1").whole(0, {})
        assert journaled.journal[journaled.binding("r1").entry] == (None, {})  # type: ignore[union-attr]
        assert restated(journaled, 1, {"a": 4}).metadata is None
        assert journaled.totals() == {"a": 4}
        restated(journaled, 2, {}, key="r1")
        assert journaled.totals() == {"a": 0}

    def test_begin_of_a_restatement_is_refused_if_a_state_was_set_back_after_the_request(
        self, journaled: Topology
    ) -> None:
        committed(journaled, {"a": 2}, {"a": 1})
        journaled.want(1)
        journaled.ledger().run(state_lost, "s0", ADA)
        with pytest.raises(RestateRefused, match="may lack transaction 1.*airflow tx restate trace 1 --withdraw"):
            Run(journaled, "r1").begin(2)
        assert journaled.allocated == 2

    def test_a_restatement_does_not_get_the_turn_if_a_state_was_set_back_after_its_begin(
        self, journaled: Topology
    ) -> None:
        committed(journaled, {"a": 2})
        journaled.want(1)
        run = Run(journaled, "r1")
        run.processed(2, {"a": 5})
        journaled.ledger().run(state_lost, "s0", ADA)
        with pytest.raises(NotTakenBack, match="may lack transaction 1: .* airflow tx skip trace 2 "):
            run.committer().acquire()
        assert journaled.totals() == {"a": 2}

    def test_a_difference_is_computed_again_after_a_person_accepts_a_change_of_the_state(
        self, journaled: Topology
    ) -> None:
        committed(journaled, {"a": 2})
        journaled.want(1)
        run = Run(journaled, "r1")
        run.processed(2, {"a": 5})
        committer = run.committer()
        committer.processed()
        change(journaled)
        assert committer.ask() == Restarted()
        assert committer.acquire() is not None

    def test_a_difference_is_computed_again_after_a_column_was_dropped(self, journaled: Topology) -> None:
        committed(journaled, {"a": 2})
        journaled.want(1)
        before = Run(journaled, "r2")
        before.processed(2, {"a": 2})
        run = Run(journaled, "r1")
        run.processed(2, {"a": 5})
        committer = run.committer()
        committer.processed()
        other = before.committer()
        other.acquire()
        other.raise_fences()
        other.write()
        other.mark(columns=["m"])
        assert journaled.topology.columns == {"s0": {"m": 2}}
        assert committer.ask() == Restarted()

    @pytest.mark.parametrize("sole", [True, False])
    def test_a_difference_that_replaces_values_is_computed_again_after_another_commit(
        self, journaled: Topology, sole: bool
    ) -> None:
        committed(journaled, {"a": 2})
        before = Run(journaled, "r2")
        before.processed(2, {"a": 2})
        journaled.want(1)
        run = Run(journaled, "r1")
        run.processed(2, {"a": 5})
        committer = run.committer()
        committer.sole = ("s0",) if sole else ()
        committer.processed()
        before.commit()
        assert (committer.ask() == Restarted()) is sole

    def test_a_transaction_that_committed_after_the_loss_of_a_state_can_be_restated(self, journaled: Topology) -> None:
        committed(journaled, {"a": 2})
        journaled.ledger().run(state_lost, "s0", ADA)
        Run(journaled, "r2").whole(2, {"a": 5})
        restated(journaled, 2, {"a": 6})
        assert journaled.totals() == {"a": 8}


class TestSecondRun:
    """Another run of the same interval, while a transaction restates it."""

    @pytest.mark.parametrize("state", ["running", "failed", "success"])
    def test_a_second_run_of_an_interval_that_is_being_restated_finds_it_committed(
        self, journaled: Topology, state: str
    ) -> None:
        committed(journaled, {"a": 2})
        journaled.want(1)
        Run(journaled, "r1").processed(2, {"a": 5})
        assert Run(journaled, "backfill", key="r1").begin(2, holder=state) == AlreadyCommitted(1)
        record = journaled.record(2)
        assert record is not None
        assert record.attempt == 1

    def test_a_second_run_continues_the_restatement_of_a_deleted_run(self, journaled: Topology) -> None:
        committed(journaled, {"a": 2})
        journaled.want(1)
        Run(journaled, "r1").processed(2, {"a": 5})
        begun = Run(journaled, "backfill", key="r1").begin(2)
        assert isinstance(begun, Begun)
        assert (begun.txid, begun.attempt.attempt) == (2, 2)


class TestRename:
    def test_the_ledger_stores_the_newest_name_of_a_state_that_was_renamed_twice(self, journaled: Topology) -> None:
        committed(journaled, {"a": 2})
        ledger = journaled.ledger()
        ledger.run(state_lost, "s0", ADA)
        Run(journaled, "r2").whole(2, {"a": 2})
        ledger.run(rename_state, "s0", "s1", audit=ADA)
        ledger.run(rename_state, "s1", "s2", audit=ADA)
        assert journaled.topology.renamed == {"s0": "s2", "s1": "s2"}
        ledger.run(rename_state, "s2", "s0", audit=ADA)
        assert journaled.topology.renamed == {"s1": "s0", "s2": "s0"}

    def test_a_new_state_does_not_inherit_transactions_of_a_state_that_had_its_name_earlier(
        self, journaled: Topology
    ) -> None:
        committed(journaled, {"a": 2})
        journaled.ledger().run(rename_state, "s0", "s1", audit=ADA)
        journaled.states[0].name = "s1"
        journaled.states = [journaled.states[0], counts("s0")]
        Run(journaled, "r2").whole(2, {"a": 2})
        assert journaled.topology.renamed == {}


class TestGivenUp:
    """A restatement that has failed too often."""

    def failed(self, topology: Topology, attempts: int = 2) -> Any:
        """Fail the restatement of transaction 1 as often, with one replay allowed; the answer to the last one."""
        answer = None
        for attempt in range(1, attempts + 1):
            Run(topology, "r1").begin(2)
            answer = topology.note_replay(2, attempt, limit=1)
        return answer

    def test_a_failed_restatement_is_skipped_automatically_and_later_transactions_commit(
        self, journaled: Topology
    ) -> None:
        committed(journaled, {"a": 10})
        journaled.want(1)
        assert self.failed(journaled) == GivenUp(2, 1, "its run failed")
        record = journaled.record(2)
        assert record is not None
        assert record.skip is not None
        assert (record.skip.who, record.skip.why) == (
            "coordinator",
            "its run failed; transaction 1, which it restates, still counts",
        )
        assert journaled.topology.blocked is None
        assert journaled.take_skip(2) == Committed(2, by_this_call=True)
        assert Run(journaled, "r1").begin(2) == AlreadyCommitted(1)
        Run(journaled, "r2").whole(1, {"b": 1})
        assert journaled.totals() == {"a": 10, "b": 1}

    def test_a_failed_restatement_waits_for_its_turn_to_be_skipped(self, journaled: Topology) -> None:
        committed(journaled, {"a": 10})
        other = Run(journaled, "r2")
        other.processed(2, {"b": 2})
        journaled.want(1)
        Run(journaled, "r1").begin(2)
        journaled.note_replay(3, 1, limit=0)
        assert journaled.topology.skips == [3]

    def test_a_restatement_whose_commit_is_refused_permanently_is_skipped_at_once(self, journaled: Topology) -> None:
        committed(journaled, {"a": 10})
        journaled.want(1)
        run = Run(journaled, "r1")
        run.processed(2, {"a": 11})
        grant = run.written()
        assert grant is not None
        record = journaled.record(2)
        assert record is not None
        attempt = TransactionAttempt(2, 1)
        told: Any = {"reason": "a key is gone", "for_good": True, "repairable": False}
        journaled.ledger().run(note_commit_failed, attempt, record.epoch, **told)
        assert journaled.note_replay(2, 1) == GivenUp(2, 1, "a key is gone")

    @pytest.mark.parametrize("for_good", [False, True])
    def test_a_restatement_that_a_repair_can_fix_waits_and_is_committed_after_the_repair(
        self, journaled: Topology, for_good: bool
    ) -> None:
        committed(journaled, {"a": 10})
        journaled.want(1)
        run = Run(journaled, "r1")
        for attempt in (1, 2):
            run.processed(2, {"a": 11})
            run.written()
            self.refused(journaled, attempt, for_good=for_good)
            told = journaled.note_replay(2, attempt, limit=1)
            assert isinstance(told, Blocked if for_good or attempt == 2 else ReplayNoted)
        record = journaled.record(2)
        assert record is not None
        assert record.skip is None
        run.whole(2, {"a": 11})
        assert journaled.totals() == {"a": 11}

    def refused(self, topology: Topology, attempt: int, *, for_good: bool) -> None:
        record = topology.record(2)
        assert record is not None
        told: Any = {"reason": "the store went back", "for_good": for_good, "repairable": True}
        topology.ledger().run(note_commit_failed, TransactionAttempt(2, attempt), record.epoch, **told)

    @pytest.mark.parametrize("way", ["begin", "start", "acquire"])
    def test_a_restatement_that_made_progress_no_longer_waits_for_a_repair(self, journaled: Topology, way: str) -> None:
        committed(journaled, {"a": 10})
        journaled.want(1)
        run = Run(journaled, "r1")
        run.processed(2, {"a": 11})
        run.written()
        self.refused(journaled, 1, for_good=False)
        {"begin": lambda: run.begin(2), "start": run.start, "acquire": run.written}[way]()
        assert isinstance(journaled.note_replay(2, 2 if way == "begin" else 1, limit=0), GivenUp)

    def test_a_failed_restatement_that_cannot_be_skipped_is_blocked_until_a_person_acts(
        self, journaled: Topology
    ) -> None:
        committed(journaled, {"a": 10})
        journaled.want(1)
        assert isinstance(self.failed(journaled), GivenUp)
        journaled.ledger().run(withdraw_skip, 2, keeps_grant=True)
        assert isinstance(journaled.note_replay(2, 2, limit=1), Blocked)
        Run(journaled, "r1").begin(2)
        assert journaled.note_replay(2, 3, limit=9) == ReplayNoted(True, 1)
        Run(journaled, "r1").begin(2)
        assert isinstance(journaled.note_replay(2, 4, limit=1), Blocked)


def test_a_replay_compares_the_output_and_not_the_difference_with_the_first_attempt(transactional: Topology) -> None:
    transactional.journals = True
    committed(transactional, {"a": 2})
    transactional.want(1)
    run = Run(transactional, "r1")
    run.processed(2, {"a": 3})
    run.written()
    record = transactional.record(2)
    assert record is not None
    assert record.outputs == {"s0": digest({"a": 3})}
    transactional.note_replay(2, 1)
    Run(transactional, "r1").whole(2, {"a": 3})
    assert transactional.totals() == {"a": 3}


# --- the ledger is lost ------------------------------------------------------------------------------------------


def rebuilt(topology: Topology, *, gone: bool, first: int = 1) -> None:
    """Rebuild the ledger from the fence of its state.

    :param gone: whether nothing of it is left.
    :param first: the first transaction of which the state still has a receipt.
    """
    store = topology.store()
    if gone:
        store.multi([], [Delete(path) for path in reversed(topology.tree())])
    state = topology.states[0]
    fence = state.fence()
    assert fence is not None
    receipts = [each for each in state.receipts() or () if each.txid >= first]
    held = HeldState.of(state.name, undoable=True, fence=fence, receipts=receipts)
    Repairs(topology.ledger()).ledger_lost([held], topology.request, ADA)


@pytest.mark.parametrize("gone", [False, True])
class TestRebuilt:
    def test_a_rebuild_keeps_a_complete_restatement_which_can_then_be_restated(
        self, journaled: Topology, gone: bool
    ) -> None:
        committed(journaled, {"a": 2})
        journaled.want(1)
        run = Run(journaled, "r1")
        run.processed(2, {"a": 3})
        run.written()
        rebuilt(journaled, gone=gone)
        binding = journaled.binding("r1")
        assert binding is not None
        assert (binding.txid, journaled.journal.get(binding.entry)) == (2, ([0, 2], {"a": 3}))
        assert Run(journaled, "r1").begin(2) == AlreadyCommitted(2)
        restated(journaled, 2, {"a": 5}, key="r1")
        assert journaled.totals() == {"a": 5}

    def test_a_rebuild_that_reopens_a_restatement_keeps_the_restated_transaction(
        self, journaled: Topology, gone: bool
    ) -> None:
        committed(journaled, {"a": 2})
        journaled.want(1)
        run = Run(journaled, "r1")
        run.processed(2, {"a": 3})
        committer = run.committer()
        committer.acquire()
        committer.raise_fences()
        rebuilt(journaled, gone=gone)
        assert Run(journaled, "r1").begin(2) == AlreadyCommitted(1)
        Run(journaled, "r2").whole(2, {"b": 1})
        assert journaled.totals() == {"a": 2, "b": 1}
        assert Run(journaled, "r1").begin(2) == AlreadyCommitted(1)

    def test_a_rebuild_keeps_a_restated_transaction_if_its_restatement_was_skipped(
        self, journaled: Topology, gone: bool
    ) -> None:
        committed(journaled, {"a": 2})
        journaled.want(1)
        Run(journaled, "r1").processed(2, {"a": 3})
        journaled.note_skip(2)
        journaled.skipper(2).acquire().raise_fences().write()
        rebuilt(journaled, gone=gone)
        assert Run(journaled, "r1").begin(2) == AlreadyCommitted(1)
        with pytest.raises(RestatementSkipped):
            journaled.ledger().run(note_readmission, 2, ADA)
        assert journaled.totals() == {"a": 2}

    def test_a_rebuild_recognizes_an_older_skipped_restatement_by_its_receipt(
        self, journaled: Topology, gone: bool
    ) -> None:
        committed(journaled, {"a": 2})
        journaled.want(1)
        Run(journaled, "r1").processed(2, {"a": 3})
        journaled.skip(2)
        Run(journaled, "r3").whole(2, {"b": 1})
        rebuilt(journaled, gone=gone)
        assert Run(journaled, "r1").begin(2) == AlreadyCommitted(1)
        with pytest.raises(RestatementSkipped):
            journaled.ledger().run(note_readmission, 2, ADA)

    def test_a_rebuild_cannot_recognize_a_skipped_restatement_without_its_receipt(
        self, journaled: Topology, gone: bool
    ) -> None:
        committed(journaled, {"a": 2})
        journaled.want(1)
        Run(journaled, "r1").processed(2, {"a": 3})
        journaled.skip(2)
        Run(journaled, "r3").whole(2, {"b": 1})
        rebuilt(journaled, gone=gone, first=2)
        assert Run(journaled, "r1").begin(2) == AlreadyCommitted(1)

    def test_a_rebuild_does_not_confuse_a_later_restatement_with_a_readmission(
        self, journaled: Topology, gone: bool
    ) -> None:
        committed(journaled, {"a": 2})
        journaled.want(1)
        Run(journaled, "r1").processed(2, {"a": 3})
        journaled.skip(2)
        restated(journaled, 1, {"a": 5}, key="r1")
        Run(journaled, "r3").whole(2, {"b": 1})
        rebuilt(journaled, gone=gone)
        skipped = journaled.ledger().all_skipped()[2]
        assert (skipped.replaces, skipped.readmitted_as) == (1, None)
        binding = journaled.binding("r1")
        assert binding is not None
        assert binding.txid == 3

    def test_transactions_that_committed_before_a_rebuild_cannot_be_restated(
        self, journaled: Topology, gone: bool
    ) -> None:
        committed(journaled, {"a": 2}, {"b": 2})
        rebuilt(journaled, gone=gone)
        with pytest.raises(RestateRefused, match="the ledger was rebuilt"):
            journaled.want(1)

    def test_a_rebuild_deletes_all_requests_for_restatements(self, journaled: Topology, gone: bool) -> None:
        """A txid that is given again would be restated by a wish for the other transaction."""
        committed(journaled, {"a": 2})
        journaled.want(1)
        rebuilt(journaled, gone=gone)
        assert wishes(journaled.store(), journaled.paths) == ()
        assert Run(journaled, "r1").begin(2) == AlreadyCommitted(1)


def test_another_transaction_with_a_reused_txid_does_not_count_as_the_restatement(journaled: Topology) -> None:
    committed(journaled, {"a": 2}, {"b": 2})
    journaled.want(1)
    Run(journaled, "r1").begin(2)
    rebuilt(journaled, gone=False)
    binding = journaled.binding("r1")
    assert binding is not None
    assert binding.restating is not None
    other = Run(journaled, "r3").begin(2)
    assert (other.txid, binding.restating.txid) == (3, 3)
    assert Run(journaled, "r1").begin(2) == AlreadyCommitted(1)
    assert journaled.phase(3) is Phase.PROCESSING
