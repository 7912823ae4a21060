"""Errors of the store of the ledger: what a write did, did not, or may have done."""

from __future__ import annotations

from airflow_tx.errors.root import TxError


class StoreError(TxError):
    """A request that the ledger's store did not carry out."""


class RequirementFailed(StoreError):
    """A multi did NOT happen: something it had read has changed. The ledger reads and plans again."""

    template = (
        "Requirement failed at {path}: expected {expected}, found {found}. Nothing was written."
    )


class OutcomeUnknown(StoreError):
    """A multi MAY have happened: its answer was lost. Read back before doing anything else."""

    template = "No answer to a write of {paths}: it may have happened ({reason}). It is resolved by reading back."


class StoreUnavailable(StoreError):
    """The ledger's store cannot be reached; nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) cannot be reached: {reason}. Nothing was changed; "
        "start the server or correct the hosts of the connection, then clear the task."
    )


class NoConnection(StoreUnavailable):
    """No server of the ledger's store accepts a connection with these settings; nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) cannot be reached: {reason}. Nothing was changed; "
        "{remedy}, then clear the task."
    )


class StoreRefused(StoreError):
    """The ledger's store does not let this connection read or write a record; nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) refused access to {path}: {reason}. Nothing was changed; "
        "use the login and password that made the record, or correct its ACL."
    )


class LoginRefused(StoreRefused):
    """The ledger's store lets this login in nowhere; nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) refused the connection: {reason}. Nothing was changed; "
        "correct the login, the password and the extra auth_scheme of the connection, then clear the task."
    )


class StoreDeclined(StoreError):
    """The ledger's store did not carry out a request, and not for lack of rights; nothing was written."""

    template = (
        "ZooKeeper {hosts} (connection {connection}) did not carry out a request about {path}: {reason}. "
        "Nothing was changed; {remedy}, then clear the task."
    )


class UnreadableRecord(StoreError):
    """A record that is damaged or of a newer format; it is never taken for empty."""

    template = (
        "Record {path} cannot be read: {reason}. Nothing was changed; restore the node, "
        "or upgrade airflow-provider-tx if a newer version wrote it."
    )


class TooMuchMetadata(StoreError):
    """A record larger than a znode may be."""

    template = (
        "{path} would hold {size} bytes, and ZooKeeper takes at most {limit}. Nothing was written; let the source "
        "put fewer rows into a batch, or describe them with less metadata."
    )


class TooMuchContention(StoreError):
    """A step lost the race for its records too many times in a row."""

    template = "Step {step} of {subject} was overtaken {times} times in a row. Nothing was written; clear the task."
