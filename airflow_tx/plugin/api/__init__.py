"""The API of the Transactions page. Import `redaction` first, since it changes the types of all responses."""

from airflow_tx.plugin.api import redaction  # noqa: F401
