"""The calls to the source about a batch: the ledger has it, it is committed, an attempt has failed.

Source: Storm's ack and fail.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import SourceError
from airflow_tx.protocol.receipt import is_shortened

if TYPE_CHECKING:
    from airflow_tx.protocol.answers import Begun
    from airflow_tx.protocol.attempt import TransactionAttempt
    from airflow_tx.sources.api import Source
    from airflow_tx.spec import TransactionSpec

log = logging.getLogger(__name__)


def note_begun(source: Source, begun: Begun) -> None:
    """Call `Source.begun`; an error there changes nothing: the transaction has begun."""
    try:
        source.begun(begun.txid, begun.metadata)
    except Exception as error:  # noqa: BLE001 - of the user's code
        log.warning("Source %r: begun() of transaction %s failed: %s", source, begun.attempt, error)


def note_committed(spec: TransactionSpec, begun: Begun) -> None:
    """Call `Source.committed`, at least once: if it fails, so does the task, whose next try finds the commit done.

    :raises SourceError: it failed; the transaction is committed.
    """
    if begun.replaces is not None:
        return  # the source learned it when the restated transaction was committed
    if is_shortened(begun.metadata):
        # Its run was cleared after the commit, and the receipt keeps only the digest of long metadata.
        log.warning(
            "Source %r: committed() of transaction %s is not called again",
            spec.source,
            begun.attempt,
        )
        return
    source = spec.source_of(begun.incarnation)
    try:
        source.committed(begun.txid, begun.metadata)
    except Exception as error:
        raise SourceError(
            source=repr(source),
            problem=f"transaction {begun.txid} is committed, and committed() failed: {type(error).__name__}: {error}",
            remedy="Clear this task: it calls committed() again, and nothing is counted again.",
        ) from error
    finally:
        source.close()


def note_failed(source: Source, attempt: TransactionAttempt, metadata: Any, reason: str) -> None:
    """Call `Source.failed`, and close it; an error there changes nothing: the attempt has failed already."""
    try:
        source.failed(attempt.txid, metadata, reason)
    except Exception as error:  # noqa: BLE001 - of the user's code
        log.warning("Source %r: failed() of transaction %s failed: %s", source, attempt, error)
    finally:
        source.close()
