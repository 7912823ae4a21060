"""The traces that broke earlier drafts of the protocol, on the real code (TRACES.md: 1, 4, 8, 10, 11, 14)."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from airflow_tx.base.errors import (
    FenceOutranked,
    OutputChanged,
    Outranked,
    PreviewOutdated,
    RowsChanged,
    StaleAttempt,
    StaleBatch,
    StaleBegin,
    StaleTry,
    UnreadableRecord,
)
from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger.answers import AlreadyCommitted, NotYet, Processed, Restarted
from airflow_tx.ledger.audit.move import Mover
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.receipt import CheckNote
from airflow_tx.ledger.records import Phase
from airflow_tx.ledger.steps.step import Audit
from tests.model.driver import Run, Topology


class TestTrace1:
    """A granted attempt wrote, and the next one is smaller."""

    def test_keys_that_only_an_outranked_attempt_has_written_are_rolled_back(self, topology: Topology) -> None:
        first, second = Run(topology, "r1"), Run(topology, "r2")
        first.begin(2)
        first.process({"a": 1, "b": 1})
        first.written()
        first.begin(1)
        first.process({"a": 1})
        first.commit()
        second.begin(2)
        second.process({"b": 2})
        second.commit()
        assert topology.totals() == {"a": 1, "b": 2}

    def test_a_task_cleared_after_the_write_counts_only_with_its_new_output(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(2)
        run.process({"a": 1, "b": 1})
        dead = run.written()
        run.process({"a": 2})
        with pytest.raises(Outranked):
            dead.mark()
        run.commit()
        assert topology.totals() == {"a": 2}


class TestTrace4:
    """What an older attempt handed over is worth nothing."""

    def test_a_task_with_metadata_of_an_older_attempt_is_refused(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        old = run.begin(2)
        run.begin(1)
        stale = Run(topology, "r1")
        stale.begun = old
        with pytest.raises(StaleAttempt, match="attempt 2 is the newest. Clear `begin`"):
            stale.start()

    def test_a_committer_with_the_rows_of_another_attempt_is_refused(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        old = run.begin(2)
        new = run.begin(1)
        run.process({"a": 1})
        mixed = Run(topology, "r1")
        mixed.begun = type(new)(new.attempt, old.metadata, old.position, old.rows_digest, True)
        with pytest.raises(RowsChanged):
            mixed.committer().processed()

    def test_a_stale_batch_is_refused_and_its_replay_starts_at_the_new_position(self, topology: Topology) -> None:
        first, second = Run(topology, "r1"), Run(topology, "r2")
        first.begin(2)
        second.begin(2)
        second.process({"a": 1, "b": 1})
        first.begin(1)
        first.process({"a": 1})
        first.commit()
        with pytest.raises(StaleBatch, match="Clear the run"):
            second.commit()
        assert second.begin(2).metadata == [1, 3]


class TestTrace8:
    """Two states: an attempt that wrote both is followed by one that writes the first alone."""

    def test_raising_all_fences_removes_the_rows_of_the_old_attempt_from_the_second_state(
        self, two_states: Topology
    ) -> None:
        first, second = Run(two_states, "r1"), Run(two_states, "r2")
        first.begin(2)
        first.process({"a": 1, "b": 1})
        zombie = first.written()
        first.begin(1)
        first.process({"a": 1})
        first.commit()
        with pytest.raises(FenceOutranked):
            zombie.write(state=1)
        second.begin(1)
        second.process({"b": 1})
        second.commit()
        assert two_states.totals() == {"a": 1, "b": 1}

    def test_a_crash_between_the_writes_of_two_states_counts_once_in_both_states(self, two_states: Topology) -> None:
        run = Run(two_states, "r1")
        run.begin(2)
        run.process({"a": 1, "b": 1})
        dead = run.committer()
        dead.acquire()
        dead.raise_fences()
        dead.write(state=0)
        run.commit()
        assert two_states.totals() == {"a": 1, "b": 1}

    def test_the_next_grant_continues_after_a_crash_between_the_fences_of_two_states(
        self, two_states: Topology
    ) -> None:
        run = Run(two_states, "r1")
        run.begin(2)
        run.process({"a": 1, "b": 1})
        dead = run.committer()
        grant = dead.acquire()
        assert grant is not None
        two_states.states[0].raise_fence(grant)
        run.commit()
        assert two_states.totals() == {"a": 1, "b": 1}


class TestTrace10:
    """A transactional state needs the same output for a txid."""

    def test_another_output_in_a_replay_is_refused_and_the_error_contains_a_remedy(
        self, transactional: Topology
    ) -> None:
        run = Run(transactional, "r1")
        run.begin(2)
        run.process({"a": 1, "b": 1})
        run.written()
        run.process({"a": 2})
        with pytest.raises(OutputChanged, match='use kind="opaque"'):
            run.commit()
        assert transactional.totals() == {"a": 1, "b": 1}

    def test_a_replay_with_the_same_output_counts_once(self, transactional: Topology) -> None:
        run = Run(transactional, "r1")
        run.begin(2)
        run.process({"a": 1, "b": 1})
        run.written()
        run.begin(2)
        run.process({"a": 1, "b": 1})
        run.commit()
        assert transactional.totals() == {"a": 1, "b": 1}


class TestTrace11:
    """A processing task starts again while a committer waits, or while its own older try lives on."""

    def test_a_committer_does_not_take_the_turn_while_a_task_writes_its_output_again(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(2)
        run.process({"a": 1, "b": 1})
        waiting = run.committer()
        waiting.processed()
        again = run.start()
        assert waiting.ask() == Restarted()
        again.ack({"a": 2})
        assert waiting.ask() == Restarted()
        waiting.acquire()
        assert waiting.output == {"a": 2}

    def test_an_outdated_try_cannot_ack_or_fail_after_a_newer_try_has_started(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(2)
        zombie = run.start()
        living = run.start()
        with pytest.raises(StaleTry):
            zombie.ack({"a": 99})
        with pytest.raises(StaleTry):
            zombie.fail("killed")
        living.ack({"a": 1, "b": 1})
        run.commit()
        assert topology.totals() == {"a": 1, "b": 1}

    def test_an_outdated_try_cannot_start_after_a_newer_try_has_started(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(2)
        zombie = topology.ids.task_try()
        run.start().ack({"a": 2})
        with pytest.raises(StaleTry):
            run.start(task_try=zombie, current=False)
        run.commit()
        assert topology.totals() == {"a": 2}

    def test_a_task_that_is_retried_with_the_same_try_id_may_still_succeed(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(2)
        run.start(task_try="same.1").ack({"a": 2})
        run.start(task_try="same.2")
        # Airflow takes the first one's success for that of the retry, and ends this one.
        run.commit()
        assert topology.totals() == {"a": 2}

    def test_a_task_may_ack_after_its_retry_with_the_same_try_id_has_started(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(2)
        resumed, _ = run.start(task_try="same.1"), run.start(task_try="same.2")
        resumed.ack({"a": 2})
        run.commit()
        assert topology.totals() == {"a": 2}

    @pytest.mark.parametrize("started", ["begin", "task"])
    def test_the_newest_try_is_accepted_even_if_a_slow_clock_gave_it_an_older_id(
        self, topology: Topology, started: str
    ) -> None:
        run = Run(topology, "r1")
        behind = topology.ids.task_try()
        begun = run.begin(2)
        if started == "begin":
            begun = run.begin(2, task_try=behind)
            assert begun.attempt.attempt == 2
            run.start().ack({"a": 2})
        else:
            zombie = run.start()
            run.start(task_try=behind).ack({"a": 2})
            with pytest.raises(StaleTry):
                zombie.ack({"a": 99})
        run.commit()
        assert topology.totals() == {"a": 2}

    def test_a_failed_task_can_start_again_within_its_attempt(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(1)
        run.start().fail("disk full")
        assert topology.phase(1) is Phase.FAILED
        run.process({"a": 1})
        run.commit()
        assert run.attempt.attempt == 1
        assert topology.totals() == {"a": 1}


class TestTrace12:
    """Clears, in an open and in a committed transaction."""

    def test_a_begin_that_outlives_the_clear_of_its_run_starts_no_attempt(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        old = topology.ids.task_try()
        run.begin(2)
        with pytest.raises(StaleBegin):
            run.begin(2, task_try=old, current=False)
        assert (topology.allocated, run.attempt.attempt) == (1, 1)

    def test_a_retried_begin_continues_its_attempt_if_no_task_has_started(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(2)
        assert run.begin(2, retry=True).attempt.attempt == 1

    def test_a_cleared_begin_starts_the_next_attempt(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(2)
        assert run.begin(2).attempt.attempt == 2

    def test_clearing_a_run_after_its_commit_changes_no_total(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(1)
        run.process({"a": 1})
        run.commit()
        assert run.begin(1) == AlreadyCommitted(1)
        assert run.start().started == AlreadyCommitted(1)
        assert run.committer().processed() == AlreadyCommitted(1)
        assert topology.totals() == {"a": 1}

    def test_an_opaque_replay_without_rows_commits_an_empty_batch(self, topology: Topology) -> None:
        first, second = Run(topology, "r1"), Run(topology, "r2")
        first.begin(1)
        first.begin(0)
        first.process({})
        first.commit()
        assert second.begin(1).metadata == [0, 1]


def test_a_later_transaction_that_is_ready_first_waits_until_the_earlier_one_commits(topology: Topology) -> None:
    first, second = Run(topology, "r1"), Run(topology, "r2")
    first.begin(1)
    second.begin(1)
    second.process({"b": 1})
    committer = second.committer()
    committer.processed()
    assert committer.ask() == NotYet(1)
    first.process({"a": 1})
    first.commit()
    second.commit()
    assert topology.totals() == {"a": 1, "b": 1}


class TestTrace25:
    """A ledger is closed, to be copied or deleted, while a run of it begins."""

    def test_a_begin_that_decided_before_its_ledger_was_closed_binds_no_transaction(self, topology: Topology) -> None:
        first, second = Run(topology, "r1"), Run(topology, "r2")
        first.begin(1)
        mover = Mover(topology.ledger())
        with pytest.raises(UnreadableRecord, match="being deleted: airflow tx delete trace"):
            second.begin(1, meanwhile=mover.close_for_deletion)
        assert topology.store().get(topology.paths.run("r2")) is None

    def test_a_replay_that_decided_before_its_ledger_was_closed_starts_no_attempt(self, topology: Topology) -> None:
        run = Run(topology, "r1")
        run.begin(1)
        mover = Mover(topology.ledger())
        with pytest.raises(UnreadableRecord, match="being deleted: airflow tx delete trace"):
            run.begin(1, meanwhile=mover.close_for_deletion)
        record = topology.record(1)
        assert record is not None
        assert record.attempt == 1


class TestAcceptedChecks:
    """A person accepts what a check has found in one output, and not in another one."""

    FOUND: ClassVar[CheckNote] = CheckNote(False, "1 of 2 rows", "of the rows")
    ADA: ClassVar[Audit] = Audit("ada", "a holiday")

    def refused(self, topology: Topology, found: CheckNote) -> Run:
        run = Run(topology, "r1")
        run.processed(2, {"a": 2})
        processed = run.committer().processed()
        assert isinstance(processed, Processed)
        refusal: Any = {
            "reason": "refused",
            "remedy": Remedy(("accept it",)),
            "for_good": True,
            "checks": {"positive": found},
        }
        topology.ledger().note_commit_failed(run.attempt, processed.epoch, **refusal)
        return run

    def test_accepting_an_output_other_than_the_previewed_output_is_refused(self, topology: Topology) -> None:
        self.refused(topology, replace(self.FOUND, digest="of other rows"))
        with pytest.raises(PreviewOutdated):
            topology.ledger().accept_checks(1, {"positive": "of the rows"}, audit=self.ADA)
        record = topology.ledger().status(1)
        assert record is not None
        assert record.accepted_checks == {}

    def test_a_replay_keeps_accepted_checks_and_drops_failed_checks_that_were_not_accepted(
        self, topology: Topology
    ) -> None:
        run = self.refused(topology, self.FOUND)
        topology.ledger().accept_checks(1, {"positive": "of the rows"}, audit=self.ADA)
        topology.note_replay(1, 1)
        run.begin(2)
        record = topology.ledger().status(1)
        assert record is not None
        assert record.checks == record.accepted_checks
        assert list(record.checks) == ["positive"]

    def test_the_record_keeps_the_first_person_who_accepted_a_check(self, topology: Topology) -> None:
        self.refused(topology, self.FOUND)
        for audit in (self.ADA, Audit("bob", "the same")):
            topology.ledger().accept_checks(1, {"positive": "of the rows"}, audit=audit)
        record = topology.ledger().status(1)
        assert record is not None
        accepted = record.checks["positive"].accepted
        assert accepted is not None
        assert accepted.who == "ada"
