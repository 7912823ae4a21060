"""What the api-server keeps of its answers: little, and not for long."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_tx.plugin.api.snapshots import SharedAnswers
from airflow_tx.testing.eventually import eventually


class HandClock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def test_an_answer_is_shared_until_it_is_too_old(clock: HandClock) -> None:
    answers, made = SharedAnswers(1.0, clock=clock), []

    def make() -> bytes:
        made.append(clock())
        return b"body"

    for clock.time in (0.0, 0.5, 0.9, 1.1):
        assert answers.get("key", make) == b"body"
    assert made == [0.0, 1.1]


def test_old_answers_are_removed_no_matter_how_many_different_requests_come(clock: HandClock) -> None:
    answers = SharedAnswers(1.0, clock=clock)
    for number in range(400):
        clock.time = number * 0.5
        answers.get(("since", number), lambda: bytes(1000))
    assert answers.size <= 3 * 1000


def test_the_total_size_of_kept_answers_is_limited_even_within_a_second(clock: HandClock) -> None:
    answers = SharedAnswers(1.0, most=5000, clock=clock)
    for number in range(400):
        answers.get(("since", number), lambda: bytes(1000))
    assert answers.size == 5000
    answers.get("large", lambda: bytes(6000))
    assert answers.size == 0


def test_viewers_wait_for_an_answer_that_is_already_being_calculated(clock: HandClock) -> None:
    answers, begun, goes_on, made = SharedAnswers(1.0, clock=clock), threading.Event(), threading.Event(), []

    def make() -> bytes:
        begun.set()
        assert goes_on.wait(60)
        made.append(1)
        return b"body"

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(answers.get, "key", make)
        assert begun.wait(60)
        others = [pool.submit(answers.get, "key", make) for _ in range(3)]
        eventually(lambda: all(each.running() for each in others), 60, "the others ask")
        goes_on.set()
        assert [each.result() for each in (first, *others)] == [b"body"] * 4
    assert made == [1]


def test_an_answer_that_failed_is_calculated_again(clock: HandClock) -> None:
    answers = SharedAnswers(1.0, clock=clock)

    def fails() -> bytes:
        raise ValueError("it is broken")

    with pytest.raises(ValueError, match="broken"):
        answers.get("key", fails)
    assert answers.get("key", lambda: b"body") == b"body"
