"""The only room that knows how this version of Airflow spells what is not its public interface.

Written for Airflow 3.3. Each function has a test that fails when a new version answers otherwise. Nothing of Airflow is
imported before it is needed, because this room is below every other.
"""

from __future__ import annotations

from airflow_tx.compat.database import DagFile as DagFile
from airflow_tx.compat.database import clear_run as clear_run
from airflow_tx.compat.database import create_run as create_run
from airflow_tx.compat.database import dag_file as dag_file
from airflow_tx.compat.database import is_paused_there as is_paused_there
from airflow_tx.compat.database import runs_of as runs_of
from airflow_tx.compat.runs import RunNotStarted as RunNotStarted
from airflow_tx.compat.runs import is_current_try as is_current_try
from airflow_tx.compat.runs import is_missing as is_missing
from airflow_tx.compat.runs import is_paused as is_paused
from airflow_tx.compat.runs import is_paused_async as is_paused_async
from airflow_tx.compat.runs import restart_dead as restart_dead
from airflow_tx.compat.runs import run_state as run_state
from airflow_tx.compat.runs import run_states as run_states
from airflow_tx.compat.runs import running_runs as running_runs
from airflow_tx.compat.runs import running_runs_async as running_runs_async
from airflow_tx.compat.runs import start_run as start_run
from airflow_tx.compat.runs import text as text
from airflow_tx.compat.tasks import EMPTY_TASK_STATES as EMPTY_TASK_STATES
from airflow_tx.compat.tasks import FAILED_TASK_STATES as FAILED_TASK_STATES
from airflow_tx.compat.tasks import LIVE_TASK_STATES as LIVE_TASK_STATES
from airflow_tx.compat.tasks import RunInfo as RunInfo
from airflow_tx.compat.tasks import add_hooks as add_hooks
from airflow_tx.compat.tasks import canonical as canonical
from airflow_tx.compat.tasks import downstream as downstream
from airflow_tx.compat.tasks import empty_interval as empty_interval
from airflow_tx.compat.tasks import instance_states as instance_states
from airflow_tx.compat.tasks import is_mapped as is_mapped
from airflow_tx.compat.tasks import is_retry as is_retry
from airflow_tx.compat.tasks import is_skipped_by as is_skipped_by
from airflow_tx.compat.tasks import is_test_run as is_test_run
from airflow_tx.compat.tasks import map_index as map_index
from airflow_tx.compat.tasks import no_retry_after as no_retry_after
from airflow_tx.compat.tasks import pull as pull
from airflow_tx.compat.tasks import pushes_xcom as pushes_xcom
from airflow_tx.compat.tasks import run_info as run_info
from airflow_tx.compat.tasks import send_gauge as send_gauge
from airflow_tx.compat.tasks import sends_metrics as sends_metrics
from airflow_tx.compat.tasks import skip_tasks as skip_tasks
from airflow_tx.compat.tasks import task_states as task_states
from airflow_tx.compat.tasks import upstream as upstream
