"""A request may name dates instead of transactions."""

from __future__ import annotations

from typing import Any, cast

import pytest

from airflow_tx.ledger.api import Paths
from airflow_tx.operations.actions import request
from airflow_tx.operations.actions.action import ActionTarget
from airflow_tx.operations.actions.request import MOST_DATED, ActionName, ActionRequest, UnclearRequest
from airflow_tx.operations.actions.restatement import TransactionRestatement

DAYS = {"first": "2026-05-01", "last": "2026-05-30"}


class Target:
    """A topology that no action reads."""

    class ledger:
        paths = Paths("/tx", "daily")


def made(count: int, monkeypatch: pytest.MonkeyPatch, **asked: Any) -> Any:
    """The action of a request whose dates have so many transactions."""
    monkeypatch.setattr(request, "dated_transactions", lambda target, first, last: list(range(1, count + 1)))
    wanted = ActionRequest("daily", "zookeeper", "/tx", "coordinator", **{"name": ActionName.RESTATE, **asked})
    assert ActionRequest.from_json(wanted.to_json()) == wanted
    return wanted.action(cast(ActionTarget, Target()))


def test_a_request_for_a_range_of_dates_restates_all_transactions_of_these_dates_in_one_action(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    action = made(30, monkeypatch, **DAYS)
    assert isinstance(action, TransactionRestatement)
    assert action.txids == list(range(1, 31))


def test_a_request_for_dates_with_too_many_transactions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UnclearRequest, match=f"has {MOST_DATED + 1} transactions, but a request can have at most {MOST_DATED}"
    ):
        made(MOST_DATED + 1, monkeypatch, **DAYS)


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"txids": (1,), **DAYS}, "dates are only for restate, instead of txids"),
        ({"name": ActionName.REPLAY_FAILED, **DAYS}, "dates are only for restate, instead of txids"),
        ({"first": "2026-05-01"}, "name the first and the last date"),
    ],
)
def test_a_request_with_ambiguous_or_invalid_dates_is_refused(
    asked: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnclearRequest, match=problem):
        made(1, monkeypatch, **asked)
