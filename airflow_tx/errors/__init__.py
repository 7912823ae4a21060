"""Every refusal this package can give: its fields, its wording and its remedy, in one place.

An error is built from keyword fields; `template` words it as "<what> refused: expected X, found Y. <what to do>".
Fields stay readable as attributes and survive pickling.
"""

from airflow_tx.errors.acks import *  # noqa: F403
from airflow_tx.errors.refused import *  # noqa: F403
from airflow_tx.errors.root import *  # noqa: F403
from airflow_tx.errors.state import *  # noqa: F403
from airflow_tx.errors.store import *  # noqa: F403
