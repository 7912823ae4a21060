"""The description of a batch for an application outside Airflow, stored as a JSON file of any size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_tx.base.errors import ConfigError
from airflow_tx.ledger import (
    OutputName,
    TaskTry,
    TransactionAttempt,
)

DESCRIPTOR_FORMAT = 1


@dataclass(frozen=True)
class Input:
    """The output of another task that an application reads.

    :param files: the Parquet files, with URIs for Spark's readers.
    :param columns: the names of the columns.
    :param outputs: the names of the outputs, by task, or () if the input is new values.
    :param rows: the number of rows.
    """

    files: tuple[str, ...]
    columns: tuple[str, ...]
    outputs: tuple[OutputName, ...]
    rows: int

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Input:
        """Create an input from the result of `to_json`."""
        names = OutputName.from_json(value)
        return cls(tuple(value["files"]), tuple(value["columns"]), names, value["rows"])

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), **OutputName.to_json(self.outputs)}


@dataclass(frozen=True)
class Ackers:
    """The ackers of the messages of a transaction.

    :param count: the number of ackers, or 0 if messages are not tracked.
    :param conn_id: the id of the Airflow connection of their store.
    :param root: the root of the ledgers.
    :param anchored: whether the transaction waits for the task.
    """

    count: int
    conn_id: str
    root: str
    anchored: bool


@dataclass(frozen=True)
class AppendTo:
    """The table that an application's output is appended to, without secrets.

    :param uri: the URI of the table.
    :param partition_by: the columns that the table is partitioned by.
    """

    uri: str
    partition_by: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AppendTo:
        """Create a table from the JSON form of `asdict`."""
        return cls(value["uri"], tuple(value["partition_by"]))


@dataclass(frozen=True)
class Descriptor:
    """All data that an application needs to process a batch.

    :param topology: the topology.
    :param attempt: the attempt.
    :param task: the try that the output belongs to.
    :param metadata: plain JSON that identifies the rows of the batch.
    :param source: the class path and the constructor arguments of the source, as `Source.serialize()` returns them.
    :param root: root of the staging area of the topology.
    :param inputs: outputs of earlier tasks, by name.
    :param ackers: the ackers, or None if the transaction has no messages.
    :param appended: the tables that outputs are appended to, by output name.
    :param incarnation: the incarnation of the topology.
    :param keeps_rejected: whether the commit stores the rows that the application rejects.
    """

    topology: str
    attempt: TransactionAttempt
    task: TaskTry
    metadata: Any
    source: tuple[str, Mapping[str, Any]]
    root: str
    inputs: Mapping[str, Input] = field(default_factory=dict)
    ackers: Ackers | None = None
    appended: Mapping[str, AppendTo] = field(default_factory=dict)
    incarnation: str = ""
    keeps_rejected: bool = False

    def __str__(self) -> str:
        return f"{self.topology} {self.attempt} {self.task}"

    def to_json(self) -> str:
        appended = {name: asdict(each) for name, each in self.appended.items()}
        return json.dumps(
            {
                "format": DESCRIPTOR_FORMAT,
                "topology": self.topology,
                "txid": self.attempt.txid,
                "attempt": self.attempt.attempt,
                "task_id": self.task.task_id,
                "map_index": self.task.map_index,
                "try": self.task.task_try,
                "rows": self.metadata,
                "source": [self.source[0], dict(self.source[1])],
                "root": self.root,
                "inputs": {name: each.to_json() for name, each in self.inputs.items()},
                "incarnation": self.incarnation,
                "ackers": None if self.ackers is None else asdict(self.ackers),
                **({"appended": appended} if appended else {}),
                **({"keeps_rejected": True} if self.keeps_rejected else {}),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Descriptor:
        """Create a descriptor from the text of `to_json`.

        :raises ConfigError: the text is not a descriptor, or has another format.
        """
        try:
            value = json.loads(text)
            found = value["format"]
        except (ValueError, KeyError, TypeError):
            option = "the descriptor of the batch"
            remedy = "Pass the URI that the task printed."
            raise ConfigError(option=option, value=text[:80], remedy=remedy) from None
        if found != DESCRIPTOR_FORMAT:
            remedy = f"This version of airflow-provider-tx reads format {DESCRIPTOR_FORMAT}"
            remedy += ": use the same version in Airflow and in the application."
            raise ConfigError(option="format of the descriptor", value=found, remedy=remedy)
        return cls(
            topology=value["topology"],
            attempt=TransactionAttempt(value["txid"], value["attempt"]),
            task=TaskTry(value["task_id"], value["map_index"], value["try"]),
            metadata=value["rows"],
            source=(value["source"][0], value["source"][1]),
            root=value["root"],
            inputs={name: Input.from_json(of) for name, of in value["inputs"].items()},
            incarnation=value["incarnation"],
            ackers=Ackers(**value["ackers"]) if value["ackers"] else None,
            appended={
                name: AppendTo.from_json(of) for name, of in value.get("appended", {}).items()
            },
            keeps_rejected=value.get("keeps_rejected", False),
        )
