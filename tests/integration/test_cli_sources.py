"""`airflow tx accept-loss`, and the lag of topologies: the sources are asked as their DAGs name them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_tx.base.errors import SourceError
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.batch import BeginRequest, Outside, TopologyRequest
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.ledger.views.view import topology_view
from airflow_tx.sources.api import Source
from airflow_tx.transaction.processing.begin import decide
from tests.integration.cli_runs import Runs, one_line
from tests.integration.commands import DAG, Commands
from tests.integration.pipeline import Pipeline

_LOG = '''
import json, time
from pathlib import Path

from airflow_tx.base.errors import SourceError
from airflow_tx.sources import Loss
from airflow_tx.sources.api import Batch, SourceKind, TransactionalSource


class Log(TransactionalSource):
    """Numbers from a first one on, as a file says, which loses the first ones."""

    def __init__(self, path, kind="opaque"):
        self.path, self.kind = path, SourceKind(kind)

    def __repr__(self):
        return f"Log({self.path!r})"

    def serialize(self):
        return "log_source.Log", {"path": self.path, "kind": self.kind.value}

    def there(self):
        said = json.loads(Path(self.path).read_text())
        if said.get("hangs"):
            time.sleep(60)
        return said["first"], said["end"]

    def backlog(self, position):
        first, end = self.there()
        return end - max(position or 0, first)

    def losses(self, position):
        first, _ = self.there()
        if position >= first:
            return []
        return [Loss("", position, first, f"numbers {position} to {first - 1}")]

    def initialize_transaction(self, txid, position):
        first, end = self.there()
        if position is not None and (lost := self.losses(position)):
            remedy = "To go on without them: airflow tx accept-loss TOPOLOGY --why TEXT"
            raise SourceError(source=repr(self), problem=f"{lost[0].description} are lost", remedy=remedy)
        start = position or first
        return Batch([start, start + 2], start + 2, 2, "2 at a time") if start + 2 <= end else None

    def emit_batch(self, attempt, metadata, spark=None):
        return [{"n": number} for number in range(*metadata)]
'''
_DAG = """
from pathlib import Path
from airflow.sdk import DAG, task
from airflow_tx import CommitOperator, FileSource, Transaction, persistent_aggregate
from airflow_tx.state import SqlState, Sum
from log_source import Log

HERE = Path(__file__).parent

def topology(dag_id, source, name=None):
    with DAG(dag_id, schedule=None, max_active_runs=16):
        with Transaction(source=source, topology=name) as tx:
            @task
            def count(batch):
                return []
            state = SqlState("tx_state", table=dag_id, keys=["key"], values={"n": Sum()})
            CommitOperator(task_id="commit", updates=[persistent_aggregate(count(tx.batch), state=state)])

