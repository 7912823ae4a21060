"""Questions of people: how many are asked at once, and what one is told who has to wait."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone

import pytest

from airflow_tx.plugin.api.app import make_app
from airflow_tx.plugin.api.questions import (
    AGAIN_AFTER,
    MOST_AT_ONCE,
    MOST_OF_PERSON,
    MOST_OF_TOPOLOGY,
    Busy,
    PersonalQuestion,
    Questions,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
_later = itertools.count()


def question(person: str, topology: str, what: str = "a search", *, needs_dag: bool = True) -> PersonalQuestion:
    since = NOON + timedelta(seconds=next(_later))
    return PersonalQuestion(
        what=what, topology=topology, dag_id=f"dag_of_{topology}", person=person, since=since, needs_dag=needs_dag
    )


class Asked:
    """Questions that are under way until the test ends."""

    def __init__(self, stack: ExitStack) -> None:
        self.questions = Questions()
        self._stack = stack

    def ask(self, *asked: PersonalQuestion, unseen: str = "") -> None:
        """Ask; the person may see every topology but `unseen`."""
        for each in asked:
            self._stack.enter_context(self.questions.under_way(each, lambda dag_ids: {*dag_ids} - {f"dag_of_{unseen}"}))

    def told(self, asked: PersonalQuestion, unseen: str = "") -> str:
        with pytest.raises(Busy) as busy:
            self.ask(asked, unseen=unseen)
        return str(busy.value)


@pytest.fixture
def asked() -> Iterator[Asked]:
    with ExitStack() as stack:
        yield Asked(stack)


def test_requests_to_a_topology_that_hangs_do_not_block_requests_to_other_topologies(asked: Asked) -> None:
    asked.ask(*(question(f"person {number}", "hangs") for number in range(MOST_OF_TOPOLOGY)))
    assert asked.told(question("vera", "hangs")).startswith("Topology hangs is busy: a search (2 times) in")
    asked.ask(question("vera", "flights"))


def test_many_requests_of_one_person_do_not_block_the_requests_of_other_people(asked: Asked) -> None:
    asked.ask(*(question("vera", f"hangs{number}") for number in range(MOST_OF_PERSON)))
    assert asked.told(question("vera", "another")).startswith(
        "Your own requests keep the Transactions page busy: a search in topology"
    )
    asked.ask(question("otto", "flights"))


def test_requests_that_need_only_the_ledger_are_answered_while_sources_hang(asked: Asked) -> None:
    asked.ask(*(question("vera", f"hangs{number}") for number in range(MOST_OF_PERSON)))
    asked.ask(*(question("vera", "hangs0", "replay", needs_dag=False) for _ in range(MOST_OF_PERSON)))
    assert "replay (3 times)" in asked.told(question("vera", "hangs0", "replay", needs_dag=False))


def test_a_request_is_refused_if_too_many_people_wait(asked: Asked) -> None:
    asked.ask(*(question(f"person {number}", f"topology {number}") for number in range(MOST_AT_ONCE)))
    assert asked.told(question("vera", "another")).startswith("The Transactions page is busy:")


def test_the_refusal_of_a_request_names_no_person_and_no_topology_that_the_user_may_not_see(asked: Asked) -> None:
    others = [question(f"person{number}", f"seen{number}") for number in range(MOST_AT_ONCE - 1)]
    asked.ask(*others, question("somebody", "secret", "a preview of skip"))
    told = asked.told(question("vera", "flights"), unseen="secret")
    assert "a search in topology seen0, since 12:00:" in told
    assert "a question about topologies that you may not see, since 12:00:" in told
    assert [word for word in ("secret", "person", "somebody", "skip") if word in told] == []


def test_one_person_cannot_use_all_places_for_requests_to_a_topology(asked: Asked) -> None:
    asked.ask(*(question("vera", "hangs") for _ in range(MOST_OF_TOPOLOGY)))
    asked.ask(question("otto", "hangs"))
    assert asked.told(question("otto", "hangs")).startswith("Topology hangs is busy")


def test_two_people_who_use_all_their_places_leave_a_place_for_a_third_person(asked: Asked) -> None:
    for person in ("vera", "otto"):
        asked.ask(*(question(person, f"{person} {number}") for number in range(MOST_OF_PERSON)))
    asked.ask(question("ada", "another"))


def test_a_request_that_has_ended_frees_its_place(asked: Asked) -> None:
    for _ in range(2 * MOST_OF_TOPOLOGY):
        with asked.questions.under_way(question("vera", "flights"), set):
            pass


def test_the_refusal_of_a_request_tells_the_page_when_to_try_again() -> None:
    handler = make_app().exception_handlers[Busy]
    answer = handler(None, Busy(who="The Transactions page is", questions="a search"))  # type: ignore[arg-type]
    assert (answer.status_code, answer.headers["retry-after"]) == (429, str(AGAIN_AFTER))  # type: ignore[union-attr]
