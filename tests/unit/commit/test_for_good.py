"""What cannot be undone: a table has taken out the rows of a transaction, or a guard has run its statements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import SkipRefused
from airflow_tx.ledger import life
from airflow_tx.ledger.life import holds_for_good
from airflow_tx.state import SqlGuard
from airflow_tx.state.api import Fence
from airflow_tx.testing.suites.state_tools import Grants, about_to_skip
from tests.model.mutants import ONE, Mutant, applied

# --- one judgement

RULES = {
    "a birth is compared": "each.birth",
    "a life is compared": "each.incarnation",
    "a number is compared": "each.txid",
}
MINE = (3, "birth", "life")


def fence_of(txid: int, birth: str, incarnation: str) -> Fence:
    return Fence(incarnation, replace(Grants()(txid).token, birth=birth))


def test_a_transaction_is_for_good_where_it_left_something_itself() -> None:
    assert holds_for_good([fence_of(*MINE)], *MINE)


def others_are_not_for_good() -> None:
    others = [(2, "birth", "life"), (3, "another", "life"), (3, "birth", "another")]
    assert not life.holds_for_good([fence_of(*each) for each in others], *MINE)


def test_another_life_birth_or_number_is_not_for_good() -> None:
    others_are_not_for_good()


@pytest.mark.parametrize("rule", RULES)
def test_each_part_of_the_judgement_is_needed(rule: str) -> None:
    text = RULES[rule]
    mine = {"each.birth": "birth", "each.incarnation": "incarnation", "each.txid": "txid"}[text]
    whole = "(each.txid, each.birth, each.incarnation) == mine"
    mutant = Mutant(rule, ((life.holds_for_good, whole, whole.replace(text, mine)),), ONE)
    with applied(mutant), pytest.raises(AssertionError):
        others_are_not_for_good()


# --- a guard


@pytest.fixture
def guard(tmp_path: Path) -> Callable[[], SqlGuard]:
    url = f"sqlite:///{tmp_path}/guard.db"
    with sa.create_engine(url).begin() as connection:
        connection.exec_driver_sql("CREATE TABLE runs (txid INTEGER)")

    def make() -> SqlGuard:
        return SqlGuard.from_url(url, name="g", statements=["INSERT INTO runs VALUES (:txid)"])

    return make


def next_life(grants: Grants) -> Grants:
    """The grants of a ledger that gives the numbers again; a person has accepted what the guard has noted."""
    after = Grants()
    after.incarnation = grants.incarnation
    after.generation = grants.generation + 1
    return after


def test_what_a_guard_has_run_cannot_be_skipped(guard: Any) -> None:
    grants = Grants()
    guard().raise_and_write(grants(1), [{}])
    with pytest.raises(SkipRefused):
        guard().raise_fence(about_to_skip(grants(1, 2)))


def test_another_transaction_of_the_number_that_a_guard_has_noted_can_be_skipped(guard: Any) -> None:
    grants = Grants()
    guard().raise_and_write(grants(1), [{}])
    skip = about_to_skip(next_life(grants)(1))
    guard().raise_fence(skip)
    guard().pass_over(skip)
    assert not guard().holds(1)


def test_a_guard_runs_its_statements_for_another_transaction_of_the_number_that_it_has_noted(guard: Any) -> None:
    grants = Grants()
    guard().raise_and_write(grants(1), [{}])
    guard().raise_and_write(next_life(grants)(1), [{}])
    with guard()._store.transaction() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM runs").scalar_one() == 2
