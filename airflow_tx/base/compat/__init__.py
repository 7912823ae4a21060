"""The only package that uses Airflow names outside of Airflow's public interface.

It supports Airflow 3.2 and 3.3. Each function has a test that fails if a new version of Airflow behaves differently. It
imports Airflow only when a function needs it, since all other packages import this one.
"""

from airflow_tx.base.compat.components import *  # noqa: F403
from airflow_tx.base.compat.database import *  # noqa: F403
from airflow_tx.base.compat.runs import *  # noqa: F403
from airflow_tx.base.compat.tasks import *  # noqa: F403
