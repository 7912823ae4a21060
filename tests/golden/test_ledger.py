"""What a ledger and its states hold after a story in which each kind of record is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger.answers import Granted, Processed
from airflow_tx.ledger.api import Create, Delete, Put
from airflow_tx.ledger.audit.plan import HeldState
from airflow_tx.ledger.audit.rebuild import Repairs
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.receipt import CheckNote, Deed
from airflow_tx.ledger.records import Loss
from airflow_tx.ledger.steps import loss
from airflow_tx.ledger.steps.commit import AcquireRequest
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.state.aggregators import Sum
from airflow_tx.state.api import StateKind
from airflow_tx.state.sql.state import SqlState
from tests.golden.story import AUDIT, story
from tests.golden.written import check_golden
from tests.model.driver import Run, Topology


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state.db'}"


@pytest.fixture
def topology(database: str) -> Topology:
    state = SqlState.from_url(database, table="totals", keys=["key"], values={"n": Sum()}, types={"key": "text"})
    store = MemoryStore()
    return Topology(lambda: store, "/golden", [state])


def records(topology: Topology) -> dict[str, str]:
    """Every record below the topology: its path there, and its text."""
    found = {}
    for path in topology.tree():
        node = topology.store().get(path)
        assert node is not None
        found[path.removeprefix(topology.paths.base) or "/"] = node.data.decode()
    return found


def rows(database: str) -> dict[str, list[dict[str, Any]]]:
    """Every table of the states."""
    engine = sqlalchemy.create_engine(database)
    with engine.connect() as connection:
        tables = sqlalchemy.inspect(connection).get_table_names()
        found = {name: connection.execute(sqlalchemy.text(f"SELECT * FROM {name}")).mappings() for name in tables}
        return {name: [dict(row) for row in all_] for name, all_ in found.items()}


def test_the_records_of_a_ledger_match_the_golden_file(topology: Topology) -> None:
    story(topology)
    assert topology.states[0].kind is StateKind.OPAQUE
    check_golden("ledger", records(topology))


def test_the_tables_of_a_sql_state_match_the_golden_file(topology: Topology, database: str) -> None:
    story(topology)
    check_golden("sql_state", rows(database))


def test_the_record_of_a_closed_topology_matches_the_golden_file(topology: Topology) -> None:
    from airflow_tx.ledger.audit.move import Mover

    Run(topology, "r1").whole(2, {"a": 2})
    Mover(topology.ledger()).close_for_deletion()
    node = topology.store().get(topology.paths.record)
    assert node is not None
    check_golden("closed_topology", {"topology": node.data.decode()})


def test_the_records_of_transactions_with_checks_match_the_golden_file(topology: Topology) -> None:
    """One transaction is committed although a check has failed, since a person accepts that; another one waits."""
    ledger = topology.ledger()
    failed = CheckNote(False, "n > 0 does not hold for 1 of 2 rows", "of the rows")
    found = {"few": CheckNote(False, "3", severity="warn"), "some": CheckNote(True), "positive": failed}
    for run_id in ("r1", "r2"):
        run = Run(topology, run_id)
        begun = run.processed(2, {"a": 2})
        processed = run.committer().processed()
        assert isinstance(processed, Processed)
        ledger.note_commit_failed(
            run.attempt,
            processed.epoch,
            reason="refused",
            remedy=Remedy(("accept",)),
            for_good=True,
            checks={"positive": failed},
        )
        ledger.accept_checks(begun.txid, {"positive": "of the rows"}, audit=AUDIT)
        if begun.txid == 1:
            accepted = replace(failed, accepted=Deed(AUDIT.who, "2013-01-01T00:00:00+00:00", AUDIT.why))
            request = AcquireRequest(
                run.attempt,
                processed.epoch,
                begun.rows_digest,
                {},
                metadata=begun.metadata,
                position=begun.position,
                checks={**found, "positive": accepted},
            )
            granted = ledger.acquire(request)
            assert isinstance(granted, Granted)
            ledger.commit(granted.grant.token, states=[])
    check_golden("checks", records(topology))


# --- a source with partitions, and a ledger that was lost --------------------------------------------------------


def test_the_records_of_a_partitioned_source_match_the_golden_file(database: str) -> None:
    """One partition comes later; one takes no part; one is replayed, skipped and re-admitted; rows of one are lost."""
    topology = partitioned(database)
    Run(topology, "r1").whole({"A": 2, "B": 1})
    Run(topology, "r2").begin({"C": 3})
    topology.note_replay(2, 1)
    replayed = Run(topology, "r2")
    replayed.processed({"C": 1, "A": 1}, {"c": 1})
    replayed.commit()
    Run(topology, "r3").begin({"B": 4})
    topology.skip(3)
    topology.readmit(3)
    Run(topology, "r3").begin({})
    topology.ledger().run(loss.note_losses, [Loss("A", 3, 5, "rows 3 and 4 of A")], AUDIT)
    Run(topology, "r5").begin({"A": 1})
    failed = Run(topology, "r6")
    failed.begin({"B": 1})
    failed.start().fail("of memory")
    Run(topology, "r6").begin({"B": 2})
    check_golden("partitioned", records(topology))


def test_the_records_of_a_rebuilt_ledger_match_the_golden_file(topology: Topology) -> None:
    """Its states hold two transactions more than the ledger that was restored, and what it has open is forgotten."""
    Run(topology, "r1").whole(2, {"a": 2})
    restored = {path: topology.store().get(path) for path in topology.tree()}
    Run(topology, "r2").whole(3, {"b": 3})
    Run(topology, "r3").whole(1, {"a": 1})
    set_back(topology, restored)
    Run(topology, "r9").begin(5)
    fence = topology.states[0].fence()
    assert fence is not None
    held = [HeldState.of(topology.states[0].name, undoable=True, fence=fence)]
    Repairs(topology.ledger()).ledger_lost(held, topology.request, AUDIT)
    Run(topology, "r4").whole(1, {"a": 1})
    check_golden("rebuilt", records(topology))


def partitioned(database: str) -> Topology:
    state = SqlState.from_url(database, table="totals", keys=["key"], values={"n": Sum()}, types={"key": "text"})
    store = MemoryStore()
    return Topology(lambda: store, "/golden", [state], partitioned=True)


def set_back(topology: Topology, restored: dict[str, Any]) -> None:
    """Restore the records of an earlier moment."""
    store = topology.store()
    gone = [Delete(path) for path in reversed(topology.tree()) if path not in restored]
    again = [Create(path, node.data) for path, node in restored.items() if store.get(path) is None]
    kept = [Put(path, node.data) for path, node in restored.items() if store.get(path) is not None]
    store.multi([], [*gone, *again, *kept])
