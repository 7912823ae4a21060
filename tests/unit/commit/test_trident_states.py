"""Trident's maps, values and factories under a committer: what is kept across replays, skips and re-admissions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.base.errors import ConfigError, OutputChanged, SkipRefused, StateError, StateUnavailable, TxidBehind
from airflow_tx.ledger.answers import Committed
from airflow_tx.ledger.steps import end
from airflow_tx.state import (
    Avg,
    CachedMap,
    CollectSet,
    CombinerValueUpdater,
    Count,
    MapGet,
    MemoryMap,
    NonTransactionalMap,
    OpaqueMap,
    OpaqueValue,
    SnapshottableMap,
    SqlGuard,
    StateKind,
    StaticState,
    Sum,
    TransactionalMap,
    TransactionalValue,
    state_query,
)
from airflow_tx.state.trident import NOTE, TridentAggregate
from airflow_tx.testing.suites.state_tools import Grants
from airflow_tx.transaction.commit import write as writing
from airflow_tx.transaction.commit.handoff import take_skip
from airflow_tx.transaction.commit.update import Update, partition_persist, persistent_aggregate
from tests.unit.bench import OpaqueNumbers
from tests.unit.commit.run import WHY, Run, committed, killed_before_the_mark, read

SOURCE: Any = SimpleNamespace(operator=SimpleNamespace(task_id="count"), key="return_value")
MAPS: Mapping[str, Any] = {
    "opaque": OpaqueMap,
    "transactional": TransactionalMap,
    "non-transactional": NonTransactionalMap,
}


def counting(made: Any, **options: Any) -> Update:
    return persistent_aggregate(SOURCE, **{"state": made, "keys": ["word"], "values": {"count": Count()}, **options})


def counted(**counts: int) -> list[dict[str, Any]]:
    return [{"word": word, "count": count} for word, count in counts.items()]


def dies(run: Run, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that writes all and is killed before its mark."""
    from airflow_tx.transaction.processing.outputs import returned

    run.begin()
    run.start().ack(returned(rows, multiple=False))
    run.committer.xcoms["count", "return_value", -1] = rows
    run.committer.states["count"] = "success"
    killed_before_the_mark(run.commit())


def held(backing: MemoryMap[Any]) -> dict[str, Any]:
    """The values of the words, whatever remembers them."""
    found = {key[0]: getattr(value, "value", value) for key, value in backing.values.items() if key[0] != NOTE}
    return {word: value for word, value in found.items() if value is not None}


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("kind", MAPS)
def test_the_kind_of_a_map_decides_how_often_the_rows_of_a_replay_count(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, kind: str, cached: bool
) -> None:
    backing = MemoryMap[Any]()
    update = counting(MAPS[kind](CachedMap(backing) if cached else backing))
    assert (update.state.kind, update.state.name) == (StateKind(kind), "MemoryMap")
    committed(make("r1", [update]), counted(man=3, dog=4, apple=10))
    run = make("r2", [update])
    dies(run, counted(man=2, dog=1), monkeypatch)
    committed(run, counted(man=2, dog=1))
    twice = {"man": 7, "dog": 6, "apple": 10}
    assert held(backing) == (twice if kind == "non-transactional" else {"man": 5, "dog": 5, "apple": 10})


def test_the_store_of_a_map_contains_the_values_that_trident_would_store(make: Callable[..., Run]) -> None:
    opaque, transactional = MemoryMap[Any](), MemoryMap[Any]()
    for made, values in ((OpaqueMap(opaque), {"count": Count()}), (TransactionalMap(transactional), {"count": Sum()})):
        for number, rows in enumerate((counted(man=4), counted(man=2)), 1):
            committed(make(f"{made.name}{made.kind}{number}", [counting(made, values=values)]), rows)
    assert opaque.values["man",] == OpaqueValue(2, 6, 4)
    assert transactional.values["man",] == TransactionalValue(4, 6, updates=1)


