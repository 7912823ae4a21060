"""Appends in a `Transaction` block: what its tasks know of the tables, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_tx import CommitOperator, SparkBatchOperator, append, partition_persist, persistent_aggregate
from airflow_tx.base.errors import ConfigError
from airflow_tx.outputs.staging.descriptor import AppendTo
from airflow_tx.state import DeltaTable
from airflow_tx.transaction.processing.application import appended_by
from tests.unit.topology.blocks import block, count, dag, refused, state


def table(folder: Path, name: str = "orders", **options: Any) -> DeltaTable:
    return DeltaTable(folder / name, **options)


def test_the_tasks_of_a_spark_application_know_the_tables_to_which_its_outputs_are_appended(tmp_path: Path) -> None:
    secret = {"aws_secret_access_key": "hidden"}
    orders = table(tmp_path, partition_by=["day"], storage_options=secret)
    with dag(), block() as tx:
        enrich = SparkBatchOperator(task_id="enrich", application="enrich.py")
        update = append(enrich.output["orders"], state=orders)
        CommitOperator(task_id="commit", updates=[update])
    spec = tx.begin.transaction
    assert dict(spec.tables) == {("enrich", "orders"): orders}
    assert appended_by(spec, "enrich") == {"orders": AppendTo(orders.uri, ("day",))}
    assert appended_by(spec, "other") == {}
    assert repr(update).startswith("append(enrich['orders'], state=DeltaTable(")
    assert "hidden" not in repr(update) + repr(appended_by(spec, "enrich"))


def test_rows_that_a_python_task_returns_may_be_written_to_a_table_and_to_a_state(tmp_path: Path) -> None:
    with dag(), block() as tx:
        counted = count(tx.batch)
        updates = [append(counted, state=table(tmp_path)), persistent_aggregate(counted, state=state())]
        CommitOperator(task_id="commit", updates=updates)
    assert not tx.begin.transaction.tables


def test_a_spark_output_that_is_appended_to_a_table_cannot_be_used_in_another_update(tmp_path: Path) -> None:
    with refused("output 'orders' of enrich is appended to 'delta.*orders', and another update also reads it"):
        with dag(), block():
            enrich = SparkBatchOperator(task_id="enrich", application="enrich.py")
            output = enrich.output["orders"]
            updates = [append(output, state=table(tmp_path)), persistent_aggregate(output, state=state())]
            CommitOperator(task_id="commit", updates=updates)


def test_new_values_of_a_committer_cannot_be_appended_to_a_table(tmp_path: Path) -> None:
    from airflow_tx import commit_phase

    with refused("second appends 'new' of commit_phase.first, but these are new values of a committer"):
        with dag(), block() as tx:
            counted = count(tx.batch)
            with commit_phase():
                update = persistent_aggregate(counted, state=state(), new_values="new")
                first = CommitOperator(task_id="first", updates=[update])
                CommitOperator(task_id="second", updates=[append(first.output["new"], state=table(tmp_path))])


def test_a_table_accepts_only_appends_and_only_a_table_accepts_appends(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="A table takes rows unchanged: append"):
        persistent_aggregate(None, state=table(tmp_path))
    with pytest.raises(ConfigError, match="A table takes rows unchanged: append"):
        partition_persist(None, state=table(tmp_path))
    with pytest.raises(ConfigError, match="Give a DeltaTable or a SqlTable"):
        append(None, state=state())
