"""Broken variants of the real code, one per rule of the protocol: the explorer, or a named trace, has to find each."""

from __future__ import annotations

import inspect
import textwrap
import tokenize
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from itertools import accumulate
from types import CodeType, FunctionType
from typing import Any

import pytest

from airflow_tx.base.errors import AlreadyFinal, IncompleteBatch, SkippedTransaction, TooMuchContention, TxError
from airflow_tx.ledger import book, life, reading
from airflow_tx.ledger.audit import chain, older_lines, rebuild
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.reading import Reader, RotatingTransactionalState
from airflow_tx.ledger.records import TransactionRecord
from airflow_tx.ledger.steps import (
    begin,
    commit,
    end,
    processing,
    recovery,
    replay,
    roll_forward,
    run_slots,
    step,
    version,
)
from airflow_tx.ledger.steps import end as skip
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.state import Sum, fence
from airflow_tx.state.maps import OpaqueValue
from airflow_tx.state.memory import MemoryState
from airflow_tx.transaction.commit import committer as writing
from airflow_tx.transaction.commit import handoff as taking
from airflow_tx.transaction.commit import turn
from airflow_tx.transaction.commit import write as moment
from tests.model import (
    test_actions,
    test_answers,
    test_ends,
    test_partitions,
    test_recovery,
    test_restatements,
    test_set_back,
    test_skips,
    test_traces,
    test_yields,
)
from tests.model.driver import Run, Topology
from tests.model.explorer import explore
from tests.model.shapes import Shape
from tests.model.world import Violation

ONE = Shape("transactional", 1, 1, 1)
ONE_OPAQUE = Shape("opaque", 2, 1, 1)
ONE_OPAQUE_KEYS = Shape("opaque", 1, 1, 1)
TWO_OPAQUE = Shape("opaque", 1, 2, 1)
TWO_OPAQUE_STATES = Shape("opaque", 2, 2, 1)
SKIP = Shape("opaque", 1, 1, 1, people=("skip",))
SKIP_TWICE = Shape("opaque", 1, 1, 2, clears_only=True, people=("skip",))
VARIES = Shape("opaque", 1, 1, 1, varies=True)
LATE = Shape("opaque", 1, 1, 1, people=("late",))
LAGS = Shape("opaque", 1, 1, 1, lags=True)
PRESS = Shape("opaque", 1, 1, 1, people=("press",))
SET_BACK = Shape("transactional", 1, 1, 1, clears_only=True, people=("skip", "set back"))
SET_BACK_VARIES = Shape("transactional", 1, 1, 1, clears_only=True, people=("set back",), varies=True)
TOGETHER = Shape("opaque", 2, 1, 0, together=True)
TOGETHER_CLEARED = Shape("opaque", 2, 1, 1, clears_only=True, together=True)
TOGETHER_SKIPPED = Shape("opaque", 2, 1, 1, clears_only=True, people=("skip",), together=True)
TWO_SKIP = Shape("opaque", 1, 2, 1, people=("skip",))
RESTATED = Shape("opaque", 1, 1, 1, clears_only=True, restates=1)
RESTATED_TWICE = Shape("opaque", 1, 1, 0, clears_only=True, restates=2)
RESTATED_AND_SKIPPED = Shape("opaque", 1, 1, 1, clears_only=True, people=("skip",), restates=1)
NEW_BINDING = (
    "Create(paths.run(key), encode(Binding(txid))) if given is None "
    "else Put(paths.run(key), encode(given.bound(txid, record.birth))),"
)


@dataclass(frozen=True)
class Trace:
    """A test of this folder, called with the topology of a fixture.

    :param topology: the arguments of the topology that it is about, beside one opaque state.
    :param error: the refusal by which the trace ends when it finds its mutant; None: the trace finds the mutant by what
        it compares, or because a refusal did not come.
    """

    test: Callable[[Topology], object]
    topology: Mapping[str, Any] = field(default_factory=dict)
    error: type[TxError] | None = None

    def run(self) -> None:
        """On the in-memory store.

        :raises Exception: as `error` says, if it finds the mutant.
        """
        only = MemoryStore()
        # A transactional source comes with a transactional state, as in the fixtures.
        state = MemoryState("s0", keys=["key"], values={"n": Sum()}, kind=self.topology.get("source", "opaque"))
        arguments = {name: value for name, value in self.topology.items() if name != "waiting"}
        topology = Topology(lambda: only, "/mutant", [state], **arguments)
        for number in (1, 2, 3) if self.topology.get("waiting") else ():
            Run(topology, f"r{number}").begin(1)
        self.test(topology)


