"""`airflow tx rejected` as a person types it, on transactions of Python tasks and Spark applications."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]

from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.spark import Batch
from airflow_tx.state import DeltaTable, SqlTable
from tests.integration.commands import Commands
from tests.integration.rejecting_app import applied
from tests.integration.rejecting_topology import MALFORMED, Rejecting
from tests.unit.commit.run import killed_before_the_mark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = ("sqlite", "postgres", "mariadb", "delta")
LATE = ({"page": "home", "seconds": 90}, "too late")
NEGATIVE = ({"page": "home", "seconds": -1}, "below 0")
Made = Callable[[str], Rejecting]


@pytest.fixture
def make(
    request: pytest.FixtureRequest,
    commands: Commands,
    store: ZooKeeperStore,
    zookeeper_root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table: str,
) -> Made:
    """Make the topology with a table of a kind, and its DAG file."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))

    def made(kind: str) -> Rejecting:
        commands.begin({})
        url = f"sqlite:///{commands.database}" if kind == "sqlite" else ""
        if kind in ("postgres", "mariadb"):
            url = request.getfixturevalue(kind).url()
            told = url.replace("postgresql+psycopg2", "postgres").replace("mysql+pymysql", "mysql")
            commands.environment["AIRFLOW_CONN_ASIDE"] = told
        conn_id = "tx_state" if kind == "sqlite" else "aside"
        aside: Any = DeltaTable(tmp_path / "lake")
        named = f'DeltaTable("{tmp_path / "lake"}")'
        if kind != "delta":
            aside = SqlTable.from_url(url, table=table, label=conn_id)
            named = f'SqlTable("{conn_id}", table="{table}")'
        topology = Rejecting(store, zookeeper_root, tmp_path, aside, named)
        (commands.dags / "visits.py").write_text(topology.dag_file())
        return topology

    return made


@pytest.fixture
def visits(make: Made) -> Rejecting:
    return make("sqlite")


@pytest.fixture
def typed(commands: Commands, zookeeper_root: str) -> Iterator[Callable[..., str]]:
    """Type the command: what it prints."""

    def run(*words: str) -> str:
        return commands.run("tx", "rejected", "visits", *words, root=zookeeper_root)

    yield run
    commands.environment.pop("AIRFLOW_CONN_ASIDE", None)


@pytest.fixture
def asked(typed: Callable[..., str]) -> Callable[..., Any]:
    """Type the command: what it prints as JSON."""
    return lambda *words: json.loads(typed(*words, "--output", "json"))


@pytest.fixture
def refused(commands: Commands, zookeeper_root: str) -> Callable[..., str]:
    """Type the command: the one line with which it is refused."""

    def run(*words: str) -> str:
        tried = commands.tried("tx", "rejected", *words, root=zookeeper_root)
        assert (tried.broken, tried.output) == ("", "")
        assert tried.code is not None
        (line,) = tried.refusal.strip().splitlines()
        return line

    return run


def counts(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows]


# --- counts -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=KINDS)
def each_kind(request: pytest.FixtureRequest, make: Made) -> Rejecting:
    return make(request.param)


def test_the_rejected_command_counts_rows_of_tasks_and_malformed_rows_in_each_kind_of_table(
    each_kind: Rejecting, asked: Callable[..., Any]
) -> None:
    each_kind.committed("r1", [LATE, NEGATIVE], "home,5", "help,soon", "home,90")
    each_kind.committed("r2", [LATE])
    assert counts(asked()) == [
        ("count", "too late", 2, 2, 1, 2),
        ("", MALFORMED, 1, 1, 1, 1),
        ("count", "below 0", 1, 1, 1, 1),
    ]


def test_the_rejected_command_shows_the_rows_of_one_transaction_in_each_kind_of_table(
    each_kind: Rejecting, asked: Callable[..., Any]
) -> None:
    each_kind.committed("r1", [LATE], "home,5", "help,soon")
    (found,) = asked("1")
    assert (found["txid"], found["rejected"], found["more"]) == (1, 2, 0)
    assert counts(found["reasons"]) == [("", MALFORMED, 1), ("count", "too late", 1)]
    bad, late = found["rows"]
    assert (bad["task"], bad["reason"], bad["content"]) == ("", MALFORMED, '{"page":"help","seconds":"soon"}')
    assert bad["where"].endswith("r1.csv:3")
    assert late == {
        "task": "count", "reason": "too late", "where": "", "content": '{"page": "home", "seconds": 90}'
    }  # fmt: skip


def test_the_rejected_command_counts_a_restatement_instead_of_the_restated_transaction(
    each_kind: Rejecting, asked: Callable[..., Any]
) -> None:
    each_kind.committed("r1", [LATE])
    each_kind.committed("r2", [LATE])
    each_kind.restate(1, "r1", [NEGATIVE])
    assert counts(asked()) == [("count", "below 0", 1, 1, 3, 3), ("count", "too late", 1, 1, 2, 2)]


