"""How a step is run: passes until its multi is done, or until its answer is certain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from airflow_tx.base.errors import OutcomeUnknown, StoreUnavailable, TooMuchContention, UnreadableRecord
from airflow_tx.ledger.api import Children, Create, Delete, Node, Paths, Put, Requirement, Write
from airflow_tx.ledger.attempt import TaskTry, Token, TransactionAttempt
from airflow_tx.ledger.batch import BeginRequest, Outside
from airflow_tx.ledger.ledger import PASSES, Ledger, ReadOnlyLedger
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import Binding, Counter, Metadata, TopologyRecord, encode
from airflow_tx.ledger.steps import step
from airflow_tx.ledger.steps.step import Decision, Stamp, is_another
from airflow_tx.ledger.store.memory import MemoryStore
from tests.finals import final_record
from tests.model.driver import CountedIds, HandClock, Run, Topology

PATHS = Paths("/tx", "t")


class Calls(MemoryStore):
    """Lists what it is asked, and may do something before a multi or instead of its reply."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, ...]] = []
        self.before: Callable[[], object] = lambda: None
        self.after: Callable[[], object] = lambda: None

    def get(self, path: str) -> Node | None:
        self.calls.append(("get", path))
        return super().get(path)

    def children(self, path: str) -> Children | None:
        self.calls.append(("children", path))
        return super().children(path)

    def sync(self) -> None:
        self.calls.append(("sync",))

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        self.calls.append(("multi", *(write.path for write in writes)))
        before, self.before = self.before, lambda: None
        before()
        super().multi(requirements, writes)
        after, self.after = self.after, lambda: None
        after()

    def put(self, path: str, record: Any) -> None:
        super().multi([], [Put(path, encode(record))])


@pytest.fixture
def store() -> Calls:
    made = Calls()
    for path in PATHS.folders:
        made.ensure(path)
    made.multi([], [Create(PATHS.current, encode(Counter(1))), Create(PATHS.allocated, encode(Counter(1)))])
    made.multi([], [Create(PATHS.record, encode(TopologyRecord("i", "t", "opaque", 4, op="first")))])
    made.calls.clear()
    return made


@pytest.fixture
def ledger(store: Calls) -> Ledger:
    return Ledger(store, PATHS, clock=HandClock(), ids=CountedIds())


def counted(read: Reader, stamp: Stamp, paths: Paths) -> Decision[int]:
    """Answer with a number that is read."""
    return Decision(read.get(Counter, paths.current).txid)


def raised(read: Reader, stamp: Stamp, paths: Paths) -> Decision[int]:
    """Raise the number that is read, and answer with it; the topology record proves it."""
    number = read.get(Counter, paths.current).txid + 1
    record = TopologyRecord("i", "t", "opaque", 4, op=stamp.op)
    read.exists(paths.record)
    return Decision(
        number, (Put(paths.current, encode(Counter(number))), Put(paths.record, encode(record))), paths.record
    )


# --- an answer that writes nothing -------------------------------------------------------------------------------


def test_the_answer_of_a_step_that_writes_is_based_on_synchronized_records(store: Calls, ledger: Ledger) -> None:
    assert ledger.run(counted) == 1
    sync = store.calls.index(("sync",))
    assert ("get", PATHS.current) in store.calls[sync:]
    assert store.calls[-1] == ("multi",)


def test_the_answer_of_a_step_is_never_based_on_cached_records_alone(store: Calls, ledger: Ledger) -> None:
    assert ledger.run(raised) == 2
    store.put(PATHS.current, Counter(9))
    assert ledger.run(counted) == 9


def test_a_step_is_executed_again_if_another_process_has_changed_its_records(store: Calls, ledger: Ledger) -> None:
    store.before = lambda: store.put(PATHS.current, Counter(7))
    assert ledger.run(counted) == 7


def test_a_step_is_executed_again_if_its_confirmation_gets_no_reply(store: Calls, ledger: Ledger) -> None:
    store.after = lambda: _raise(OutcomeUnknown(paths="", reason="the reply is lost"))
    assert ledger.run(counted) == 1


