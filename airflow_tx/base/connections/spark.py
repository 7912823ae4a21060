"""Airflow connections to Spark, for submitted applications and for Spark Connect sessions."""

from __future__ import annotations

import json

from airflow_tx.base.connections.lookup import Endpoint, airflow_connection, no_connection
from airflow_tx.base.errors import ConfigError


def spark_connection(conn_id: str) -> Endpoint:
    """Find the connection to the Spark cluster that executes submitted applications."""
    option = "conn_id of SparkBatchOperator"
    return airflow_connection(conn_id, option=option, conn_type="spark", host="local[2]")


def connect_url(conn_id: str) -> str:
    """Return the address of a Spark Connect connection. It may contain a token."""
    from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    example = {"conn_type": "spark_connect", "host": "spark-connect", "port": 15002}
    try:
        return SparkConnectHook(conn_id).get_connection_url()
    except AirflowNotFoundException:
        remedy = no_connection(conn_id, example)
    except (ValueError, TypeError):
        remedy = f"It is not the address of a Spark Connect server. Example: {json.dumps(example)}"
    raise ConfigError(option="Spark Connect connection", value=conn_id, remedy=remedy)
