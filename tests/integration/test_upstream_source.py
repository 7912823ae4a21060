"""A table that another topology writes, as a source: ranges, rows, refusals. Source: docs/protocol.md §12."""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base.errors import ConfigError, FailedBatch, OtherSource, SourceError, SourceNotSettled, TxError
from airflow_tx.base.rows import dicts_of
from airflow_tx.ledger import Paths, TransactionAttempt
from airflow_tx.ledger.api import Put
from airflow_tx.ledger.audit.rebuild import Repairs
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.records import TopologyRecord, decode, encode
from airflow_tx.sources import UpstreamSource, lags, rebuild
from airflow_tx.sources.api import Batch
from airflow_tx.state import DeltaTable, MemoryState, SqlTable, Sum
from tests.integration.pipeline import Pipeline
from tests.integration.upstream_orders import ADA, ROOT, Orders, orders_of

ATTEMPT = TransactionAttempt(1, 1)
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.fixture(params=["sqlite", "delta"])
def orders(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Orders:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "w.db")}))
    table: Any = SqlTable("warehouse", table="orders") if request.param == "sqlite" else DeltaTable(tmp_path / "orders")
    return orders_of(table, tmp_path, monkeypatch)


def read(source: UpstreamSource, batch: Batch | None) -> list[Any]:
    """The values of n in the rows of a batch."""
    assert batch is not None
    rows = dicts_of(source.emit_batch(ATTEMPT, batch.metadata))
    found = [row["n"] for row in rows]
    source.check_read(ATTEMPT)
    source.close()
    return found


def taken(batch: Batch | None) -> tuple[int, int]:
    assert batch is not None
    metadata: Any = batch.metadata
    return metadata["first"], metadata["last"]


# --- ranges ------------------------------------------------------------------------------------------------------


def test_a_batch_takes_the_final_transactions_after_the_position(orders: Orders) -> None:
    source = orders.run(3).source()
    batch = source.decide(ATTEMPT, None)
    assert (taken(batch), read(source, batch)) == ((1, 3), [1, 2, 3])
    assert batch is not None
    assert (batch.count, batch.reason) == (3, "transactions 1 to 3 of orders")
    assert source.decide(ATTEMPT, batch.position) is None
    orders.run(1)
    batch = source.decide(ATTEMPT, batch.position)
    assert (taken(batch), read(source, batch)) == ((4, 4), [4])


def test_rows_have_no_column_of_the_package_and_have_the_txid_if_it_is_requested(orders: Orders) -> None:
    orders.run(1)
    batch = orders.source().decide(ATTEMPT, None)
    assert batch is not None
    names = orders.source().emit_arrow(ATTEMPT, batch.metadata).schema.names
    assert set(names) == {"key", "n"}
    rows = list(dicts_of(orders.source(upstream_txid=True).emit_batch(ATTEMPT, batch.metadata)))
    assert [row["upstream_txid"] for row in rows] == [1]


@pytest.mark.parametrize(
    ("limits", "ends"),
    [({"max_transactions": 2}, [2, 4, 5]), ({"max_rows_per_batch": 3}, [3, 5]), ({"start": 4}, [5])],
)
def test_limits_restrict_the_range_of_a_batch(orders: Orders, limits: dict[str, int], ends: list[int]) -> None:
    source = orders.run(5).source(**limits).with_limit(())
    position: Any = None
    found = list[int]()
    while (batch := source.decide(ATTEMPT, position)) is not None:
        position = batch.position
        found.append(taken(batch)[1])
    assert found == ends


def test_a_range_without_rows_waits_until_it_reaches_max_transactions(orders: Orders) -> None:
    source = orders.run(1).without_rows().source(max_transactions=3)
    first = source.decide(ATTEMPT, None)
    assert taken(first) == (1, 2)
    assert first is not None
    orders.without_rows().without_rows()
    assert source.decide(ATTEMPT, first.position) is None
    assert taken(orders.without_rows().source(max_transactions=3).decide(ATTEMPT, first.position)) == (3, 5)


def test_a_topology_that_has_not_begun_provides_no_batch(orders: Orders) -> None:
    assert orders.source().decide(ATTEMPT, None) is None
    assert orders.source().backlog(None) == 0


def test_the_lag_is_the_number_of_transactions_that_were_not_taken_yet(orders: Orders) -> None:
    source = orders.run(3).source(max_transactions=1)
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    assert (source.backlog(None), source.backlog(batch.position), source.unit) == (3, 2, "transactions")


# --- what counts -------------------------------------------------------------------------------------------------


