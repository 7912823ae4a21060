"""For the option `imports` of Celery: a worker that imports this module has imported ahead before it forks its pool.

No part of Airflow that calls listeners runs there, so it is named in `[celery] celery_config_options`.
"""

from __future__ import annotations

from airflow_tx.plugin.preload import import_ahead

import_ahead("the Celery worker")