def test_a_restatement_without_rejected_rows_removes_the_rows_of_the_restated_transaction(
    each_kind: Rejecting, asked: Callable[..., Any]
) -> None:
    each_kind.committed("r1", [LATE])
    each_kind.restate(1, "r1")
    assert asked() == []


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["sqlite", "delta"])
def test_the_rejected_command_counts_the_rows_that_a_spark_application_rejects(
    make: Made, asked: Callable[..., Any], spark: SparkSession, kind: str
) -> None:
    visits = make(kind)
    run = visits.begin("r1", "home,5", "help,soon", "home,-1")

    def main(spark: SparkSession, batch: Batch) -> None:
        batch.reject(batch.read().where("seconds < 0"), "below 0")

    applied(run, spark, main)
    visits.commit(run)
    (found,) = asked("1")
    assert counts(found["reasons"]) == [("", MALFORMED, 1), ("count", "below 0", 1)]
    assert [json.loads(row["content"]) for row in found["rows"] if row["task"]] == [{"page": "home", "seconds": -1}]


def _early(topology: Rejecting, txid: int) -> str:
    return f"State {topology.table.name}: transaction {txid}, which is not final: its rows do not count yet"


def test_the_rejected_command_does_not_count_rows_of_a_commit_that_is_not_final(
    each_kind: Rejecting, asked: Callable[..., Any], refused: Callable[..., str], commands: Commands
) -> None:
    each_kind.committed("r1", [LATE])
    each_kind.commit(each_kind.processed("r2", [LATE]), killed_before_the_mark)
    assert set(each_kind.table.rows_by_txid() or ()) == {1, 2}
    assert counts(asked()) == [("count", "too late", 1, 1, 1, 1)]
    assert "The transaction is COMMITTING, and its rows count once it is COMMITTED." in refused("visits", "2")
    told = commands.told("tx", "rejected", "visits", root=each_kind.root)
    assert told.splitlines()[-1] == _early(each_kind, 2)


def test_the_rejected_command_names_a_restatement_that_is_not_final_yet(
    each_kind: Rejecting, asked: Callable[..., Any], commands: Commands
) -> None:
    each_kind.committed("r1", [LATE])
    each_kind.committed("r2", [NEGATIVE])
    each_kind.restate(1, "r1", [LATE], commit=killed_before_the_mark)
    assert counts(asked()) == [("count", "below 0", 1, 1, 2, 2)]
    told = commands.told("tx", "rejected", "visits", root=each_kind.root)
    assert told.splitlines()[-1] == _early(each_kind, 3)


def test_the_rejected_command_does_not_count_a_skipped_transaction(
    each_kind: Rejecting, asked: Callable[..., Any]
) -> None:
    each_kind.commit(each_kind.processed("r1", [LATE]), killed_before_the_mark)
    each_kind.skip(1)
    each_kind.committed("r2", [LATE])
    assert counts(asked()) == [("count", "too late", 1, 1, 2, 2)]


def test_the_rejected_command_can_filter_rows_by_task_and_reason(visits: Rejecting, asked: Callable[..., Any]) -> None:
    visits.committed("r1", [LATE, NEGATIVE], "home,5", "help,soon", "home,90")
    assert counts(asked("--task", "count", "--reason", "too late")) == [("count", "too late", 1, 1, 1, 1)]
    assert [row["task"] for row in asked("--task", "(malformed)")] == [""]
    (found,) = asked("1", "--reason", "below 0")
    assert [row["reason"] for row in found["rows"]] == ["below 0"]
    assert found["rejected"] == 1


def test_the_rejected_command_reports_hidden_rows_and_names_the_option_that_prints_them(
    visits: Rejecting, typed: Callable[..., str], asked: Callable[..., Any]
) -> None:
    visits.committed("r1", [({"n": number}, "odd") for number in range(25)], *["home,5"] * 25)
    assert [len(asked("1", *words)[0]["rows"]) for words in ((), ("--limit", "3"), ("--limit", "0"))] == [20, 3, 0]
    last = typed("1").splitlines()[-1]
    assert last == "5 more rows. To print all of them, add --limit 25."
    assert len(asked("1", *last.rpartition("add ")[2].rstrip(".").split())[0]["rows"]) == 25


