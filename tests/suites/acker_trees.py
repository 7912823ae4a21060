"""What every store of ackers does for the trees of one attempt."""

from __future__ import annotations

import pytest

from airflow_tx.base.errors import MessageDone, MixedAnchors, UnknownMessage
from airflow_tx.outputs.messages.messages import Collector, RootEmitter
from airflow_tx.outputs.messages.stores import AckerStore
from airflow_tx.outputs.messages.tree import Origin, Portion, Reference
from tests.suites.acker_case import SPLIT, AckerCase, MakeStore, opened


class AckerTrees(AckerCase):
    """Messages, anchors, acks and failures."""

    def test_a_tree_is_complete_when_every_message_that_was_emitted_is_acked(
        self, store: AckerStore, origin: Origin, roots: RootEmitter, collector: Collector
    ) -> None:
        (root,) = roots.emit(1)
        with collector.process(root) as sentence:
            words = [sentence.emit() for _ in range(3)]
        collector.flush()
        assert store.report(origin).open == {"split": 1}
        for word in words:
            assert store.report(origin).open == {"split": 1}
            with collector.process(word):
                pass
            collector.flush()
        assert store.report(origin).open == {}
        assert store.report(origin).emitted == {SPLIT: 1}

    def test_the_acks_of_an_attempt_are_counted_once_each_also_those_of_complete_trees(
        self, store: AckerStore, origin: Origin, roots: RootEmitter, collector: Collector
    ) -> None:
        assert store.report(origin).acked == 0
        first, second = roots.emit(2)
        with collector.process(first) as message:
            word = message.emit()
        collector.flush()
        assert store.report(origin).acked == 1
        for each in (word, second):
            with collector.process(each):
                pass
        collector.flush()
        assert (store.report(origin).open, store.report(origin).acked) == ({}, 3)
        (third,) = roots.emit(1)
        root = Reference.parse(third).id
        for _ in range(2):  # the answer to the first one was lost
            store.take(origin, 0, Portion("e" * 16, 1, {root: (root, -1)}, acked=1))
        assert store.report(origin).acked == 4

    def test_nothing_is_complete_before_its_messages_are_acked(
        self, store: AckerStore, origin: Origin, roots: RootEmitter
    ) -> None:
        roots.emit(5)
        assert store.report(origin).open == {"split": 5}

    def test_each_tree_has_its_acker_by_the_id_of_its_root(
        self, store: AckerStore, origin: Origin, collector: Collector
    ) -> None:
        roots = opened(store, origin, ackers=3)
        references = roots.emit(30)
        for root in map(Reference.parse, references):
            assert root.lineage.trees == ((root.id % 3, root.id),)
        for each in references:
            with collector.process(each):
                pass
        collector.flush()
        assert store.report(origin).open == {}
        assert store.report(origin).emitted == {SPLIT: 30}

    def test_a_message_with_two_anchors_completes_neither_tree_before_it_is_acked(
        self, store: AckerStore, origin: Origin, collector: Collector
    ) -> None:
        left, right = map(collector.process, opened(store, origin, ackers=2).emit(2))
        joined = left.emit(right)
        left.ack()
        right.ack()
        collector.flush()
        assert store.report(origin).open == {"split": 2}
        collector.process(joined).ack()
        collector.flush()
        assert store.report(origin).open == {}

    def test_a_message_that_joins_two_branches_of_one_tree_counts_once_in_it(
        self, store: AckerStore, origin: Origin, roots: RootEmitter, collector: Collector
    ) -> None:
        with collector.process(*roots.emit(1)) as root:
            left, right = map(collector.process, (root.emit(), root.emit()))
        joined = left.emit(right)
        left.ack()
        right.ack()
        collector.flush()
        assert store.report(origin).open == {"split": 1}
        collector.process(joined).ack()
        collector.flush()
        assert store.report(origin).open == {}

    def test_an_unanchored_message_is_waited_for_by_nobody(
        self, store: AckerStore, origin: Origin, roots: RootEmitter, collector: Collector
    ) -> None:
        with collector.process(*roots.emit(1)) as message:
            lost = message.emit_unanchored()
        collector.flush()
        assert store.report(origin).open == {}
        with collector.process(lost) as message:
            message.emit()
        collector.process(lost).fail("it fails nothing")
        collector.flush()
        assert store.report(origin).failed is None

    def test_messages_of_two_attempts_have_no_common_message(
        self, store: AckerStore, topology: str, roots: RootEmitter, collector: Collector
    ) -> None:
        other = opened(store, Origin(topology, 8, 1))
        mine, theirs = collector.process(*roots.emit(1)), collector.process(*other.emit(1))
        with pytest.raises(MixedAnchors, match=r"7\.2 .* 8\.1"):
            mine.emit(theirs)

    def test_what_an_acker_keeps_of_a_tree_does_not_grow_with_it(
        self, store: AckerStore, origin: Origin, roots: RootEmitter, collector: Collector
    ) -> None:
        """Messages travel; the store has one XOR, one count and one owner for them all."""
        waiting = roots.emit(1)
        for _ in range(6):
            taken, waiting = waiting, []
            for each in taken:
                with collector.process(each) as message:
                    waiting += [message.emit(), message.emit(), message.emit()]
            collector.flush()
            assert store.report(origin).open == {"split": 1}
        for each in waiting:
            collector.process(each).ack()
        collector.flush()
        assert store.report(origin).open == {}

    # --- failures

    def test_a_message_that_fails_fails_its_attempt(
        self, store: AckerStore, origin: Origin, roots: RootEmitter, collector: Collector
    ) -> None:
        first, second = roots.emit(2)
        with pytest.raises(ZeroDivisionError), collector.process(first):
            raise ZeroDivisionError("nothing to divide by")
        collector.process(second).fail("by hand")
        assert store.report(origin).failed == "ZeroDivisionError: nothing to divide by"
        collector.flush()
        assert store.report(origin).open == {"split": 2}

    def test_a_message_is_acked_once(self, roots: RootEmitter, collector: Collector) -> None:
        message = collector.process(*roots.emit(1))
        message.ack()
        for step in (message.ack, message.emit, message.fail):
            with pytest.raises(MessageDone, match="acked already"):
                step()

    def test_a_message_of_a_complete_tree_is_unknown(
        self, store: AckerStore, origin: Origin, roots: RootEmitter, collector: Collector
    ) -> None:
        (root,) = roots.emit(1)
        collector.process(root).ack()
        collector.flush()
        collector.process(root).ack()
        with pytest.raises(UnknownMessage, match="already acked"):
            collector.flush()
        assert store.report(origin).open == {}

    def test_messages_acked_by_two_workers_complete_no_tree(
        self, make_store: MakeStore, origin: Origin, roots: RootEmitter, collector: Collector
    ) -> None:
        """The XOR of an id that was acked three times is that of one ack; the count is not."""
        store = make_store()
        with collector.process(*roots.emit(1)) as root:
            word = root.emit()
        for _ in range(3):
            collector.process(word).ack()
        collector.flush()
        assert (store.report(origin).open, store.report(origin).twice) == ({"split": 1}, {"split": 1})

    def test_an_unknown_tree_takes_nothing_and_others_in_the_same_portion_do(
        self, store: AckerStore, origin: Origin, roots: RootEmitter
    ) -> None:
        (root,) = roots.emit(1)
        known = Reference.parse(root).id
        assert store.take(origin, 0, Portion("a" * 16, 1, {known: (known, -1), 5: (5, -1)})) == [5]
        assert store.report(origin).open == {}
