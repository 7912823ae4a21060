"""The only package that uses non-public Airflow APIs.

It supports Airflow 3.2 and 3.3. Each function has a test that fails if a new version of Airflow behaves differently.
Airflow is imported only on demand, since all other packages import this one.
"""

from airflow_tx.base.compat.components import *  # noqa: F403
from airflow_tx.base.compat.database import *  # noqa: F403
from airflow_tx.base.compat.runs import *  # noqa: F403
from airflow_tx.base.compat.tasks import *  # noqa: F403
