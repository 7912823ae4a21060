"""Limit the number of slow questions at the same time, for each person, for each topology and in all."""

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
"""Questions that wait for the code of DAG files. The process answers more, so that it can also answer for lags."""
MOST_OF_TOPOLOGY = 2
"""Such questions about one topology, so that a source that hangs leaves room for other topologies."""
MOST_OF_PERSON = 3
"""Questions of one person that wait for the code of DAG files; the same number may wait for a ledger."""
AGAIN_AFTER = 5
"""Seconds after which a page asks again."""


class Busy(TxError):
    """Too many questions are under way, each in a thread of the api-server, so a further one is refused."""

    template = (
        "{who}: {questions}.",
        "Nothing was done. Try again in a few seconds.",
    )


@dataclass(frozen=True, eq=False)
class PersonalQuestion:
    """A question of a person.

    :param what: description, such as `a search`.
    :param topology: name of the topology.
    :param dag_id: DAG of the topology.
    :param person: the person who asks.
    :param since: when the person asked.
    :param needs_dag: whether the code of the DAG file answers; otherwise the ledger does.
    """

    what: str
    topology: str
    dag_id: str
    person: str
    since: datetime
    needs_dag: bool


class Questions:
    """The questions that are under way in this api-server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: list[PersonalQuestion] = []

    def asked(
        self, what: str, snapshot: TopologySnapshot, access: Access, *, needs_dag: bool = True
    ) -> AbstractContextManager[None]:
        """Count a question during the block.

        :param what: description, such as `a search`.
        :param needs_dag: whether the code of the DAG file answers; otherwise the ledger does.
        :raises Busy: too many questions of this person, about this topology, or in all are under way.
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
        """Count a question during the block.

        :param readable: returns the DAGs that the person may read; the refusal names no topology of other DAGs.
        :raises Busy: too many questions of this person, about this topology, or in all are under way.
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
        """Return the begin of the refusal and the questions that cause it; no questions: nothing is refused."""
        alike = [each for each in self._asked if each.needs_dag is question.needs_dag]
        own = [each for each in alike if each.person == question.person]
        if len(own) >= MOST_OF_PERSON:
            return "Your own requests keep the Transactions page busy", own
        if not question.needs_dag:
            return "", ()  # a ledger answers fast
        about = [each for each in alike if each.topology == question.topology]
        if _is_full(about, question.person, MOST_OF_TOPOLOGY):
            return f"Topology {question.topology} is busy", about
        is_full = _is_full(alike, question.person, MOST_AT_ONCE)
        return ("The Transactions page is busy", alike) if is_full else ("", ())


def _is_full(asked: Sequence[PersonalQuestion], person: str, most: int) -> bool:
    """Return whether a person must wait. For a person without a question this counts other people, not questions."""
    people = {each.person for each in asked}
    return len(asked if person in people else people) >= most


def _named(questions: Sequence[PersonalQuestion], seen: Collection[str]) -> str:
    """Describe the questions; for topologies that the person may not see, return only their number and time."""
    shown = [each for each in questions if each.dag_id in seen]
    hidden = [each for each in questions if each.dag_id not in seen]
    # The same question may be asked several times.
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
"""The questions of this api-server."""


MOST_SEARCHES = 16
"""Searches of several topologies at the same time, one for each person. Each takes a thread of the api-server."""


class SearchBusy(Busy):
    """Too many searches are under way, so a further one is refused. The page asks again."""

    template = ("{who}.", "This search has not begun. Try again in a few seconds.")


class Searches:
    """The people whose search of several topologies is under way in this api-server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._people: set[str] = set()

    @contextmanager
    def under_way(self, person: str) -> Iterator[None]:
        """Count the search of a person during the block.

        :raises SearchBusy: another search of this person is under way, or too many in all.
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
"""The searches of this api-server."""
