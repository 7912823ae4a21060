"""Every button of the board in a real browser: what it says before, and what ledger and audit hold afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Locator, Route, expect

from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.ledger.views.view import topology_view, transaction_details
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.airflow.browser import People, Person
from tests.integration.board.server import ROOT, SAME_ORIGIN, Board
from tests.integration.cli_runs import Runs, fail
from tests.integration.pipeline import Pipeline

MARKUP = "<img src=x onerror=\"document.body.dataset.owned='yes'\"> bad file"


def confirm(dialog: Locator, button: str, why: str = "") -> None:
    """Do what a dialog says, for a reason if it asks for one."""
    pressed = dialog.get_by_role("button", name=button, exact=True)
    if why:
        expect(pressed).to_be_disabled()
        dialog.get_by_role("textbox").fill(why)
    pressed.click()


def close(person: Person) -> None:
    person.page.keyboard.press("Escape")
    expect(person.page.get_by_role("dialog")).to_have_count(0)


def audited(runs: Runs, action: str) -> Any:
    """What Airflow's audit log has of the last such action: of which run it was, and why."""
    event, extra = runs.audited()[-1]
    assert event == f"tx {action}"
    return json.loads(extra)


@pytest.mark.long
def test_a_skip_and_its_readmission_show_their_reason_as_plain_text(
    board: Board, pipeline: Pipeline, runs: Runs, people: People
) -> None:
    fail(pipeline, pipeline.begin("r1"))
    runs.make(r1="failed")
    ulf = people("ulf")
    ulf.open(topology="flights", txid=1)
    dialog = ulf.press("Skip")
    expect(dialog).to_contain_text("Skip transaction 1.1 of topology flights (run r1, FAILED)")
    expect(dialog).to_contain_text("1 (run r1): skipped at once, and its rows are counted nowhere")
    assert ulf.findings() == []
    confirm(dialog, "Skip", MARKUP)
    expect(dialog).to_contain_text("1 (run r1): skipped.")
    close(ulf)

    expect(ulf.board).to_contain_text(MARKUP)
    (shown,) = topology_view(pipeline.store, pipeline.paths).transactions
    assert shown.skip is not None
    assert (shown.status, shown.skip.who, shown.skip.why) == ("SKIPPED", "ulf", MARKUP)
    assert audited(runs, "skip")["why"] == MARKUP

    dialog = ulf.press("Re-admit")
    expect(dialog).to_contain_text(f"(skipped by ulf: {MARKUP}) as a new transaction, in run r1: 1.")
    confirm(dialog, "Re-admit", "it was right")
    expect(dialog).to_contain_text("1 (run r1): re-admitted: its run was cleared")
    close(ulf)
    expect(ulf.board.get_by_role("button", name="Re-admit")).to_have_count(1)
    readmit = transaction_details(pipeline.store, pipeline.paths, 1).transaction.readmit
    assert readmit is not None
    assert (readmit.who, readmit.why, runs.states()["r1"]) == ("ulf", "it was right", "queued")
    assert ulf.page.evaluate("document.body.dataset.owned") is None


@pytest.mark.lead
@pytest.mark.worth("the way of every button: preview, action, audit, conflict")
def test_the_second_of_two_simultaneous_replays_shows_why_it_is_refused(
    board: Board, pipeline: Pipeline, runs: Runs, people: People
) -> None:
    for run in ("r1", "r2"):
        fail(pipeline, pipeline.begin(run))
    pipeline.begin("r3")
    runs.make(r1="failed", r2="failed", r3="running")
    dialogs = {}
    for name in ("ulf", "ada"):
        people(name).open(topology="flights")
        dialogs[name] = people(name).press("Replay all failed")
        expect(dialogs[name]).to_contain_text("Replay the failed transactions of topology flights: 1, 2.")
    confirm(dialogs["ulf"], "Replay all failed")
    expect(dialogs["ulf"]).to_contain_text("2 (run r2): its run was cleared")
    assert runs.states() == {"r1": "running", "r2": "running", "r3": "running"}
    assert audited(runs, "replay-failed")["topology"] == "flights"

    confirm(dialogs["ada"], "Replay all failed")
    said = "What failed of topology 'flights' has changed since. Nothing was done"
    expect(dialogs["ada"].get_by_role("alert")).to_contain_text(said)
    close(people("ulf"))
    close(people("ada"))


