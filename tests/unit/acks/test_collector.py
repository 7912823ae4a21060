"""A worker's side: what it refuses, and what it sends again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest

from airflow_tx.base.errors import (
    AckersBehind,
    AckersUnavailable,
    ForeignMessage,
    NotAReference,
    OutcomeUnknown,
    StaleMessage,
)
from airflow_tx.ledger.api import Requirement, Write
from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.outputs.messages.messages import Collector, RootEmitter
from airflow_tx.outputs.messages.stores import ZnodeAckers
from airflow_tx.outputs.messages.tree import Lineage, Origin, Portion, Reference, new_id
from airflow_tx.testing.eventually import eventually

ORIGIN = Origin("words", 7, 2)


class Ackers(ZnodeAckers):
    """Those in memory, whose answers can be lost.

    :ivar lost: called before a portion is applied, or after it; it may raise an error.
    """

    def __init__(self) -> None:
        super().__init__(MemoryStore(), "/airflow_tx")
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def take(self, origin: Origin, acker: int, portion: Portion) -> list[int]:
        self.before()
        refused = super().take(origin, acker, portion)
        self.after()
        return refused


@pytest.fixture
def ackers() -> Ackers:
    return Ackers()


@pytest.fixture
def root(ackers: Ackers) -> str:
    ackers.open(ORIGIN, "", 1)
    return RootEmitter(ackers, ORIGIN, 1, TaskTry("split", -1, "t")).emit(1)[0]


def _away() -> None:
    raise AckersUnavailable(where="here", reason="it is away")


def test_a_message_of_another_topology_is_refused_with_an_error_that_names_both_topologies(
    ackers: Ackers, root: str
) -> None:
    collector = Collector(ackers, topology="flights")
    with pytest.raises(ForeignMessage, match=r"topology 'words' refused: this collector works for topology 'flights'"):
        collector.process(root)


def test_text_that_is_not_a_message_reference_is_refused(ackers: Ackers) -> None:
    with pytest.raises(NotAReference, match="the cow"):
        Collector(ackers).process("the cow jumped over the moon")


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_part_of_an_ack_report_that_got_no_reply_is_sent_again_and_is_counted_once(
    ackers: Ackers, root: str, side: str
) -> None:
    collector = Collector(ackers, interval=600)
    with collector.process(root) as message:
        word = message.emit()
    setattr(ackers, side, _away)
    for _ in range(3):
        with pytest.raises(AckersUnavailable, match="it is away"):
            collector.flush()
    collector.process(word).ack()
    with pytest.raises(AckersUnavailable):
        collector.flush()
    setattr(ackers, side, lambda: None)
    collector.flush()
    assert ackers.report(ORIGIN).open == {}


def test_a_write_to_the_ackers_with_an_unknown_outcome_is_counted_once(ackers: Ackers, root: str) -> None:
    store, lost = ackers._store, [True, False]
    send = store.multi

    def multi(requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        send(requirements, writes)
        if lost.pop():
            raise OutcomeUnknown(paths="an acker", reason="no answer")

    collector = Collector(ackers, interval=600)
    collector.process(root).ack()
    lost.append(True)
    store.multi = multi  # type: ignore[method-assign]
    collector.flush()
    assert ackers.report(ORIGIN).open == {}


def test_a_worker_sends_reports_periodically_and_continues_while_the_ackers_are_unreachable(
    ackers: Ackers, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "airflow_tx.outputs.messages.messages")
    tries: list[int] = []

    def away() -> None:
        tries.append(1)
        _away()

    ackers.before = away
    with Collector(ackers, interval=0.001) as collector:
        collector.process(root).ack()
        eventually(lambda: len(tries) > 3, 60, "it is tried again")
        ackers.before = lambda: None
        eventually(lambda: ackers.report(ORIGIN).open == {}, 60, "it is sent")
    assert [record.message for record in caplog.records] == [str(AckersUnavailable(where="here", reason="it is away"))]


def test_a_message_that_a_worker_holds_during_the_replay_of_its_attempt_is_refused_afterwards(
    ackers: Ackers, root: str
) -> None:
    collector = Collector(ackers, interval=600)
    message, late = collector.process(root), collector.process(root)
    message.emit()
    ackers.open(Origin("words", 7, 3), "", 1)
    with pytest.raises(StaleMessage):
        collector.flush()
    with pytest.raises(StaleMessage, match=r"7\.2 .* attempt 3 is the newest"), late:
        pass
    with pytest.raises(StaleMessage):
        collector.process(root)


def test_untracked_messages_are_processed_without_ackers() -> None:
    ackers = Ackers()
    ackers.before = _away
    with Collector(ackers) as collector:
        with collector.process(str(Reference(Lineage(ORIGIN), new_id()))) as message:
            further = message.emit()
        assert (message.topology, message.txid, message.attempt) == ORIGIN[:3]
        with collector.process(further) as message:
            message.emit(collector.process(message.emit_unanchored()))


def test_an_attempt_fails_immediately_when_its_ackers_have_lost_a_part_of_a_report(ackers: Ackers, root: str) -> None:
    before = ackers._store.snapshot()  # type: ignore[attr-defined]
    collector = Collector(ackers, interval=600)
    message = collector.process(root)
    word = message.emit()
    collector.flush()
    ackers._store.restore(before)  # type: ignore[attr-defined]
    message.ack()
    with pytest.raises(AckersBehind, match="holds part 0 of a worker's messages, but had accepted part 1"):
        collector.flush()
    assert "The store of the ackers was restored from an older backup, or emptied" in (
        ackers.report(ORIGIN).failed or ""
    )
    with pytest.raises(AckersBehind):
        collector.process(word)


def test_a_report_with_many_trees_is_sent_in_several_parts(ackers: Ackers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_tx.outputs.messages.messages.TREES_A_PORTION", 10)
    sent: list[int] = []
    ackers.after = lambda: sent.append(1)
    ackers.open(ORIGIN, "", 2)
    roots = RootEmitter(ackers, ORIGIN, 2, TaskTry("split", -1, "t")).emit(45)
    assert len(sent) >= 5
    collector = Collector(ackers, interval=600)
    for each in roots:
        collector.process(each).ack()
    collector.flush()
    assert ackers.report(ORIGIN).open == {}
    assert ackers.report(ORIGIN).emitted == {TaskTry("split", -1, "t"): 45}


def test_a_worker_can_still_ack_a_message_after_its_lineage_was_dropped_from_the_cache(
    ackers: Ackers, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_tx.outputs.messages.messages._REMEMBERED", 1)
    collector = Collector(ackers, interval=600)
    held = collector.process(root)
    collector.process(str(Reference(Lineage(ORIGIN), new_id())))
    word = held.emit()
    collector.process(word).ack()
    held.ack()
    collector.flush()
    assert ackers.report(ORIGIN).open == {}
