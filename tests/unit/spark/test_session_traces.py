"""What stays in a session on a server, and what does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.spark.connect import SessionTraces, leaves_traces


def plan(**command: Any) -> Any:
    from pyspark.sql.connect.proto import base_pb2, commands_pb2

    return base_pb2.Plan(command=commands_pb2.Command(**command))


def sql(query: str) -> Any:
    from pyspark.sql.connect.proto import commands_pb2, relations_pb2

    return plan(sql_command=commands_pb2.SqlCommand(input=relations_pb2.Relation(sql=relations_pb2.SQL(query=query))))


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ("SELECT 1", False),
        (" with a AS (SELECT 1) SELECT * FROM a", False),
        ("VALUES (1)", False),
        ("CREATE TEMP VIEW a AS SELECT 1", True),
        ("SET spark.sql.ansi.enabled = false", True),
        ("BEGIN SELECT 1; END", True),
        ("CACHE TABLE a", True),
        ("selected", True),
    ],
)
def test_every_sql_statement_except_a_query_leaves_state_in_a_spark_session(query: str, left: bool) -> None:
    assert leaves_traces(sql(query)) == left


def test_reads_and_writes_leave_no_state_in_a_session_and_views_and_unknown_plans_do() -> None:
    from pyspark.sql.connect.proto import base_pb2, catalog_pb2, commands_pb2, relations_pb2

    assert not leaves_traces(plan(write_operation=commands_pb2.WriteOperation()))
    assert leaves_traces(plan(create_dataframe_view=commands_pb2.CreateDataFrameViewCommand(name="a")))
    assert not leaves_traces(base_pb2.Plan(root=relations_pb2.Relation(range=relations_pb2.Range(end=1))))
    assert leaves_traces(base_pb2.Plan(root=relations_pb2.Relation(catalog=catalog_pb2.Catalog())))
    assert leaves_traces(base_pb2.Plan())


def test_changed_settings_leave_state_in_a_spark_session() -> None:
    from pyspark.sql.connect.proto import base_pb2

    asked = base_pb2.ConfigRequest.Operation(get=base_pb2.ConfigRequest.Get(keys=["a"]))
    changed = base_pb2.ConfigRequest.Operation(set=base_pb2.ConfigRequest.Set())
    for operation, left in ((asked, False), (changed, True)):
        traces = SessionTraces()
        details = SimpleNamespace(method="/spark.connect.SparkConnectService/Config")
        request = base_pb2.ConfigRequest(operation=operation)
        assert traces.intercept_unary_unary(lambda details, request: request, details, request) is request
        assert traces.found == left
