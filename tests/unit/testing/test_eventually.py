"""Waiting for a condition says what it waited for, and gives up where there is no hope."""

from __future__ import annotations

import pytest

from airflow_tx.testing.eventually import Hopeless, NotInTime, eventually


def test_the_first_true_answer_is_returned_and_an_error_counts_as_not_true_yet() -> None:
    answers = iter([None, OSError("not up"), 0, "there"])

    def check() -> object:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    assert eventually(check, 10, "it is there", interval=0) == "there"


def test_a_condition_that_is_never_true_is_reported_with_its_last_answer_and_explanation() -> None:
    with pytest.raises(NotInTime, match=r"not within 0 s: the cow flies; the last answer was 0\nit has no wings"):
        eventually(lambda: 0, 0, "the cow flies", explain=lambda: "it has no wings")


def test_a_condition_that_only_raises_errors_is_reported_with_its_last_error() -> None:
    def check() -> bool:
        raise OSError("refused")

    with pytest.raises(NotInTime, match="the last call raised OSError: refused"):
        eventually(check, 0, "it answers")


def test_a_hopeless_condition_ends_the_wait_immediately() -> None:
    def check() -> bool:
        raise Hopeless("it is dead")

    with pytest.raises(Hopeless, match="it answers: it is dead"):
        eventually(check, 1000, "it answers")
