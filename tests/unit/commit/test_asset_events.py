"""The asset events of a committer: one for each commit, however often its task runs."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_tx.operators.commit import CommitOperator
from tests.unit.commit.run import Run, context_of, open_run

TOTALS = Asset("totals")
BY_NAME, BY_URI = Asset.ref(name="by_name"), Asset.ref(uri="x-by://uri")


class Events:
    """The stored events of assets; answers as the supervisor of a task does."""

    def __init__(self) -> None:
        self.stored: Sequence[dict[str, Any] | None] = []
        self.asked: list[Any] = []

    def send(self, message: Any) -> Any:
        self.asked.append(message)
        events = [SimpleNamespace(extra=extra) for extra in self.stored[: message.limit]]
        return SimpleNamespace(asset_events=events)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    made = Events()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", made, raising=False)
    return made


@pytest.fixture
def run(make: Any) -> Run:
    return open_run(make, "r1")


def emitted(run: Run, *outlets: Any) -> list[dict[str, Any]]:
    """Run the commit task; the extras of the events that Airflow stores when it ends."""
    operator = CommitOperator(task_id="commit", updates=run.updates, outlets=outlets or [TOTALS])
    context: Any = {**context_of(run), "outlet_events": OutletEventAccessors()}
    operator.execute(context)
    return [context["outlet_events"][each].extra for each in operator.outlets]


def test_a_commit_emits_an_asset_event_with_its_transaction_and_sends_no_query_to_airflow(
    run: Run, events: Events
) -> None:
    said = {"topology": "numbers", "txid": 1, "attempt": 1, "birth": run.begun.attempt.birth}
    assert emitted(run) == [said]
    assert events.asked == []


def test_a_committer_that_runs_again_emits_no_second_event(run: Run, events: Events) -> None:
    events.stored = emitted(run)
    assert emitted(run) == []
    ((asked),) = events.asked
    assert (asked.name, asked.uri, asked.ascending) == ("totals", "totals", True)
    assert asked.after is not None


def test_an_event_that_airflow_has_not_stored_is_emitted_again_by_the_next_try(run: Run, events: Events) -> None:
    first = emitted(run)
    events.stored = [None, {"topology": "numbers", "txid": 2, "birth": "another"}]
    assert emitted(run) == first


def test_the_stored_event_of_an_earlier_incarnation_does_not_suppress_a_new_event(run: Run, events: Events) -> None:
    (first,) = emitted(run)
    events.stored = [{**first, "birth": "another"}]
    assert emitted(run) == [first]


def test_a_committer_finds_its_stored_event_among_a_thousand_other_events(run: Run, events: Events) -> None:
    (first,) = emitted(run)
    events.stored = [*[{"topology": "others"}] * 1000, first]
    assert emitted(run) == []
    assert len(events.asked) > 1


def test_no_automatic_event_is_emitted_for_an_asset_alias(run: Run, events: Events) -> None:
    emitted(run)
    operator = CommitOperator(task_id="commit", updates=run.updates, outlets=[AssetAlias("later")])
    context: Any = {**context_of(run), "outlet_events": OutletEventAccessors()}
    operator.execute(context)
    assert (operator.outlets, events.asked) == ([AssetAlias("later")], [])


@pytest.mark.parametrize(("outlet", "asked"), [(BY_NAME, ("by_name", None)), (BY_URI, (None, "x-by://uri"))])
def test_an_asset_that_an_outlet_names_by_its_name_or_uri_is_queried_by_that_name_or_uri(
    run: Run, events: Events, outlet: Any, asked: Any
) -> None:
    events.stored = emitted(run)
    assert emitted(run, outlet) == []
    assert [(each.name, each.uri) for each in events.asked] == [asked]
