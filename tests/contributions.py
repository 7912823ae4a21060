"""Contributions as a journal keeps them, and how a state is restated without the rest of a commit."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_tx.ledger.attempt import Grant, TransactionAttempt
from airflow_tx.outputs.journal import Contribution, encoded_rows
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.state.column_types import type_of
from airflow_tx.transaction.commit.contributions import Difference, StagingPlace, difference_of
from airflow_tx.transaction.commit.write import write_instead, write_update
from tests.stage import update

log = logging.getLogger(__name__)


def contribution(state: Any, rows: Sequence[Mapping[str, Any]], *, without: Iterable[str] = ()) -> Contribution:
    """Give what the journal would keep of rows for a state.

    :param without: stored value columns that the state had not yet.
    """
    keys = {name: type_of(rows[0][name]) or "" for name in state.columns.keys if rows}
    values = state.columns.serialized()["values"]
    known = {name: values[name] for name in values if name not in set(without)}
    return Contribution(keys, known, len(rows), inline=encoded_rows(rows))


def place(area: StagingArea, txid: int = 9, attempt: int = 1) -> StagingPlace:
    """Say where the difference of a transaction is staged."""
    return StagingPlace(area, "numbers", TransactionAttempt(txid, attempt), "commit")


def restate(
    state: Any,
    grant: Grant,
    area: StagingArea,
    old: Contribution,
    new: Any,
    **how: Any,
) -> Difference:
    """Replace a contribution, as a committer does it under its grant."""
    found = difference_of(state, old, new, place(area, grant.txid, grant.token.attempt), **how)
    state.raise_fence(grant)
    found.check_taken(state, state.multi_get)
    own = write_instead(state, grant, found.instead)
    write_update(update(state), own, found.rows, dag_file="", log=log)
    return found


def values_of(state: Any) -> dict[Any, dict[str, Any]]:
    """Read all values of a state, by key; a count of 0 and a NULL that was taken back are left as they are."""
    keys = state.columns.keys
    return {tuple(row.pop(name) for name in keys): row for row in state.read()}