def test_a_restated_transaction_provides_its_current_rows_and_its_restatement_provides_none(orders: Orders) -> None:
    orders.run(2)
    assert orders.pipeline.restate(1, "o1", 50) == 3
    source = orders.source(max_transactions=2)
    batch = source.decide(ATTEMPT, None)
    assert (taken(batch), sorted(read(source, batch))) == ((1, 2), [2, 50])
    assert batch is not None
    assert source.decide(ATTEMPT, batch.position) is None, "a range without rows waits"


def test_a_skipped_transaction_provides_no_row_and_its_readmission_provides_the_rows(orders: Orders) -> None:
    from airflow_tx.ledger.steps.end import note_readmission

    orders.run(1)
    orders.pipeline.skip(orders.pipeline.begin("o2").txid)
    orders.pipeline.ledger.run(note_readmission, 2, ADA)
    orders.pipeline.run("o2")
    source = orders.source()
    batch = source.decide(ATTEMPT, None)
    assert (taken(batch), read(source, batch)) == ((1, 3), [1, 2])


def test_each_attempt_reads_the_newest_restatement_of_each_transaction_in_its_range(orders: Orders) -> None:
    source = orders.run(2).source()
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    orders.pipeline.restate(1, "o1", 50)
    orders.run(1)
    again = source.decide_again(ATTEMPT, batch.metadata)
    assert (taken(again), sorted(read(source, again))) == ((1, 2), [2, 50])


def test_rows_of_a_released_topology_and_rows_without_a_txid_are_not_read(orders: Orders) -> None:
    if not isinstance(orders.table, SqlTable):
        pytest.skip("a person puts rows into a database by hand")
    orders.run(1)
    with sqlite3.connect(orders.folder / "w.db") as connection:
        connection.execute("INSERT INTO orders VALUES (-1, 0, 'total', 7)")
    source = orders.source()
    assert read(source, source.decide(ATTEMPT, None)) == [1]


# --- settled -----------------------------------------------------------------------------------------------------


def test_a_batch_is_not_readable_between_the_write_and_the_end_of_a_restatement(orders: Orders) -> None:
    source = orders.run(2).source()
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    grant = orders.written(1)
    with pytest.raises(
        SourceNotSettled, match="the table has 0 rows of transaction 1 of 'orders' instead of 1"
    ) as caught:
        read(source, batch)
    assert source.unsettled(batch.metadata, caught.value) is caught.value
    orders.pipeline.mark(grant)
    outcome = source.unsettled(batch.metadata, caught.value)
    assert isinstance(outcome, FailedBatch)
    assert "transaction 3 of 'orders' counts since this attempt began" in str(outcome)


def test_a_restatement_that_is_written_while_a_batch_is_read_is_noticed_before_the_ack(orders: Orders) -> None:
    source = orders.run(2).source()
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    list(dicts_of(source.emit_batch(ATTEMPT, batch.metadata)))
    orders.written(1)
    with pytest.raises(SourceNotSettled):
        source.check_read(ATTEMPT)
    source.close()


def test_missing_rows_are_refused_unless_a_restatement_is_open(orders: Orders) -> None:
    if not isinstance(orders.table, SqlTable):
        pytest.skip("a person deletes rows from a database by hand")
    source = orders.run(2).source()
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    with sqlite3.connect(orders.folder / "w.db") as connection:
        connection.execute("DELETE FROM orders WHERE tx_txid = 2")
    with pytest.raises(SourceNotSettled) as caught:
        read(source, batch)
    outcome = source.unsettled(batch.metadata, caught.value)
    assert isinstance(outcome, SourceError)
    assert not isinstance(outcome, SourceNotSettled)
    assert "airflow tx verify orders --values" in str(outcome)
    assert "airflow tx accept-change orders --state warehouse.orders" in str(outcome)


def test_a_batch_respects_a_deletion_of_rows_that_a_person_has_accepted(orders: Orders) -> None:
    if not isinstance(orders.table, SqlTable):
        pytest.skip("a person deletes rows from a database by hand")
    orders.run(2)
    with sqlite3.connect(orders.folder / "w.db") as connection:
        connection.execute("DELETE FROM orders WHERE tx_txid = 2")
    repairs = Repairs(orders.pipeline.ledger)
    receipt = orders.pipeline.ledger.topology().receipt
    repairs.note_change(orders.table.name, {}, rows={2: 0}, keys=None, receipt=receipt, audit=ADA)
    source = orders.source()
    assert read(source, source.decide(ATTEMPT, None)) == [1]


