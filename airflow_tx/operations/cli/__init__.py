"""The commands of `airflow tx`."""

import logging

# With Airflow 3.2 a command imports it after Airflow has begun to log at INFO, to where the rows are printed.
logging.getLogger("alembic.runtime.plugins").setLevel(logging.WARNING)
