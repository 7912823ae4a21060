"""The process behind Skip, Accept a loss and changed rows, with all that it imports."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from airflow_tx.plugin.api.dag_process import DagProcess, RefusedThere
from tests.integration.board.server import ROOT, Board
from tests.integration.pipeline import Pipeline


def fresh(board: Board) -> DagProcess:
    """A process that has imported nothing, as the api-server of the board starts it."""
    environment = [f"{name}={value}" for name, value in board.commands.environment.items()]
    return DagProcess(("env", "-i", *environment, sys.executable, "-m", "airflow_tx.actions.dag_server"))


def test_questions_that_arrive_together_in_a_new_process_are_all_answered(board: Board, pipeline: Pipeline) -> None:
    pipeline.begin("r1")
    conn_id = "zookeeper_default"
    request = {
        "topology": "flights", "conn_id": conn_id, "root": ROOT, "coordinator": "flights_coordinator", "name": "replay",
        "txids": [1], "force": True, "changed_rows": True,
    }  # fmt: skip
    preview = {"what": "preview", "request": request}
    lag = {"lags": [["flights", "the_dag", conn_id, ROOT, "flights"]]}
    process = fresh(board)

    def asked(question: dict[str, Any]) -> str:
        try:
            process.ask(question, seconds=60)
        except RefusedThere:
            pass  # a refusal is an answer, too
        return "answered"

    questions = [preview, lag] * 4
    try:
        with ThreadPoolExecutor(len(questions)) as pool:
            assert list(pool.map(asked, questions)) == ["answered"] * len(questions)
    finally:
        process.end()