# --- refused -----------------------------------------------------------------------------------------------------


def refused(source: UpstreamSource, position: Any = None) -> str:
    with pytest.raises(TxError) as caught:
        source.decide(ATTEMPT, position)
    return str(caught.value)


def test_a_table_that_the_topology_does_not_write_is_refused(orders: Orders) -> None:
    orders.run(1)
    other = SqlTable("warehouse", table="others")
    told = refused(UpstreamSource(other, topology="orders", root=ROOT).named("totals"))
    assert "state 'warehouse.others' is not a table of topology 'orders': no topology has written to it" in told
    assert f"The states of 'orders': {orders.table.name}" in told


def test_transactions_before_the_book_of_ends_are_refused_with_the_command_that_adds_them(orders: Orders) -> None:
    orders.run(2)
    change(orders, book=2)
    assert "the book of topology 'orders' begins at transaction 2, but the next transaction to read is 1" in refused(
        orders.source()
    )
    assert "airflow tx repair orders --ends --why" in refused(orders.source())
    assert orders.source(start=2).decide(ATTEMPT, None) is not None


def change(orders: Orders, **fields: Any) -> None:
    paths = Paths(ROOT, "orders")
    node = orders.store.get(paths.record)
    assert node is not None
    record = replace(decode(TopologyRecord, "", node.data), **fields)
    orders.store.multi((), [Put(paths.record, encode(record))])


def position_after(orders: Orders, txid: int) -> Any:
    batch = orders.source(max_transactions=txid).decide(ATTEMPT, None)
    assert batch is not None
    return batch.position


def test_an_upstream_topology_that_was_reset_is_refused(orders: Orders) -> None:
    position = position_after(orders.run(2), 2)
    change(orders, incarnation="another")
    told = refused(orders.source(), position)
    assert "topology 'orders' was reset after transaction 2 was read" in told
    assert "airflow tx repair totals --reset --why" in told


def test_a_reset_topology_is_refused_without_advice_to_rebuild_its_ledger(orders: Orders) -> None:
    position = position_after(orders.run(2), 2)
    Repairs(orders.pipeline.ledger).reset(orders.pipeline.request, ADA, clear=lambda: None)
    told = refused(orders.source(), position)
    assert "topology 'orders' was reset" in told
    assert "airflow tx repair totals --reset --why" in told
    assert "--ledger-lost" not in told


def test_a_new_ledger_is_refused_with_advice_to_rebuild_it_if_the_topology_was_not_reset(orders: Orders) -> None:
    position = position_after(orders.run(2), 2)
    change(orders, incarnation="another")
    assert "airflow tx repair orders --ledger-lost --why" in refused(orders.source(), {**position, "txid": 7})


def test_the_error_of_a_lag_names_the_downstream_topology(orders: Orders) -> None:
    position = position_after(orders.run(2), 2)
    change(orders, incarnation="another")
    source = UpstreamSource(orders.table, topology="orders", root=ROOT)
    assert "airflow tx repair totals --reset --why" in str(lags({"totals": (source, position)}, seconds=30)["totals"])
    moved_to(orders, "sales")
    assert "is called 'sales' now" in str(
        lags({"totals": (source, {**position, "incarnation": "another"})}, seconds=30)
    )


def test_a_position_is_refused_if_its_transaction_has_another_birth(orders: Orders) -> None:
    position = position_after(orders.run(2), 2)
    told = refused(orders.source(), {**position, "birth": "another"})
    assert "topology 'orders' went back: its transaction 2 is another one than the one that was read" in told


def test_an_upstream_ledger_that_was_restored_from_a_backup_is_refused(orders: Orders) -> None:
    position = position_after(orders.run(2), 2)
    told = refused(orders.source(), {**position, "txid": 7})
    assert "topology 'orders' went back: its transaction 3 is next, and 7 was read" in told
    assert "airflow tx repair orders --ledger-lost --why" in told


def test_a_raised_generation_of_the_upstream_ledger_is_accepted(orders: Orders) -> None:
    position = position_after(orders.run(2), 2)
    change(orders, generation=5)
    assert orders.run(0).source().decide(ATTEMPT, position) is None


def test_a_renamed_upstream_topology_is_refused_and_the_error_contains_the_new_name(orders: Orders) -> None:
    position = position_after(orders.run(2), 2)
    moved_to(orders, "sales")
    told = refused(orders.source(), position)
    assert told.endswith("topology 'orders' is called 'sales' now. Set UpstreamSource(..., topology='sales').")


