"""What the board's API answers and what commands print for programs, after the story of `test_ledger`."""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi.testclient import TestClient

from airflow_tx.operations.cli import context
from airflow_tx.operations.cli.definition import get_tx_cli_commands
from airflow_tx.plugin.api import access, app, dag_process
from tests.golden.all_facts import fill
from tests.golden.board_world import SAME_ORIGIN, airflow, here, store, topology  # noqa: F401 - fixtures
from tests.golden.written import check_golden
from tests.model.driver import Topology


@pytest.fixture
def client(here: None, monkeypatch: pytest.MonkeyPatch) -> TestClient:  # noqa: F811
    manager = SimpleAuthManager()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(access, "get_auth_manager", lambda: manager)
    made = app.make_app()
    ada = access.Access(SimpleAuthManagerUser(username="ada", role="admin"))
    made.dependency_overrides[access.access_of] = lambda: ada
    return TestClient(made, raise_server_exceptions=False)


def known(answer: Any) -> Any:
    """Leave out of an answer which moment it is now, and the ids of this run."""
    text = answer if isinstance(answer, str) else json.dumps(answer)
    text = re.sub(r"20(?!13)\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", "NOW", text)
    return text if isinstance(answer, str) else json.loads(text)


def test_the_answers_of_all_get_routes_match_the_golden_file(client: TestClient) -> None:
    def get(path: str, **params: Any) -> Any:
        answer = client.get(f"/api/v1/{path}", params=params)
        assert answer.status_code < 500, answer.text
        return {"status": answer.status_code, "body": known(answer.json())}

    get("topologies")
    asking = dag_process.lag_board()._thread
    assert asking is not None
    asking.join()
    span = {"since": "2013-01-01T00:00:00Z", "until": "2013-01-01T01:00:00Z"}
    paths = [
        "topologies", "topologies/trace", "topologies/nothing", "topologies/trace/transactions",
        *(f"topologies/trace/transactions/{txid}" for txid in range(9)), "dags/trace", "dags/nothing",
        *(f"dags/trace/runs/{run_id}" for run_id in ("r1", "r8", "r9", "r10", "r11")),
    ]  # fmt: skip
    found = {path: get(path) for path in paths}
    found["none of the overview"] = get("topologies", state="fine", text="trace")
    found["a page of the timeline"] = get("topologies/trace/transactions", limit=2, before=5, **span)
    found["rows of a filter"] = get("topologies/trace/transactions", status="FAILED", limit=1, earlier=True)
    found["figures"] = get("topologies/trace/figures", **span)
    found["search"] = get("topologies/trace/search", what="2")
    found["no zone"] = get("topologies/trace/figures", since="2013-01-01T00:00:00")
    check_golden("board_reads", found)