@dataclass(frozen=True)
class Mutant:
    """A rule taken out of the code.

    :param changes: (function, its text, what the text becomes).
    :param shape: the size of world that is enough to find it; or the trace that does, with the fixture it is given.
    """

    rule: str
    changes: tuple[tuple[Callable[..., object], str, str], ...]
    shape: Shape | Trace

    def __str__(self) -> str:
        return self.rule.replace(" ", "-")


def _trace(owner: Any, name: str, *, error: type[TxError] | None = None, **topology: Any) -> Trace:
    test = getattr(owner, name)
    return Trace(partial(test, owner()) if isinstance(owner, type) else test, topology, error)


def _restated(owner: Any, name: str) -> Trace:
    return _trace(owner, name, journals=True)


def _ends(name: str) -> Trace:
    return _trace(test_ends, name, journals=True, appends=True)


def _rebuilt(name: str, *, gone: bool, error: type[TxError] | None = None) -> Trace:
    test = getattr(test_restatements.TestRebuilt(), name)
    return Trace(partial(test, gone=gone), {"journals": True}, error)


_MENDED = Trace(
    partial(
        test_restatements.TestGivenUp().test_a_restatement_that_a_repair_can_fix_waits_and_is_committed_after_the_repair,
        for_good=True,
    ),
    {"journals": True},
)