def moved_to(orders: Orders, name: str) -> None:
    old, new = Paths(ROOT, "orders"), Paths(ROOT, name)

    def copy(path: str) -> None:
        node = orders.store.get(path)
        assert node is not None
        orders.store.ensure(path.replace(old.base, new.base))
        orders.store.multi((), [Put(path.replace(old.base, new.base), node.data)])
        children = orders.store.children(path)
        for child in () if children is None else children.names:
            copy(f"{path}/{child}")

    copy(old.base)
    from airflow_tx.ledger.steps.step import remove

    remove(orders.store, old.base)


def test_a_position_that_another_source_has_written_is_refused(orders: Orders) -> None:
    with pytest.raises(OtherSource):
        orders.run(1).source().decide(ATTEMPT, 7)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"start": 0}, "start of UpstreamSource = 0 cannot be used"),
        ({"max_transactions": 1001}, "Give 1000 at most"),
        ({"max_transactions": True}, "max_transactions of UpstreamSource = True"),
        ({"on_correction": "ask"}, "Use 'restate' or 'report'"),
        ({"max_rows_per_batch": 0}, "max_rows_per_batch of UpstreamSource = 0"),
    ],
)
def test_an_invalid_argument_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        UpstreamSource(SqlTable("warehouse", table="orders"), topology="orders", **options)


def test_a_state_with_values_by_key_is_refused_as_a_source() -> None:
    values: Any = MemoryState("s", values={"n": Sum()})
    with pytest.raises(ConfigError, match="Values by key are no source"):
        UpstreamSource(values, topology="orders")


# --- travelling --------------------------------------------------------------------------------------------------


def test_an_upstream_source_and_its_table_can_be_rebuilt_from_json(orders: Orders) -> None:
    source = orders.run(1).source(max_transactions=7, upstream_txid=True)
    classpath, arguments = json.loads(json.dumps(source.serialize()))
    again = rebuild(classpath, arguments)
    assert again.serialize() == source.serialize()
    assert isinstance(again, UpstreamSource)
    assert again.table.serialize() == orders.table.serialize()
    assert taken(again.decide(ATTEMPT, None)) == (1, 1)


def test_a_source_keeps_the_url_and_the_secrets_of_its_table_when_its_ledger_is_set(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'w.db'}"
    source = UpstreamSource(SqlTable.from_url(url, table="orders"), topology="orders").in_ledger(None, None)
    assert source.table.counts([1]).rows == {1: 0}
    secret = DeltaTable(tmp_path / "lake", storage_options={"secret": "x"})
    table: Any = UpstreamSource(secret, topology="orders").in_ledger(None, "/tx").table
    assert table.options() == {"secret": "x"}


def test_a_range_of_skipped_transactions_has_no_rows_but_has_the_columns_of_the_table(orders: Orders) -> None:
    orders.run(1)
    for _ in range(2):
        orders.pipeline.skip(orders.pipeline.begin(f"o{orders.pipeline.ledger.current()}").txid)
    source = orders.source(start=2, max_transactions=2)
    batch = source.decide(ATTEMPT, None)
    assert (taken(batch), read(source, batch)) == ((2, 3), [])
    assert batch is not None
    assert set(source.emit_arrow(ATTEMPT, batch.metadata).schema.names) == {"key", "n"}


def test_an_upstream_source_uses_the_ledger_connection_of_its_transaction() -> None:
    source = UpstreamSource(SqlTable("warehouse", table="orders"), topology="orders")
    placed = source.in_ledger("zk", "/other")
    assert (placed.zookeeper_conn_id, placed.root, placed.upstream) == ("zk", "/other", "orders")
    with pytest.raises(ConfigError, match="The ledgers of both topologies are in one place"):
        placed.in_ledger("another", "/other")


# --- corrections -------------------------------------------------------------------------------------------------


def test_an_upstream_topology_restored_to_before_a_correction_is_refused(orders: Orders) -> None:
    source = orders.run(1).source()
    totals = Pipeline(orders.store, ROOT, [MemoryState("t", values={"n": Sum()})], topology="totals", upstream="orders")
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    totals.amount = lambda metadata: 1
    totals.metadata = lambda row: batch.metadata
    totals.position = lambda row: batch.position
    totals.run("t1")
    orders.run(2)
    found = source.corrections(totals.ledger, NOW)
    assert found is not None
    assert (found.comparison.txid, found.behind) == (3, ())
    totals.ledger.note_compared(replace(found.comparison, birth="another"))
    with pytest.raises(SourceError, match="its transaction 3 is another one than the one that was read"):
        source.corrections(totals.ledger, NOW)
