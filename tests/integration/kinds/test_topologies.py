"""The list of kinds is whole: a new public source or state needs an entry."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import airflow_tx
import airflow_tx.sources
import airflow_tx.state
from airflow_tx.sources import Source
from tests.integration.kinds import fates, own
from tests.integration.kinds.topologies import KINDS, LONG_KINDS

EVERY = (*KINDS, *LONG_KINDS)
UPDATED = ("begin_commit", "raise_fence", "multi_put", "make_state")
"""What a state does of which transactions update values: one of these."""


def named(*texts: str) -> Iterator[type]:
    """The classes that DAG files name, with those that they are made of."""
    for name in set(re.findall(r"\b[A-Z]\w+\b", " ".join(texts))):
        for module in (airflow_tx, airflow_tx.state, own):
            known = getattr(module, "__all__", dir(module))
            found: Any = getattr(module, name) if name in known else None
            if inspect.isclass(found):
                yield from found.__mro__


def public(*modules: Any) -> Iterator[Any]:
    """The public classes of modules, without protocols: they promise nothing of their own."""
    for module in modules:
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isclass(found) and not getattr(found, "_is_protocol", False):
                yield found


def test_every_public_source_has_a_test_topology() -> None:
    sources = {each for each in public(airflow_tx, airflow_tx.sources) if issubclass(each, Source)}
    assert {each.__name__ for each in sources - {*named(*(kind.source for kind in EVERY))}} == set()


def test_every_public_state_has_a_test_topology() -> None:
    states = {each for each in public(airflow_tx.state) if any(hasattr(each, name) for name in UPDATED)}
    assert len(states) > 10
    assert {each.__name__ for each in states - {*named(*(kind.state for kind in EVERY))}} == set()


def test_every_test_topology_has_a_unique_name_and_an_existing_scenario() -> None:
    assert len({kind.name for kind in EVERY}) == len(EVERY)
    assert [kind.name for kind in EVERY if not hasattr(fates, kind.fate)] == []
