"""The book of ends: which transaction counts for each one, however long ago it was. Source: docs/protocol.md §12."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_tx.ledger.api import Delete, Put
from airflow_tx.ledger.attempt import Token
from airflow_tx.ledger.audit import older_lines
from airflow_tx.ledger.audit.chain import ledger_evidence
from airflow_tx.ledger.audit.older_lines import OlderLines, lines_lacking
from airflow_tx.ledger.audit.plan import HeldState
from airflow_tx.ledger.audit.rebuild import Repairs
from airflow_tx.ledger.book import LINES_A_PAGE, Book
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.receipt import Outcome
from airflow_tx.ledger.records import EndLine, encode
from airflow_tx.ledger.steps.step import Audit
from tests.model.conftest import counts
from tests.model.driver import Run, Topology

ADA = Audit("ada", "a bug in the job")


@pytest.fixture
def kept(store: Callable[[], Any], root: str) -> Topology:
    """A topology with a table, and a journal."""
    return Topology(store, root, [counts("s0")], journals=True, appends=True)


def commit(topology: Topology, run: str) -> None:
    Run(topology, run).whole(2, {"a": 1})


def restate(topology: Topology, txid: int, run: str) -> None:
    topology.want(txid, key=run)
    commit(topology, run)


def lines(topology: Topology) -> dict[int, EndLine]:
    first = topology.topology.book
    return Book(Reader(topology.store()), topology.paths).lines(first, topology.current - 1)


def chains(topology: Topology) -> dict[int, tuple[int, int]]:
    """Of each line the first of its chain, and its end."""
    return {txid: (line.first, line.end) for txid, line in lines(topology).items()}


def without_book(topology: Topology) -> None:
    """Make the ledger one of an older release."""
    store, paths = topology.store(), topology.paths
    pages = [Delete(f"{paths.ends}/{name}") for name in store.children(paths.ends).names]
    store.multi([], [*pages, Delete(paths.ends), Put(paths.record, encode(replace(topology.topology, book=0)))])


def lacking(topology: Topology) -> OlderLines:
    return lines_lacking(ledger_evidence(topology.store(), topology.paths), [], topology.request, [])


def test_each_final_transaction_has_a_line_in_the_book_of_ends(kept: Topology) -> None:
    commit(kept, "r1")
    Run(kept, "r2").processed(2, {"a": 1})
    kept.skip(2)
    assert {txid: line.outcome for txid, line in lines(kept).items()} == {1: Outcome.COMMITTED, 2: Outcome.SKIPPED}


def test_a_restatement_of_a_restatement_ends_the_chain_of_the_first_transaction(kept: Topology) -> None:
    commit(kept, "r1")
    restate(kept, 1, "r1")
    restate(kept, 2, "r1")
    assert chains(kept) == {1: (0, 3), 2: (1, 0), 3: (1, 0)}


def test_a_restatement_begun_before_a_repair_of_the_book_ends_the_chain_of_the_added_lines(kept: Topology) -> None:
    commit(kept, "r1")
    restate(kept, 1, "r1")
    without_book(kept)
    commit(kept, "r3")
    kept.want(2, key="r1")
    run = Run(kept, "r1")
    run.processed(2, {"a": 3})
    lacking(kept).put(kept.ledger(), ADA)
    run.commit()
    assert chains(kept) == {1: (0, 4), 2: (1, 0), 3: (0, 0), 4: (1, 0)}


def test_the_book_of_a_rebuilt_ledger_begins_at_the_first_complete_line(kept: Topology) -> None:
    for run in ("r1", "r2", "r3"):
        commit(kept, run)
    held = [HeldState.of(each.name, undoable=True, fence=each.fence()) for each in kept.states]
    kept.store().multi([], [Delete(path) for path in reversed(kept.tree())])
    Repairs(kept.ledger()).ledger_lost(held, kept.request, ADA)
    assert kept.topology.book == 3
    assert list(lines(kept)) == [3]


def test_an_earlier_end_counts_again_after_its_restatement_was_taken_back(kept: Topology) -> None:
    commit(kept, "r1")
    tokens: dict[str, Token] = {each.name: each.fence().token for each in kept.states}  # type: ignore[union-attr]
    position = kept.position(1)
    restate(kept, 1, "r1")
    kept.ledger().back(1, tokens=tokens, marks={}, position=position, audit=ADA)
    assert chains(kept) == {1: (0, 0), 2: (0, 0)}
    assert lines(kept)[2].outcome is None


def test_an_interrupted_repair_of_the_book_of_ends_leaves_no_gap(kept: Topology) -> None:
    for number in range(1, LINES_A_PAGE + 2):
        commit(kept, f"r{number}")
    without_book(kept)
    found = lacking(kept)
    older, newer = found.txids[-1:], found.txids[:-1]
    kept.ledger().run(older_lines.older_lines, found, newer, audit=ADA)
    assert kept.topology.book == 2
    assert sorted(lines(kept)) == sorted(newer)
    kept.ledger().run(older_lines.older_lines, found, older, audit=None)
    assert sorted(lines(kept)) == sorted(found.txids)
