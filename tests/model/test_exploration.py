"""Every interleaving of small sizes keeps the promises, and every rule taken out is missed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import pytest

from airflow_tx.base.errors import AlreadyFinal, StaleAttempt, TxError
from airflow_tx.ledger.steps import processing
from tests.model.driver import Run, Topology
from tests.model.explorer import Report, explore
from tests.model.mutants import MUTANTS, Mutant, Trace, applied, why_found
from tests.model.shapes import Shape


def long(value: Any) -> Any:
    """A size that takes long, or one of many mutants: `script/test --all` explores them."""
    return pytest.param(value, marks=pytest.mark.long)


def lead(value: Any) -> Any:
    """A size that costs much: the rotation begins with it."""
    return pytest.param(value, marks=pytest.mark.lead)


SHAPES: list[Any] = [
    long(Shape("opaque", 2, 2, 1)),
    long(Shape("transactional", 1, 2, 1)),
    long(Shape("transactional", 2, 1, 1)),
    lead(Shape("opaque", 1, 1, 1, varies=True)),
    long(Shape("opaque", 2, 1, 1, people=("skip", "withdraw"))),
    long(Shape("transactional", 2, 1, 1, people=("skip", "withdraw"))),
    long(Shape("opaque", 1, 1, 1, people=("press",))),
    long(Shape("opaque", 1, 1, 1, people=("recovers", "late"), replays=0)),
    lead(Shape("opaque", 1, 1, 1, clears_only=True, people=("recovers", "late"), replays=0)),
    lead(Shape("opaque", 1, 1, 1, people=("late",), varies=True)),
    long(Shape("opaque", 1, 2, 1, partitions=True)),
    lead(Shape("opaque", 1, 1, 1, partitions=True)),
    Shape("opaque", 1, 1, 0, partitions=True),
    lead(Shape("transactional", 1, 1, 1, partitions=True, people=("skip",))),
    long(Shape("opaque", 1, 2, 1, shrinks=2)),
    Shape("opaque", 1, 1, 1, shrinks=2),
    lead(Shape("opaque", 1, 2, 1, rows=2)),
    Shape("opaque", 1, 2, 1, window=1, clears_only=True),
    long(Shape("opaque", 2, 1, 1, phase=True)),
    lead(Shape("opaque", 2, 1, 1, clears_only=True, phase=True)),
    Shape("opaque", 2, 1, 0, phase=True),
    long(Shape("transactional", 2, 1, 1, phase=True)),
    Shape("opaque", 1, 1, 1, lags=True),
    long(Shape("opaque", 1, 1, 0, people=("ahead", "lane"))),
    Shape("opaque", 1, 1, 0, people=("ahead",)),
    long(Shape("opaque", 1, 1, 1, people=("lane",))),
    lead(Shape("opaque", 1, 2, 0, people=("lane",))),
    Shape("opaque", 1, 1, 0, people=("lane",)),
    long(Shape("transactional", 1, 1, 1, clears_only=True, people=("skip", "set back"))),
    lead(Shape("opaque", 1, 1, 1, restates=1)),
    Shape("opaque", 1, 1, 0, restates=3),
    long(Shape("opaque", 1, 1, 1, clears_only=True, people=("skip",), restates=1)),
    long(Shape("opaque", 1, 1, 1, clears_only=True, restates=2)),
    long(Shape("opaque", 1, 2, 0, restates=2)),
    long(Shape("transactional", 2, 1, 1, restates=1)),
    Shape("opaque", 1, 1, 0, people=("rebuild",), restates=2),
    Shape("opaque", 2, 1, 0, people=("rebuild", "skip"), restates=1),
    Shape("opaque", 2, 1, 1, together=True),
    Shape("opaque", 3, 2, 0, together=True),
    Shape("opaque", 2, 1, 0, phase=True, together=True),
    Shape("opaque", 2, 1, 0, people=("lane",), together=True),
    lead(Shape("transactional", 2, 1, 1, varies=True, together=True)),
    lead(Shape("opaque", 2, 1, 1, people=("skip", "withdraw"), together=True)),
    long(Shape("opaque", 2, 1, 1, clears_only=True, restates=1, together=True)),
    long(Shape("opaque", 2, 1, 1, clears_only=True, people=("lane",), together=True)),
    long(Shape("opaque", 3, 1, 1, together=True)),
    long(Shape("opaque", 2, 2, 1, clears_only=True, together=True)),
    lead(Shape("transactional", 1, 1, 1, clears_only=True, people=("set back",), varies=True)),
    Shape("transactional", 1, 1, 0, people=("set back",), varies=True),
]


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest) -> Iterator[dict[Shape, Future[Report]]]:
    """All sizes that are wanted at once, one process a core."""
    wanted: list[Any] = [
        item.callspec.params["shape"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "reports" in item.fixturenames
    ]
    # A fresh interpreter each: a fork would take along whatever threads other tests have started.
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield {shape: pool.submit(explore, shape) for shape in wanted}


@pytest.mark.worth("every interleaving: the strongest test of the protocol")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_interleaving_of_steps_counts_each_row_once_and_in_order_and_can_continue(
    reports: dict[Shape, Future[Report]], shape: Shape, capsys: pytest.CaptureFixture[str]
) -> None:
    report = reports[shape].result()
    with capsys.disabled():
        print(f"\n  {report}", end=" ")
    assert report.endings


@pytest.mark.parametrize(
    "shape",
    [
        Shape("opaque", 2, 1, 0),
        Shape("transactional", 2, 1, 0),
        Shape("opaque", 2, 2, 0),
        Shape("opaque", 2, 1, 0, restates=1),
        Shape("opaque", 2, 1, 0, phase=True),
        long(Shape("opaque", 2, 1, 1, people=("skip",))),
    ],
    ids=str,
)
def test_a_reader_may_see_a_transaction_in_only_the_first_of_two_stores(shape: Shape) -> None:
    assert explore(shape).torn


def test_a_reader_of_one_state_never_sees_a_partial_transaction() -> None:
    assert explore(Shape("opaque", 1, 2, 0)).torn == 0


def test_every_mutant_can_be_applied_to_the_current_code() -> None:
    for mutant in MUTANTS:
        with applied(mutant):
            pass


@pytest.mark.parametrize("mutant", [each if at % 6 == 0 else long(each) for at, each in enumerate(MUTANTS)], ids=str)
def test_the_exploration_finds_each_mutant_that_removes_a_rule(mutant: Mutant) -> None:
    assert why_found(mutant), "the trace, or the explorer, did not notice"
    if isinstance(mutant.shape, Trace):
        mutant.shape.run()


NEWEST = "record.attempt != attempt.attempt"


def one_commit(topology: Topology) -> None:
    """The shortest trace of all."""
    run = Run(topology, "r1")
    run.begin(1)
    run.process({"a": 1})
    run.commit()


def by(error: type[TxError] | None) -> Trace:
    return Trace(one_commit, error=error)


@pytest.mark.parametrize("found_by", [by(AlreadyFinal), by(None), Shape("opaque", 1, 1, 0)], ids=["refusal", "", "all"])
@pytest.mark.parametrize(
    ("instead", "error"),
    [
        ("no_such_name", NameError),
        ("(_ for _ in ()).throw(AssertionError())", AssertionError),
        ("attempt.no_such_attribute", AttributeError),
    ],
)
def test_a_mutant_that_only_crashes_the_code_causes_an_error_and_does_not_count_as_found(
    found_by: Shape | Trace, instead: str, error: type[Exception]
) -> None:
    stopped = Mutant("the code stops", ((processing.newest_record, NEWEST, instead),), found_by)
    with pytest.raises(error):
        why_found(stopped)


def test_an_unexpected_refusal_in_a_trace_causes_an_error() -> None:
    stale = Mutant("no attempt is the newest", ((processing.newest_record, NEWEST, "True"),), by(None))
    with pytest.raises(StaleAttempt):
        why_found(stale)


@pytest.mark.parametrize(
    "shape",
    [
        long(Shape("opaque", 2, 1, 1)),
        long(Shape("transactional", 1, 1, 1)),
        Shape("opaque", 1, 2, 0),
        long(Shape("opaque", 1, 1, 1, clears_only=True, people=("skip",))),
        Shape("opaque", 2, 1, 0, phase=True),
    ],
    ids=str,
)
def test_the_reduced_exploration_finds_the_same_endings_as_the_full_exploration(shape: Shape) -> None:
    """Reading as soon as possible and letting unrelated runs wait end as every call in every order does."""
    assert explore(shape).endings == explore(shape, eager=False, reduce=False).endings
