"""The only room that uses names of this Airflow version outside of its public interface.

Written for Airflow 3.2 and 3.3. Each function has a test that fails when a new version answers otherwise. Airflow is
    only imported when it is needed, because this room is below every other.
"""

from airflow_tx.base.compat.components import *  # noqa: F403
from airflow_tx.base.compat.database import *  # noqa: F403
from airflow_tx.base.compat.runs import *  # noqa: F403
from airflow_tx.base.compat.tasks import *  # noqa: F403
