"""What every store of ackers does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_tx.base.errors import AckersBehind, EmittedBefore, StaleMessage, UnknownMessage
from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.outputs.messages.messages import Collector, RootEmitter
from airflow_tx.outputs.messages.stores import AckerStore
from airflow_tx.outputs.messages.tree import Origin, Portion, Reference
from tests.suites.acker_case import SPLIT, MakeStore, emitter, opened
from tests.suites.acker_trees import AckerTrees


class AckerSuite(AckerTrees):
    """Derive from it, with a fixture `make_store`: each call gives another client of the same store."""

    # --- attempts

    def test_a_replay_drops_the_trees_of_the_attempt_before_and_refuses_its_messages(
        self, store: AckerStore, origin: Origin, topology: str, roots: RootEmitter, collector: Collector
    ) -> None:
        taken, waiting = roots.emit(2)
        message = collector.process(taken)
        newest = opened(store, Origin(topology, 7, 3))
        message.ack()
        with pytest.raises(StaleMessage, match=r"7\.2 .* attempt 3 is the newest"):
            collector.flush()
        with pytest.raises(StaleMessage):
            collector.process(waiting)
        for step in (lambda: store.report(origin), lambda: store.check(origin), lambda: store.fail(origin, "late")):
            with pytest.raises(StaleMessage):
                step()
        assert store.report(Origin(topology, 7, 3)).emitted == {}
        collector.process(*newest.emit(1)).ack()
        collector.flush()
        assert store.report(Origin(topology, 7, 3)).open == {}

    def test_an_older_attempt_does_not_come_back(self, store: AckerStore, origin: Origin, roots: RootEmitter) -> None:
        roots.emit(1)
        with pytest.raises(StaleMessage):
            store.open(origin._replace(attempt=1), "birth", 1)
        store.open(origin, "birth", 1)
        assert store.report(origin).open == {"split": 1}

    def test_another_transaction_of_the_same_number_has_nothing_of_the_first(
        self, store: AckerStore, origin: Origin, roots: RootEmitter
    ) -> None:
        roots.emit(1)
        store.open(origin._replace(attempt=1), "another birth", 2)
        assert store.report(Origin(origin.topology, 7, 1)).emitted == {}
        with pytest.raises(UnknownMessage):
            store.check(origin)

    def test_a_replay_may_have_more_ackers_or_fewer(self, store: AckerStore, topology: str) -> None:
        for attempt, ackers in enumerate((1, 4, 2), 1):
            roots = opened(store, Origin(topology, 1, attempt), ackers=ackers)
            roots.emit(20)
            assert store.report(Origin(topology, 1, attempt)).open == {"split": 20}

    def test_a_transaction_that_has_ended_leaves_nothing(
        self, store: AckerStore, origin: Origin, topology: str, roots: RootEmitter
    ) -> None:
        roots.emit(1)
        opened(store, Origin(topology, 6, 1)).emit(1)
        opened(store, Origin(topology, 8, 1)).emit(1)
        for _ in range(2):
            store.forget(Origin(topology, 7, 0))
        for txid, attempt in ((7, 2), (6, 1)):
            with pytest.raises(UnknownMessage, match="has ended"):
                store.report(Origin(topology, txid, attempt))
        assert store.report(Origin(topology, 8, 1)).open == {"split": 1}

    def test_a_task_that_is_tried_again_does_not_emit_its_messages_twice(
        self, store: AckerStore, origin: Origin, roots: RootEmitter
    ) -> None:
        roots.emit(1)
        again = TaskTry("split", -1, "try-2")
        with pytest.raises(EmittedBefore, match=r"split .* 7\.2"):
            emitter(store, origin, task=again).emit(1)
        emitter(store, origin, task=TaskTry("split", 3, "try-2")).emit(2)
        assert store.report(origin).emitted == {SPLIT: 1, TaskTry("split", 3, "try-2"): 2}

    # --- portions

    def test_a_portion_that_is_sent_again_counts_once(
        self, store: AckerStore, origin: Origin, roots: RootEmitter
    ) -> None:
        (root,) = roots.emit(1)
        known = Reference.parse(root).id
        portion = Portion("b" * 16, 1, {known: (known ^ 9, 0)})
        assert [store.take(origin, 0, portion) for _ in range(3)] == [[], [], []]
        assert store.report(origin).open == {"split": 1}
        store.take(origin, 0, Portion("c" * 16, 1, {known: (9, -1)}))
        assert store.report(origin).open == {}

    def test_a_portion_is_not_taken_before_the_one_before_it(
        self, store: AckerStore, origin: Origin, roots: RootEmitter
    ) -> None:
        """A store that has lost portions says so: without them a tree might seem complete."""
        (root,) = roots.emit(1)
        known = Reference.parse(root).id
        with pytest.raises(AckersBehind, match="restored from an older backup"):
            store.take(origin, 0, Portion("d" * 16, 2, {known: (known, -1)}))
        assert store.report(origin).open == {"split": 1}

    def test_workers_that_send_at_once_lose_nothing(
        self, make_store: MakeStore, store: AckerStore, origin: Origin
    ) -> None:
        waiting = opened(store, origin, ackers=2).emit(8)

        def work(references: list[str]) -> None:
            collector = Collector(make_store(), interval=600)
            for _ in range(5):
                taken, references = references, []
                for each in taken:
                    with collector.process(each) as message:
                        references.append(message.emit())
                collector.flush()
            for each in references:
                collector.process(each).ack()
            collector.flush()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, [waiting[start::4] for start in range(4)]))
        assert store.report(origin).open == {}
