"""What the process of a task has computed, imports included, noted at its end; with `AIRFLOW_TX_PARTS` by part.

And how much memory it shares with no other process.
"""

from __future__ import annotations

import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

if os.environ.get("AIRFLOW_TX_PARTS"):
    from parts import PARTS


def note_processor_time(context: Any) -> None:
    """Add a line to the file of all tasks: with what the processes have computed that it has started and awaited."""
    ti = context["ti"]
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = [time.process_time(), children.ru_utime + children.ru_stime]
    parts = PARTS.read() if os.environ.get("AIRFLOW_TX_PARTS") else {}
    line = json.dumps([ti.dag_id, ti.run_id, ti.task_id, found, parts, psutil.Process().memory_full_info().uss]) + "\n"
    with Path(os.environ["AIRFLOW_TX_DATA"], "processor_time").open("a") as file:
        file.write(line)