def test_the_previews_and_results_of_all_actions_match_the_golden_file(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_tx.base import compat

    monkeypatch.setattr(compat, "clear_run", lambda *args, noting=bool, **kwargs: noting() or True)
    logged: list[Any] = []
    monkeypatch.setattr(compat, "log_action", lambda event, **entry: logged.append([event, entry]))

    def post(path: str, **body: Any) -> Any:
        answer = client.post(f"/api/v1/topologies/trace/actions/{path}", json=body, headers=SAME_ORIGIN)
        assert answer.status_code < 500, answer.text
        return {"status": answer.status_code, "body": known(answer.json())}

    wanted: Mapping[str, dict[str, Any]] = {
        "pause": {}, "unpause": {}, "accept-loss": {}, "readmit": {"txids": [3]}, "skip": {"txids": [6]},
        "replay": {"txids": [7, 99], "force": True}, "replay-failed": {}, "nothing": {},
    }  # fmt: skip
    found: dict[str, Any] = {name: post(f"{name}/preview", **body) for name, body in wanted.items()}
    found["changed rows"] = post("replay/preview", txids=[7], changed_rows=True)
    found["two skips"] = post("skip/preview", txids=[6, 7])
    found["no reason"] = post("skip", txids=[6], version="")
    for name in ("replay-failed", "skip", "replay"):
        version = post(f"{name}/preview", **wanted[name])["body"]["version"]
        found[f"{name} done"] = post(name, version=version, why="a bad file", **wanted[name])
        found[f"{name} done again"] = post(name, version=version, why="a bad file", **wanted[name])
    found["audit log"] = json.loads(
        json.dumps([[event, {**entry, "entries": [*entry["entries"]]}] for event, entry in logged])
    )
    check_golden("board_actions", found)


READS = (
    "list", "list trace", "list trace --status failed", "list --no-lag", "show trace", "show nothing",
    *(f"show trace {txid}" for txid in range(9)),
    "find trace 2", "receipts trace", "verify trace", "verify trace --values", "state get trace url.totals",
    "at trace", "at trace 3", "at trace 2", "at trace 9",
)  # fmt: skip
DEEDS = (
    "skip trace 6", "readmit trace 3", "replay trace 7", "replay trace 7 99", "replay trace --failed",
    "replay trace 7 --changed-rows", "accept-loss trace", "accept-change trace --state url.totals",
    "repair trace --reset", "repair trace --ledger-lost", "repair trace --state-lost url.totals", "delete trace",
    "state forget trace url.totals", "rename trace",
)  # fmt: skip
DONE = ("accept-loss trace", "skip trace 6", "skip trace 1", "replay trace --failed", "readmit trace 3")


@pytest.mark.parametrize("output", ["json", "table"])
def test_the_output_of_all_commands_matches_the_golden_file(
    here: None,  # noqa: F811
    output: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow.utils import db

    from airflow_tx.base import compat

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(db, "check_and_run_migrations", lambda: None)
    monkeypatch.setattr(compat, "clear_run", lambda *args, noting=bool, **kwargs: noting() or True)
    monkeypatch.setattr(context, "getuser", lambda: "ada")
    parser = _parser()
    done = [f"{line} --why text --yes" if "replay" not in line else line for line in DONE]
    found = {}
    for line in (*READS, *(f"{line} --dry-run" for line in DEEDS), *done):
        args, _ = parser.parse_known_args([*line.split(), "--output", output])
        code: Any = 0
        try:
            args.func(args)
        except SystemExit as end:
            code = end.code
        printed = capsys.readouterr()
        is_read = output == "json" and printed.out.startswith("[")
        out = json.loads(printed.out) if is_read else printed.out.splitlines()
        found[line] = {"out": known(out), "err": known(printed.err).splitlines(), "code": known(code)}
    check_golden(f"commands_{output}", found)


ROWS = (
    "list", "list trace", "list trace --wide", "list trace --status committed", "show trace",
    *(f"show trace {txid}" for txid in range(1, 8)),
    "receipts trace", "receipts trace --wide", "find trace 1", "find trace 1 --wide", "find r", "find lost --wide",
)  # fmt: skip


@pytest.mark.parametrize("output", ["json", "yaml", "plain", "table"])
def test_the_printed_details_of_transactions_match_the_golden_file(
    here: None,  # noqa: F811
    topology: Topology,  # noqa: F811
    output: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow.utils import db

    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(db, "check_and_run_migrations", lambda: None)
    fill(topology)
    found = {}
    for line in ROWS:
        args, _ = _parser().parse_known_args([*line.split(), "--output", output])
        args.func(args)
        # Every character counts, and the order of columns: neither is sorted or read as JSON.
        found[line] = known(capsys.readouterr().out).splitlines()
    check_golden(f"rows_{output}", found)


def test_the_details_of_transactions_on_the_page_match_the_golden_file(client: TestClient, topology: Topology) -> None:  # noqa: F811
    fill(topology)
    paths = ["transactions", *(f"transactions/{txid}" for txid in range(1, 8))]
    found = {path: known(client.get(f"/api/v1/topologies/trace/{path}").text) for path in paths}
    check_golden("rows_page", {path: [text] for path, text in found.items()})


def _parser() -> ArgumentParser:
    parser = ArgumentParser()
    _add(parser, get_tx_cli_commands()[0])
    return parser


def _add(parser: ArgumentParser, command: Any) -> None:
    """Add a command, or a group of these, as Airflow's own parser does."""
    if hasattr(command, "subcommands"):
        below = parser.add_subparsers()
        for each in command.subcommands:
            _add(below.add_parser(each.name), each)
        return
    for arg in command.args:
        arg.add_to_parser(parser)
    parser.set_defaults(func=command.func)
