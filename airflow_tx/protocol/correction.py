"""A person lets the rows of a transaction be decided anew: the corrected file. Source: protocol.md §5.

The source decides the same place again, as it is now; where the transaction ends does not change, so whatever follows
it stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_tx.errors import ChangeRefused
from airflow_tx.protocol.answers import AlreadySkipped, Done, NeedRows
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.batch import Batches
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Phase, TransactionRecord
from airflow_tx.protocol.skip import opened
from airflow_tx.protocol.step import Audit, Decision, Stamp, put


def note_changed(
    read: Reader, stamp: Stamp, paths: Paths, txid: int, states: Mapping[str, bool], audit: Audit
) -> Decision[Done | AlreadySkipped]:
    """Note that the next attempt takes the rows as they are now, and let nobody commit this one.

    :param states: the states of the topology, and whether each can undo what was written to it, or holds nothing of it.
    :raises ChangeRefused: a state that cannot undo it may hold something of it.
    :raises AlreadyFinal, UnknownTransaction: see `skipping.opened`.
    """
    record = opened(read, paths, txid)
    if record is None:
        return Decision(AlreadySkipped(txid))
    if record.to_change is not None:
        return Decision(Done())
    held = sorted(name for name in record.fenced if not states.get(name, False))
    if held:
        raise ChangeRefused(
            txid=txid,
            topology=paths.topology,
            problem=f"it may be in state {', '.join(held)} already, which cannot undo it",
            remedy="Give the source its rows back as they were, and replay it without --changed-rows until it is "
            "committed",
        )
    noted = {**audit.noted(stamp), "attempt": record.attempt}
    after = replace(
        record,
        phase=Phase.FAILED,
        epoch=record.epoch + 1,
        changed=[*record.changed, noted],
        error=f"its rows are to be decided anew ({audit.who}: {audit.why})",
        op=stamp.op,
    )
    return put(paths.transaction(txid), after, Done())


def decided_anew(attempt: TransactionAttempt, metadata: Any, batches: Batches) -> Any | NeedRows:
    """Return the metadata of the same rows as they are now, if the source has said so already, else the question.

    :param metadata: as it was decided before.
    """
    need = NeedRows(attempt, metadata)
    if need.key not in batches:
        return need
    batch = batches[need.key]
    assert batch is not None
    return batch.metadata


def to_decide_anew(record: TransactionRecord, rows: Any) -> bool:
    """Whether a replay has to ask the source for the same place again; one that is to be skipped needs no rows."""
    return record.to_change is not None and record.skip is None and rows is not None