MUTANTS = (
    Mutant(
        "no attempt check, nor the one of tries behind it",
        (
            (processing.newest_record, "record.attempt != attempt.attempt", "False"),
            (processing.start, 'not read.ask("current", found.task_try, is_current)', "False"),
        ),
        ONE_OPAQUE_KEYS,
    ),
    Mutant(
        "no fence at a write",
        (
            (
                fence.check_write,
                "stored is None or stored.incarnation != grant.incarnation or stored.token != grant.token",
                "False",
            ),
        ),
        ONE_OPAQUE,
    ),
    Mutant(
        "a committed transaction need not be complete in its state",
        ((fence._check_continuity, "stored.applied and mine", "mine"),),
        _trace(
            test_recovery.TestTrace7,
            "test_a_state_that_kept_a_raised_fence_but_lost_the_update_is_refused",
        ),
    ),
    Mutant(
        "no roll-back of keys that only the old attempt had",
        ((OpaqueValue.undone, "self.token != writer.token", "False"),),
        ONE_OPAQUE_KEYS,
    ),
    Mutant(
        "only the fences of states with something to write",
        (
            (
                writing.Commit.write,
                "raise_fences(outside, grant)",
                "raise_fences([each.state for each in others if list(each.rows)], grant)",
            ),
        ),
        ONE_OPAQUE,
    ),
    Mutant(
        "commit before its turn",
        ((commit.acquire, "current.txid != attempt.txid", "False"),),
        _trace(test_answers, "test_a_committer_that_asks_for_the_turn_too_early_must_wait"),
    ),
    Mutant("base not compared", ((end.check_grant, "digest(before) != record.base", "False"),), TWO_OPAQUE),
    Mutant(
        "phase not looked at",
        ((commit.acquire, "record.phase is Phase.PROCESSING or record.epoch != request.epoch", "False"),),
        ONE_OPAQUE_KEYS,
    ),
    Mutant(
        "epoch not raised by a grant",
        (
            (commit.acquire, "epoch = record.epoch + 1", "epoch = record.epoch"),
            (fence._check_rank, "found.rank == mine.rank and found.nonce != mine.nonce", "False"),
        ),
        ONE_OPAQUE,
    ),
    Mutant(
        "token not compared at the mark",
        ((end.check_token, "not holds(record, topology, token)", "False"),),
        ONE_OPAQUE_KEYS,
    ),
    Mutant("a refused write taken for done", ((Ledger._send, "return False", "return True"),), ONE),
    Mutant(
        "an unanswered write taken for done", ((Ledger._send, "made = found is not None and", "made = True or"),), ONE
    ),
    Mutant(
        "what was read is not required", ((Reader.requirements, "return tuple(found)", "return ()"),), ONE_OPAQUE_KEYS
    ),
    Mutant(
        "binding not looked at",
        (
            (begin.begin, "if binding is None:", "if True:"),
            (
                begin._allocated,
                NEW_BINDING,
                "",
            ),
        ),
        ONE,
    ),
    Mutant(
        "acks not waited for",
        ((processing.processed, "if missing or value:", "if False:"),),
        _trace(test_answers, "test_a_batch_is_complete_only_when_every_task_has_acked"),
    ),
    Mutant(
        "a zombie's ack taken", ((processing._own, "not task.same_instance(found.task_try)", "False"),), ONE_OPAQUE_KEYS
    ),
    Mutant(
        "a start forgets what its id has acked",
        ((processing.start, "found.done and not another", "False"),),
        _trace(
            test_traces.TestTrace11,
            "test_a_task_that_is_retried_with_the_same_try_id_may_still_succeed",
            error=IncompleteBatch,
        ),
    ),
    Mutant("committed transactions not recognised", ((step.is_committed, "txid < current.txid", "False"),), ONE),
    Mutant(
        "an old begin may ask",
        ((replay.begin_again, 'not read.ask("current", record.request, outside.is_current)', "False"),),
        ONE_OPAQUE_KEYS,
    ),
    Mutant(
        "a commit forgets its own rows and position",
        ((RotatingTransactionalState.cleanup_before, "self.remove_state(txid - 1)", "self.remove_state(txid)"),),
        TWO_OPAQUE,
    ),
    Mutant(
        "the state before a transaction is its own",
        ((RotatingTransactionalState.get_previous_state, "self.get_state(txid - 1)", "self.get_state(txid)"),),
        TWO_OPAQUE,
    ),
    Mutant(
        "a begin does not require the topology record",
        ((begin.begin, "read.find(TopologyRecord", "read.peek_if_any(TopologyRecord"),),
        _trace(test_traces.TestTrace25, "test_a_begin_that_decided_before_its_ledger_was_closed_binds_no_transaction"),
    ),
    Mutant("a stale position is kept", ((replay._next_attempt, "base=decided.base,", ""),), TWO_OPAQUE),
    Mutant(
        "a start leaves the epoch as it is",
        ((processing.start, "epoch=record.epoch + 1", "epoch=record.epoch"),),
        VARIES,
    ),
    Mutant(
        "what has failed is acquired",
        ((commit.acquire, "record.phase is Phase.FAILED and record.skip is None", "False"),),
        LATE,
    ),
    Mutant(
        "a task fails what is being committed",
        ((processing.fail, "Phase.PROCESSED)", "Phase.PROCESSED, Phase.COMMITTING)"),),
        LATE,
    ),
    Mutant("an answer is believed without a sync", ((Ledger._run, "self.store.sync()", "pass"),), LAGS),
    Mutant(
        "an answer of records of different times is believed",
        ((Ledger._run, "and read.still_holds()", ""),),
        _trace(test_answers, "test_a_step_decides_with_records_that_were_all_read_at_the_same_time"),
    ),
    Mutant(
        "a waiting committer does not notice what happens to its own transaction",
        ((turn._in_turn, "commit.forget()", "pass"),),
        _trace(test_answers, "test_a_waiting_committer_fails_if_its_own_transaction_fails"),
    ),
    # --- one moment
    Mutant(
        "states of one store are written one after the other",
        ((moment.moment_of, "for state in groups[0]", "for state in groups[0][:1]"),),
        TOGETHER,
    ),
    Mutant(
        "states of one store are raised one after the other before they are written",
        (
            (
                writing.Commit.write,
                "raise_fences(outside, grant)",
                "raise_fences(outside, grant)\n    for each in moment:\n        each.state.raise_fence(grant)",
            ),
        ),
        TOGETHER_CLEARED,
    ),
    Mutant(
        "states of one store are raised and written one after the other",
        (
            (
                moment.write_moment,
                "write_together(list(zip(states, works, strict=True)))",
                "[write_together([pair])[0] for pair in zip(states, works, strict=True)]",
            ),
        ),
        TOGETHER,
    ),
    Mutant(
        "a skip is taken from states of one store one after the other",
        (
            (
                taking.take_skip,
                "write_together([(each, StateWrite(each.name, grant, raising=True)) for each in moment])",
                "[write_together([(each, StateWrite(each.name, grant, raising=True))]) for each in moment]",
            ),
        ),
        TOGETHER_SKIPPED,
    ),
    # --- skip, re-admission, yield
    Mutant(
        "a skip raises no fence",
        ((taking.take_skip, "raise_fences(others, grant)", "pass"),),
        SKIP,
    ),
    Mutant(
        "a skip is not a grant: its epoch is the old one",
        (
            (skip.grant_skip, "epoch=record.epoch + 1", "epoch=record.epoch"),
            (fence._check_rank, "found.rank == mine.rank and found.nonce != mine.nonce", "False"),
            (end.holds, "return found ==", "return found[:3] == token.rank[:1] + token.rank[2:] or found =="),
        ),
        SKIP_TWICE,
    ),
    Mutant(
        "a skip before its turn",
        ((skip.grant_skip, "current.txid != txid", "False"),),
        _trace(
            test_skips.TestTrace5And6,
            "test_the_committer_that_hands_over_the_turn_learns_that_the_next_transaction_is_skipped",
        ),
    ),
    Mutant(
        "a skip does not compare the base",
        ((end.check_grant, "digest(before) != record.base", "False"),),
        _trace(test_skips.TestTrace5And6, "test_a_stale_batch_is_replayed_before_it_is_skipped"),
    ),
    Mutant(
        "a skip of what a state cannot undo",
        (
            (skip.held_for_good, "if can is False", "if False"),
            (fence.if_held, "if grant.is_skip:", "if False:"),
            (taking.take_skip, "if stuck:", "if False:"),
        ),
        _trace(
            test_skips.TestTrace2,
            "test_a_skip_of_a_granted_transaction_is_refused_if_the_state_is_transactional",
            source="transactional",
        ),
    ),
    Mutant(
        "a skip asks the ledger what a state holds",
        (
            (skip.held_for_good, "if can is False", "if can is False and record.granted"),
            (fence.if_held, "if grant.is_skip:", "if False:"),
            (
                taking.take_skip,
                "state.undoes and state.holds_for_good",
                "state.undoes and found[state.name] and state.holds_for_good",
            ),
        ),
        SET_BACK,
    ),
    Mutant(
        "a state forgets what it was about to be given",
        ((fence.if_held, "mine is None or found is None", "True"),),
        SET_BACK_VARIES,
    ),
    Mutant(
        "a skip makes a state forget what it was about to be given",
        (
            (fence.if_held, "if grant.is_skip:", "if False:"),
            (skip.held_for_good, "if can is False", "if False"),
        ),
        _trace(
            test_set_back.TestSkip,
            "test_a_skip_is_refused_if_a_lost_grant_writes_after_the_check_of_the_skip",
            source="transactional",
        ),
    ),
    Mutant(
        "withdrawing a skip leaves its grant",
        ((skip.withdraw_skip, "granted = record.phase is Phase.COMMITTING", "granted = False"),),
        _trace(
            test_skips.TestWhileItIsSkipped,
            "test_no_row_is_lost_if_a_skip_is_withdrawn_while_a_committer_writes",
        ),
    ),
    Mutant(
        "a skip is not looked at by a committer",
        ((commit.acquire, "if record.skip is not None:", "if False:"),),
        _trace(
            test_skips.TestWhileItIsSkipped, "test_a_replay_of_a_transaction_with_a_noted_skip_is_skipped_at_its_turn"
        ),
    ),
    Mutant(
        "rows of a re-admitted batch are not kept",
        ((begin._allocated, "pinned=given is not None,", ""),),
        _trace(test_skips.TestTrace3, "test_no_row_is_lost_if_a_readmission_fails_and_its_predecessor_moves"),
    ),
    Mutant(
        "a re-admitted batch moves the position",
        (
            (
                begin._pinned,
                "after = unmoved(position, rows, partitioned=partitioned)",
                "after = rows[1]",
            ),
        ),
        TWO_SKIP,
    ),
    Mutant(
        "re-admitted more than once",
        (
            (
                begin._allocated,
                NEW_BINDING,
                "*((Create(paths.run(key), encode(Binding(txid))),) if given is None else ()),",
            ),
        ),
        _trace(
            test_skips.TestTrace3,
            "test_a_second_readmission_changes_nothing_before_its_begin_and_is_refused_afterwards",
        ),
    ),
    Mutant(
        "re-admission is allowed twice",
        ((skip.check_skipped, "skipped.readmitted_as is not None", "False"),),
        _trace(
            test_skips.TestTrace3,
            "test_a_second_readmission_changes_nothing_before_its_begin_and_is_refused_afterwards",
        ),
    ),
    Mutant(
        "a transaction just allocated is taken for skipped",
        ((skip.open_record, "read.find(Skipped, paths.skipped(txid)) is not None", "True"),),
        _trace(
            test_skips.TestAnswers,
            "test_a_transaction_that_begins_during_a_withdrawal_is_not_reported_as_skipped",
            error=AlreadyFinal,
        ),
    ),
    Mutant(
        "a partition that takes no part loses its place",
        ((reading.position_after, "{**(before or {}), **(after or {})}", "{**(after or {})}"),),
        _trace(
            test_partitions,
            "test_a_partition_without_rows_for_ten_transactions_keeps_its_position",
            partitioned=True,
        ),
    ),
    Mutant(
        "a name that is taken is allocated",
        ((begin._new_key, "read.find(Binding, paths.run(key), new=True)", "None"),),
        _trace(
            test_recovery.TestAllocationAhead,
            "test_an_allocated_run_does_not_get_the_run_id_of_a_manual_run",
            error=TooMuchContention,
        ),
    ),
    Mutant(
        "a run of an allocated transaction makes another attempt",
        ((replay.begin_again, ' or (record.request == "" and not is_blocked)', ""),),
        _trace(
            test_recovery.TestAllocationAhead,
            "test_the_run_of_an_allocated_transaction_begins_its_first_attempt_with_the_same_rows",
        ),
    ),
    Mutant(
        "each who finds an attempt that ended replays it",
        ((recovery.note_replay, "before.attempt == attempt.attempt and", "False and"),),
        _trace(test_recovery.TestReplaysAreNoted, "test_a_replay_is_not_noted_twice_for_the_same_attempt"),
    ),
    Mutant(
        "replays are not counted",
        ((recovery.note_replay, " + request.counts", ""),),
        _trace(test_recovery.TestReplaysAreNoted, "test_a_transaction_is_blocked_after_too_many_consecutive_failures"),
    ),
    Mutant(
        "a restatement that fails again and again blocks all that comes after it",
        ((recovery._stop, "record.replaces is None or ", "True or "),),
        _trace(
            test_restatements.TestGivenUp,
            "test_a_failed_restatement_is_skipped_automatically_and_later_transactions_commit",
            journals=True,
        ),
    ),
    Mutant(
        "a restatement that a repair mends is given up",
        ((recovery._stop, "record.repairable or ", ""),),
        _MENDED,
    ),
    Mutant(
        "a refusal of another kind than of values ends a restatement",
        ((TransactionRecord.with_failure, "repairable and self.replaces is not None", "False"),),
        _MENDED,
    ),
    *(
        Mutant(
            f"a failure that a repair mends outlives the next {way}",
            (
                (
                    function,
                    "record.without_failure()",
                    "replace(record.without_failure(), repairable=record.repairable)",
                ),
            ),
            Trace(
                partial(
                    test_restatements.TestGivenUp().test_a_restatement_that_made_progress_no_longer_waits_for_a_repair,
                    way=way,
                ),
                {"journals": True},
            ),
        )
        for way, function in (("begin", replay._next_attempt), ("start", processing.start), ("acquire", commit.acquire))
    ),
    Mutant(
        "a restatement whose skip is refused is skipped again and again",
        ((recovery._stop, " or before.given_up", ""),),
        _trace(
            test_restatements.TestGivenUp,
            "test_a_failed_restatement_that_cannot_be_skipped_is_blocked_until_a_person_acts",
            journals=True,
        ),
    ),
    Mutant(
        "all that come after one that moved are replayed",
        ((reading.stale_successors, "opened[txid].base != ended", "found or opened[txid].base != ended"),),
        _trace(test_recovery.TestChain, "test_replays_of_the_example_in_the_documentation_take_the_documented_rows"),
    ),
    Mutant(
        "whoever wants may yield",
        ((run_slots.note_yield, "leader != waiter.run_id", "False"),),
        _trace(test_yields, "test_a_bidding_run_that_died_is_replaced_after_a_timeout", waiting=True),
    ),
    Mutant(
        "two yield for one offer",
        ((run_slots.note_yield, "bid=None, ", ""),),
        _trace(test_yields, "test_the_next_run_must_bid_again_after_another_run_has_yielded", waiting=True),
    ),
    Mutant(
        "the last offer leads",
        ((run_slots.bid, "found.rank >= waiter.rank", "False"),),
        _trace(test_yields, "test_a_later_try_of_the_leading_run_keeps_the_lead", waiting=True),
    ),
    Mutant(
        "an old entry lets one yield out of turn",
        ((run_slots.note_yield, " and before.blocking == waiter.blocking", ""),),
        _trace(test_yields, "test_a_run_must_bid_again_even_if_an_entry_of_an_earlier_yield_is_left", waiting=True),
    ),
    # --- what people act on
    Mutant(
        "whoever was shown a transaction acts on it as it is now",
        ((version.note_action, "_version(txids, records) != version", "False"),),
        PRESS,
    ),
    Mutant(
        "an action leaves its transaction of the version that it was",
        ((version.note_action, "replace(found, op=stamp.op)", "found"),),
        PRESS,
    ),
    Mutant(
        "an action is noted on the first of its transactions alone",
        ((version.note_action, "in records.items()", "in list(records.items())[:1]"),),
        _trace(test_actions, "test_an_action_on_several_transactions_makes_the_preview_of_each_transaction_outdated"),
    ),
    Mutant(
        "a version is of the first of its transactions alone",
        ((version._version, "in sorted(set(txids))", "in sorted(set(txids))[:1]"),),
        _trace(test_actions, "test_an_action_on_one_transaction_makes_a_preview_of_several_transactions_outdated"),
    ),
    # --- restatements
    Mutant(
        "an entry holds what the state was given",
        (
            (
                writing.Commit.prepare,
                "write_entry(self, processed, self.rows_read, ",
                "write_entry(self, processed, [d.rows for d in replacing.differences.values()] or self.rows_read, ",
            ),
        ),
        RESTATED_TWICE,
    ),
    Mutant(
        "the whole output is added once more",
        (
            (
                writing.Commit.updates_to_write,
                "UpdateRows(update, difference.rows, difference.instead, require)",
                "given",
            ),
        ),
        RESTATED,
    ),
    Mutant(
        "a run is bound to its restatement once that begins",
        (
            (
                replay.Restatement.bound,
                "replace(self.binding, restating=Restating(txid, birth))",
                "Binding(txid)",
            ),
        ),
        RESTATED_AND_SKIPPED,
    ),
    Mutant(
        "a mark leaves the binding as it is",
        ((end.ended, "(record.journal or record.replaces is not None)", "record.replaces is None"),),
        RESTATED,
    ),
    Mutant(
        "a skip binds the run to what is skipped",
        ((end.ended, "outcome is Outcome.COMMITTED and", "True and"),),
        RESTATED_AND_SKIPPED,
    ),
    Mutant(
        "a begin does not look for the restatement of its transaction",
        ((begin.begin, "restating(read, paths, binding) or binding.txid", "binding.txid"),),
        RESTATED,
    ),
    Mutant(
        "the rows of a restatement are not kept",
        ((begin._allocated, "pinned=given is not None,", ""),),
        RESTATED,
    ),
    Mutant(
        "a restatement moves the position",
        ((begin._pinned, "after = unmoved(position, rows, partitioned=partitioned)", "after = rows[0]"),),
        RESTATED,
    ),
    Mutant(
        "a grant keeps the entry of the one before it",
        ((commit.acquire, "journal=request.journal or None,", "journal=record.journal or request.journal or None,"),),
        _restated(test_restatements.TestRestatement, "test_an_output_that_is_acked_again_gets_a_new_journal_entry"),
    ),
    Mutant(
        "an attempt keeps the entry of the one before it",
        ((replay._next_attempt, "receipt=None, journal=None", "receipt=None"),),
        _restated(
            test_restatements.TestRestatement, "test_the_next_attempt_drops_the_journal_entry_of_the_previous_grant"
        ),
    ),
    Mutant(
        "what is compared between replays may be left out of the record",
        ((commit.acquire, "outputs={**request.outputs, **record.outputs},", "outputs={},"),),
        _trace(
            test_restatements,
            "test_a_replay_compares_the_output_and_not_the_difference_with_the_first_attempt",
            journals=True,
            source="transactional",
        ),
    ),
    Mutant(
        "a restatement is known by its txid alone",
        ((replay.restating, "record.birth != noted.birth", "False"),),
        _restated(test_restatements, "test_another_transaction_with_a_reused_txid_does_not_count_as_the_restatement"),
    ),
    Mutant(
        "a wish is fulfilled more than once",
        ((replay.Restatement.writes, "return (Delete(paths.wish(self.binding.txid)),)", "return ()"),),
        _restated(
            test_restatements.TestSkipOfARestatement,
            "test_the_restated_transaction_counts_again_after_its_restatement_is_skipped",
        ),
    ),
    Mutant(
        "a state that went back is not looked at",
        ((replay.check_held, "if problem:", "if False:"),),
        _restated(
            test_restatements.TestWant,
            "test_begin_of_a_restatement_is_refused_if_a_state_was_set_back_after_the_request",
        ),
    ),
    Mutant(
        "a state that went back after the begin is not looked at",
        ((commit.acquire, "if record.replaces is not None:", "if False:"),),
        _restated(
            test_restatements.TestWant,
            "test_a_restatement_does_not_get_the_turn_if_a_state_was_set_back_after_its_begin",
        ),
    ),
    Mutant(
        "a difference outlives what it was formed from",
        ((commit.acquire, "if (taken_back or request.held) and request.held", "if False and request.held"),),
        _restated(
            test_restatements.TestWant,
            "test_a_difference_is_computed_again_after_a_person_accepts_a_change_of_the_state",
        ),
    ),
    Mutant(
        "what a person accepted holds for another output",
        ((commit.accept_checks, "{name: each.digest for name, each in shown.items()} != digests", "False"),),
        _trace(test_traces.TestAcceptedChecks, "test_accepting_an_output_other_than_the_previewed_output_is_refused"),
    ),
    Mutant(
        "who accepts again is named in place of the first person",
        ((commit.accept_checks, "each.accepted or by", "by"),),
        _trace(test_traces.TestAcceptedChecks, "test_the_record_keeps_the_first_person_who_accepted_a_check"),
    ),
    Mutant(
        "what a person accepted is forgotten by a replay",
        ((replay._next_attempt, "checks=record.accepted_checks", "checks={}"),),
        _trace(
            test_traces.TestAcceptedChecks,
            "test_a_replay_keeps_accepted_checks_and_drops_failed_checks_that_were_not_accepted",
        ),
    ),
    Mutant(
        "which columns a state has is not looked at",
        ((replay.held_at, "topology.columns.get(state)", "None"),),
        _restated(test_restatements.TestWant, "test_a_difference_is_computed_again_after_a_column_was_dropped"),
    ),
    Mutant(
        "a value is replaced to which another transaction has contributed since",
        ((replay.held_at, "topology.states.get(state)", "None"),),
        Trace(
            partial(
                test_restatements.TestWant().test_a_difference_that_replaces_values_is_computed_again_after_another_commit,
                sole=True,
            ),
            {"journals": True},
            None,
        ),
    ),
    Mutant(
        "a state that went back is not noted",
        ((life._Walk._takes_loss, "self.losses.insert(0,", "[].insert(0,"),),
        _restated(
            test_restatements.TestWant,
            "test_begin_of_a_restatement_is_refused_if_a_state_was_set_back_after_the_request",
        ),
    ),
    Mutant(
        "a new state has the name of another one",
        ((end._topology_after, "if old not in states", "if True"),),
        _restated(
            test_restatements.TestRename,
            "test_a_new_state_does_not_inherit_transactions_of_a_state_that_had_its_name_earlier",
        ),
    ),
    Mutant(
        "a skipped restatement keeps its rows",
        ((skip.commit_skip, "if record.replaces is None:", "if True:"),),
        _restated(test_restatements.TestSkipOfARestatement, "test_a_skipped_restatement_cannot_be_readmitted"),
    ),
    Mutant(
        "a fence does not say what was to be replaced",
        ((end.fence_batch, "replaces=of.replaces", "replaces=None"),),
        _rebuilt("test_a_rebuild_that_reopens_a_restatement_keeps_the_restated_transaction", gone=True),
    ),
    Mutant(
        "a fence does not name the entry",
        ((end.fence_batch, "journal=of.journal,", "journal=None,"),),
        _rebuilt("test_a_rebuild_keeps_a_complete_restatement_which_can_then_be_restated", gone=True),
    ),
    Mutant(
        "a rebuilt ledger re-admits a skipped restatement",
        ((chain.expected, "if each.replaces is not None:", "if False:"),),
        _rebuilt("test_a_rebuild_keeps_a_restated_transaction_if_its_restatement_was_skipped", gone=True),
    ),
    Mutant(
        "a rebuilt ledger binds the run to the skipped restatement",
        ((chain._bound_after, "each.replaces is None or _is_committed(each)", "True"),),
        _rebuilt(
            "test_a_rebuild_keeps_a_restated_transaction_if_its_restatement_was_skipped",
            gone=False,
            error=SkippedTransaction,
        ),
    ),
    Mutant(
        "a rebuilt ledger binds the run to a restatement that was skipped earlier",
        ((chain._bound_after, "each.replaces is None or _is_committed(each)", "True"),),
        _rebuilt(
            "test_a_rebuild_cannot_recognize_a_skipped_restatement_without_its_receipt",
            gone=True,
            error=SkippedTransaction,
        ),
    ),
    Mutant(
        "a rebuilt ledger forgets the runs of what was skipped earlier",
        ((rebuild._bound_by_receipts, "**skipped, ", ""),),
        _rebuilt("test_a_rebuild_cannot_recognize_a_skipped_restatement_without_its_receipt", gone=True),
    ),
    Mutant(
        "a rebuilt ledger restates what came before",
        ((rebuild._topology_after, "rebuilt=plan.current - 1", "rebuilt=0"),),
        _rebuilt("test_transactions_that_committed_before_a_rebuild_cannot_be_restated", gone=False),
    ),
    Mutant(
        "a rebuilt ledger keeps wishes",
        (
            (
                rebuild._emptied,
                'writes += [Delete(f"{paths.wishes}/{name}") for name in read.names_if_any(paths.wishes)]',
                "",
            ),
        ),
        _rebuilt("test_a_rebuild_deletes_all_requests_for_restatements", gone=False),
    ),
    Mutant(
        "the mark writes no line",
        ((end.ended, "*ended_lines(read, paths, topology, record, receipt)", "*()"),),
        _ends("test_each_final_transaction_has_a_line_in_the_book_of_ends"),
    ),
    Mutant(
        "a line names the predecessor instead of the first of the chain",
        (
            (begin._first_of, "line.first", "0"),
            (book.ended_lines, "before is not None and before.first", "False"),
        ),
        _ends("test_a_restatement_of_a_restatement_ends_the_chain_of_the_first_transaction"),
    ),
    Mutant(
        "a restatement that begins before its chain is known ends none",
        ((book.ended_lines, "before is not None and before.first", "False"),),
        _ends("test_a_restatement_begun_before_a_repair_of_the_book_ends_the_chain_of_the_added_lines"),
    ),
    Mutant(
        "a restatement does not note its end",
        ((book._ended, "[replace(begins, end=line.txid)]", "[]"),),
        _ends("test_a_restatement_of_a_restatement_ends_the_chain_of_the_first_transaction"),
    ),
    Mutant(
        "the book of a rebuilt ledger begins where lines are missing",
        ((rebuild._begin_of_book, "begin = plan.current - len(lines)", "begin = 1"),),
        _ends("test_the_book_of_a_rebuilt_ledger_begins_at_the_first_complete_line"),
    ),
    Mutant(
        "what is taken back keeps its lines",
        ((roll_forward.back, "*_lines_taken_back(read, paths, topology, {**kept, **records})", "*()"),),
        _ends("test_an_earlier_end_counts_again_after_its_restatement_was_taken_back"),
    ),
    Mutant(
        "older lines are put where others are missing behind them",
        ((older_lines.older_lines, "min([topology.book or current, *txids])", "min([current, *made.lines])"),),
        _ends("test_an_interrupted_repair_of_the_book_of_ends_leaves_no_gap"),
    ),
    Mutant(
        "a skipped transaction is of no version",
        ((version._records, " or read.find(Skipped, paths.skipped(txid))", ""),),
        _trace(test_actions, "test_the_second_of_two_readmissions_with_the_same_version_is_refused"),
    ),
)


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """The real code with the mutant's change, for as long as the block lasts.

    :raises AssertionError: the text to change is no longer in the code.
    """
    originals = []
    try:
        for function, old, new in mutant.changes:
            assert isinstance(function, FunctionType)
            originals.append((function, function.__code__))
            function.__code__ = _changed(function, old, new)
        yield
    finally:
        for function, code in reversed(originals):
            function.__code__ = code


