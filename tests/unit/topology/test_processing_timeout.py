"""How long the processing of a transaction may take: `processing_timeout`, or by its earlier name `message_timeout`."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_tx import Transaction
from airflow_tx.base.errors import ConfigError, TransactionDefinitionError
from tests.unit.bench import Numbers


def timeout(**options: Any) -> float:
    with DAG("numbers", schedule=None):
        return Transaction(source=Numbers(), **options)._spec.timeout


@pytest.mark.parametrize("name", ["processing_timeout", "message_timeout"])
def test_the_processing_timeout_may_have_either_name_in_the_transaction_or_configuration(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert timeout() == 3600.0
    monkeypatch.setenv(f"AIRFLOW__TX__{name.upper()}", "11")
    assert timeout() == 11.0
    assert timeout(**{name: 7.0}) == 7.0


def test_a_transaction_that_sets_the_processing_timeout_under_both_names_is_refused() -> None:
    with pytest.raises(TransactionDefinitionError) as refused:
        timeout(processing_timeout=7, message_timeout=8)
    assert str(refused.value) == (
        "Transaction 'numbers' refused: it has processing_timeout=7 and message_timeout=8, which mean the same. "
        "Remove message_timeout."
    )


def test_a_configuration_that_sets_the_processing_timeout_under_both_names_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__TX__PROCESSING_TIMEOUT", "7")
    monkeypatch.setenv("AIRFLOW__TX__MESSAGE_TIMEOUT", "8")
    with pytest.raises(ConfigError) as refused:
        timeout()
    assert str(refused.value) == (
        "[tx] message_timeout = '8' cannot be used. [tx] processing_timeout = '7' means the same. "
        "Remove message_timeout from airflow.cfg, or unset AIRFLOW__TX__MESSAGE_TIMEOUT."
    )


def test_the_error_for_an_invalid_timeout_uses_the_name_that_the_configuration_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__TX__MESSAGE_TIMEOUT", "1h")
    with pytest.raises(ConfigError, match=r"^\[tx\] message_timeout = '1h' .*AIRFLOW__TX__MESSAGE_TIMEOUT.*'3600'"):
        timeout()
