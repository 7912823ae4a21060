"""A topology that an earlier release began goes on under this one, in the middle of transactions."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable as DeltaLake
from sqlalchemy import MetaData, create_engine, inspect, make_url, text

from airflow_tx.ledger.answers import TopologyRequest
from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.audit.plan import HeldState
from airflow_tx.ledger.audit.rebuild import Repairs
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.steps.replay import WishRequest, want
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.operations.actions.roll_forward import RollForwardRepair
from airflow_tx.outputs.journal import JournalArea
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.state import SqlState, Sum
from airflow_tx.state.api import StateKind
from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.failpoints import Failpoints
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.cluster.committer import REPOSITORY, Answer, Committer, expected
from tests.cluster.kinds import states
from tests.integration.databases import owner_statements, query
from tests.integration.pipeline import Pipeline
from tests.servers.postgres import LocalPostgres

# Nothing was released yet. These are states of the package.
EARLIER = {
    "b37eace5": "nothing below the staging area is of one ledger, nor a name of a door",
    "a467194c": "the staging area is of one ledger, and modules have no rooms",
}
MakeKinds = Callable[[int], tuple[Committer, Committer]]
ADA = Audit("ada", "the disk is gone")


def unpacked(commit: str, folder: Path, *paths: str) -> Path:
    """The package as it was, with the dependencies of now."""
    command = ["git", "-C", str(REPOSITORY), "archive", commit, "airflow_tx", *paths]
    done = subprocess.run(command, capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"UPGRADE NOT TESTED: this clone has no commit {commit} (git fetch --unshallow)")
    tarfile.open(fileobj=io.BytesIO(done.stdout)).extractall(folder)  # of our own making
    return folder


@pytest.fixture(params=EARLIER)
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    programs = ["bench.py", "runs.py", "earlier_release.py", "pipeline.py"]
    folders = ["unit", "cluster", "cluster", "integration"]
    return unpacked(
        request.param, tmp_path / "earlier", *(f"tests/{f}/{p}" for f, p in zip(folders, programs, strict=True))
    )


@pytest.fixture
def url(postgres: LocalPostgres) -> str:
    return postgres.url(postgres.new_database())


@pytest.fixture
def pipeline(zookeeper: LocalZooKeeper, zookeeper_root: str, url: str) -> Iterator[Pipeline]:
    """Steps of this release."""
    client = connect(ClientConfig(zookeeper.hosts))
    state = SqlState.from_url(url, table="totals", keys=["key"], values={"n": Sum()})
    yield Pipeline(ZooKeeperStore(client), zookeeper_root, [state])
    disconnect(client)


def leave(old: Path, *arguments: str) -> None:
    """Let that release run its own `earlier_release.py`."""
    program = [sys.executable, str(old / "tests/cluster/earlier_release.py"), *arguments]
    done = subprocess.run(program, env={**os.environ, "PYTHONPATH": str(old)}, cwd=old, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_records_of_an_earlier_release_go_on_under_this_release(
    earlier: Path, zookeeper: LocalZooKeeper, zookeeper_root: str, url: str, pipeline: Pipeline
) -> None:
    leave(earlier, zookeeper.hosts, zookeeper_root, url)
    assert pipeline.totals() == [1 + 2 + 3]
    assert [pipeline.run(run) for run in ("r3", "r4", "r5", "r6")] == [3, 4, 5, 6]
    assert pipeline.totals() == [sum(range(1, 7))]


@pytest.fixture
def worker(
    tmp_path: Path, zookeeper: LocalZooKeeper, zookeeper_root: str, url: str
) -> Iterator[Callable[..., Committer]]:
    """Makes processes of one topology, with this package or an earlier one."""
    made = list[Committer]()
    connection = {"host": zookeeper.hosts, "extra": {"chroot": zookeeper_root}}

    def make(package: Path = REPOSITORY, module: str = "tests.cluster.runs", **env: str) -> Committer:
        made.append(Committer(tmp_path, connection, url, package=package, module=module, env=env))
        return made[-1]

    yield make
    for each in made:
        each.close()


def hand_over(old: Committer, new: Committer, run: str) -> None:
    new("take", json.dumps(old("give", run)))


def test_transactions_in_every_phase_go_on_under_this_release(
    earlier: Path, worker: Callable[..., Committer], tmp_path: Path
) -> None:
    failpoints = Failpoints(tmp_path / "failpoints")
    old, new = worker(earlier, **failpoints.environment), worker()
    assert old("many", "r1,r2") == []
    for run in ("r3", "r4"):
        old("begin", run)
        old("work", run)
    old("begin", "r5")
    for run in ("r3", "r4", "r5"):
        hand_over(old, new, run)
    armed = failpoints.arm("commit.before_mark", "kill", txid=3)
    old.ask("commit", "r3")
    eventually(lambda: armed.reached, 240, "the earlier release was killed between its write and its mark")
    old.process.wait()
    assert new("commit", "r3") == "committed"
    assert new("commit", "r4") == "committed"
    new("work", "r5")
    assert new("commit", "r5") == "committed"
    assert new("many", "r1,r2,r3") == []  # cleared: they are committed
    assert new("many", "r6,r7") == []
    totals = new("totals")
    assert totals == {**expected(7), **{f"of {txid}.1": 1 for txid in range(1, 8)}}


@pytest.mark.long
def test_a_replay_of_what_an_earlier_release_wrote_undoes_it(
    earlier: Path, worker: Callable[..., Committer], tmp_path: Path
) -> None:
    failpoints = Failpoints(tmp_path / "failpoints")
    old, new = worker(earlier, **failpoints.environment), worker()
    assert old("many", "r1") == []
    old("begin", "r2")
    old("work", "r2")
    armed = failpoints.arm("commit.before_mark", "pause", txid=2)
    zombie = old.ask("commit", "r2")
    eventually(lambda: armed.reached, 240, "the earlier release has written")
    assert new("many", "r2,r3") == []
    armed.release()
    zombie.get()
    assert new("totals") == {**expected(3), "of 1.1": 1, "of 2.2": 1, "of 3.1": 1}


# --- a state of each kind, and the journal ---------------------------------------------------------------------------


@pytest.fixture
def kinds(earlier: Path, worker: Callable[..., Committer], tmp_path: Path, url: str) -> MakeKinds:
    """Makes a process of the earlier release and one of this one, with so many states."""
    query(url, "CREATE TABLE counted (word text, n bigint)")

    def make(count: int) -> tuple[Committer, Committer]:
        env = {"FIRE_TABLE": str(tmp_path / "rows"), "FIRE_STATES": str(count)}
        failpoints = Failpoints(tmp_path / "failpoints").environment
        module = "tests.cluster.kinds"
        own = {**env, "FIRE_URL": without_ddl(url)}
        return worker(earlier, module, **env, **failpoints), worker(REPOSITORY, module, **own)

    return make


def without_ddl(url: str) -> str:
    """The database, for a user who may change no table."""
    user = f"worker_{make_url(url).database}"
    query(url, f"CREATE USER {user} PASSWORD 'of the worker'")
    return make_url(url).set(username=user, password="of the worker").render_as_string(hide_password=False)


def hand_the_tables_over(url: str) -> None:
    """Let their owner do what the changelog says, and give the user of this release its four rights."""
    query(url, owner_statements())
    user = f"worker_{make_url(url).database}"
    query(url, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {user}")


def counts(url: str, table: str) -> dict[str, int]:
    """What each state has counted of all rows; all are the same."""
    with create_engine(url).connect() as connection:
        found: dict[str, dict[str, int]] = {}
        for name in ("opaque", "transactional", "counted"):
            query = text(f"SELECT word, sum(n) FROM {name} WHERE word IN ('all', 'count') GROUP BY word")
            found[name] = {word: int(n) for word, n in connection.execute(query)}
    rows = DeltaLake(table).to_pyarrow_table().to_pylist()
    found["delta"] = {word: sum(row["n"] for row in rows if row["word"] == word) for word in ("all", "count")}
    first, *others = found.values()
    assert others == [first] * 3, found
    return first


def test_states_of_each_kind_go_on_from_every_phase(kinds: MakeKinds, tmp_path: Path, url: str) -> None:
    old, new = kinds(4)
    assert old("many", "r1,r2") == []
    for run in ("r3", "r4"):
        old("begin", run)
        old("work", run)
    old("begin", "r5")
    for run in ("r3", "r4", "r5"):
        hand_over(old, new, run)
    armed = Failpoints(tmp_path / "failpoints").arm("commit.before_mark", "kill", txid=3)
    old.ask("commit", "r3")
    eventually(lambda: armed.reached, 240, "the earlier release was killed between its write and its mark")
    old.process.wait()
    hand_the_tables_over(url)
    new("work", "r5")
    assert [new("commit", run) for run in ("r3", "r4", "r5")] == ["committed"] * 3
    assert new("many", "r6") == []
    assert counts(url, str(tmp_path / "rows")) == expected(6)


@pytest.fixture
def ledger(zookeeper: LocalZooKeeper, zookeeper_root: str) -> Iterator[Ledger]:
    """The ledger of the processes."""
    client = connect(ClientConfig(zookeeper.hosts))
    yield Ledger(ZooKeeperStore(client), Paths(f"{zookeeper_root}/airflow_tx", "flights"))
    disconnect(client)


def rows_of(url: str) -> dict[str, list[dict[str, Any]]]:
    """Every row of the tables of the states."""
    with create_engine(url).connect() as connection:
        names = inspect(connection).get_table_names()
        return {
            name: [dict(row) for row in connection.execute(text(f"SELECT * FROM {name}")).mappings()] for name in names
        }


def restore(url: str, backup: dict[str, list[dict[str, Any]]]) -> None:
    """Bring the tables back from a backup."""
    tables = MetaData()
    tables.reflect(engine := create_engine(url))
    with engine.begin() as connection:
        for name, rows in backup.items():
            connection.execute(tables.tables[name].delete())
            if rows:
                connection.execute(tables.tables[name].insert(), rows)


def test_states_roll_forward_with_the_journal_of_an_earlier_release(
    kinds: MakeKinds, tmp_path: Path, ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = kinds(2)
    assert old("many", "r1") == []
    backup = rows_of(url)
    assert old("many", "r2,r3") == []
    hand_the_tables_over(url)
    assert new("many", "r4") == []
    truth = new("totals")
    restore(url, backup)
    monkeypatch.setenv("AIRFLOW__TX__STAGING", f"file://{tmp_path}/staging")
    area = StagingArea.of_ledger("zk", "/airflow_tx")
    repair = RollForwardRepair(
        ledger,
        {state.name: state for state in states(url, str(tmp_path / "rows"))[:2]},
        JournalArea(area, ledger.incarnation()),
        area,
    )
    repair.execute(ADA)
    assert [str(each.what) for each in repair.refused] == []
    assert new("totals") == truth
    assert new("many", "r5") == []


def test_a_transaction_of_an_earlier_release_is_restated(kinds: MakeKinds, ledger: Ledger, url: str) -> None:
    old, new = kinds(3)
    assert old("many", "r1,r2") == []
    hand_the_tables_over(url)
    ledger.run(want, WishRequest(1, "r1", "r1"), ADA)
    assert new("many", "r1") == []
    assert new("totals") == {**expected(2), "of 1.1": 0, "of 3.1": 1, "of 2.1": 1}


def test_a_ledger_that_was_lost_since_the_upgrade_restates_what_an_earlier_release_committed(
    kinds: MakeKinds, ledger: Ledger, url: str, tmp_path: Path, zookeeper: LocalZooKeeper
) -> None:
    old, new = kinds(3)
    assert old("many", "r1,r2") == []
    hand_the_tables_over(url)
    client = connect(ClientConfig(zookeeper.hosts))
    client.delete(ledger.paths.base, recursive=True)
    disconnect(client)
    held = [
        HeldState.of(
            state.name,
            undoable=state.kind is StateKind.OPAQUE,
            fence=state.fence(),
            holds=state.holds,
            receipts=state.receipts(),
        )
        for state in states(url, str(tmp_path / "rows"))[:3]
    ]
    Repairs(ledger).ledger_lost(held, TopologyRequest("flights", "transactional", 4), ADA)
    ledger.run(want, WishRequest(2, "r2", "r2"), ADA)
    assert new("many", "r2,r3") == []
    totals = new("totals")
    assert {word: totals[word] for word in ("all", "count", "of 2.1")} == {**expected(3), "of 2.1": 0}


# --- releases beside each other --------------------------------------------------------------------------------------


def answered(step: Answer) -> str:
    """What a step gives; "refused": the process has met a record of another release, and says so in one line."""
    said = step.get()
    if "result" in said:
        return str(said["result"])
    assert said["error"] == "UnreadableRecord", said
    assert "\n" not in said["text"]
    assert "upgrade airflow-provider-tx" in said["text"]
    return "refused"


def test_while_releases_are_mixed_the_earlier_one_goes_on_or_refuses_and_the_totals_stay_exact(
    earlier: Path, worker: Callable[..., Committer]
) -> None:
    old, new = worker(earlier), worker()
    assert old("many", "r1") == []
    assert new("many", "r2") == []
    for run, processor in (("r3", old), ("r4", new)):
        begun = answered(old.ask("begin", run)) != "refused"
        if not begun:
            new("begin", run)
        hand_over(old if begun else new, new, run)
        hand_over(new, old, run)
        if answered(processor.ask("work", run)) == "refused":
            processor = new
            new("work", run)
        hand_over(processor, old if processor is new else new, run)
        if answered(old.ask("commit", run)) == "refused":
            assert new("commit", run) == "committed"
    assert new("many", "r5") == []
    assert new("totals") == {**expected(5), **{f"of {txid}.1": 1 for txid in range(1, 6)}}


# --- Airflow ---------------------------------------------------------------------------------------------------------


DAG_FILE = """
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, MemorySource, Transaction, current_batch, persistent_aggregate
from airflow_tx.state import SqlState, Sum

