"""Tables to which transactions append rows: what tasks, applications and the committer know of each of them.

Tasks write files into the folder of the table. A task stages one row per file, like any other output. No row of a file
is in the table before the commit publishes the file.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_tx.ledger.attempt import TransactionAttempt

STAGED = "_airflow_tx"
"""The folder within a table for the files that tasks write. VACUUM leaves folders that begin with _ alone."""
TXID = "tx_txid"
"""The column that says which transaction a row is of."""


class Misfit(ValueError):
    """What of a file does not fit its table, as a clause.

    :param remedy: what to do about it; "": to make other rows.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.remedy = remedy


class AppendTable(ABC):
    """A table to which transactions append rows.

    :ivar uri: of its folder.
    :ivar partition_by: columns whose values are in the path of each file.
    """

    uri: str
    partition_by: tuple[str, ...]

    @abstractmethod
    def list_staged(
        self, folder: str, partition_fields: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """List the files with rows that an application has written, each as a row of a staged output.

        :param folder: relative to the table.
        :param partition_fields: the fields of the partition columns in Spark's schema.
        :raises Misfit: a file cannot be one of the table, or cannot be read.
        """

    @abstractmethod
    def stage(
        self, rows: Sequence[Mapping[str, Any]], attempt: TransactionAttempt
    ) -> list[dict[str, Any]]:
        """Write the rows of Python tasks into files, and list these as `list_staged` does.

        :raises StateError: the rows do not fit the table, or its folder cannot be written.
        """


def staged_folder(attempt: TransactionAttempt, task_try: str) -> str:
    """Name the folder of one try, relative to the table: no two tries share one."""
    digest = hashlib.sha256(f"{attempt.birth}\n{task_try}".encode()).hexdigest()
    return f"{STAGED}/{attempt}.{digest[:16]}"
