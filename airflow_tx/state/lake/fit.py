"""Whether staged files fit a table: no other check runs before readers read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from airflow_tx.errors import StateDiffers, StateError
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.state.appended import STAGED, Misfit
from airflow_tx.state.lake.delta import DeltaStore, TableChange, TableVersion
from airflow_tx.state.lake.footer import check_txid
from airflow_tx.state.lake.manifest import TableFile
from airflow_tx.state.lake.schema import (
    TXID_FIELD,
    FieldJson,
    Schema,
    check_partition,
    new_fields,
    struct,
)


@dataclass(frozen=True)
class TableFit:
    """Compares the files of one attempt with a table.

    :param partition_by: the partition columns of the state.
    """

    state: str
    partition_by: tuple[str, ...]
    attempt: TransactionAttempt
    store: DeltaStore

    def change(self, at: TableVersion | None, files: Sequence[TableFile]) -> TableChange | None:
        """Find the change of columns that a table needs before the files; None: none.

        :param at: None: the table is not there yet.
        :raises StateError: a file does not fit; nothing was committed.
        """
        fresh = at is None or is_undefined(at)
        if at is not None and not fresh and set(at.partition_by) != set(self.partition_by):
            found = list(at.partition_by)
            problem = f"the table is partitioned by {found}, the state by {list(self.partition_by)}"
            raise StateDiffers(
                state=self.state, problem=problem, remedy=f"Say partition_by={found}."
            )
        if not files:
            return None
        try:
            added = self._fields(struct([TXID_FIELD]) if at is None else at.schema, files)
        except Misfit as error:
            remedy = error.remedy or "Let the task give other rows, then clear it."
            raise self._refusal(str(error), remedy) from None
        self._check_there(files)
        if fresh:
            fields = [TXID_FIELD, *added]
            schema = struct(fields)
            return partial(self.store.define, schema=schema, partition_by=self.partition_by)
        return partial(self.store.widen, fields=added) if added else None

    def _fields(self, table: Schema, files: Sequence[TableFile]) -> list[FieldJson]:
        added = list[FieldJson]()
        seen = set[str]()
        own = f"{STAGED}/{self.attempt}."
        paths = set[str]()
        for each in files:
            check_txid(each.stats, each.path, self.attempt.txid)
            if not each.path.startswith(own) or ".." in each.path.split("/"):
                raise Misfit(f"file {each.path} is not one of attempt {self.attempt}")
            if each.path in paths:
                raise Misfit(f"file {each.path} is there twice")
            paths.add(each.path)
            schema: Schema = json.loads(each.schema)
            check_partition(schema, each.partition, self.partition_by)
            if each.schema not in seen:
                seen.add(each.schema)
                added += new_fields(struct([*table["fields"], *added]), schema)
        return added

    def _check_there(self, files: Sequence[TableFile]) -> None:
        """Compare the sizes of the files with the storage: readers fail on another size."""
        folders = {"/".join(each.path.split("/")[:2]) for each in files}
        there = dict[str, int]()
        for folder in folders:
            there.update(self.store.folder.listed(folder))
        for each in files:
            _check_size(self, there, each)

    def _refusal(self, problem: str, remedy: str) -> StateError:
        return StateError(state=self.state, problem=problem, remedy=remedy)


def _check_size(fit: TableFit, there: Mapping[str, int], file: TableFile) -> None:
    found = there.get(file.path)
    if found == file.size:
        return
    shown = "is not there" if found is None else f"has {found} bytes instead of {file.size}"
    remedy = "Replay the transaction: its tasks write new files."
    raise fit._refusal(f"file {file.path} of its folder {shown}", remedy)


def is_undefined(at: TableVersion) -> bool:
    """Whether a raise has made the table, and no rows have given it columns yet."""
    return at.empty and not at.partition_by and at.schema["fields"] == [TXID_FIELD]
