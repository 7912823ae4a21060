"""What Airflow loads into each of its components for this provider."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from airflow_tx.plugin import preload


class TransactionsPlugin(AirflowPlugin):
    """Lets the components of Airflow import ahead what their processes need, see :mod:`airflow_tx.plugin.preload`."""

    name = "airflow_tx"
    listeners = [preload]  # noqa: RUF012 - the type is Airflow's
