"""Each action of a person by the routes of the page: who may, why, of which version, and what becomes of a topology."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from airflow_tx.base.errors import StateRenamed
from airflow_tx.operations.actions.request import ActionName, ActionRequest
from airflow_tx.testing.eventually import eventually
from tests.airflow.browser import People
from tests.integration.board.server import STRANGER, Board
from tests.integration.cli_runs import Runs, checked
from tests.integration.deeds import (
    ASKED,
    World,
    a_lost_state_and_a_failed_commit,
    a_renamed_state,
    a_state_that_is_gone,
)
from tests.integration.pipeline import Pipeline

WHY = "the shop was closed"


@pytest.fixture
def world(board: Board, pipeline: Pipeline, runs: Runs) -> World:
    return World(board.commands, pipeline, runs)


def act(board: Board, action: str, **body: Any) -> list[str]:
    """Preview an action, and do it; what was done."""
    path = f"topologies/flights/actions/{action}"
    preview = board.post(f"{path}/preview", body)
    assert preview.status_code == 200, preview.text
    assert preview.json()["effects"], preview.text
    answer = board.post(path, {**body, "version": preview.json()["version"], "why": WHY})
    assert answer.status_code == 200, answer.text
    return [each["what"] for each in answer.json()["done"]]


@pytest.mark.parametrize("name", ActionName, ids=lambda name: str(name.value))
def test_each_action_requires_an_access_right_a_reason_and_the_version_from_its_preview(
    board: Board, world: World, name: ActionName
) -> None:
    prepare, named = ASKED[name]
    prepare(world)
    before = world.everything()
    path = f"topologies/flights/actions/{name.value}"
    named = {field: list(each) if isinstance(each, tuple) else each for field, each in named.items()}
    eventually(lambda: board.post(f"{path}/preview", named).status_code == 200, 240, "the topology is seen")
    preview = board.post(f"{path}/preview", named).json()
    doing = {**named, "version": preview["version"]}
    for user, status in (("vera", 403), (STRANGER, 404)):
        assert board.post(f"{path}/preview", named, user).status_code == status
        assert board.post(path, {**doing, "why": WHY}, user).status_code == status
    asked = {"topology": "flights", "conn_id": "", "root": "", "coordinator": "", "name": name}
    request = ActionRequest(**{**asked, **ASKED[name][1]})
    assert preview["needs_reason"] == request.needs_reason
    if preview["needs_reason"]:
        for why in ("", " \t", "\u2028"):
            refused = board.post(path, {**doing, "why": why})
            assert (refused.status_code, refused.json()["detail"]) == (422, "Enter a reason. The ledger keeps it.")
    outdated = board.post(path, {**named, "version": "nonsense", "why": WHY})
    assert (outdated.status_code, "has changed since. Nothing was done" in outdated.json()["detail"]) == (409, True)
    assert world.everything() == before
    assert any(event == f"tx {name.value} refused" for event, _ in world.runs.audited())


@pytest.mark.parametrize(
    ("action", "body", "told"),
    [
        (
            "accept-check",
            {"txids": [1], "names": ["nosuch"]},
            "Check 'nosuch' of transaction 1 of flights is not accepted",
        ),
        ("accept-change", {"names": ["nosuch"]}, "Change of state 'nosuch' of topology 'flights' not accepted"),
        ("state-rename", {"names": ["nosuch", "tx_state.one"]}, "the ledger has no state 'nosuch'"),
        ("state-forget", {"names": ["nosuch"]}, "nosuch"),
        ("repair", {"repair": "state-lost", "names": ["nosuch"]}, "the DAG has no state 'nosuch'"),
        ("repair", {"repair": "roll-forward", "names": ["nosuch"]}, "the DAG has no state 'nosuch'"),
    ],
)
def test_an_unknown_check_or_state_is_refused_in_one_line(
    board: Board, pipeline: Pipeline, runs: Runs, action: str, body: dict[str, Any], told: str
) -> None:
    checked(pipeline, "r1", "positive")
    path = f"topologies/flights/actions/{action}"
    preview = board.post(f"{path}/preview", body).json()
    assert (preview["effects"], [told in each["what"] for each in preview["refused"]]) == ([], [True])
    answer = board.post(path, {**body, "version": preview["version"], "why": WHY})
    assert (answer.status_code, told in answer.json()["detail"]) == (409, True)
    assert "\n" not in answer.json()["detail"]


# --- from the trouble to the committed transaction ----------------------------------------------------------------


def test_a_transaction_commits_after_a_person_accepts_its_failed_check(
    board: Board, pipeline: Pipeline, runs: Runs
) -> None:
    begun = checked(pipeline, "r1", "positive")
    runs.make(r1="failed")
    runs.fail("r1", "commit")
    *_, last = act(board, "accept-check", txids=[1], names=["positive"])
    assert (last, runs.states()["r1"], runs.failed("r1")) == ("its failed tasks were cleared", "running", [])
    assert pipeline.ledger.open_records()[1].accepted_checks.keys() == {"positive"}
    pipeline.mark(pipeline.acquire(begun, pipeline.complete(begun)))
    assert pipeline.ledger.turn().current == 2


def test_a_transaction_commits_after_a_person_accepts_the_lost_state_that_it_updates(
    board: Board, pipeline: Pipeline, world: World
) -> None:
    a_lost_state_and_a_failed_commit(world)
    repaired, waits = act(board, "repair", repair="state-lost", names=["tx_state.one"])
    assert repaired.endswith("Generation 2; transaction 2 commits next.")
    assert waits.endswith("replays it after the repair. Without a coordinator: airflow tx replay flights 2")
    assert act(board, "replay", txids=[2]) == ["its run was cleared"]
    assert pipeline.run("r2") == 2
    assert pipeline.ledger.turn().current == 3


@pytest.mark.long
def test_buttons_next_to_the_error_accept_the_lost_state_and_replay_the_transaction(
    world: World, people: People
) -> None:
    a_lost_state_and_a_failed_commit(world)
    ulf = people("ulf")
    ulf.open(topology="flights", txid=2)
    dialog = ulf.press("Accept the lost state")
    expect(dialog).to_contain_text("Accept the values of state tx_state.one of topology flights. Values that it")
    dialog.get_by_role("textbox").fill(WHY)
    dialog.get_by_role("button", name="Accept the lost state", exact=True).click()
    expect(dialog).to_contain_text("Generation 2; transaction 2 commits next.")
    assert ulf.findings() == []
    ulf.page.keyboard.press("Escape")
    dialog = ulf.press("Replay")
    dialog.get_by_role("button", name="Replay", exact=True).click()
    expect(dialog).to_contain_text("its run was cleared")
    assert world.pipeline.run("r2") == 2


def test_a_renamed_state_continues_under_its_new_name_after_the_rename_action(
    board: Board, pipeline: Pipeline, world: World
) -> None:
    states = pipeline.states
    a_renamed_state(world)
    pipeline.states = states
    with pytest.raises(StateRenamed):
        pipeline.run("r2")
    act(board, "state-rename", names=["tx_state.old", "tx_state.one"])
    assert (pipeline.run("r2"), pipeline.totals()) == (2, [3, 3])


def test_the_forget_action_removes_a_state_that_the_dag_no_longer_updates(
    board: Board, pipeline: Pipeline, world: World
) -> None:
    states = pipeline.states
    a_state_that_is_gone(world)
    pipeline.states = states
    act(board, "state-forget", names=["tx_state.gone"])
    assert (pipeline.run("r2"), set(pipeline.ledger.topology().states)) == (2, {"tx_state.one", "tx_state.two"})
