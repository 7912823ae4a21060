"""Limit the number of slow requests that run at the same time: per user, per topology, and in total."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone

from airflow_tx.base.errors import TxError
from airflow_tx.plugin.api.access import Access
from airflow_tx.plugin.api.snapshots import TopologySnapshot

MOST_AT_ONCE = 6
"""Maximum number of requests that wait for the code of DAG files.

The process can answer more, such as requests for lags.
"""
MOST_OF_TOPOLOGY = 2
"""The maximum number of such requests about one topology. If its source hangs, other topologies still respond."""
MOST_OF_PERSON = 3
"""The maximum number of one user's requests that wait for DAG file code. The same number may wait for a ledger."""
AGAIN_AFTER = 5
"""The seconds after which the page repeats a refused request."""


class Busy(TxError):
    """Too many slow requests are running, so another request is refused. Each takes a thread of the api-server."""

    template = (
        "{who}: {questions}.",
        "Nothing was done. Try again in a few seconds.",
    )


@dataclass(frozen=True, eq=False)
class PersonalQuestion:
    """A slow request from a user.

    :param what: a description of the request, such as `a search`.
    :param topology: the name of the topology.
    :param dag_id: the DAG of the topology.
    :param person: the user who has sent the request.
    :param since: when the request was sent.
    :param needs_dag: whether the code of the DAG file answers. Otherwise the ledger answers.
    """

    what: str
    topology: str
    dag_id: str
    person: str
    since: datetime
    needs_dag: bool


class Questions:
    """The slow requests that are running in this api-server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: list[PersonalQuestion] = []

    def asked(
        self, what: str, snapshot: TopologySnapshot, access: Access, *, needs_dag: bool = True
    ) -> AbstractContextManager[None]:
        """Count a slow request until the `with` block ends.

        :param what: a description of the request, such as `a search`.
        :param needs_dag: whether the code of the DAG file answers. Otherwise the ledger answers.
        :raises Busy: too many requests are running: of this person, about this topology, or in total.
        """
        question = PersonalQuestion(
            what=what,
            topology=snapshot.name,
            dag_id=snapshot.record.dag_id,
            person=access.person,
            since=datetime.now(timezone.utc),
            needs_dag=needs_dag,
        )
        return self.under_way(question, access.readable)

    @contextmanager
    def under_way(
        self, question: PersonalQuestion, readable: Callable[[Collection[str]], Collection[str]]
    ) -> Iterator[None]:
        """Count a slow request until the `with` block ends.

        :param readable: a function that returns the DAGs that the person may read. The refusal names no topology of
            other DAGs.
        :raises Busy: too many requests are running: of this person, about this topology, or in total.
        """
        with self._lock:
            who, others = self._in_the_way(question)
            if not others:
                self._asked.append(question)
        if others:
            seen = readable({each.dag_id for each in others})
            raise Busy(who=who, questions=_named(others, seen))
        try:
            yield
        finally:
            with self._lock:
                self._asked.remove(question)

    def _in_the_way(self, question: PersonalQuestion) -> tuple[str, Sequence[PersonalQuestion]]:
        """Return the start of the refusal, and the running requests that cause it.

        Without such requests, nothing is refused.
        """
        alike = [each for each in self._asked if each.needs_dag is question.needs_dag]
        own = [each for each in alike if each.person == question.person]
        if len(own) >= MOST_OF_PERSON:
            return "Your own requests keep the Transactions page busy", own
        if not question.needs_dag:
            return "", ()  # A ledger responds quickly.
        about = [each for each in alike if each.topology == question.topology]
        if _is_full(about, question.person, MOST_OF_TOPOLOGY):
            return f"Topology {question.topology} is busy", about
        is_full = _is_full(alike, question.person, MOST_AT_ONCE)
        return ("The Transactions page is busy", alike) if is_full else ("", ())


def _is_full(asked: Sequence[PersonalQuestion], person: str, most: int) -> bool:
    """Return whether a user must wait. A user without a running request waits only if enough other users have one."""
    people = {each.person for each in asked}
    return len(asked if person in people else people) >= most


def _named(questions: Sequence[PersonalQuestion], seen: Collection[str]) -> str:
    """Describe the requests.

    For topologies that the user may not see, return only the number of requests and their times.
    """
    shown = [each for each in questions if each.dag_id in seen]
    hidden = [each for each in questions if each.dag_id not in seen]
    # The same request may run several times.
    times = Counter((each.what, each.topology) for each in shown)
    named = []
    for (what, topology), count in times.items():
        alike = [each for each in shown if (each.what, each.topology) == (what, topology)]
        often = "" if count == 1 else f" ({count} times)"
        named.append(f"{what}{often} in topology {topology}, {_since(alike)}")
    if hidden:
        many = "a question" if len(hidden) == 1 else f"{len(hidden)} questions"
        named.append(f"{many} about topologies that you may not see, {_since(hidden)}")
    return "; ".join(named)


def _since(questions: Sequence[PersonalQuestion]) -> str:
    return f"since {min(each.since for each in questions):%H:%M:%S} UTC"


questions = Questions()
"""The slow requests of this api-server."""


MOST_SEARCHES = 16
"""The maximum number of running searches of several topologies. Each user can have one, and each takes a thread."""


class SearchBusy(Busy):
    """Too many searches are running, so another search is refused. The page repeats it later."""

    template = ("{who}.", "This search has not begun. Try again in a few seconds.")


class Searches:
    """The users whose search of several topologies is running in this api-server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._people: set[str] = set()

    @contextmanager
    def under_way(self, person: str) -> Iterator[None]:
        """Count a user's search until the `with` block ends.

        :raises SearchBusy: another search of this user is running, or too many searches are running.
        """
        with self._lock:
            if person in self._people:
                raise SearchBusy(who="Another search of yours is under way")
            if len(self._people) >= MOST_SEARCHES:
                raise SearchBusy(who=f"Searches of {MOST_SEARCHES} other people are under way")
            self._people.add(person)
        try:
            yield
        finally:
            with self._lock:
                self._people.remove(person)


searches = Searches()
"""The searches that run in this api-server."""