@pytest.mark.long
def test_the_accept_loss_button_works_and_is_disabled_if_there_is_no_loss(
    board: Board, store: ZooKeeperStore, runs: Runs, people: People
) -> None:
    lossy = Pipeline(store, ROOT, topology="lossy")
    lossy.request = TopologyRequest("lossy", "opaque", 3)
    lossy.run("r1")
    ada = people("ada")
    ada.open(topology="lossy")
    dialog = ada.press("Accept a loss")
    expect(dialog).to_contain_text(
        "Continue topology lossy without these rows. No transaction will ever have them: rows 1 to 9."
    )
    confirm(dialog, "Accept a loss", "the log was cut")
    expect(dialog).to_contain_text("accepted as lost: rows 1 to 9")
    close(ada)
    expect(ada.board.get_by_role("region", name="Accepted losses")).to_contain_text("the log was cut")
    (repair,) = topology_view(store, lossy.paths).repairs
    assert (repair.what, repair.who, repair.why) == ("accept-loss", "ada", "the log was cut")
    assert lossy.ledger.deciding_from() == [10]
    assert audited(runs, "accept-loss")["why"] == "the log was cut"
    # A second time there is nothing to accept.
    refused = ada.press("Accept a loss")
    expect(refused).to_contain_text("Topology 'lossy' has lost nothing")
    expect(refused.get_by_role("button", name="Accept a loss", exact=True)).to_be_disabled()
    close(ada)


@pytest.mark.long
def test_the_pause_button_pauses_and_unpauses_a_coordinator(
    board: Board, store: ZooKeeperStore, runs: Runs, people: People
) -> None:
    coordinated = Pipeline(store, ROOT, topology="hangs")
    coordinated.request = TopologyRequest("hangs", "opaque", 3)
    coordinated.run("r1")
    ulf = people("ulf")
    ulf.open(topology="hangs")
    for button, other, paused in (
        ("Pause the coordinator", "Unpause the coordinator", True),
        ("Unpause the coordinator", "Pause the coordinator", False),
    ):
        dialog = ulf.press(button)
        expect(dialog).to_contain_text(f"{button} of topology hangs.")
        confirm(dialog, button)
        expect(dialog).to_contain_text(
            "DAG hangs_coordinator is paused" if paused else "DAG hangs_coordinator is unpaused"
        )
        close(ulf)
        expect(ulf.board.get_by_role("button", name=other, exact=True)).to_be_visible()
        assert board.get("topologies/hangs")["coordinator"]["paused"] is paused
        assert audited(runs, "pause" if paused else "unpause")["topology"] == "hangs"


# --- what goes wrong while a dialog is open ---------------------------------------------------------------------


@pytest.mark.long
def test_an_error_during_an_action_is_shown_in_one_sentence(
    board: Board, zookeeper: LocalZooKeeper, pipeline: Pipeline, runs: Runs, people: People
) -> None:
    """ZooKeeper goes away, the login expires, and at last the topology is deleted."""
    fail(pipeline, pipeline.begin("<b>r1</b>"))
    ulf = people("ulf")
    ulf.open(topology="flights", txid=1)
    dialog = ulf.press("Replay")
    expect(dialog).to_contain_text("1 (run <b>r1</b>): its run is created again")
    alert = dialog.get_by_role("alert")
    zookeeper.kill()
    try:
        confirm(dialog, "Replay")
        expect(alert).to_contain_text("The ledger cannot be read now: ZooKeeper does not answer.")
    finally:
        zookeeper.start()
    expect(ulf.board.get_by_text("ZooKeeper does not answer")).to_have_count(0)

    def without_login(route: Route) -> None:
        with board.client(None) as nobody:
            answer = nobody.post("/api/v1/topologies/flights/actions/replay", json={}, headers=SAME_ORIGIN)
        route.fulfill(status=answer.status_code, body=answer.text, content_type="application/json")

    dialog.get_by_role("button", name="Preview again").click()
    ulf.page.route("**/actions/replay", without_login)
    confirm(dialog, "Replay")
    expect(alert).to_have_text("You are no longer logged in. Reload the page.")
    ulf.page.unroute("**/actions/replay", without_login)

    client = connect(ClientConfig(zookeeper.hosts))
    client.delete(pipeline.paths.base, recursive=True)
    disconnect(client)
    dialog.get_by_role("button", name="Preview again").click()
    expect(alert).to_have_text("There is no such topology.")
    close(ulf)
    expect(ulf.board).to_contain_text("There is no such topology.")
    assert runs.states() == {}
