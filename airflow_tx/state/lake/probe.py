"""Whether a server of S3 honours conditional puts: without them, two committers overwrite each other's commits."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

from airflow_tx.connections.aws import S3_SCHEMES, endpoint_of
from airflow_tx.errors import ConfigError, StateUnavailable
from airflow_tx.state.appended import STAGED
from airflow_tx.state.lake.folder import Folder
from airflow_tx.state.lake.schema import TXID_FIELD, struct

_CONFLICTS = (
    "Failed to commit transaction: ",
    "Tried committing existing table version",
    "already exists",
)
_PASSED = f"{STAGED}/_conditional_puts"
_RACERS = 3
_RACES = 40
_REMEDY = (
    "Its server ignores If-None-Match, so two committers could overwrite each other. Use a server that honours "
    "conditional puts, such as Amazon S3 or a recent MinIO."
)


def check_conditional_puts(
    folder: Folder, uri: str, options: Mapping[str, str], *, state: str
) -> None:
    """Probe the server of a table, once per table and server: a file in the table says which server has passed.

    Threads race to make one and the same table, as committers do. deltalake offers no other conditional put.

    :raises ConfigError: two of them made it.
    :raises StateUnavailable: no two of them have met.
    """
    if uri.partition("://")[0] not in S3_SCHEMES:
        return
    server = hashlib.sha256(endpoint_of(options).encode()).hexdigest()[:16]
    passed = f"{_PASSED}/{server}"
    if passed in folder.listed(_PASSED):
        return
    for _ in range(_RACES):
        honoured = _race(folder, uri, options)
        if honoured:
            with folder.writing(passed) as out:
                out.write(b"{}")
            return
        if honoured is False:
            raise ConfigError(option="DeltaTable(uri)", value=uri, remedy=_REMEDY)
    reason = "it is unknown whether its server honours If-None-Match"
    raise StateUnavailable(state=state, where=uri, reason=reason)


def _race(folder: Folder, uri: str, options: Mapping[str, str]) -> bool | None:
    """Tell whether the server refused a put; None: each loser had seen the table before its put."""
    place = f"{STAGED}/_probe/{uuid.uuid4().hex}"
    start = Barrier(_RACERS)
    try:
        with ThreadPoolExecutor(_RACERS) as pool:
            racers = [pool.submit(_made, f"{uri}/{place}", options, start) for _ in range(_RACERS)]
            found = [each.result() for each in racers]
    finally:
        with suppress(OSError):
            for path in folder.listed(place):
                folder.remove(path)
    if found.count(True) > 1:
        return False
    return True if False in found else None


def _made(uri: str, options: Mapping[str, str], start: Barrier) -> bool | None:
    """Make a table; False: the put of its first version was refused; None: the table was seen before."""
    from deltalake import CommitProperties, DeltaTable, Schema
    from deltalake.exceptions import CommitFailedError, DeltaError

    schema = Schema.from_json(json.dumps(struct([TXID_FIELD])))
    once = CommitProperties(max_commit_retries=0)
    start.wait()
    try:
        DeltaTable.create(uri, schema, storage_options=dict(options), commit_properties=once)
    except CommitFailedError as error:
        if not is_conflict(error):
            raise
        return False
    except DeltaError as error:
        if not is_conflict(error):
            raise
        return None
    return True


def is_conflict(error: Exception) -> bool:
    """Whether deltalake says that another commit came first, and not that the storage failed."""
    return any(each in str(error) for each in _CONFLICTS)
