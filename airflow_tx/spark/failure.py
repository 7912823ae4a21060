"""How an application tells the task that submitted it why it failed: a file beside its output.

What spark-submit prints is the log of a whole cluster, and in cluster mode it is on another machine.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from airflow_tx.errors import FailedBatch, RowsRefused, TxError
from airflow_tx.staging import TryDir

FAILED = "_failed.json"
_LONGEST = 2000
# What Spark tells of an exception of ours in a Python worker: the last line of its traceback.
_IN_A_WORKER = re.compile(r"^airflow_tx(?:\.\w+)*\.(?P<error>\w+): (?P<message>.+)$", re.MULTILINE)
_REFUSED = re.compile(r"Source (?P<source>.+?) refused: (?P<problem>.+?)\. (?P<remedy>.+)")
# What py4j says of an error in the JVM: this line, the error, its stack, and the errors that have caused it.
_IN_THE_JVM = "An error occurred while calling "
_CAUSE = re.compile(r"^(?:: |Caused by: )(?P<error>[\w.$]+)(?:: (?P<message>.*))?$", re.MULTILINE)


@dataclass(frozen=True)
class Failure:
    """Why an application failed.

    :param error: class of the exception.
    :param message: its first line.
    :param on_purpose: whether the application raised `FailedBatch`, itself or in a function that executors run.
    :param refused: the fields of the `RowsRefused` that it raised.
    """

    error: str
    message: str
    on_purpose: bool
    refused: dict[str, str] | None = None

    def __str__(self) -> str:
        return (
            self.message if self.on_purpose else f"{self.error}: {self.message}".removesuffix(": ")
        )

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Word an exception, in one line."""
        ours = None if isinstance(error, TxError) else _IN_A_WORKER.search(str(error))
        if ours:
            message = ours["message"].strip()[:_LONGEST]
            by_rows = ours["error"] == RowsRefused.__name__ and _REFUSED.fullmatch(message)
            refused = by_rows.groupdict() if by_rows else None
            return cls(ours["error"], message, ours["error"] == FailedBatch.__name__, refused)
        if (root := jvm_cause(error)) is not None:
            return root
        lines = str(error).strip().splitlines()
        message = lines[0][:_LONGEST] if lines else ""
        refused = error.fields if isinstance(error, RowsRefused) else None
        return cls(type(error).__name__, message, isinstance(error, FailedBatch), refused)


def jvm_cause(error: BaseException) -> Failure | None:
    """Find the root cause of an error that py4j reports; None: it is no such error."""
    causes = [*_CAUSE.finditer(str(error))] if str(error).startswith(_IN_THE_JVM) else []
    if not causes:
        return None
    return Failure(
        causes[-1]["error"], (causes[-1]["message"] or "").strip()[:_LONGEST], on_purpose=False
    )


def write_failure(where: TryDir, failure: Failure) -> None:
    where.files.write(where.child(FAILED), json.dumps(asdict(failure)).encode())


def read_failure(where: TryDir) -> Failure | None:
    """Read what the application said; None if it said nothing, because it was killed or never started."""
    try:
        return Failure(**json.loads(where.files.read(where.child(FAILED))))
    except (FileNotFoundError, ValueError, TypeError):
        return None
