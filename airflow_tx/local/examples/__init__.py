"""The examples that `script/example` runs."""

from __future__ import annotations

from airflow_tx.local.example import Example
from airflow_tx.local.examples.orders import Orders

EXAMPLES: dict[str, type[Example]] = {example.name: example for example in (Orders,)}
