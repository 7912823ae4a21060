"""Where a Spark lives: the Airflow connection that applications are submitted to, or that sessions connect to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.errors import ConfigError

if TYPE_CHECKING:
    from airflow.sdk import Connection


def spark_connection(conn_id: str) -> Connection:
    """The connection of a Spark that applications are submitted to.

    :raises ConfigError: there is none.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        remedy = (
            "No such connection. Make it, for this machine alone with: airflow connections add "
            f'{conn_id} --conn-json \'{{"conn_type": "spark", "host": "local[2]"}}\''
        )
        raise ConfigError(option="conn_id of SparkBatchOperator", value=conn_id, remedy=remedy) from None


def connect_url(conn_id: str) -> str:
    """The address of a Spark Connect connection; it may hold a token.

    :raises ConfigError: there is no such connection, or none of that kind.
    """
    from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    example = '{"conn_type": "spark_connect", "host": "spark-connect", "port": 15002}'
    try:
        return SparkConnectHook(conn_id).get_connection_url()
    except AirflowNotFoundException:
        remedy = f"No such connection. Make it: airflow connections add {conn_id} --conn-json '{example}'"
    except (ValueError, TypeError):
        remedy = f"It is no address of a Spark Connect server. Such is: {example}"
    raise ConfigError(option="Spark Connect connection", value=conn_id, remedy=remedy)
