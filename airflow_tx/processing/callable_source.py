"""The source of the function that a Python task calls."""

from __future__ import annotations

import inspect
from typing import Any

from airflow_tx.protocol.receipt import code_digest


def digest_of_callable(task: Any) -> str:
    """Digest the source of the function that a task calls; "" if it calls none, or its source cannot be read.

    Not its bytecode, which differs from one version of Python to another.

    :param task: an operator; those that call a function keep it as `python_callable`.
    """
    try:
        return code_digest(inspect.getsource(task.python_callable).encode())
    except (AttributeError, OSError, SyntaxError, TypeError):
        return ""
