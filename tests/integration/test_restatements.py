"""Restatements by the real steps on ZooKeeper, into PostgreSQL and Redis: killed anywhere, each output counts once."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base import failpoints
from airflow_tx.base.errors import FenceOutranked, Outranked
from airflow_tx.base.failpoints import FailpointError
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import Binding
from airflow_tx.ledger.steps.replay import WishRequest, want
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.outputs.staging.area import StagingArea, write_manifest, write_rows
from airflow_tx.state import Count, SqlState, Sum
from airflow_tx.state.redis.state import RedisState
from airflow_tx.testing.failpoints import Failpoints
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from airflow_tx.transaction.commit import contributions as forming
from airflow_tx.transaction.commit import write
from airflow_tx.transaction.commit.turn import commit_in_turn
from tests.servers.postgres import LocalPostgres
from tests.servers.redis import LocalRedis
from tests.stage import Stage, StageRun, update

Rows = list[dict[str, Any]]
POINTS = [
    "commit.before_journal",
    "commit.before_acquire",
    "commit.after_acquire",
    "commit.before_write",
    "commit.before_mark",
]


@pytest.fixture
def store(zookeeper: LocalZooKeeper) -> Iterator[ZooKeeperStore]:
    client = connect(ClientConfig(zookeeper.hosts))
    yield ZooKeeperStore(client)
    disconnect(client)


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Failpoints:
    found = Failpoints(tmp_path / "points")
    monkeypatch.setenv(failpoints.VARIABLE, found.environment[failpoints.VARIABLE])
    return found


@pytest.fixture(params=["opaque", "transactional"])
def states(request: pytest.FixtureRequest, postgres: LocalPostgres, redis: LocalRedis) -> list[Any]:
    prefix = f"t{uuid.uuid4().hex[:8]}"
    columns: dict[str, Any] = {
        "keys": ["word"],
        "values": {"n": Count(), "total": Sum("double")},
        "kind": request.param,
    }
    sql = SqlState.from_url(postgres.url(), table=prefix, **columns)
    return [sql, RedisState.from_url(redis.url(), prefix=prefix, **columns)]


class Days:
    """A topology whose runs are days, into several states.

    :ivar outputs: what each day has given last.
    """

    def __init__(self, store: Any, area: StagingArea, states: list[Any]) -> None:
        self.stage = Stage(store, root=f"/test-{uuid.uuid4().hex[:8]}", area=area, inside=("count", "commit"))
        self.updates = [update(each) for each in states]
        self.states = states
        self.outputs: dict[str, Rows] = {}

    def begin(self, day: str, output: Rows, *, retry: bool = False, run: StageRun | None = None) -> StageRun:
        """Begin a day, and process it."""
        run = run or StageRun(self.stage.spec, day)
        run.begin(retry=retry)
        processing = run.start()
        area = run.spec.staging().of_topology(run.begun.incarnation)
        where = area.try_dir("numbers", run.begun.attempt, processing.task)
        ref = write_manifest(where, {"words": write_rows(where, "words", output)})["words"].to_json()
        processing.ack([ref])
        run.committer.xcoms["count", "words", -1] = ref
        run.committer.states["count"] = "success"
        self.outputs[day] = output
        return run

    def commit(self, run: StageRun) -> None:
        """Commit a day."""
        commit = run.commit_of([update(each, name="words") for each in self.states])
        assert commit_in_turn(commit, self.stage.spec.memory, patience=0) is None

    def want(self, day: str) -> int:
        """A person wants what counts of a day restated; its txid."""
        ledger = self.stage.spec.ledger(self.stage.spec.memory)
        txid = self.counting(day).txid
        ledger.run(want, WishRequest(txid, day, day), Audit("ada", "a bug in the job"))
        return txid

    def counting(self, day: str) -> Binding:
        """What counts of a day."""
        spec = self.stage.spec
        return Reader(spec.memory).peek(Binding, spec.paths.run(day))

    def check(self) -> None:
        """Each state has what the last outputs of all days give."""
        expected: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        for output in self.outputs.values():
            for row in output:
                expected[row["word"]][0] += row["n"]
                expected[row["word"]][1] += row["total"]
        for state in self.states:
            found = {row["word"]: [row["n"], row["total"]] for row in state.read() if row["n"]}
            assert found == {word: pytest.approx(values) for word, values in expected.items()}


@pytest.fixture
def days(store: ZooKeeperStore, tmp_path: Path, states: list[Any], monkeypatch: pytest.MonkeyPatch) -> Days:
    # As many rows as need portions, several chunks, and a difference that is staged.
    monkeypatch.setattr(write, "ROWS_A_WRITE", 3)
    monkeypatch.setattr(forming, "FEW", 2)
    monkeypatch.setattr(forming, "PORTION", 4)
    found = Days(store, StagingArea(str(tmp_path / "staging")), states)
    for day, output in (("day 1", words(1, "abcde")), ("day 2", words(2, "cdefg"))):
        found.commit(found.begin(day, output))
    found.check()
    return found


def words(factor: int, letters: str) -> Rows:
    return [{"word": letter, "n": factor, "total": factor / 10 + number} for number, letter in enumerate(letters)]


def in_another_order(output: Rows) -> Rows:
    # What adding in another order makes of a float.
    return [{**row, "total": row["total"] * (1 + 2**-50)} for row in reversed(output)]


def test_a_day_can_be_restated_many_times(days: Days) -> None:
    for factor, letters in ((7, "abx"), (3, "bcdefghij"), (3, "bcdefghij"), (9, "a")):
        before = days.want("day 1")
        run = days.begin("day 1", words(factor, letters))
        assert (run.begun.replaces.txid, days.counting("day 1").txid) == (before, before)
        days.commit(run)
        assert days.counting("day 1").txid == run.begun.txid
        days.check()


@pytest.mark.parametrize("point", POINTS)
def test_a_restatement_killed_at_any_step_is_exact_after_a_replay_in_another_order(
    days: Days, points: Failpoints, point: str
) -> None:
    days.want("day 1")
    new = words(5, "abxyzuvw")
    run = days.begin("day 1", new)
    armed = points.arm(point, "raise", txid=run.begun.txid)
    with pytest.raises(FailpointError):
        days.commit(run)
    assert armed.reached
    days.begin("day 1", in_another_order(new), retry=True, run=run)
    days.commit(run)
    days.check()


def test_a_restatement_killed_after_the_end_of_its_commit_is_not_counted_again(days: Days, points: Failpoints) -> None:
    days.want("day 1")
    run = days.begin("day 1", words(5, "abxyz"))
    points.arm("commit.after_mark", "raise", txid=run.begun.txid)
    with pytest.raises(FailpointError):
        days.commit(run)
    days.commit(run)
    days.check()


def test_a_late_committer_of_an_older_attempt_is_refused(days: Days, points: Failpoints) -> None:
    days.want("day 1")
    new = words(5, "abxyzuvw")
    run = days.begin("day 1", new)
    zombie = run.commit_of([update(each, name="words") for each in days.states])
    zombie.complete()
    points.arm("commit.before_write", "raise", state=days.states[1].name)
    with pytest.raises(FailpointError):
        zombie.try_to_commit()
    days.begin("day 1", in_another_order(new), retry=True, run=run)
    days.commit(run)
    with pytest.raises((FenceOutranked, Outranked)):
        zombie.use()
    days.check()


def test_a_replay_of_a_restatement_may_write_other_rows_to_an_opaque_state(days: Days, points: Failpoints) -> None:
    if days.states[0].kind.value != "opaque":
        return
    days.want("day 1")
    run = days.begin("day 1", words(5, "abxyzuvw"))
    points.arm("commit.before_mark", "raise", txid=run.begun.txid)
    with pytest.raises(FailpointError):
        days.commit(run)
    days.begin("day 1", words(6, "cdk"), retry=True, run=run)
    days.commit(run)
    days.check()
    days.want("day 1")
    days.commit(days.begin("day 1", words(1, "z")))
    days.check()
