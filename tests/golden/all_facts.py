"""Fills the records of the story with every fact that a transaction can have, so that commands and page show it."""

from __future__ import annotations

from typing import Any

from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger.api import Create, Put, ack_name
from airflow_tx.ledger.json_text import Moment, Record, replace
from airflow_tx.ledger.receipt import (
    CheckNote,
    Code,
    Deed,
    DeedOfAttempt,
    Outcome,
    Receipt,
    Replaced,
    Replayed,
    TaskRows,
    Written,
)
from airflow_tx.ledger.records import (
    Ack,
    BatchRows,
    Binding,
    BlockMark,
    End,
    Metadata,
    Phase,
    ReplayNote,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    Wish,
    decode,
    encode,
)
from tests.model.driver import Topology

WHEN = Moment("2013-01-01T00:00:30.000+00:00")
LATER = Moment("2013-01-01T00:00:45.500+00:00")
DEED = Deed("eve", WHEN, "a bug")
OF_ATTEMPT = DeedOfAttempt("eve", WHEN, "new rows", 1)
CHECKS = {
    "even": CheckNote(passed=True),
    "few": CheckNote(passed=False, found="3 of 4", severity="warning"),
    "sum": CheckNote(passed=False, found="7, not 8", digest="ab", accepted=DEED),
}
REPLAYS = [Replayed(1, WHEN, "its run failed", 3, by=DEED), Replayed(2, LATER, "of memory", size={"files": 2})]
TASKS = {"count": TaskRows(2, 10, {"tx_rejected.a": 2, "words": 8}, {"words": "d1"})}
FILE = {"file": "a.csv", "rows": 2}


def fill(topology: Topology) -> None:
    """Put into the records of some transactions what no step of the story has put there."""
    paths, store = topology.paths, topology.store()

    def change(cls: type[Any], path: str, **changes: Any) -> None:
        store.multi((), (Put(path, encode(replace(decode(cls, path, store.get(path).data), **changes))),))

    def create(path: str, record: Record | None = None) -> None:
        store.multi((), (Create(path, b"" if record is None else encode(record)),))

    def receipt(txid: int, **changes: Any) -> Receipt:
        kept = decode(TransactionRecord, paths.history(txid), store.get(paths.history(txid)).data).receipt
        assert kept is not None
        return replace(kept, **changes).hashed()

    first = receipt(
        1, rows=2, digest="py:1234567890abcdef", tasks=TASKS, code=Code("3", {"count": "c0de"}), replays=REPLAYS,
        unproven=["no tree", "no rows"], journal="2013-01-01/1-ab", wish=DEED, checks=CHECKS,
        written={"url.totals": Written(2, "0" * 16, {"n": 3})}, size={"rows": 2, "why": "few"}, lost=["rows 8 to 9"],
        changed=[OF_ATTEMPT],
    )  # fmt: skip
    change(
        TransactionRecord, paths.history(1), receipt=first, failures=3, size={"rows": 2, "why": "few"},
        counted=BatchRows(2, {"py": "py:1234567890abcdef"}), lost=["rows 8 to 9"], changed=[OF_ATTEMPT], attempt=3,
        processed=WHEN, granted_at=LATER, end=End(Outcome.COMMITTED, Moment("2013-01-01T00:01:00.250+00:00")),
        replays=REPLAYS, wish=DEED,
    )  # fmt: skip
    second = receipt(2, replaces=Replaced(1, "2013-01-01/1-ab"), metadata=FILE, wish=DEED)
    change(TransactionRecord, paths.history(2), receipt=second, replaces=second.replaces, wish=DEED)
    change(Binding, paths.run("r1"), txid=2)
    create(paths.wishes)
    create(paths.wish(2), Wish(2, "r2", "r2", "eve", WHEN, "a rate", "op"))
    change(Skipped, paths.skipped(3), readmit=DEED)
    change(
        TransactionRecord, paths.transaction(4), pinned=True, failures=2, size={"files": 2, "why": "slow"},
        lost=["row 1", "row 2"], replays=REPLAYS, replay=ReplayNote(3, 2, WHEN, "it was slow"), attempt=3,
        asked=replace(OF_ATTEMPT, attempt=3), changed=[OF_ATTEMPT], checks=CHECKS, fenced=["url.totals"],
    )  # fmt: skip
    change(Metadata, paths.meta(4), rows=FILE)
    change(
        TransactionRecord, paths.transaction(6), yielded=4, phase=Phase.PROCESSING, replaces=Replaced(2, "e"),
        wish=DEED, error="it lost 3 rows",
    )  # fmt: skip
    change(
        TransactionRecord, paths.transaction(7), error="it lost 4 rows", failures=9,
        remedy=Remedy(("Mend it: ", Command("show", "trace"))),
    )  # fmt: skip
    record = decode(TransactionRecord, paths.transaction(7), store.get(paths.transaction(7)).data)
    ack = Ack("try", "op", done=True, rows=4, outputs=[{"name": "tx_rejected", "rows": 1}], code="c0de")
    store.multi((), (Put(f"{paths.acks(record.acks)}/{ack_name('p', -1)}", encode(ack)),))
    blocked = BlockMark(7, record.attempt, "it failed twice", WHEN)
    change(TopologyRecord, paths.record, blocked=blocked)
