"""For how long the journal keeps the transactions of a block."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_tx import Transaction
from airflow_tx.base.errors import ConfigError, TransactionDefinitionError
from airflow_tx.transaction.spec import TransactionSpec
from tests.unit.bench import Numbers


def block(**options: Any) -> Transaction:
    with DAG("numbers", schedule=None):
        return Transaction(source=Numbers(), **options)


@pytest.mark.parametrize("journal", [30, timedelta(days=-1), "30 days"], ids=repr)
def test_an_invalid_journal_time_is_refused_while_the_file_is_parsed(journal: Any) -> None:
    with pytest.raises(
        TransactionDefinitionError, match=r"journal=.*Give a timedelta, such as journal=timedelta\(days=30\)"
    ):
        block(journal=journal)


def test_the_journal_time_is_read_from_the_transaction_or_from_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def configured() -> timedelta:
        return TransactionSpec("numbers", "numbers", Numbers()).journal_time

    assert configured() == timedelta(days=30)
    monkeypatch.setenv("AIRFLOW__TX__JOURNAL", "0")
    assert configured() == timedelta(0)
    assert block(journal=timedelta(hours=36))._spec.journal_time == timedelta(hours=36)
    monkeypatch.setenv("AIRFLOW__TX__JOURNAL", "-1")
    with pytest.raises(ConfigError, match=r"\[tx\] journal = '-1' .*whole number, 0 or more"):
        configured()
