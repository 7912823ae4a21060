"""The board's API. Every answer is redacted, so `redaction` is imported before any answer is described."""

from airflow_tx.plugin.api import redaction  # noqa: F401
