"""The name by which Airflow finds the folder `example_dags` of this provider: that of its distribution."""

from airflow_tx import __path__ as __path__
