"""The ledgers of the topologies as they are, read raw and beside all proxies, again and again in a thread."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import NoNodeError  # type: ignore[import-untyped]

from tests.chaos.topology import ROOT, STORES

_POLL = 0.3


@dataclass(frozen=True)
class LedgerState:
    """One topology: whose turn it is, the last txid, the records of the open ones, what may be re-admitted, what is
    wanted restated, and what lacks a correction of the topology that it reads."""

    current: int = 1
    allocated: int = 0
    opened: dict[int, dict[str, Any]] = field(default_factory=dict)
    skipped: tuple[int, ...] = ()
    wanted: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()

    @property
    def is_quiet(self) -> bool:
        return self.allocated == self.current - 1 and not self.wanted and not self.behind

    @property
    def restating(self) -> list[int]:
        """The open transactions that restate another one."""
        return [txid for txid, record in self.opened.items() if record.get("replaces") is not None]


class LedgerWatch:
    """What was last read; while ZooKeeper is away, that stays."""

    def __init__(self, hosts: str) -> None:
        logging.getLogger("kazoo").setLevel(logging.ERROR)  # it loses its connection all the time
        self.states = {name: LedgerState() for name in STORES}
        self._hosts = hosts
        retry = {"max_tries": 60, "max_delay": 1}
        self._client = KazooClient(hosts, timeout=10, connection_retry={"max_tries": -1}, command_retry=retry)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> LedgerWatch:
        self._client.start(timeout=60)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(5)
        with contextlib.suppress(Exception):
            self._client.stop()
            self._client.close()

    def phase(self, name: str, victim: str) -> str:
        """Where a process of a topology is by now, as far as the ledger shows."""
        state = self.states[name]
        record = state.opened.get(state.current)
        return f"{victim}, {'nothing open' if record is None else record['phase']}"

    def read(self, path: str) -> Any:
        """The JSON of a znode; None if there is none."""
        try:
            return json.loads(self._client.retry(self._client.get, f"{ROOT}/{path}")[0] or b"null")
        except NoNodeError:
            return None

    def names(self, path: str) -> list[str]:
        """The names below a znode."""
        try:
            return list(self._client.retry(self._client.get_children, f"{ROOT}/{path}"))
        except NoNodeError:
            return []

    def look(self, name: str) -> LedgerState:
        """Read a ledger now; a ZooKeeper that follows may else tell what was."""
        self._client.retry(self._client.sync, "/")
        base = f"{name}/coordinator"
        current, allocated = self.read(f"{base}/current"), self.read(f"{base}/allocated")
        if current is None or allocated is None:
            return LedgerState()
        found = {txid: self.read(f"{base}/transactions/{txid}") for txid in self.names(f"{base}/transactions")}
        opened = {int(txid): record for txid, record in found.items() if record is not None}
        records = {txid: self.read(f"{name}/skipped/{txid}") for txid in self.names(f"{name}/skipped")}
        # A restatement that was skipped has nothing to re-admit: what it was to replace counts.
        skipped = sorted(int(txid) for txid, each in records.items() if each and is_away(each))
        wanted = tuple(sorted(map(int, self.names(f"{name}/wanted"))))
        behind = tuple(sorted(map(int, self.names(f"{name}/behind"))))
        return LedgerState(current["txid"], allocated["txid"], opened, tuple(skipped), wanted, behind)

    def _watch(self) -> None:
        while not self._ending.is_set():
            for name in STORES:
                with contextlib.suppress(Exception):
                    self.states[name] = self.look(name)
            time.sleep(_POLL)


def is_away(skipped: dict[str, Any]) -> bool:
    """Whether the rows of a skipped transaction are in no other one."""
    return skipped["readmitted_as"] is None and skipped.get("replaces") is None
