"""The place of each record: one function per path. Names that users choose are percent-encoded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from urllib.parse import quote, unquote


@lru_cache(maxsize=4096)
def encode_name(name: str) -> str:
    """Write a name as one path element; never empty, never `.` or `..`."""
    return quote(name, safe="").replace(".", "%2E") or "%"


def decode_name(element: str) -> str:
    """Read the name that `encode_name` wrote."""
    return "" if element == "%" else unquote(element)


@dataclass(frozen=True)
class Paths:
    """The records of one topology.

    :param root: path that holds every topology, e.g. `/airflow_tx`.
    :param topology: name of the topology.
    """

    root: str
    topology: str

    @cached_property
    def base(self) -> str:
        return f"{self.root.rstrip('/')}/{encode_name(self.topology)}"

    @property
    def record(self) -> str:
        return f"{self.base}/topology"

    @property
    def coordinator(self) -> str:
        return f"{self.base}/coordinator"

    @property
    def current(self) -> str:
        """txid whose turn it is to commit."""
        return f"{self.coordinator}/current"

    @property
    def allocated(self) -> str:
        """Last txid handed out."""
        return f"{self.coordinator}/allocated"

    @property
    def transactions(self) -> str:
        return f"{self.coordinator}/transactions"

    def transaction(self, txid: int) -> str:
        return f"{self.transactions}/{txid}"

    @property
    def metas(self) -> str:
        return f"{self.coordinator}/meta"

    def meta(self, txid: int) -> str:
        """Rows and position of a batch."""
        return f"{self.metas}/{txid}"

    @property
    def all_acks(self) -> str:
        return f"{self.coordinator}/acks"

    def acks(self, name: str) -> str:
        """The contributions of the tasks of one attempt.

        :param name: as the record of the transaction has it.
        """
        return f"{self.all_acks}/{name}"

    def owner(self, nonce: str) -> str:
        """Ephemeral, while the committer that was given this grant holds the turn; for display only."""
        return f"{self.coordinator}/owner-{nonce}"

    def lane(self, task_try: str) -> str:
        """Ephemeral, while a lane works on the transactions that it has begun under this try; for display only."""
        return f"{self.coordinator}/{task_try}"

    @property
    def histories(self) -> str:
        return f"{self.base}/history"

    def history(self, txid: int) -> str:
        """Outcome of a final transaction."""
        return f"{self.histories}/{txid}"

    @property
    def runs(self) -> str:
        return f"{self.base}/runs"

    def run(self, key: str) -> str:
        """A run's identity → txid."""
        return f"{self.runs}/{encode_name(key)}"

    @property
    def all_skipped(self) -> str:
        return f"{self.base}/skipped"

    def skipped(self, txid: int) -> str:
        """Rows of a skipped batch."""
        return f"{self.all_skipped}/{txid}"

    @property
    def wishes(self) -> str:
        """Which transactions people want restated; made by the first wish."""
        return f"{self.base}/wanted"

    def wish(self, txid: int) -> str:
        """Who wants a committed transaction restated."""
        return f"{self.wishes}/{txid}"

    @property
    def repairs(self) -> str:
        """What people did to this ledger; made by the first repair."""
        return f"{self.base}/repairs"

    def repair(self, number: int) -> str:
        """One repair: who, when, why."""
        return f"{self.repairs}/{number}"

    @property
    def alarms(self) -> str:
        """Which alarms are raised, and what for; made by the first one."""
        return f"{self.base}/alarms"

    @property
    def watchers(self) -> str:
        """How far each watcher has handed commits on; made by the first one."""
        return f"{self.base}/watchers"

    def watcher(self, name: str) -> str:
        """How far one watcher has handed commits on."""
        return f"{self.watchers}/{encode_name(name)}"

    @property
    def folders(self) -> tuple[str, ...]:
        """Every record that exists only to hold others, parents first."""
        return (
            self.base,
            self.coordinator,
            self.transactions,
            self.metas,
            self.all_acks,
            self.histories,
            self.runs,
            self.all_skipped,
        )


def ack_name(task: str, map_index: int) -> str:
    """Name what one task has contributed, below `Paths.acks`."""
    return f"{encode_name(task)}@{map_index}"


def ack_element(name: str) -> tuple[str, int]:
    """Read the task id and the map index that `ack_name` wrote."""
    task, _, index = name.rpartition("@")
    return decode_name(task), int(index)
