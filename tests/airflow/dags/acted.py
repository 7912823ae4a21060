"""An Airflow DAG whose transactions a person skips, re-admits and replays."""

from __future__ import annotations

from counting import counting_dag

acted = counting_dag("acted")
