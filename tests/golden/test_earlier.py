"""What an earlier release has stored is read: its names of classes, its journal, and a ledger in each phase.

`earlier` has what that release wrote, at b37eace5: before modules had rooms, and the staging area an incarnation.
In `ledger` the output of a task alone is rewritten: `tests.model.driver` writes its own.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest
import sqlalchemy
from airflow._shared.module_loading import import_string

from airflow_tx.base.described import stored_name
from airflow_tx.ledger.api import Create
from airflow_tx.ledger.json_text import dumps
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.outputs.journal import JournalArea
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.sources.api import Source, rebuild
from airflow_tx.sources.run.partition import IntervalSource
from airflow_tx.state import SqlState, Sum
from airflow_tx.triggers.base import LedgerTrigger
from tests.golden.story import story
from tests.golden.written import check_golden
from tests.model.driver import Run, Topology

FOLDER = Path(__file__).parent / "earlier"
OF_ROOMS: dict[type, list[str]] = {
    Source: ["airflow_tx.sources"],
    LedgerTrigger: ["airflow_tx.triggers", "airflow_tx.coordinator"],
}


def read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


# --- names ---------------------------------------------------------------------------------------------------------


def stored_classes(base: type) -> Iterator[type]:
    """Give the classes whose names a ledger, a descriptor or Airflow's database has."""
    for room in OF_ROOMS[base]:
        for module in walk_packages(import_module(room).__path__, f"{room}."):
            for each in vars(import_module(module.name)).values():
                own = inspect.isclass(each) and each.__module__ == module.name and not each.__name__.startswith("_")
                if own and issubclass(each, base) and not inspect.isabstract(each) and each is not IntervalSource:
                    yield each  # that one is made as one of its subclasses alone


@pytest.mark.parametrize("base", OF_ROOMS)
def test_a_stored_name_leads_to_its_class(base: type) -> None:
    found = list(stored_classes(base))
    assert [import_string(stored_name(each)) for each in found] == found


def test_the_stored_names_are_as_ever() -> None:
    check_golden(
        "stored_names", {base.__name__: sorted(set(map(stored_name, stored_classes(base)))) for base in OF_ROOMS}
    )


@pytest.mark.parametrize("name", read("stored_names"))
def test_a_name_that_an_earlier_release_has_stored_leads_to_its_class(name: str) -> None:
    assert import_string(name).__name__ == name.rpartition(".")[2]


@pytest.mark.parametrize("name", read("triggers"))
def test_a_trigger_that_an_earlier_release_has_deferred_is_made_again(name: str) -> None:
    path, arguments = read("triggers")[name]
    written, again = import_string(path)(**arguments).serialize()
    assert import_string(written) is import_string(path)
    assert {each: again[each] for each in arguments} == arguments


@pytest.mark.parametrize("name", read("sources"))
def test_a_source_that_an_earlier_release_has_written_is_made_again(name: str) -> None:
    path, arguments = read("sources")[name]["serialized"]
    written, again = rebuild(path, arguments).serialize()
    assert (import_string(written), again) == (import_string(path), arguments)


# --- places --------------------------------------------------------------------------------------------------------


def test_an_entry_that_an_earlier_release_has_written_is_read_where_it_is(tmp_path: Path) -> None:
    entry = read("entry")
    area = StagingArea(str(tmp_path))
    area.files.write(f"@journal/life-1/{entry['name']}", dumps(entry["content"]).encode())
    found = JournalArea(area, "life-1").read(entry["name"])
    fares = {row["carrier"]: row["fare"] for row in found.contributions["flights"].rows()}
    assert fares == {"AA": Decimal("1.10"), "UA": 7}


# --- a ledger and its state ----------------------------------------------------------------------------------------


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    """The story of an earlier release."""
    url = f"sqlite:///{tmp_path / 'state.db'}"
    state = SqlState.from_url(url, table="totals", keys=["key"], values={"n": Sum()}, types={"key": "text"})
    scratch = MemoryStore()
    story(Topology(lambda: scratch, "/golden", [state]))  # it makes the tables
    with sqlalchemy.create_engine(url).begin() as connection:
        for table, rows in read("sql_state").items():
            connection.exec_driver_sql(f"DELETE FROM {table}")
            for row in rows:
                named = {column: closed(value) for column, value in row.items()}
                places = ", ".join(f":{column}" for column in named)
                text = f"INSERT INTO {table} ({', '.join(named)}) VALUES ({places})"
                connection.execute(sqlalchemy.text(text), named)
    store = MemoryStore()
    topology = Topology(lambda: store, "/golden", [state])
    for _ in range(1000):
        topology.ids.nonce()  # the story has the first ones
    topology.clock.advance(3600)
    store.ensure("/golden")
    for path, record in sorted(read("ledger").items()):
        place = topology.paths.base + path.rstrip("/")
        store.multi((), [Create(place, str(closed(record)).encode())])
    return topology


def closed(value: Any) -> Any:
    """Write a record as it was."""
    return dumps(value["record"]) if isinstance(value, dict) else value


def test_transactions_that_an_earlier_release_left_in_each_phase_are_committed(topology: Topology) -> None:
    assert topology.totals() == {"a": 3, "b": 1, "c": 3}  # the last one is written, and not marked
    granted = Run(topology, "r3")
    granted.begin(3, task_try="00000070")  # the try that began it
    granted.commit()
    topology.take_skip(5)
    Run(topology, "r6").whole(2, {"a": 2})
    Run(topology, "r7").whole(1, {"b": 1})
    assert topology.totals() == {"a": 5, "b": 2, "c": 3}