numbers = SqlState("tx_state", table="numbers", keys=["key"], values={"n": Sum()})


@task
def add():
    assert Path("FOLDER/go").exists()
    return [{"key": "all", "n": row["n"]} for row in current_batch().read()]


with DAG("numbers", schedule=None, max_active_runs=4):
    with Transaction(source=MemorySource({"all": [{"n": 1}, {"n": 2}, {"n": 4}]}, per_batch=1), max_pending=1):
        CommitOperator(task_id="commit", updates=[persistent_aggregate(add(), state=numbers)])
"""


class UpgradedAirflow(LocalAirflow):
    """An Airflow whose processes have a package of their own."""

    def install(self, package: Path) -> None:
        """Let what is started from now on have a package."""
        self._env["PYTHONPATH"] = str(package)

    def deferred_to(self) -> list[str]:
        """What tasks wait for."""
        engine = create_engine(self.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
        with engine.connect() as connection:
            return [path for (path,) in connection.execute(text("SELECT classpath FROM trigger"))]


@pytest.fixture
def airflow(earlier: Path, tmp_path: Path, zookeeper: LocalZooKeeper, zookeeper_root: str) -> Iterator[UpgradedAirflow]:
    """An Airflow of the earlier release."""
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "numbers.py").write_text(DAG_FILE.replace("FOLDER", str(tmp_path)))
    ledger = connection("zookeeper", host=zookeeper.hosts, extra={"chroot": zookeeper_root})
    env = {
        "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": ledger,
        "AIRFLOW_CONN_TX_STATE": connection("sqlite", host=str(tmp_path / "state.db")),
        "AIRFLOW__TX__STAGING": f"file://{tmp_path}/staging",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
    }
    made = UpgradedAirflow(tmp_path / "airflow", dags, env)
    made.install(earlier)
    with made:
        yield made


def one_waits_for_another(airflow: UpgradedAirflow) -> None:
    """Let the task of a run fail; the next run waits until that transaction is committed."""
    airflow.wait_dag("numbers")
    airflow.trigger("numbers", "r1")
    airflow.wait_run("numbers", "r1", state="failed")
    airflow.trigger("numbers", "r2")


def both_commit(airflow: UpgradedAirflow, tmp_path: Path, *cleared: str) -> None:
    """Let all tasks go on, and compare what is counted."""
    (tmp_path / "go").touch()
    for run in cleared:
        airflow.clear_run("numbers", run)
    for run in ("r1", "r2"):
        airflow.wait_run("numbers", run)
    state = SqlState.from_url(f"sqlite:///{tmp_path}/state.db", table="numbers", keys=["key"], values={"n": Sum()})
    assert list(state.read()) == [{"key": "all", "n": 3}]


@pytest.mark.long
def test_a_task_that_was_deferred_by_an_earlier_release_is_woken_by_this_one(
    airflow: UpgradedAirflow, tmp_path: Path
) -> None:
    one_waits_for_another(airflow)
    airflow.wait_task("numbers", "r2", "begin", "deferred")
    assert airflow.deferred_to() == ["airflow_tx.triggers.ready.ReadyTrigger"]
    airflow.stop()
    airflow.install(REPOSITORY)
    airflow.start()
    both_commit(airflow, tmp_path, "r1")
    assert airflow.task("numbers", "r2", "begin")["try_number"] == 1


@pytest.mark.long
def test_workers_of_this_release_wait_beside_a_triggerer_of_an_earlier_one_until_it_is_upgraded(
    airflow: UpgradedAirflow, earlier: Path, tmp_path: Path
) -> None:
    airflow.stop()
    airflow.install(REPOSITORY)
    airflow.start()
    airflow.kill_component("triggerer")
    airflow.install(earlier)
    airflow.start_component("triggerer")
    one_waits_for_another(airflow)
    airflow.wait_task("numbers", "r2", "begin", "up_for_retry")
    airflow.kill_component("triggerer")
    airflow.install(REPOSITORY)
    airflow.start_component("triggerer")
    both_commit(airflow, tmp_path, "r1")