topology("numbers", Log(str(HERE / "numbers.json")))
topology("other", Log(str(HERE / "other.json"), kind="transactional"))
topology("broken", Log(str(HERE / "nosuch.json")))
topology("files", FileSource(f"{HERE}/data/*.csv"))
"""


def say(airflow: Commands, name: str, **said: Any) -> None:
    """What a log holds."""
    (airflow.dags / f"{name}.json").write_text(json.dumps(said))


@pytest.fixture(scope="module")
def airflow(commands: Commands) -> Commands:
    commands.begin({"log_source.py": _LOG, "logs.py": _DAG, "the_dag.py": DAG}, known=True)
    # From now on only the one file can be read.
    (commands.dags / "the_dag.py").write_text("raise RuntimeError('this airflow DAG is none of its business')")
    return commands


class Log(Pipeline):
    """A topology whose source is the one of its DAG."""

    def __init__(self, airflow: Commands, store: ZooKeeperStore, root: str, name: str, kind: str = "opaque") -> None:
        super().__init__(store, root, topology=name)
        self.request = TopologyRequest(name, kind, 8)
        namespace: dict[str, Any] = {}
        exec(_LOG, namespace)
        self.source: Source = namespace["Log"](str(airflow.dags / f"{name}.json"), kind)

    def begin(self, run: str) -> Begun:
        request = BeginRequest(self.request, run, run, f"{next(self._tries):06}", False, {"task0": "1"})
        begun = self.ledger.begin(
            request,
            Outside(
                decide=lambda attempt, position: decide(self.source, attempt, position),
                run_state=lambda run_id: "failed",
            ),
        )
        assert isinstance(begun, Begun), begun
        return begun


def test_accept_loss_needs_a_confirmation_and_a_reason(
    airflow: Commands, store: ZooKeeperStore, zookeeper_root: str
) -> None:
    root = zookeeper_root
    say(airflow, "numbers", first=0, end=100)
    log = Log(airflow, store, root, "numbers")
    log.run("r1")
    accept = ("tx", "accept-loss", "numbers")
    why = ("--why", "the retention was too short")
    assert one_line(airflow.run(*accept, root=root, fails=True)) == (
        "Give the reason, which the ledger keeps: airflow tx accept-loss numbers --why TEXT"
    )
    assert one_line(airflow.run(*accept, *why, root=root, fails=True)).startswith(
        "Topology 'numbers' has lost nothing: its source can give every row that comes next. Nothing was changed."
    )
    say(airflow, "numbers", first=10, end=100)
    with pytest.raises(SourceError, match=r"airflow tx accept-loss TOPOLOGY --why TEXT"):
        log.begin("r2")
    assert one_line(airflow.run(*accept, *why, root=root, fails=True)) == (
        "Continue topology numbers without these rows. No transaction will ever have them: numbers 2 to 9. "
        "Nothing was changed. To confirm without a terminal, add --yes."
    )
    assert topology_view(store, log.paths).record.accepted == {}

    (told,) = airflow.json(*accept, *why, "--yes", root=root)
    assert told == {"partition": None, "lost": "numbers 2 to 9", "goes_on_at": 10}
    assert log.begin("r2").metadata == [10, 12]
    (shown,) = airflow.json("tx", "show", "numbers", "2", root=root)
    assert (shown["size"], shown["lost"]) == ("2 rows (2 at a time)", "numbers 2 to 9")
    second, first = airflow.json("tx", "list", "numbers", root=root)
    assert (second["size"], second["note"]) == (
        "2 rows (2 at a time)",
        "rows lost before this transaction: numbers 2 to 9",
    )
    assert first["note"] is None
    (topology,) = airflow.json("tx", "show", "numbers", root=root)
    assert topology["accepted_losses"].startswith("numbers 2 to 9 (the retention was too short; ")
    assert topology["repairs"].startswith("accept-loss: lost, and in no batch: numbers 2 to 9 (the retention was ")
    assert any("too short" in extra for event, extra in Runs(airflow).audited() if event == "cli_accept_loss")


def test_accept_loss_includes_rows_that_a_replay_of_an_open_opaque_batch_would_miss(
    airflow: Commands, store: ZooKeeperStore, zookeeper_root: str
) -> None:
    root = zookeeper_root
    for name, kind in (("numbers", "opaque"), ("other", "transactional")):
        say(airflow, name, first=0, end=100)
        log = Log(airflow, store, root, name, kind)
        log.run("r1")
        log.begin("r2")
        log.begin("r3")
        say(airflow, name, first=3, end=100)  # of the rows of the second one, 2 is gone
        accept = ("tx", "accept-loss", name, "--why", "gone", "--yes")
        if kind == "transactional":
            assert "has lost nothing" in airflow.run(*accept, root=root, fails=True)
            continue
        (told,) = airflow.json(*accept, root=root)
        assert told["lost"] == "numbers 2 to 2"
        assert log.begin("r2").metadata == [3, 5]


def test_accept_loss_is_refused_for_a_dag_whose_topology_is_in_another_ledger(
    airflow: Commands, store: ZooKeeperStore, zookeeper_root: str
) -> None:
    say(airflow, "numbers", first=0, end=100)
    Log(airflow, store, zookeeper_root, "numbers").begin("r1")
    accept = ("tx", "accept-loss", "numbers", "--why", "gone", "--dag-id", "other")
    told = one_line(airflow.run(*accept, root=zookeeper_root, fails=True))
    assert told.startswith("TOPOLOGY = 'numbers' cannot be used. DAG 'other' keeps topology 'other' at ")
    accept = ("tx", "accept-loss", "numbers", "--why", "gone", "--dag-id", "nosuch")
    told = one_line(airflow.run(*accept, root=zookeeper_root, fails=True))
    assert told.startswith("--dag-id = 'nosuch' cannot be used. No DAG file defines it. These files could not be read")
    assert one_line(
        airflow.run("tx", "accept-loss", "nosuch", "--why", "gone", root=zookeeper_root, fails=True)
    ).startswith("No topology 'nosuch' in the ledger")


def test_the_list_command_shows_the_lag_of_each_topology(
    airflow: Commands, store: ZooKeeperStore, zookeeper_root: str
) -> None:
    root = zookeeper_root
    say(airflow, "numbers", first=0, end=100)
    say(airflow, "other", first=0, end=50)
    numbers, other = (Log(airflow, store, root, name) for name in ("numbers", "other"))
    other.request = TopologyRequest("other", "transactional", 8)
    numbers.run("r1")
    numbers.begin("r2")  # not committed: its rows count
    other.begin("r1")
    files = Pipeline(store, root, topology="files")
    files.request = TopologyRequest("files", "transactional", 8)
    files.ledger.open(files.request)
    (airflow.dags / "data").mkdir(exist_ok=True)
    for name in ("a.csv", "b.csv"):
        (airflow.dags / "data" / name).write_text("n\n1\n")
    for name, dag_id in (("broken", "broken"), ("nosuch", "nosuch"), ("stranger", "other")):
        stranger = Pipeline(store, root, topology=name)
        stranger.request = TopologyRequest(dag_id, "opaque", 8)
        stranger.ledger.open(stranger.request)

    listed, said = airflow.both("tx", "list", root=root)
    lags = {row["topology"]: row["lag"] for row in listed}
    assert lags == {
        "numbers": {"count": 98, "unit": "rows"},
        "other": {"count": 50, "unit": "rows"},
        "files": {"count": 2, "unit": "files"},
        **dict.fromkeys(("broken", "nosuch", "stranger")),
    }
    reasons = dict(zip(("broken", "nosuch"), sorted(said), strict=True))
    assert "'broken' is unknown: FileNotFoundError" in reasons["broken"]
    assert "DAG = 'nosuch' cannot be used. No DAG file that Airflow knows defines it." in reasons["nosuch"]
    (shown,) = airflow.json("tx", "show", "numbers", root=root)
    assert shown["lag"] == lags["numbers"]
    assert "98 rows" in airflow.run("tx", "list", root=root)
    # The list says nothing of it: people know that its DAG has moved on.
    _, (said_of_it,) = airflow.both("tx", "show", "stranger", root=root)
    assert "DAG 'other' keeps topology 'other' at " in said_of_it

    listed, said = airflow.both("tx", "list", "--no-lag", root=root)
    assert ({row["lag"] for row in listed}, said) == ({None}, [])
