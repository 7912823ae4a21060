"""A report over several states is as of one transaction, by the ledger or by fences; each rule of it is needed."""

from __future__ import annotations

from functools import cache

import pytest

from tests.model.reader import LACKING, RIGHT, Case, Found, every_case, explore

CASES = tuple(every_case())


@cache
def found(case: Case, rule: str) -> Found:
    return explore(case, RIGHT[rule])


@pytest.mark.parametrize("rule", RIGHT)
def test_the_reader_never_returns_a_wrong_answer(rule: str) -> None:
    assert sum(found(case, rule).answers for case in CASES) > 1000
    assert not any(found(case, rule).wrong for case in CASES)


def test_a_reader_that_uses_the_ledger_gets_an_answer_in_every_case() -> None:
    assert all(found(case, "ledger").answers for case in CASES)


def test_a_reader_that_uses_only_fences_may_never_get_an_answer_for_a_transactional_state() -> None:
    """They prove the transaction before the newest one, and such a state has no values of before."""
    silent = [case for case in CASES if not found(case, "fences").answers]
    assert silent
    assert all("transactional" in case.kinds for case in silent)


@pytest.mark.parametrize("lacking", LACKING)
def test_a_reader_without_one_of_its_rules_returns_a_wrong_answer(lacking: str) -> None:
    assert any(explore(case, LACKING[lacking]).wrong for case in CASES)
