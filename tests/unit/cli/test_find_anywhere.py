"""`airflow tx find WHAT` over several ledgers: one that is away is named, and holds up no other."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_tx.base.config import Settings
from airflow_tx.base.errors import StoreUnavailable
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.operations.cli import receipts
from tests.integration.pipeline import Pipeline
from tests.unit.cli.far_ledgers import elsewhere


def asked(what: str, **options: Any) -> Namespace:
    known = {"topology": None, "root": "", "conn_id": "", "dag_id": None, "output": "plain", "wide": False}
    return Namespace(what=what, **{**known, **options})


@pytest.fixture
def ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One ledger here, one far away with a topology, and one that does not answer."""
    here, far = MemoryStore(), MemoryStore()
    Pipeline(here, Settings.load().root).run("run_here")
    Pipeline(far, "/far", topology="far").run("run_there")

    def connect(conn_id: str) -> Any:
        if conn_id == "gone":
            raise StoreUnavailable(hosts="h", connection="gone", reason="it is away")
        return far

    @contextmanager
    def store_here(args: Namespace) -> Iterator[Any]:
        yield here

    elsewhere(monkeypatch, "good", "gone", connect=connect)
    monkeypatch.setattr(receipts, "store_of", store_here)


@pytest.mark.usefixtures("ledgers")
def test_find_searches_every_reachable_ledger_and_names_the_unreachable_ledgers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    receipts.find_anywhere(asked("RUN_"))
    shown = capsys.readouterr()
    assert [line.split()[:2] for line in shown.out.splitlines()[1:]] == [["flights", "1"], ["far@good/far", "1"]]
    assert shown.err.startswith("Topology far@gone/far was not searched: ")


@pytest.mark.usefixtures("ledgers")
def test_find_without_a_match_names_the_command_that_searches_one_topology(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"Searched: 2 transactions of 2 topologies.*airflow tx find TOPOLOGY WHAT"):
        receipts.find_anywhere(asked("nowhere"))


@pytest.mark.parametrize(("what", "options"), [(" ", {}), ("x", {"dag_id": "dag"})])
def test_a_find_command_with_ambiguous_arguments_is_refused(what: str, options: dict[str, str]) -> None:
    with pytest.raises(SystemExit) as ended:
        receipts.find_anywhere(asked(what, **options))
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("line", "topology", "what"),
    [
        ("find 03.csv", None, "03.csv"),
        ("find flights 03.csv", "flights", "03.csv"),
        ("find --wide flights 03.csv", "flights", "03.csv"),
        ("find 03.csv --output json", None, "03.csv"),
    ],
)
def test_find_works_without_the_name_of_a_topology(line: str, topology: str | None, what: str) -> None:
    from airflow.cli import cli_parser

    args = cli_parser.get_parser().parse_args(["tx", *line.split()])
    assert (args.topology, args.what) == (topology, what)