def why_found(mutant: Mutant) -> str | None:
    """Say by what the explorer, or the trace, finds a mutant; None: it does not.

    A mutant that stops the code in any other way, such as by a NameError, breaks no promise: nothing would have been
    counted wrongly.

    :raises Exception: that error of another kind.
    """
    with applied(mutant):
        try:
            if isinstance(mutant.shape, Shape):
                explore(mutant.shape)
            else:
                mutant.shape.run()
        except Violation as violation:
            return str(violation)
        except (AssertionError, pytest.fail.Exception, TxError) as error:
            if not _is_expected(error, mutant.shape):
                raise
            return f"{type(error).__name__}: {error}"
    return None


def _is_expected(error: BaseException, found_by: Shape | Trace) -> bool:
    if isinstance(found_by, Shape):
        return False
    if found_by.error is not None or isinstance(error, TxError):
        return type(error) is found_by.error
    # An assert of the product is no promise of the test.
    *_, (last, _) = traceback.walk_tb(error.__traceback__)
    return not last.f_globals["__name__"].startswith("airflow_tx.")


def _changed(function: FunctionType, old: str, new: str) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    place = _place(source, old)
    assert place is not None, f"{function.__qualname__} no longer says {old!r}"
    start, end = place
    found: dict[str, object] = {}
    # Postponed annotations, as in the modules themselves: names that exist only for type checkers are not looked up.
    exec(
        compile(
            f"from __future__ import annotations\n{source[:start]}{new}{source[end:]}",
            function.__code__.co_filename,
            "exec",
        ),
        dict(function.__globals__),
        found,
    )
    changed = found[function.__name__]
    assert isinstance(changed, FunctionType)
    return changed.__code__


def _place(source: str, text: str) -> tuple[int, int] | None:
    """Find where a source says something, however its lines are broken; None: nowhere."""
    words, wanted = _words(source), [word for word, _, _ in _words(text)]
    for number in range(len(words) - len(wanted) + 1):
        found = words[number : number + len(wanted)]
        if [word for word, _, _ in found] == wanted:
            return found[0][1], found[-1][2]
    return None


def _words(source: str) -> list[tuple[str, int, int]]:
    """Split a source, or a part of one, into its tokens, each with its start and end; a line break is none."""
    begins = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
    found: list[tuple[str, int, int]] = []
    # A part of a source may end within a bracket, or in a block that is not there.
    with suppress(tokenize.TokenError, IndentationError):
        for token in tokenize.generate_tokens(StringIO(source).readline):
            if not token.string.strip() or token.type == tokenize.COMMENT:
                continue
            if token.string in ")]}" and found and found[-1][0] == ",":
                found.pop()  # it stands there when the bracket has a line of its own
            start = begins[token.start[0] - 1] + token.start[1]
            found.append((token.string, start, start + len(token.string)))
    return found
