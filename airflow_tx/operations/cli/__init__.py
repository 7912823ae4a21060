"""The commands of `airflow tx`."""

import logging

# In Airflow 3.2, this module of Alembic would write INFO messages to the output of the command.
logging.getLogger("alembic.runtime.plugins").setLevel(logging.WARNING)
