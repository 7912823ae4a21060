"""People act on what they were shown: of all who were shown one version of a transaction, one does it."""

from __future__ import annotations

import pytest

from airflow_tx.base.errors import PreviewOutdated
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import TransactionRecord
from airflow_tx.ledger.steps.version import note_action, version_of
from tests.model.driver import Run, Topology


def version(topology: Topology, *txids: int) -> str:
    return version_of(Reader(topology.store()), topology.paths, txids)


def act(topology: Topology, shown: str, *txids: int) -> None:
    topology.ledger().run(note_action, txids, shown)


def test_the_second_action_with_the_same_version_is_refused_and_changes_no_transaction(
    topology: Topology,
) -> None:
    for run in ("r1", "r2", "r3"):
        Run(topology, run).begin(1)
    shown, before = version(topology, 1, 2), [opened(topology, txid) for txid in (1, 2, 3)]
    act(topology, shown, 2, 1)
    with pytest.raises(PreviewOutdated) as refused:
        act(topology, shown, 1, 2)
    assert str(refused.value) == (
        "Transaction 1, 2 of topology 'trace' has changed since. Nothing was done; have another look, then repeat."
    )
    after = [opened(topology, txid) for txid in (1, 2, 3)]
    assert after[2] == before[2]
    assert [replace(each, op="") for each in after] == [replace(each, op="") for each in before]


def test_an_action_on_several_transactions_makes_the_preview_of_each_transaction_outdated(topology: Topology) -> None:
    Run(topology, "r1").begin(1)
    Run(topology, "r2").begin(1)
    each = {txid: version(topology, txid) for txid in (1, 2)}
    act(topology, version(topology, 1, 2), 2, 1)
    for txid, shown in each.items():
        with pytest.raises(PreviewOutdated):
            act(topology, shown, txid)


def test_an_action_on_one_transaction_makes_a_preview_of_several_transactions_outdated(topology: Topology) -> None:
    Run(topology, "r1").begin(1)
    Run(topology, "r2").begin(1)
    shown = version(topology, 1, 2)
    act(topology, version(topology, 2), 2)
    with pytest.raises(PreviewOutdated):
        act(topology, shown, 1, 2)


def test_the_version_of_a_transaction_changes_when_the_transaction_makes_progress(topology: Topology) -> None:
    run = Run(topology, "r1")
    run.begin(1)
    shown = [version(topology, 1)]
    run.begin(1)
    shown.append(version(topology, 1))
    run.process({"a": 1})
    run.commit()
    assert len({*shown, version(topology, 1)}) == 3
    for outdated in shown:
        with pytest.raises(PreviewOutdated):
            act(topology, outdated, 1)


def test_the_second_of_two_readmissions_with_the_same_version_is_refused(topology: Topology) -> None:
    Run(topology, "r1").begin(1)
    topology.skip(1)
    shown = version(topology, 1)
    act(topology, shown, 1)
    with pytest.raises(PreviewOutdated):
        act(topology, shown, 1)
    acted = version(topology, 1)
    topology.readmit(1)
    assert version(topology, 1) != acted


def opened(topology: Topology, txid: int) -> TransactionRecord:
    record = topology.record(txid)
    assert record is not None
    return record
