"""A column of the page has the type of the fact that it shows: the type decides who may read it, and what is left out.

`answer_of` takes facts by their names, so the type checker does not compare the two.
"""

from __future__ import annotations

from dataclasses import fields
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from airflow_tx.ledger.receipt import Receipt, TaskRows
from airflow_tx.ledger.records import RepairRecord, TopologyRecord, TransactionRecord
from airflow_tx.ledger.views.status import Person, TransactionView
from airflow_tx.plugin.api.access import RepairLine, answer_of
from airflow_tx.plugin.api.routes import FoundAnywhere, FoundLine
from airflow_tx.plugin.api.timeline import AttemptBar, TimelineRow
from airflow_tx.plugin.api.topologies import TopologyPage
from airflow_tx.plugin.api.transaction_page import AttemptLine, AuditLine, ReceiptLine, TaskWork, TransactionPage

SPELLED = {
    TimelineRow: "phase tasks",
    TransactionPage: "batch changed checks phase readmit receipt skip tasks unproven",
    FoundLine: "phase",
    FoundAnywhere: "phase",
    TopologyPage: "losses states",
    ReceiptLine: "granted",
    RepairLine: "when",
}
"""The columns of another type than the fact of the same name: what fills them gives them itself."""


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        (TimelineRow, TransactionView),
        (TransactionPage, TransactionView),
        (FoundLine, TransactionView),
        (FoundAnywhere, TransactionView),
        (AttemptLine, AttemptBar),
        (TaskWork, TaskRows),
        (ReceiptLine, Receipt),
        (AuditLine, Person),
        (RepairLine, RepairRecord),
        (TopologyPage, TopologyRecord),
    ],
)
def test_a_column_of_an_answer_has_the_type_of_the_field_that_it_shows(kind: type[Any], facts: type[Any]) -> None:
    known = _types(facts)
    shown = {name: each for name, each in _types(kind).items() if name in known}
    wrong = {name for name, each in shown.items() if not _parts(known[name]) <= _parts(each)}
    assert shown
    assert wrong == set(SPELLED.get(kind, "").split())


def _types(kind: type[Any]) -> dict[str, Any]:
    """Return the type of each field and property, without what pydantic reads; of a view, also those of its record."""
    own = _own_types(kind)
    return {**_own_types(TransactionRecord), **own} if kind is TransactionView else own


def _own_types(kind: type[Any]) -> dict[str, Any]:
    members = {name: each for base in kind.__mro__ for name, each in vars(base).items()}
    found = {name: get_type_hints(each.fget).get("return") for name, each in members.items() if type(each) is property}
    return {**found, **get_type_hints(kind)}


def _parts(hint: Any) -> frozenset[Any]:
    """Return what a type allows: `Words | None`, `Optional[str]` and `str | None` are the same."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return frozenset().union(*map(_parts, get_args(hint)))
    return frozenset({(origin or hint, *map(_parts, get_args(hint)))})


def test_a_value_that_is_passed_for_a_column_overrides_the_value_of_the_field() -> None:
    line = answer_of(AuditLine, Person(who="ada", when=None, why="a bug"), what="skip", why="another one")  # type: ignore[arg-type]
    assert [getattr(line, each.name) for each in fields(line)] == ["skip", "ada", None, "another one"]