def test_the_rejected_command_can_print_plain_tables(
    visits: Rejecting, typed: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    visits.committed("r1", [LATE], "home,5", "help,soon")
    plain = [line.split() for line in typed("--output", "plain").splitlines()]
    assert plain[0] == ["task", "reason", "rows", "transactions", "first", "last"]
    assert plain[1][0] == "(malformed)"
    assert '{"page": "home", "seconds": 90}' in typed("1", "--output", "plain")


def test_the_yaml_output_of_the_rejected_command_equals_its_json_output(
    visits: Rejecting, typed: Callable[..., str], asked: Callable[..., Any]
) -> None:
    visits.committed("r1", [LATE], "home,5", "help,soon")
    for words in ((), ("1",)):
        assert yaml.safe_load(typed(*words, "--output", "yaml")) == asked(*words)


# --- nothing rejected ---------------------------------------------------------------------------------------------


def test_the_rejected_command_succeeds_if_the_table_does_not_exist_yet(
    each_kind: Rejecting, typed: Callable[..., str]
) -> None:
    each_kind.begin("r1")
    assert typed() == "No rejected row matches the command.\n"


def test_the_rejected_command_succeeds_for_a_transaction_without_rejected_rows(
    each_kind: Rejecting, typed: Callable[..., str]
) -> None:
    each_kind.committed("r1")
    assert typed("1") == "No rejected row matches the command.\n"


# --- refusals -----------------------------------------------------------------------------------------------------


def follow(commands: Commands, line: str, root: str) -> str:
    """Type the command at the end of a refusal: what it prints."""
    words = shlex.split(line[line.rindex("airflow tx ") :])
    return commands.run(*words[1:], root=root)


def test_the_rejected_command_is_refused_if_the_topology_has_no_table_of_rejected_rows(
    visits: Rejecting, commands: Commands, refused: Callable[..., str]
) -> None:
    (commands.dags / "visits.py").write_text(visits.dag_file(rejected=False))
    visits.begin("r1")
    assert refused("visits") == (
        "TOPOLOGY = 'visits' cannot be used. The Transaction of its DAG keeps no rejected rows. "
        "Name a table for them: rejected=DeltaTable(...)."
    )


def test_the_rejected_command_is_refused_for_an_unknown_transaction(
    visits: Rejecting, commands: Commands, refused: Callable[..., str]
) -> None:
    visits.committed("r1", [LATE])
    line = refused("visits", "99")
    assert "No transaction 99 of topology 'visits'" in line
    assert "r1" in follow(commands, line, visits.root)


def test_the_rejected_command_is_refused_for_an_unknown_topology(
    visits: Rejecting, refused: Callable[..., str]
) -> None:
    assert "No topology 'nothing'" in refused("nothing")


def test_the_rejected_command_is_refused_for_an_open_transaction_that_has_written_no_rows_yet(
    visits: Rejecting, commands: Commands, refused: Callable[..., str]
) -> None:
    visits.commit(visits.processed("r1", [LATE]), lambda commit: commit.complete())
    line = refused("visits", "1")
    assert line.startswith("TXID = 1 cannot be used. The transaction is PROCESSED, and nothing has been written yet.")
    assert "count: rejected 1 of 1 rows" in follow(commands, line, visits.root)


def test_the_rejected_command_is_refused_for_a_skipped_transaction_because_it_wrote_no_row(
    visits: Rejecting, commands: Commands, refused: Callable[..., str]
) -> None:
    visits.processed("r1", [LATE])
    visits.skip(1)
    line = refused("visits", "1")
    assert line.startswith("TXID = 1 cannot be used. It was skipped, so nothing was written.")
    assert "SKIPPED" in follow(commands, line, visits.root)


def test_the_rejected_command_names_the_restatement_of_a_restated_transaction(
    visits: Rejecting, commands: Commands, refused: Callable[..., str]
) -> None:
    visits.committed("r1", [LATE])
    visits.restate(1, "r1", [NEGATIVE])
    line = refused("visits", "1")
    assert "Transaction 2 restated it, and took its rejected rows out of the table" in line
    assert "below 0" in follow(commands, line, visits.root)


def test_the_rejected_command_is_refused_if_the_table_belongs_to_another_topology(
    visits: Rejecting, commands: Commands
) -> None:
    visits.committed("r1", [LATE])
    (visits.folder / "other").mkdir()
    other = Rejecting(visits.store, f"{visits.root}/other", visits.folder / "other", visits.table, visits.named)
    other.begin("r1")
    line = commands.run("tx", "rejected", "visits", root=other.root, fails=True)
    assert f"State {other.table.name!r} refused: another topology writes it, or an earlier ledger" in line
    assert line.endswith("Compare them: airflow tx verify visits")


@pytest.mark.parametrize("limit", ["many", "-1", "1.5", "²"])
def test_the_rejected_command_is_refused_if_the_limit_is_not_a_number(
    visits: Rejecting, refused: Callable[..., str], limit: str
) -> None:
    visits.committed("r1", [LATE])
    assert refused("visits", "1", f"--limit={limit}") == (
        f"--limit {limit}: this is not a number. Give a number from 0, such as --limit 20."
    )


@pytest.mark.parametrize("words", [(), ("1",)])
def test_the_rejected_command_names_an_unreachable_store_in_one_line_without_its_password(
    make: Made, commands: Commands, refused: Callable[..., str], words: tuple[str, ...]
) -> None:
    visits = make("postgres")
    visits.committed("r1", [LATE])
    commands.environment["AIRFLOW_CONN_ASIDE"] = "postgres://nobody:sesame@127.0.0.1:1/x"
    line = refused("visits", *words)
    assert re.match(r"State 'aside\.\w+' \(connection aside\) cannot be reached: ", line)
    assert line.endswith("Repeat the command when the store answers.")
    assert "sesame" not in line