def test_a_step_that_reads_nothing_needs_no_confirmation(store: Calls, ledger: Ledger) -> None:
    assert ledger.run(lambda read, stamp, paths: Decision("yes")) == "yes"
    assert store.calls == [("sync",)]


def test_a_refusal_of_a_step_is_based_on_synchronized_records(store: Calls, ledger: Ledger) -> None:
    def missing(read: Reader, stamp: Stamp, paths: Paths) -> Decision[int]:
        return Decision(read.get(Binding, paths.run("r1")).txid)

    with pytest.raises(UnreadableRecord):
        ledger.run(missing)
    assert ("sync",) in store.calls


def test_a_query_to_airflow_is_sent_in_the_first_pass_and_the_next_step_reads_no_record_again(
    store: Calls, ledger: Ledger
) -> None:
    def answer() -> str:
        raise ConnectionError

    def asks(read: Reader, stamp: Stamp, paths: Paths) -> Decision[str]:
        read.get(Counter, paths.current)
        return Decision(read.ask("run state", "r1", answer))

    with pytest.raises(ConnectionError):
        ledger.run(asks)
    assert store.calls == [("get", PATHS.current)]
    assert ledger.run(raised) == 2
    assert ("get", PATHS.current) not in store.calls[1:]


# --- a multi -----------------------------------------------------------------------------------------------------


def test_a_step_that_writes_needs_one_multi_and_the_next_step_reads_nothing(store: Calls, ledger: Ledger) -> None:
    assert [ledger.run(raised), ledger.run(raised), ledger.run(raised)] == [2, 3, 4]
    multi = ("multi", PATHS.current, PATHS.record)
    assert store.calls == [("get", PATHS.current), ("get", PATHS.record), multi, multi, multi]


def test_cached_records_that_are_outdated_are_removed_from_the_cache(store: Calls, ledger: Ledger) -> None:
    ledger.run(raised)
    store.put(PATHS.current, Counter(9))
    assert ledger.run(raised) == 10


@pytest.mark.parametrize("done", [True, False])
def test_the_ledger_looks_up_the_outcome_of_a_multi_that_got_no_reply(store: Calls, ledger: Ledger, done: bool) -> None:
    lost = OutcomeUnknown(paths="", reason="the reply is lost")
    if done:
        store.after = lambda: _raise(lost)
    else:
        store.before = lambda: _raise(lost)
    assert ledger.run(raised) == 2
    assert Reader(store).peek(Counter, PATHS.current) == Counter(2)
    multi = store.calls.index(("multi", PATHS.current, PATHS.record))
    assert store.calls[multi + 1 : multi + 3] == [("sync",), ("get", PATHS.record)]
    ledger.run(raised)
    assert Reader(store).peek(Counter, PATHS.current) == Counter(3)


def test_after_a_lost_reply_the_cache_is_empty(store: Calls, ledger: Ledger) -> None:
    ledger.run(raised)
    store.after = lambda: _raise(OutcomeUnknown(paths="", reason="the reply is lost"))
    ledger.run(raised)
    store.calls.clear()
    ledger.run(raised)
    assert store.calls[0] == ("get", PATHS.current)


