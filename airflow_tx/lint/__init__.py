"""Find code in DAG files and Spark applications that may count rows twice. The files are not imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.lint.report import findings_of as findings_of, formatted as formatted

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
