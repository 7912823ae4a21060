"""`airflow tx …` for topologies whose DAGs name another root than `[tx]`: a command of a log works as printed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.integration.commands import DAG, Commands
from tests.integration.pipeline import Pipeline

ROOTS = ("/of_finance", "/of_sales")
HOME = "/at_home"


def dag(dag_id: str, topology: str, root: str) -> str:
    text = DAG.replace('DAG("the_dag"', f'DAG("{dag_id}"')
    return text.replace('topology="flights"', f'topology="{topology}", root="{root}"')


FINANCE, SALES = ROOTS
FILES = {
    "bills.py": dag("bills", "bills", FINANCE),
    "twice_a.py": dag("twice_a", "twice", FINANCE),
    "twice_b.py": dag("twice_b", "twice", SALES),
}
FAR = dag("far", "far", f'{FINANCE}", zookeeper_conn_id="gone')

_NO_DAG = """
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from sqlalchemy import update

with create_session() as session:
    session.execute(update(DagModel).values(is_stale=True))
"""


@pytest.fixture(scope="module")
def airflow(commands: Commands) -> Iterator[Commands]:
    commands.begin(FILES, known=True)
    yield commands
    commands.python(_NO_DAG)  # else each later list has them


@pytest.fixture
def store(zookeeper: LocalZooKeeper) -> Iterator[ZooKeeperStore]:
    client = connect(ClientConfig(zookeeper.hosts))
    yield ZooKeeperStore(client)
    for root in (*ROOTS, HOME):
        if client.exists(root):
            client.delete(root, recursive=True)
    disconnect(client)


def begun(store: ZooKeeperStore, root: str, topology: str, dag_id: str) -> None:
    pipeline = Pipeline(store, root, topology=topology)
    pipeline.request = TopologyRequest(dag_id, "opaque", 8)
    pipeline.begin("r1")


def test_a_topology_of_another_ledger_is_found_by_its_short_and_its_full_name(
    airflow: Commands, store: ZooKeeperStore
) -> None:
    begun(store, ROOTS[0], "bills", "bills")
    for name in ("bills", f"bills@zookeeper_default{ROOTS[0]}"):
        (shown,) = airflow.json("tx", "show", name, "1", root=HOME)
        assert shown["status"] == "PROCESSING"
    told = airflow.told("tx", "show", "bills", "1", root=HOME)
    assert f"--conn-id zookeeper_default --root {ROOTS[0]}" in told


def test_a_topology_of_the_configured_ledger_is_preferred_over_a_namesake_in_another_ledger(
    airflow: Commands, store: ZooKeeperStore
) -> None:
    begun(store, ROOTS[0], "bills", "bills")
    begun(store, HOME, "bills", "another")
    shown = {each["topology"]: each["dag_id"] for each in airflow.json("tx", "list", root=HOME)}
    assert shown == {"bills": "another", f"bills@zookeeper_default{ROOTS[0]}": "bills"}
    said = airflow.run("tx", "show", "bills", "2", root=HOME, fails=True)
    assert said.startswith("No transaction 2 of topology 'bills' in the ledger at /at_home/bills")


def test_a_topology_name_in_several_ledgers_is_refused_until_the_full_name_is_given(
    airflow: Commands, store: ZooKeeperStore
) -> None:
    for root, dag_id in zip(ROOTS, ("twice_a", "twice_b"), strict=True):
        begun(store, root, "twice", dag_id)
    names = [f"twice@zookeeper_default{root}" for root in ROOTS]
    said = airflow.run("tx", "show", "twice", "1", root=HOME, fails=True)
    assert f"Several ledgers have a topology of this name. Use one of these names: {', '.join(names)}" in said
    (shown,) = airflow.json("tx", "show", names[1], "1", root=HOME)
    assert shown["run_id"] == "r1"


def test_the_list_command_shows_topologies_of_other_ledgers_with_names_that_commands_accept(
    airflow: Commands, store: ZooKeeperStore
) -> None:
    begun(store, HOME, "flights", "another")
    begun(store, ROOTS[0], "bills", "bills")
    begun(store, ROOTS[1], "twice", "twice_b")  # that of the other root has not begun
    listed = airflow.json("tx", "list", root=HOME)
    finance, sales = (f"zookeeper_default{root}" for root in ROOTS)
    assert [each["topology"] for each in listed] == ["flights", f"bills@{finance}", f"twice@{sales}"]
    for each in listed[1:]:
        assert airflow.json("tx", "list", each["topology"], root=HOME)[0]["run_id"] == "r1"
    (own,) = airflow.json("tx", "list", "--root", HOME, root="/unused")
    assert own["topology"] == "flights"


def test_a_topology_that_is_in_no_ledger_and_no_dag_is_reported_as_unknown(
    airflow: Commands, store: ZooKeeperStore
) -> None:
    said = airflow.run("tx", "show", "nosuch", root=HOME, fails=True)
    assert said.startswith("No topology 'nosuch' in the ledger at /at_home/nosuch")


def test_the_list_command_shows_the_other_topologies_while_one_ledger_is_unreachable(
    airflow: Commands, store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow.begin({**FILES, "far.py": FAR}, known=True)
    begun(store, HOME, "flights", "another")
    monkeypatch.setitem(airflow.environment, "AIRFLOW_CONN_GONE", '{"conn_type": "zookeeper", "host": "127.0.0.1:1"}')
    flights, far = airflow.json("tx", "list", "--no-lag", root=HOME)
    assert (flights["topology"], flights["problem"]) == ("flights", None)
    assert far["topology"] == f"far@gone{FINANCE}"
    assert "127.0.0.1:1" in far["problem"]


@pytest.mark.parametrize("given", ["--back 1", "--state-lost tx_state.flights", "--ledger-lost"])
def test_a_repair_of_a_ledger_that_the_dag_does_not_use_prints_the_command_to_use_instead(
    airflow: Commands, store: ZooKeeperStore, given: str
) -> None:
    begun(store, HOME, "bills", "bills")
    said = airflow.run("tx", "repair", "bills", *given.split(), "--yes", root=HOME, fails=True)
    there = f"--dag-id bills --conn-id zookeeper_default --root {ROOTS[0]}"
    assert f"Repeat: airflow tx repair bills {given} {there}" in said


def test_repair_back_is_refused_for_a_topology_that_does_not_exist(airflow: Commands, store: ZooKeeperStore) -> None:
    said = airflow.run("tx", "repair", "bills", "--back", "1", "--yes", root=ROOTS[0], fails=True)
    assert said.startswith("No topology 'bills' in the ledger at /of_finance/bills")
