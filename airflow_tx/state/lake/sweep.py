"""Clean-up of staged files that were never published, or that a commit has taken out again.

VACUUM leaves the folder of staged files alone. A file may go once its transaction is over, no row of the table is in
it, and readers of older versions have had their time. Delta says nowhere when a file was taken out, so the first sweep
that finds it dead notes that.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from airflow_tx.state.appended import STAGED
from airflow_tx.state.lake.folder import Folder
from airflow_tx.state.lake.manifest import raise_of, txid_of

NOTES = f"{STAGED}/_dead.json"
FENCES_KEPT = 100
"""Texts of fences that are kept for processes that have read an older version."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeadFiles:
    """Files that no version needs once the retention has passed.

    :param since: by path, when a sweep first found it dead; in seconds.
    :param over: the ones that may be deleted.
    """

    since: Mapping[str, float]
    over: Collection[str]


def dead_files(
    there: Iterable[str],
    live: Collection[str],
    known: Mapping[str, float],
    *,
    txid: int,
    now: float,
    retention: float,
) -> DeadFiles:
    """Decide which staged files may be deleted.

    :param there: the paths of all files; `live`: the paths of the table.
    :param known: by path, when it was first found dead.
    :param txid: a transaction that is committed: those before it are over.
    """
    since = dict[str, float]()
    over = set[str]()
    for path in there:
        own = txid_of(path)
        if own is None or own >= txid or path in live:
            continue
        found = min(known.get(path, now), now)
        if now - found >= retention:
            over.add(path)
        else:
            since[path] = found
    return DeadFiles(since, over)


def old_fences(there: Iterable[str], number: int) -> set[str]:
    """Find the texts of fences that are no longer read, `number` being the last raise."""
    numbers = {path: raise_of(path) for path in there}
    return {
        path
        for path, found in numbers.items()
        if found is not None and found <= number - FENCES_KEPT
    }


def sweep(
    folder: Folder, live: Collection[str], number: int, *, txid: int, now: float, retention: float
) -> int:
    """Delete the staged files of transactions before `txid` that have been dead for the retention.

    :param number: of the last raise: fences long before it are deleted, too.
    :return: how many were deleted.
    """
    there = folder.listed(STAGED)
    found = dead_files(there, live, _notes(folder, there), txid=txid, now=now, retention=retention)
    for path in [*found.over, *old_fences(there, number)]:
        try:
            folder.remove(path)
        except FileNotFoundError:
            continue  # another committer sweeps as well
    if found.since or NOTES in there:
        with folder.writing(NOTES) as out:
            out.write(json.dumps(found.since).encode())
    return len(found.over)


def _notes(folder: Folder, there: Collection[str]) -> dict[str, float]:
    """Read what earlier sweeps found; notes that cannot be read begin again, which only keeps files longer."""
    if NOTES not in there:
        return {}
    try:
        with folder.open(NOTES) as opened:
            found = json.loads(bytes(opened.read()))
        return {str(path): float(since) for path, since in found.items()}
    except (AttributeError, OSError, TypeError, ValueError):
        log.warning("The notes of dead files in %s cannot be read. They begin again.", NOTES)
        return {}
