"""Who did something, and why: in every answer of the board's API, or in none, by the right to read the audit log."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import product
from typing import Any

from airflow_tx.ledger.steps.end import note_readmission, note_skip
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.operations.actions.request import ActionName
from airflow_tx.testing.eventually import eventually
from airflow_tx.transaction.commit.handoff import take_skip
from tests.integration.board.people import everything_done
from tests.integration.board.routes import address, routes
from tests.integration.board.server import LIMITED, ROOT, SAME_ORIGIN, Board
from tests.integration.cli_runs import Runs
from tests.integration.pipeline import Pipeline

WHO, WHY = "marked-person", "marked-reason"
AUDIT = Audit(WHO, WHY)


def answers(board: Board, user: str) -> dict[str, str]:
    """What every route says to a user: about each transaction, and about each action on it."""
    found: dict[str, str] = {}
    with board.client(user) as client:
        for method, path in routes():
            if method == "GET" and "/board" not in path:
                for txid in (1, 2, 3, 4):
                    to = address(path, "flights", txid).replace("runs/r1", f"runs/r{txid}")
                    found[to] = client.get(to).text
        for action in ActionName:
            for txids, names in product(([], [2], [3], [4]), ([], ["positive"], ["tx_state.one"])):
                to = f"/api/v1/topologies/flights/actions/{action.value}/preview"
                body = {"txids": txids, "names": names}
                said = client.post(to, json=body, headers=SAME_ORIGIN).text
                found[f"{to} {txids}"] = found.get(f"{to} {txids}", "") + said
    return found


def test_names_and_reasons_are_hidden_from_users_without_access_to_the_audit_log(
    board: Board, store: ZooKeeperStore, runs: Runs
) -> None:
    pipeline = Pipeline(store, ROOT, journals=True)
    pipeline.request = replace(pipeline.request, dag_id="the_dag")
    everything_done(pipeline, AUDIT)
    runs.make(r1="success", r2="success", r3="success", r4="failed")
    eventually(lambda: board.get("topologies/flights")["repairs"], 240, "what people did is seen")
    shown: Any = board.get("topologies/flights/transactions/4", "ulf")
    assert "accept check positive" in [each["what"] for each in shown["audit"]]
    hidden = {path: text for path, text in answers(board, LIMITED).items() if WHO in text or WHY in text}
    assert hidden == {}
    shown = [path for path, text in answers(board, "ulf").items() if WHO in text and WHY in text]
    # Else there was nothing to hide.
    for part in ("/topologies/flights", "/transactions/2", "/transactions/3", "/transactions/4", "withdraw/preview []"):
        assert [path for path in shown if path.endswith(part)], (part, shown)


def test_a_readmitted_skip_hides_names_and_reasons_from_users_without_access_to_the_audit_log(
    board: Board, pipeline: Pipeline, runs: Runs
) -> None:
    pipeline.begin("r1")
    runs.make(r1="failed")
    pipeline.ledger.run(note_skip, 1, AUDIT)
    take_skip(pipeline.ledger, 1, {each.name: each for each in pipeline.states}, log=logging.getLogger(__name__))
    pipeline.ledger.run(note_readmission, 1, AUDIT)
    eventually(lambda: board.get("topologies/flights")["skipped"], 240, "the skip is seen")
    (line,) = board.get("topologies/flights", LIMITED)["skipped"]
    assert (line["skip"]["who"], line["skip"]["why"], line["readmit"]["who"]) == (None, None, None)
    assert line["skip"]["when"] is not None