def test_a_key_that_only_the_failed_attempt_has_written_is_rolled_back(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    backing = MemoryMap[Any]()
    update = counting(OpaqueMap(backing))
    assert update.state.can_roll_back
    committed(make("r1", [update]), counted(a=1, b=1))
    run = make("r2", [update], source=OpaqueNumbers())
    dies(run, counted(a=10, b=10, new=10), monkeypatch)
    committed(run, counted(a=10))
    committed(make("r3", [update]), counted(a=100, b=100))
    assert held(backing) == {"a": 111, "b": 101}


def test_a_store_that_fails_between_any_two_of_its_calls_has_exact_values_after_a_retry(
    make: Callable[..., Run],
) -> None:
    class Failing(MemoryMap[Any]):
        left = -1

        def _call(self) -> None:
            self.left -= 1
            if self.left == 0:
                raise StateUnavailable(state="words", where="a cache", reason="it is away")

        def multi_get(self, keys: Sequence[Any]) -> list[Any]:
            self._call()
            return super().multi_get(keys)

        def multi_put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
            self._call()
            half = len(keys) // 2
            super().multi_put(keys[:half], values[:half])
            self._call()
            super().multi_put(keys[half:], values[half:])

    backing, run, total = Failing(), 0, 0
    update = counting(OpaqueMap(backing))
    for calls in range(1, 12):
        run, total = run + 1, total + 1
        made = make(f"r{run}", [update], source=OpaqueNumbers())
        backing.left = calls
        try:
            committed(made, counted(a=1, b=1, only_then=1))
        except StateUnavailable:
            backing.left = calls + 1  # of the next attempt, with fewer rows, again in the middle
            try:
                committed(made, counted(a=1, other=1))
            except StateUnavailable:
                backing.left = -1
                committed(made, counted(a=1, last=1))
        backing.left = -1
        found = held(backing)
        assert found["a"] == total
        assert sum(found.get(word, 0) for word in ("only_then", "other", "last")) == total, calls
        assert found.get("b", 0) == found.get("only_then", 0)


def test_many_keys_are_noted_before_a_write_and_rolled_back_after_it_fails(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    backing = MemoryMap[Any]()
    update = counting(OpaqueMap(backing))
    many = counted(**{f"w{number}": 1 for number in range(12_345)})
    run = make("r1", [update], source=OpaqueNumbers())
    dies(run, many, monkeypatch)
    committed(run, counted(w1=1))
    assert held(backing) == {"w1": 1}


def test_a_skipped_transaction_is_rolled_back_and_is_counted_once_when_it_is_readmitted(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    backing = MemoryMap[Any]()
    update = counting(OpaqueMap(backing))
    run = make("r1", [update])
    dies(run, counted(a=5, b=5), monkeypatch)
    ledger = run.commit().ledger
    ledger.run(end.note_skip, 1, WHY)
    assert isinstance(take_skip(ledger, 1, {update.state.name: update.state}, log=run.log), Committed)
    assert held(backing) == {}
    committed(make("r2", [update]), counted(a=1))
    ledger.run(end.note_readmission, 1, WHY)
    committed(run, counted(a=5, b=5))
    assert run.begun is not None
    assert run.begun.attempt.txid == 3
    assert held(backing) == {"a": 6, "b": 5}


@pytest.mark.parametrize("kind", ["transactional", "non-transactional"])
def test_a_map_that_cannot_roll_back_refuses_the_skip_of_a_transaction_that_it_may_contain(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    update = counting(MAPS[kind](MemoryMap()))
    run = make("r1", [update])
    dies(run, counted(a=5), monkeypatch)
    run.commit().ledger.run(end.note_skip, 1, WHY)
    with pytest.raises(SkipRefused, match="state MemoryMap already, which cannot undo it"):
        run.commit_now()


def test_a_transactional_map_refuses_another_output_of_its_transaction(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make("r1", [counting(TransactionalMap(MemoryMap()))])
    dies(run, counted(a=5), monkeypatch)
    with pytest.raises(OutputChanged, match="MemoryMap"):
        committed(run, counted(a=6))


def test_the_warning_about_a_missing_fence_is_logged_once_per_state(
    make: Callable[..., Run], caplog: pytest.LogCaptureFixture
) -> None:
    update = counting(OpaqueMap(MemoryMap(), name="words"))
    for number in (1, 2, 3):
        committed(make(f"r{number}", [update]), counted(a=1))
    told = [line for line in caplog.messages if "has no fence" in line]
    assert len(told) == 1
    assert "State words has no fence" in told[0]
    assert "a late write of a committer that was declared dead is not refused" in told[0]


def test_a_state_without_a_fence_accepts_an_outdated_committer_until_the_next_transaction() -> None:
    """What a state without a fence does not promise, exactly as docs/state.md says."""
    backing, grants = MemoryMap[Any](), Grants()
    dead, alive = (counting(OpaqueMap(backing)).state for _ in range(2))
    alive.write(grants(1), counted(a=1, b=1))
    old, new = grants(2, 1), grants(2, 2)
    alive.write(new, counted(a=10, b=10))
    dead.write(old, counted(a=5))
    assert held(backing) == {"a": 6, "b": 1}  # exact would be 11 and 11
    dead.write(old, counted(a=10, b=10))  # the same rows again
    assert held(backing) == {"a": 11, "b": 11}
    alive.write(grants(3), counted(c=1))
    with pytest.raises(TxidBehind):
        dead.write(old, counted(a=5))
    assert held(backing) == {"a": 11, "b": 11, "c": 1}


# --- columns and aggregators -------------------------------------------------------------------------------------


class Longest:
    """A reducer: the longest word so far."""

    name, type = "longest", "text"

    def init(self) -> str:
        return ""

    def reduce(self, current: str, row: Mapping[str, Any]) -> str:
        return max(current, str(row["what"]), key=len)


def test_a_map_stores_several_columns_of_any_aggregator_as_one_value(make: Callable[..., Run]) -> None:
    backing = MemoryMap[Any]()
    values: Any = {"n": Count(), "mean": Avg(), "seen": CollectSet(), "longest": Longest()}
    update = counting(OpaqueMap(backing), keys=["user", "day"], values=values)
    rows = [{"user": "ada", "day": 1, "n": 1, "mean": 2.0, "seen": "x", "what": word} for word in ("ab", "a", "abc")]
    committed(make("r1", [update]), rows)
    committed(make("r2", [update]), [{**rows[0], "mean": 6.0, "seen": "y"}])
    kept = {"n": 4, "mean_sum": 12.0, "mean_count": 4, "seen": ["x", "y"], "longest": "abc"}
    assert backing.values["ada", 1].value == kept
    assert isinstance(update.state, TridentAggregate)
    assert update.state.multi_get([("ada", 1), ("bob", 1), ("ada", None)]) == [{**kept, "mean": 3.0}, None, None]


@pytest.mark.parametrize("made", [OpaqueMap, lambda backing: SnapshottableMap(OpaqueMap(backing))])
def test_a_map_without_key_columns_stores_one_value(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, made: Any
) -> None:
    backing = MemoryMap[Any]()
    update = counting(made(backing), keys=[])
    committed(make("r1", [update]), [{"count": 3}, {"count": 2}])
    run = make("r2", [update], source=OpaqueNumbers())
    dies(run, [{"count": 100}], monkeypatch)
    committed(run, [])  # a replay that finds nothing
    committed(make("r3", [update]), [{"count": 1}])
    assert SnapshottableMap(OpaqueMap(backing)).get() == 6
    assert update.state.read() == [{"count": 6}]


class Total:
    """A Snapshottable of a user's own: one number."""

    kind = "transactional"

    def __init__(self) -> None:
        self.total: Any = None
        self.last, self.is_new = 0, False

    def begin_commit(self, txid: int | None) -> None:
        self.is_new = (txid or 0) > self.last

    def commit(self, txid: int | None) -> None:
        self.last = max(self.last, txid or 0)

    def get(self) -> Any:
        return self.total

    def update(self, updater: Any) -> Any:
        if self.is_new:
            self.total = updater.update(self.total)
        return self.total

    def set(self, value: Any) -> None:
        self.total = value


def test_a_custom_snapshottable_accepts_one_value_and_no_key_columns(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    total = Total()
    update = counting(total, keys=[])
    assert (update.state.kind, update.state.can_roll_back) == (StateKind.TRANSACTIONAL, False)
    run = make("r1", [update])
    dies(run, [{"count": 5}], monkeypatch)
    committed(run, [{"count": 5}])
    assert total.total == 5
    with pytest.raises(ConfigError, match=r"persistent_aggregate\(keys=\) = \['word'\].*Total keeps one value"):
        counting(total)


def test_new_values_are_the_values_of_the_map_after_the_commit(make: Callable[..., Run]) -> None:
    update = counting(OpaqueMap(MemoryMap()), new_values="words")
    committed(make("r1", [update]), counted(man=3, dog=4))
    run = make("r2", [update])
    refs = committed(run, counted(man=2, cat=1))
    assert read(run, refs["words"]) == counted(man=5, cat=1)


def test_a_large_output_that_is_written_to_a_map_in_portions_is_exact_after_a_replay(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_tx.outputs.staging.area import write_manifest, write_rows

    monkeypatch.setattr(writing, "ROWS_A_WRITE", 4)
    backing = MemoryMap[Any]()
    source: Any = SimpleNamespace(operator=SimpleNamespace(task_id="count"), key="counts")
    update = persistent_aggregate(
        source, state=OpaqueMap(backing), keys=["word"], values={"count": Count()}, new_values="new"
    )
    run = make("r1", [update], source=OpaqueNumbers())
    for rows in (counted(gone=1), counted(**{f"w{number}": number for number in range(9)})):
        run.begin()
        processing = run.start()
        where = processing.staging.try_dir(processing.topology, processing.attempt, processing.task)
        ref = write_manifest(where, {"counts": write_rows(where, "counts", rows)})["counts"].to_json()
        processing.ack([ref])
        run.committer.xcoms["count", "counts", -1] = ref
        run.committer.states["count"] = "success"
        if len(rows) == 1:
            killed_before_the_mark(run.commit())
    assert run.commit_now() is None
    assert held(backing) == {f"w{number}": number for number in range(9)}


# --- what a user brings ------------------------------------------------------------------------------------------


class Words:
    """Somebody's backing map."""

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}

    def multi_get(self, keys: Sequence[Any]) -> list[Any]:
        return [self.kept.get(key) for key in keys]

    def multi_put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        self.kept.update(zip(keys, values, strict=True))


class WordsFactory:
    """Somebody's factory."""

    kind = "opaque"
    name = "my words"

    def __init__(self, store: Words) -> None:
        self.store, self.asked = store, list[tuple[int, int]]()

    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> Any:
        self.asked.append((partition_index, num_partitions))
        return OpaqueMap(self.store)


def test_a_factory_creates_its_state_when_the_state_is_first_used(make: Callable[..., Run]) -> None:
    factory = WordsFactory(Words())
    update = counting(factory)
    assert (update.state.name, update.state.kind, factory.asked) == ("my words", StateKind.OPAQUE, [])
    committed(make("r1", [update]), counted(man=3))
    committed(make("r2", [update]), counted(man=2))
    assert factory.asked == [(0, 1)]
    query = MapGet(keys=["word"], values=["count"])
    for asked in (factory, update.state, StaticState(factory)):
        rows = [{"word": "man"}, {"word": "cat"}]
        found = state_query(rows, state=asked, query=query)
        assert [row["count"] for row in found] == [5, None]


def test_the_error_for_a_factory_that_creates_an_undeclared_kind_of_state_names_the_factory(
    make: Callable[..., Run],
) -> None:
    class Wrong(WordsFactory):
        def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> Any:
            return NonTransactionalMap(self.store)

    with pytest.raises(
        StateError, match=r"Wrong.make_state returned a NonTransactionalMap, which is not a state of kind opaq"
    ):
        committed(make("r1", [counting(Wrong(Words()))]), counted(man=3))


def test_a_store_that_cannot_note_keys_is_refused_unless_its_map_declares_no_rollback(make: Callable[..., Run]) -> None:
    class Typed(Words):
        def multi_put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
            super().multi_put([(word,) for (word,) in keys], values)

    with pytest.raises(StateError, match=r"refuses \('\$KEYS\$', 0\).*class MyMap\(OpaqueMap\): can_roll_back"):
        committed(make("r1", [counting(OpaqueMap(Typed()))]), counted(man=3))

    class Plain(OpaqueMap[Any]):
        can_roll_back = False

    store = Typed()
    update = counting(Plain(store))
    assert not update.state.can_roll_back
    committed(make("r1", [update]), counted(man=3))
    assert list(store.kept) == [("man",)]


def test_the_error_for_a_stored_value_with_other_columns_names_the_value(make: Callable[..., Run]) -> None:
    backing = MemoryMap[Any]()
    committed(make("r1", [counting(OpaqueMap(backing))]), counted(man=3))
    two: Any = {"count": Count(), "sum": Sum()}
    with pytest.raises(StateError, match=r"key \{'word': 'man'\} holds 3, which is not a value of count, sum"):
        committed(make("r2", [counting(OpaqueMap(backing), values=two)]), [{"word": "man", "count": 1, "sum": 1}])


class Adding:
    """An updater that adds a number to one key of a map, with Trident's own methods."""

    def update_state(self, state: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            state.multi_update([(row["word"],)], [CombinerValueUpdater(Count(), row["count"])])


def test_partition_persist_accepts_a_map_or_a_factory(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Words()
    for number, made in enumerate((OpaqueMap(store, name="my words"), WordsFactory(store))):
        update = partition_persist(SOURCE, state=made, updater=Adding())
        assert update.state.kind is StateKind.OPAQUE
        run = make(f"r{number}", [update])
        dies(run, counted(man=5, **{f"gone{number}": 1}), monkeypatch)
        committed(run, counted(man=2))
    kept = {key[0]: value.value for key, value in store.kept.items() if key[0] != NOTE and value.value is not None}
    # A factory says by an attribute of its own that what it makes can be rolled back.
    assert kept == {"man": 4, "gone1": 1}


class Shards:
    """A factory whose writers keep their words in one store, or each in its own; it says what it was given."""

    kind, can_roll_back = "opaque", True

    def __init__(self, stores: Sequence[MemoryMap[Any]]) -> None:
        self.stores, self.made = stores, list[Any]()

    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> OpaqueMap[Any]:
        self.made.append((dict(conf), partition_index, num_partitions))
        return OpaqueMap(self.stores[partition_index % len(self.stores)])


GUARD = SqlGuard("db", name="g", statements=[])


class AddingTogether(Adding):
    """Waits in each writer until all of them write."""

    def __init__(self, writers: int) -> None:
        self.all_write = threading.Barrier(writers)

    def update_state(self, state: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
        self.all_write.wait(60)
        super().update_state(state, rows)
        return [{"word": row["word"]} for row in rows]


@pytest.mark.parametrize("stores", [1, 3])
def test_each_writer_always_has_the_same_state_and_the_rows_of_the_same_keys(
    make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, stores: int
) -> None:
    factory = Shards([MemoryMap[Any]() for _ in range(stores)])
    many = {f"word {number}": 1 for number in range(30)}
    update = partition_persist(
        SOURCE,
        state=factory,
        updater=AddingTogether(3),
        partitions=3,
        partition_by=["word"],
        conf={"hub": "JFK"},
        new_values="words",
    )
    for number in range(3):
        run = make(f"r{number}", [update], source=OpaqueNumbers())
        dies(run, counted(**many, **{f"gone {number}": 1}), monkeypatch)  # killed in each attempt but the last
        committed(run, counted(**many))
    assert factory.made == [({"hub": "JFK"}, index, 3) for index in range(3)]
    found = [held(store) for store in factory.stores]
    assert sum(map(len, found)) == len({word for each in found for word in each}) == 30
    assert {word: count for each in found for word, count in each.items()} == dict.fromkeys(many, 3)
    if stores == 3:
        assert all(found)


def test_a_skip_undoes_the_writes_of_every_writer(make: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    factory = Shards([MemoryMap[Any]()])
    update = partition_persist(SOURCE, state=factory, updater=Adding(), partitions=4, partition_by=["word"])
    run = make("r1", [update], source=OpaqueNumbers())
    dies(run, counted(a=1, b=1, c=1, d=1, e=1), monkeypatch)
    assert update.state.holds(1)
    ledger = run.spec.ledger(run.spec.memory)
    ledger.run(end.note_skip, 1, WHY)
    assert isinstance(take_skip(ledger, 1, {update.state.name: update.state}, log=run.log), Committed)
    assert held(factory.stores[0]) == {}


def test_the_other_writers_finish_if_one_writer_fails_and_the_retry_is_exact(make: Callable[..., Run]) -> None:
    class Fails(Adding):
        left = 1

        def update_state(self, state: Any, rows: Sequence[Mapping[str, Any]]) -> None:
            super().update_state(state, rows)
            if any(row["word"] == "a" for row in rows) and self.left:
                self.left = 0
                raise OSError("no room")

    factory = Shards([MemoryMap[Any]()])
    update = partition_persist(SOURCE, state=factory, updater=Fails(), partitions=3, partition_by=["word"])
    run = make("r1", [update])
    with pytest.raises(OSError, match="no room"):
        committed(run, counted(a=1, b=1, c=1))
    assert run.commit_now() is None
    assert held(factory.stores[0]) == {"a": 1, "b": 1, "c": 1}


def test_the_state_of_an_update_can_be_queried_by_passing_the_update(make: Callable[..., Run]) -> None:
    words = [{"word": word} for word in ("a", "b", "c", "none")]
    by_word = MapGet(keys=["word"], values=["count"])
    ways: tuple[dict[str, Any], ...] = ({}, {"partitions": 3, "partition_by": ["word"]})
    for number, options in enumerate(ways):
        factory = Shards([MemoryMap[Any]() for _ in range(3)])
        update = partition_persist(SOURCE, state=factory, updater=Adding(), **options)
        committed(make(f"r{number}", [update]), counted(a=1, b=2, c=3))
        found = list(state_query(words, state=update, query=by_word))
        assert [row["count"] for row in found] == [1, 2, 3, None]
    aggregate = counting(OpaqueMap(MemoryMap[Any](), name="Shards"))
    committed(make("r9", [aggregate]), counted(a=4))
    assert [row["count"] for row in state_query(words, state=aggregate)] == [4, None, None, None]
    with pytest.raises(StateError, match="has no field 'word', which determines its partition"):
        list(state_query([{"other": 1}], state=update, query=by_word))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"partitions": 0}, r"partition_persist\(partitions=\) = 0.*Give a number of writers from 1"),
        ({"partitions": 2}, r"= 2.*partition_by=\['user'\]|partition_by=\[.user.\]"),
        ({"partitions": 2, "partition_by": "word"}, r"Give a list: \['word'\]"),
        ({"partitions": 2, "partition_by": ["word"], "state": OpaqueMap(MemoryMap[Any]())}, "pass a StateFactory"),
        ({"conf": {}, "state": OpaqueMap(MemoryMap[Any]())}, "Only a StateFactory gets conf"),
        (
            {"conf": {"password": "secret"}, "updater": None, "state": GUARD},
            "has one",
        ),
    ],
)
def test_impossible_options_for_writers_are_refused_while_the_dag_is_parsed(options: Any, told: str) -> None:
    given = {"state": Shards([]), "updater": Adding(), **options}
    with pytest.raises(ConfigError, match=told) as refused:
        partition_persist(SOURCE, **given)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"values": None}, r"persistent_aggregate\(values=\) = None.*OpaqueMap has no columns: give keys="),
        ({"keys": None}, r"persistent_aggregate\(keys=\) = None.*OpaqueMap has no columns"),
        ({"keys": "word"}, r"persistent_aggregate\(keys=\) = 'word'.*Give a list: keys=\['word'\]"),
        ({"values": {"n": Count}}, r"persistent_aggregate\(values=\).*Column 'n' has a class"),
        ({"kind": "transactional"}, r"\(kind=\) = 'transactional'.*OpaqueMap is opaque: leave kind= out"),
        (
            {"state": Words()},
            r"\(state=\) = 'Words'.*It keeps values without txids: state=OpaqueMap\(Words\(\.\.\.\)\)",
        ),
        ({"kind": "exact", "state": SimpleNamespace(make_state=len)}, r"\(kind=\) = 'exact'.*Use one of .non-tra"),
        ({"state": SimpleNamespace(begin_commit=len, commit=len)}, r"\(state=\).*use partition_persist\(\.\.\., upd"),
        ({"writers": "all"}, r"\(writers=\) = 'all'"),
    ],
)
def test_options_that_contradict_each_other_are_refused_while_the_dag_is_parsed(options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        counting(OpaqueMap(MemoryMap()), **options)


def test_columns_for_a_state_that_has_its_own_columns_are_refused(state: Any) -> None:
    with pytest.raises(ConfigError, match=r"persistent_aggregate\(keys=\).*State already defines it: leave keys= out"):
        persistent_aggregate(SOURCE, state=state, keys=["word"])


def test_the_text_of_a_map_does_not_contain_its_address() -> None:
    from airflow_tx.state import MemcachedState

    made = counting(MemcachedState.opaque(["secret-host:11211"], prefix="words:")).state
    assert (made.name, made.can_roll_back) == ("memcached.words:", True)
    assert "secret-host" not in repr(made) + str(made.serialize())
    assert made.serialize() == {
        "type": "TridentAggregate",
        "name": "memcached.words:",
        "state": "MemcachedState",
        "kind": "opaque",
        "keys": ["word"],
        "values": {"count": {"aggregator": "count", "type": "bigint"}},
        "types": {},
    }
