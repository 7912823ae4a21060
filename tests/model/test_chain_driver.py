"""The real ledgers, and the real `UpstreamSource`, do what the model of chains does."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from airflow_tx.ledger import Batch, Correction, CorrectionReader, TakenRange, TransactionAttempt
from airflow_tx.ledger.receipt import Replaced
from airflow_tx.ledger.records import EndLine
from airflow_tx.sources import UpstreamSource
from airflow_tx.state import TableCounts
from tests.model.chain_driver import Real, view
from tests.model.chain_promises import spelled, spelled_out, ways
from tests.model.chains import NONE_LEFT, RIGHT, Budget, Shape, Step, World, steps

ONE = Shape(Budget(fresh=1, restates=1))
EMPTY = replace(ONE, sizes=(0,), most=1)
"""The transaction of U has no rows, and its restatement has some."""
SKIPPED = replace(EMPTY, budget=Budget(fresh=1, restates=1, skips=1, readmits=1))
TWICE = Shape(Budget(fresh=1, restates=2))
BACKLOG = Shape(Budget(fresh=2, restates=1), sizes=(1, 0), most=1, window=1)
QUICK = [ONE, replace(ONE, sizes=(1, 0)), replace(ONE, most=1)]
LARGER = [
    EMPTY,
    SKIPPED,
    replace(ONE, stages=3),
    TWICE,
    BACKLOG,
    replace(TWICE, refused=2),
    Shape(Budget(fresh=1, restates=2, withdrawn=1)),
    Shape(Budget(fresh=2, restates=1)),
]
EVERYTHING = Budget(2, 2, 1, 1, 1, 1, 1, 1, 1)


class Pair:
    """A model and the real ledgers, which take the same steps."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.world = World.first(shape)
        self.real = Real(shape)
        self.path: list[Step] = []

    def possible(self) -> list[tuple[Step, World]]:
        """Give the next steps."""
        return list(steps(self.world, self.shape, RIGHT))

    def take(self, step: Step, then: World) -> None:
        """Make a step, and compare."""
        self.path.append(step)
        self.world = then
        try:
            self.real.do(step, then)
            assert self.real.view() == view(then)
            self.real.check(then, {each for each, _ in self.possible()})
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} after {spelled(self.path)}") from error

    def go(self, path: Iterable[Step]) -> None:
        """Make steps."""
        for step in path:
            self.take(step, dict(self.possible())[step])

    def rest(self) -> None:
        """Let nothing disturb the stages any more."""
        self.world = self.world._replace(left=NONE_LEFT)
        while possible := self.possible():
            self.take(*possible[0])


def take_every_way(shape: Shape) -> None:
    """Take the shortest way to each world, and from there to rest."""
    for way in ways(shape):
        pair = Pair(shape)
        pair.go(way)
        pair.rest()


@pytest.mark.parametrize("shape", [*QUICK, *(pytest.param(shape, marks=pytest.mark.long) for shape in LARGER)], ids=str)
def test_the_ledgers_match_the_model_on_every_path(shape: Shape) -> None:
    take_every_way(shape)


@pytest.mark.parametrize("stages", [2, 3])
def test_the_ledgers_match_the_model_on_random_walks(stages: int) -> None:
    for seed in range(5):
        choice = random.Random(seed)
        pair = Pair(Shape(EVERYTHING, stages=stages, window=3, sizes=(1, 2, 1, 0, 1)))
        for _ in range(40):
            if possible := pair.possible():
                pair.take(*choice.choice(possible))
        pair.rest()


def test_a_correction_that_commits_before_a_readmission_begins_is_noticed() -> None:
    """The readmission has decided its ends before: the cursor must not pass the correction because of the skip."""
    pair = Pair(SKIPPED)
    pair.go(
        spelled_out(
            "U: begin 1, write 1, mark 1, restate 1, write 2; D: follow, decide up to 1, allocate, skip 1, re-admit 1, "
            "decide to re-admit 1; U: mark 2; D: allocate 1, read 2, read 2, write 2, mark 2, follow"
        )
    )
    assert pair.world.stages[1].wanted == (2,)
    pair.rest()


# --- a rule that the code lacks -----------------------------------------------------------------------------------


def _same(source: UpstreamSource, attempt: TransactionAttempt, metadata: Any) -> Batch:
    return Batch(metadata, None, sum(TakenRange.of(metadata).counts.values()))


def _uncounted(source: UpstreamSource, metadata: Any) -> TableCounts:
    source._taken = TakenRange.of(metadata)
    return source.table.counts([int(txid) for txid in source._taken.counts])


LACKS: Mapping[str, tuple[Shape, type, str, Any]] = {
    "rows are not counted before": (
        ONE,
        UpstreamSource,
        "_counts",
        _uncounted,
    ),
    "rows are not counted after": (ONE, UpstreamSource, "check_read", lambda source, attempt: None),
    "an attempt keeps the ends of the first": (ONE, UpstreamSource, "decide_again", _same),
    "a restatement counts at its own txid": (replace(ONE, most=1), EndLine, "counts", property(lambda line: True)),
    "a restatement names its predecessor": (TWICE, Replaced, "begins", property(lambda replaced: replaced.txid)),
    "the cursor passes what is not taken": (BACKLOG, CorrectionReader, "_last_taken", 99),
    "the cursor passes what is wanted back": (SKIPPED, CorrectionReader, "_is_wanted_back", lambda reader, txid: False),
    "a request is repeated": (replace(TWICE, refused=2), Correction, "is_noted", False),
    "a follow-up waits for no other correction": (TWICE, CorrectionReader, "_is_postponed", lambda *_: False),
}


NOT_TAKEN = "the cursor passes what is not taken"


@pytest.mark.parametrize(
    "lacking", [pytest.param(each, marks=[pytest.mark.long] if each == NOT_TAKEN else []) for each in LACKS]
)
def test_the_driver_finds_code_in_which_a_rule_of_chains_is_missing(
    monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    shape, owner, name, lacks = LACKS[lacking]
    monkeypatch.setattr(owner, name, lacks)
    with pytest.raises(AssertionError):
        take_every_way(shape)
