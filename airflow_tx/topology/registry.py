"""The transactions that DAG files have defined in this process, for whoever refers to one by its name."""

from __future__ import annotations

from airflow_tx.errors import TransactionDefinitionError
from airflow_tx.spec import TransactionSpec

_defined: dict[str, TransactionSpec] = {}


def define(spec: TransactionSpec) -> None:
    """Remember the transaction of a block that has ended; a file that is parsed again replaces its own."""
    _defined[spec.topology] = spec


def defined(topology: str) -> TransactionSpec:
    """The transaction of a topology.

    :raises TransactionDefinitionError: no block of that name has ended yet.
    """
    found = _defined.get(topology)
    if found is None:
        raise TransactionDefinitionError(
            topology=topology,
            problem="coordinator_dag finds no such transaction in this file",
            remedy="Put coordinator_dag(...) after the DAG in its file, with the name of its topology.",
        )
    return found
