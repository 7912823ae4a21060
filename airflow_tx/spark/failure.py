"""How an application tells the task that submitted it why it failed: a file beside its output.

What spark-submit prints is the log of a whole cluster, and in cluster mode it is on another machine.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from airflow_tx.errors import FailedBatch, TxError
from airflow_tx.staging import TryDir

FAILED = "_failed.json"
_LONGEST = 2000
# What Spark tells of an exception of ours in a Python worker: the last line of its traceback.
_IN_A_WORKER = re.compile(r"^airflow_tx(?:\.\w+)*\.(?P<error>\w+): (?P<message>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Failure:
    """Why an application failed.

    :param error: class of the exception.
    :param message: its first line.
    :param on_purpose: whether the application raised `FailedBatch`, itself or in a function that executors run.
    """

    error: str
    message: str
    on_purpose: bool

    def __str__(self) -> str:
        return self.message if self.on_purpose else f"{self.error}: {self.message}"

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Word an exception, in one line."""
        ours = None if isinstance(error, TxError) else _IN_A_WORKER.search(str(error))
        if ours:
            return cls(ours["error"], ours["message"].strip()[:_LONGEST], ours["error"] == FailedBatch.__name__)
        lines = str(error).strip().splitlines()
        message = lines[0][:_LONGEST] if lines else ""
        return cls(type(error).__name__, message, isinstance(error, FailedBatch))


def write_failure(where: TryDir, failure: Failure) -> None:
    where.files.write(where.child(FAILED), json.dumps(asdict(failure)).encode())


def read_failure(where: TryDir) -> Failure | None:
    """What the application said; None if it said nothing, because it was killed or never started."""
    try:
        return Failure(**json.loads(where.files.read(where.child(FAILED))))
    except (FileNotFoundError, ValueError, TypeError):
        return None
