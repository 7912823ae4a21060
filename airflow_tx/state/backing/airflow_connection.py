"""The Airflow connection that a state is given, wherever it is looked up: in a task, or in a CLI command."""

from __future__ import annotations

from typing import Any

from airflow_tx.errors import ConfigError


def airflow_connection(conn_id: str, *, option: str, conn_type: str) -> Any:
    """The connection of this id.

    :param option: where the id was given, for the message.
    :param conn_type: what kind of connection to define if there is none.
    :raises ConfigError: there is none.
    """
    from airflow.sdk.bases.hook import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        pass
    # In a CLI command a connection kept in Airflow's database is visible through the models only.
    from airflow.models.connection import Connection

    try:
        return Connection.get_connection_from_secrets(conn_id)
    except AirflowNotFoundException:
        raise ConfigError(
            option=option,
            value=conn_id,
            remedy=f"Define the connection: airflow connections add {conn_id} --conn-type {conn_type} ...",
        ) from None
