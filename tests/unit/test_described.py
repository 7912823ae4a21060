"""What follows from the arguments of a constructor: the written form, the repr, and what a copy leaves out."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from airflow_tx import DataIntervalSource, FileSource, SqlSource, committed_asset
from airflow_tx.base.described import Described
from airflow_tx.base.errors import ConfigError
from airflow_tx.state import DeltaTable, RedisState, SqlState, Sum


class Base(Described):
    always_written = ("kind",)

    def __init__(self, place: str, *, kind: str = "plain", limit: int | None = None) -> None:
        self.place = place


class Shelf(Base):
    """Its own argument stands once, in its signature."""

    def __init__(self, names: str | Sequence[str], *, deep: bool = False, **options: Any) -> None:
        super().__init__("here", **options)
        self.normalize(names=[names] if isinstance(names, str) else names)

    @cached_property
    def opened(self) -> list[str]:
        return ["by this process"]


class Hidden(Base):
    in_repr = ("limit",)


class Told(Base):
    always_shown = ("kind",)
    left_out = ("limit",)


class Bare(Described):
    """No constructor."""


def test_an_argument_is_serialized_unless_it_has_its_default_value() -> None:
    assert Shelf("a", limit=None).described() == (f"{__name__}.Shelf", {"names": ["a"], "kind": "plain"})
    assert Shelf(("a", "b"), deep=True, limit=3).arguments() == {
        "names": ["a", "b"],
        "deep": True,
        "kind": "plain",
        "limit": 3,
    }
    assert Bare().arguments() == {}


def test_a_repr_shows_arguments_that_differ_from_their_defaults_or_that_the_class_selects() -> None:
    assert repr(Shelf("a")) == "Shelf('a')"
    assert repr(Shelf(["a", "b"], kind="odd")) == "Shelf(['a', 'b'], kind='odd')"
    assert repr(Hidden("x", kind="odd", limit=1)) == "Hidden('x', limit=1)"
    assert repr(Bare()) == "Bare()"


def test_a_class_may_always_show_an_argument_and_may_omit_one_that_is_local_to_the_process() -> None:
    told = Told("x", limit=3)
    assert repr(told) == "Told('x', kind='plain')"
    assert told.arguments() == {"place": "x", "kind": "plain"}
    assert "limit" not in str(vars(told))


def test_a_copy_of_an_object_opens_its_own_resources() -> None:
    shelf = Shelf("a")
    shelf.opened.append("more")
    for other in (copy.copy(shelf), pickle.loads(pickle.dumps(shelf))):
        assert other.arguments() == shelf.arguments()
        assert other.opened == ["by this process"]


def test_wrong_arguments_raise_the_error_of_the_constructor_itself() -> None:
    with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional argument: 'names'"):
        Shelf()  # type: ignore[call-arg]


DAY = "{{ ds_nodash }}"
VALUES: Any = {"keys": ["word"], "values": {"n": Sum()}}


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: SqlState("tx_state", table=f"totals_{DAY}", **VALUES), r"SqlState\(table=\)"),
        (lambda: SqlState("{{ var.value.conn }}", table="totals", **VALUES), r"SqlState\(conn_id=\)"),
        (lambda: RedisState("redis", prefix=f"p:{DAY}", **VALUES), r"RedisState\(prefix=\)"),
        (lambda: DeltaTable(Path("/lake", DAY)), r"DeltaTable\(uri=\)"),
        (lambda: FileSource(f"in/{DAY}/*.csv"), r"FileSource\(path_glob=\)"),
        (lambda: SqlSource("shop", table="orders", order_by=["id", DAY]), r"SqlSource\(order_by=\)"),
        (lambda: DataIntervalSource("a.reader", options={"day": DAY}), r"DataIntervalSource\(options=\)"),
        (lambda: committed_asset(f"flights_{DAY}"), r"committed_asset\(topology=\)"),
    ],
)
def test_a_template_in_an_argument_that_is_not_rendered_is_refused_with_a_one_line_error(
    make: Callable[[], Any], argument: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{argument} = '.*so each run would get this text. Write a fixed value"):
        make()


def test_a_custom_class_may_accept_templates() -> None:
    assert repr(Shelf(DAY)) == f"Shelf({DAY!r})"
