"""One stage of a chain is compared with the one that it reads. Source: docs/protocol.md §12."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from airflow_tx.ledger import ChainStages, TakenRange, TakenRanges
from airflow_tx.ledger.api import Put
from airflow_tx.ledger.audit.stage import StageAudit
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.records import BookPage, Counter, decode, encode
from tests.integration.pipeline import Pipeline
from tests.unit.protocol.chains import Chain


def compared(chain: Chain, rows: Any = None) -> StageAudit:
    found = StageAudit(chain.totals.ledger, "s0", rows)
    found.compare()
    return found


def change_taken(pipeline: Pipeline, txid: int, taken: TakenRange) -> None:
    """By hand, a line names another range."""
    path = pipeline.paths.page(0)
    node = pipeline.store.get(path)
    assert node is not None
    lines = decode(BookPage, path, node.data).lines
    changed = [replace(each, taken=taken) if each.txid == txid else each for each in lines]
    pipeline.store.multi([], [Put(path, encode(BookPage(changed)))])


def test_verify_has_no_finding_if_a_downstream_topology_has_read_each_transaction_once() -> None:
    found = compared(Chain().run(3).take(2))
    assert (found.findings, found.notes) == ([], ["no transaction has read orders 3 yet"])


@pytest.mark.parametrize(
    ("taken", "finding"),
    [
        (TakenRange(3, 3), "transactions 1 and 2: orders 2 is in no range of either transaction"),
        (TakenRange(1, 2), "transactions 1 and 2: orders 1 is in the ranges of both transactions"),
    ],
    ids=["gap", "overlap"],
)
def test_verify_finds_a_gap_and_an_overlap_in_the_ranges_of_a_downstream_topology(
    taken: TakenRange, finding: str
) -> None:
    chain = Chain().run(3).take(2)
    change_taken(chain.totals, 2, taken)
    assert compared(chain).findings == [finding]


def test_verify_notes_a_transaction_behind_a_correction_while_its_restatement_is_pending() -> None:
    chain = Chain().run(1).take(1)
    end = chain.correct(1)
    told = f"transaction 1 is behind a correction of orders 1 ({end} counts)"
    assert f"{told}: no restatement is requested yet" in compared(chain).notes
    chain.request()
    assert f"{told}: its restatement is requested" in compared(chain).notes
    begun = chain.totals.begin("t1")
    assert f"{told}: transaction 2 restates it" in compared(chain).notes
    assert compared(chain).findings == []
    chain.finish(begun)
    assert (compared(chain).findings, compared(chain).notes) == ([], []), "a restatement is never taken"


def test_verify_reports_a_transaction_whose_follow_up_was_skipped() -> None:
    chain = Chain().run(1).take(1)
    end = chain.correct(1)
    chain.request()
    chain.totals.skip(chain.totals.begin("t1").txid)
    assert compared(chain).findings == [
        f"transaction 1 is behind a correction of orders 1 ({end} counts): its restatement was skipped or withdrawn. "
        "Request it: airflow tx restate totals --follow --why TEXT"
    ]


def test_verify_notes_a_skipped_downstream_transaction() -> None:
    chain = Chain().run(1)
    chain.totals.skip(chain.totals.begin("t1").txid)
    assert (compared(chain).findings, compared(chain).notes) == ([], ["transaction 1 was skipped: orders 1"])


def test_verify_finds_an_end_in_a_downstream_range_that_is_later_than_the_upstream_end() -> None:
    chain = Chain().run(1)
    end = chain.correct(1)
    chain.take(1)
    change_taken(chain.totals, 1, TakenRange(1, 1, {"1": end + 1}))
    assert compared(chain).findings == [f"transaction 1: orders went back: {end + 1} was read for 1, but {end} counts"]


def test_verify_finds_an_upstream_ledger_that_went_back() -> None:
    chain = Chain().run(3).take(3)
    store, paths = chain.orders.store, chain.orders.paths
    store.multi([], [Put(paths.current, encode(Counter(3))), Put(paths.allocated, encode(Counter(2)))])
    assert compared(chain).findings == ["topology 'orders' went back: its transaction 3 is next, and 3 was read"]


def test_verify_reports_a_new_incarnation_of_the_upstream_topology() -> None:
    chain = Chain().run(3).take(2)
    record = replace(chain.orders.ledger.topology(), incarnation="0123456789abcdef")
    chain.orders.store.multi([], [Put(chain.orders.paths.record, encode(record))])
    told = "topology 'orders' was reset after transaction 2 was read"
    assert (compared(chain).findings, compared(chain).notes) == ([told], [])
    assert TakenRanges(chain.totals.ledger).ahead() == told
    assert ChainStages.of(chain.orders.ledger, 1).down_in_words == "totals: not read yet"


def test_verify_reports_another_upstream_transaction_with_the_same_txid() -> None:
    chain = Chain().run(3).take(2)
    line = chain.orders.ledger.book().line(2)
    assert line is not None
    chain.orders.store.multi([], chain.orders.ledger.book().with_lines([replace(line, birth="another")])[-1:])
    assert compared(chain).findings == [
        "topology 'orders' went back: its transaction 2 is another one than the one that was read"
    ]


def test_rows_in_the_upstream_table_are_compared_with_the_upstream_transactions_that_count() -> None:
    chain = Chain().run(2).take(2)
    end = chain.correct(1)
    asked = list[int]()

    def rows(txids: Collection[int]) -> Mapping[int, int]:
        asked.extend(txids)
        return {2: 1, end: 0}

    found = compared(chain, rows)
    assert asked == [2, end]
    assert found.findings == [f"table s0: it has 0 rows of transaction {end} of orders, which committed 1"]
    chain.orders.begin("open")
    assert compared(chain, rows).findings == []


def test_verify_reports_a_missing_upstream_topology_and_a_renamed_one() -> None:
    chain = Chain().run(1).take(1)
    chain.totals.store.multi([], [])
    record = chain.totals.ledger.topology()
    chain.totals.store.multi([], [Put(chain.totals.paths.record, encode(replace(record, upstream="sales")))])
    assert compared(chain).findings == ["topology 'sales' is called 'orders' now"]
    record = replace(chain.orders.ledger.topology(), incarnation="0123456789abcdef")
    chain.totals.store.multi([], [Put(chain.orders.paths.record, encode(record))])
    told = "topology 'sales' has no ledger any more, and transaction 1 of it was read"
    assert compared(chain).findings == [told]