def test_the_outcome_is_unknown_if_the_store_becomes_unreachable_after_a_lost_reply(
    store: Calls, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.after = lambda: _raise(OutcomeUnknown(paths="", reason="the reply is lost"))
    away = StoreUnavailable(connection="zookeeper", hosts="", reason="gone")
    monkeypatch.setattr(store, "sync", lambda: _raise(away))
    with pytest.raises(OutcomeUnknown, match="the reply is lost"):
        ledger.run(raised)


def test_created_and_changed_and_deleted_records_are_cached(store: Calls, ledger: Ledger) -> None:
    def proof(stamp: Stamp) -> Put:
        return Put(PATHS.record, encode(TopologyRecord("i", "t", "opaque", 4, op=stamp.op)))

    def create(read: Reader, stamp: Stamp, paths: Paths) -> Decision[str]:
        read.exists(paths.record)
        names = read.names(paths.runs)
        assert read.find(Binding, paths.run("r1")) is None
        writes = (Create(paths.run("r1"), encode(Binding(1))), Put(paths.runs, b""), proof(stamp))
        return Decision(" ".join(names), writes, paths.record)

    def delete(read: Reader, stamp: Stamp, paths: Paths) -> Decision[str]:
        read.exists(paths.record)
        assert read.get(Binding, paths.run("r1")) == Binding(1)
        names = read.names(paths.runs)
        return Decision(" ".join(names), (Delete(paths.run("r1")), Put(paths.runs, b""), proof(stamp)), paths.record)

    for _ in range(2):
        assert ledger.run(create) == ""
        store.calls.clear()
        assert ledger.run(delete) == "r1"
        assert ("get", PATHS.run("r1")) not in store.calls
        assert len([call for call in store.calls if call[0] == "multi"]) == 1


def test_a_missing_record_is_not_cached(store: Calls, ledger: Ledger) -> None:
    def binds(read: Reader, stamp: Stamp, paths: Paths) -> Decision[bool]:
        bound = read.find(Binding, paths.run("r1")) is not None
        return Decision(bound, raised(read, stamp, paths).writes, paths.record)

    assert ledger.run(binds) is False
    store.multi([], [Create(PATHS.run("r1"), encode(Binding(1)))])
    assert ledger.run(binds) is True


def test_a_step_whose_multi_is_refused_repeatedly_gives_up(store: Calls, ledger: Ledger) -> None:
    passes = list[int]()

    def contended(read: Reader, stamp: Stamp, paths: Paths) -> Decision[int]:
        decision = raised(read, stamp, paths)
        passes.append(decision.result)
        store.put(paths.current, Counter(decision.result))
        return decision

    with pytest.raises(TooMuchContention, match="contended"):
        ledger.run(contended)
    assert len(passes) == PASSES


# --- questions to others -----------------------------------------------------------------------------------------


def test_a_begin_gives_up_if_its_step_sends_new_queries_endlessly(topology: Topology) -> None:
    topology.ledger().open(topology.request)
    request = BeginRequest(topology.request, "r1", "r1", "t1", False, {})
    ledger = topology.ledger()
    places = iter(range(1000))

    def decide(attempt: TransactionAttempt, position: Any) -> Any:
        number = next(places)
        store = topology.store()
        path = topology.paths.meta(number + 1)
        store.multi([], [Create(path, encode(Metadata(1, number, number)))])
        store.multi([], [Put(topology.paths.allocated, encode(Counter(number + 1)))])
        store.multi([], [Put(topology.paths.current, encode(Counter(number + 1)))])
        return None

    with pytest.raises(TooMuchContention, match="begin"):
        ledger.begin(request, Outside(decide=decide, run_state=lambda run_id: None))


def test_a_start_gives_up_if_its_step_sends_new_queries_endlessly(topology: Topology) -> None:
    run = Run(topology, "r1")
    run.begin(1)
    tries = iter(range(1000))
    topology.ledger().start(run.attempt, TaskTry("p", -1, "x"))

    def is_current() -> bool:
        topology.ledger().start(run.attempt, TaskTry("p", -1, f"t{next(tries)}"))
        return True

    with pytest.raises(TooMuchContention, match="start"):
        topology.ledger().start(run.attempt, TaskTry("p", -1, "mine"), is_current=is_current)


# --- reads -------------------------------------------------------------------------------------------------------


def test_the_ledger_returns_the_positions_that_batches_may_still_be_decided_from(topology: Topology) -> None:
    for number in (1, 2, 3):
        Run(topology, f"r{number}").begin(number)
    assert topology.ledger().deciding_from() == [1, 3, 6]
    Run(topology, "r1").whole(1)
    assert topology.ledger().deciding_from() == [1, 3, 6]
    assert topology.ledger().position() == 1


def test_a_transactional_source_needs_only_the_position_for_the_next_transaction() -> None:
    memory = MemoryStore()
    topology = Topology(lambda: memory, "/tx", [], source="transactional")
    topology.ledger().open(topology.request)
    assert topology.ledger().deciding_from() == []
    for number in (1, 2):
        Run(topology, f"r{number}").begin(number)
    assert topology.ledger().deciding_from() == [3]


def test_positions_are_read_from_synchronized_records(store: Calls, ledger: Ledger) -> None:
    ledger.run(raised)
    store.put(PATHS.current, Counter(1))
    store.put(PATHS.allocated, Counter(0))
    store.calls.clear()
    assert ledger.deciding_from() == []
    assert store.calls[0] == ("sync",)
    assert ("get", PATHS.current) in store.calls


def test_a_missing_ledger_returns_no_position_and_needs_no_cleanup(topology: Topology) -> None:
    ledger = topology.ledger()
    ledger.sweep()
    assert (ledger.position(), ledger.pace(), ledger.status(1)) == (None, [], None)
    with pytest.raises(UnreadableRecord, match=topology.paths.record):
        ledger.deciding_from()


def test_an_outdated_position_is_read_again_after_the_turn_has_moved(topology: Topology) -> None:
    Run(topology, "r1").whole(1)
    ledger = topology.ledger()
    ledger.remember(_having_read(topology))
    assert ledger.position() == 1
    for number in (2, 3):
        Run(topology, f"r{number}").whole(1)
    assert ledger.position() == 3


def _having_read(topology: Topology) -> ReadOnlyLedger:
    look = ReadOnlyLedger(topology.store(), topology.paths)
    look.current()
    return look


def test_records_that_a_caller_has_read_are_cached_and_missing_records_are_not(store: Calls, ledger: Ledger) -> None:
    look = ReadOnlyLedger(store, PATHS)
    look.current()
    look.binding("r1")
    ledger.remember(look)
    store.multi([], [Create(PATHS.run("r1"), encode(Binding(1)))])
    store.calls.clear()

    def binds(read: Reader, stamp: Stamp, paths: Paths) -> Decision[int]:
        assert read.find(Binding, paths.run("r1")) == Binding(1)
        return raised(read, stamp, paths)

    assert ledger.run(binds) == 2
    assert ("get", PATHS.current) not in store.calls


def test_the_check_whether_a_grant_is_valid_reads_synchronized_records(topology: Topology) -> None:
    run = Run(topology, "r1")
    run.processed(1, {})
    grant = run.written().grant
    assert grant is not None
    assert topology.ledger().holds(grant.token) is True
    run.written()
    assert topology.ledger().holds(grant.token) is False
    run.commit()
    assert topology.ledger().holds(grant.token) is False


def test_the_check_of_a_grant_synchronizes_first(store: Calls, ledger: Ledger) -> None:
    assert ledger.holds(Token(1, 1, 1, 1, "n")) is False
    assert store.calls[0] == ("sync",)


# --- whose number it is ------------------------------------------------------------------------------------------


def test_a_txid_without_history_up_to_the_last_rebuild_counts_as_another_transaction(store: Calls) -> None:
    store.put(PATHS.record, TopologyRecord("i", "t", "opaque", 4, rebuilt=5))
    history = final_record(
        txid=4,
        birth="b",
    )
    store.multi([], [Create(PATHS.history(4), encode(history))])
    found = [is_another(Reader(store), PATHS, txid, "b") for txid in (4, 5, 6)]
    assert found == [False, True, False]
    assert is_another(Reader(store), PATHS, 4, "c") is True
    assert is_another(Reader(store), PATHS, 5, "") is False


def _raise(error: Exception) -> Any:
    raise error


def test_a_multi_that_never_gets_a_reply_is_retried_a_few_times_and_then_reported(
    store: Calls, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    def lost(requirements: Any, writes: Any) -> None:
        sent.append(writes)
        raise OutcomeUnknown(paths="", reason="its 300000 bytes may be more than jute.maxbuffer of the servers")

    monkeypatch.setattr(store, "multi", lost)
    with pytest.raises(OutcomeUnknown, match="more than jute.maxbuffer"):
        ledger.run(raised)
    assert len(sent) < 10
    assert Reader(store).peek(Counter, PATHS.current) == Counter(1)


def test_a_folder_is_listed_only_once_while_its_content_is_deleted_in_portions(
    store: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "DELETIONS_A_MULTI", 5)
    folder = PATHS.acks("1.1-x")
    store.ensure(folder)
    store.multi([], [Create(f"{folder}/task@{index}", b"") for index in range(100)])
    store.calls.clear()
    step.remove(store, folder)
    assert store.get(folder) is None
    assert len([call for call in store.calls if call[0] == "children"]) <= 4
