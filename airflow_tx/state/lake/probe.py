"""Whether a server of S3 honours conditional puts: without them, two committers overwrite each other's commits."""

from __future__ import annotations

import errno
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from airflow_tx.connections.aws import S3_SCHEMES, s3_client
from airflow_tx.errors import ConfigError
from airflow_tx.state.lake.manifest import STAGED

_PROVEN = set[str]()
"""Tables of which this process knows it."""


def check_conditional_puts(uri: str, options: Mapping[str, str]) -> None:
    """Put one key twice, once per table and process.

    :raises ConfigError: the server takes it twice.
    """
    if uri.partition("://")[0] not in S3_SCHEMES or uri in _PROVEN:
        return
    client = s3_client(options)
    key = f"{uri}/{STAGED}/_probe-{uuid.uuid4().hex}"
    try:
        # A first put that is refused was sent twice, because the reply to it was lost.
        honoured = _is_refused(client, key) or _is_refused(client, key)
    finally:
        with suppress(OSError):
            client.rm_file(key)
    if not honoured:
        remedy = (
            "Its server ignores If-None-Match, so two committers could overwrite each other. Use a server that honours "
            "conditional puts, such as Amazon S3 or a recent MinIO."
        )
        raise ConfigError(option="DeltaTable(uri)", value=uri, remedy=remedy)
    _PROVEN.add(uri)


def _is_refused(client: Any, key: str) -> bool:
    """Put a key that must not be there, and tell whether the server found it there."""
    try:
        client.pipe_file(key, b"", mode="create")
    except FileExistsError:
        return True
    except OSError as error:
        if error.errno == errno.ENOSYS:  # the server does not know the condition
            return False
        # s3fs knows the refusal of Amazon alone by its name.
        if _code_of(error) in ("PreconditionFailed", "412"):
            return True
        raise
    return False


def _code_of(error: BaseException) -> str:
    answer = getattr(error.__cause__, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))
