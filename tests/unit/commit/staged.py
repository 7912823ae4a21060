"""Staged output of a task."""

from __future__ import annotations

from typing import Any

from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.outputs.staging.area import Output, StagingArea, write_manifest, write_rows

ATTEMPT = TransactionAttempt(1, 1)


def ref(area: StagingArea, *parts: list[dict[str, Any]], row_digest: str = "", reliable: bool = True) -> dict[str, Any]:
    """A staged output of one file a part."""
    where = area.try_dir("words", ATTEMPT, TaskTry("count", -1, f"try {len(parts)}"))
    written = [write_rows(where, "counts", rows, file=f"part-{number}.parquet") for number, rows in enumerate(parts)]
    files, columns = [file for part in written for file in part.files], written[-1].columns
    output = Output(tuple(files), columns, row_digest, reliable)
    return write_manifest(where, {"counts": output})["counts"].to_json()


def counted(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"word": f"w{number}", "n": number, **more} for number in range(count)]
