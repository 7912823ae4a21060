"""A DAG run with a commit phase, by the operators' own code."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from airflow_tx.transaction.commit.committer import INSIDE_KEY, PhaseCommit
from airflow_tx.transaction.commit.turn import commit_in_turn
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.processing.outputs import returned, xcom_fingerprint
from airflow_tx.transaction.spec import PhaseSpec
from tests.unit.bench import FakeTi


class PhaseRun:
    """Committers `b` and `d`, of which `d` may take what `b` leaves, or what task `c` between them returns."""

    def __init__(
        self,
        made: Any,
        of_b: Update,
        of_d: Update,
        rows: list[dict[str, Any]],
        *,
        between: Sequence[str] = (),
        mapped: Collection[str] = (),
    ) -> None:
        self.updates = {"b": (of_b,), "d": (of_d,)}
        inside = ("b", *between, "d")
        phase = PhaseSpec("acquire", "mark", ("b", "d"), inside, frozenset(mapped))
        self.run = made("r1", [of_b, of_d], phase=phase, inside=("count", "acquire", *inside, "mark"))
        self.begin(rows)

    def begin(self, rows: list[dict[str, Any]]) -> None:
        """Begin an attempt, and process its batch."""
        self.run.begin()
        self.xcoms, self.states = self.run.committer.xcoms, self.run.committer.states
        self.work(rows)

    def work(self, rows: list[dict[str, Any]]) -> None:
        processing = self.run.start()
        processing.ack(returned(rows, multiple=False))
        self.xcoms["count", "return_value", -1], self.states["count"] = rows, "success"

    def part(self, task: str, own: Sequence[Update]) -> PhaseCommit:
        """The part of the commit that a try of a task of the phase does."""
        ti = FakeTi(task, "r1", xcoms=self.xcoms, states=self.states, runs=self.run.committer.runs)
        dag = SimpleNamespace(get_task=lambda name: SimpleNamespace(updates=self.updates[name]), fileloc="")
        ti.task = SimpleNamespace(dag=dag)  # type: ignore[attr-defined]
        run = self.run
        return PhaseCommit(run.spec, run.begun, own, run.spec.ledger(run.spec.memory), ti, run.log)

    def acquire(self) -> Any:
        """Take the turn, and share it; the grant."""
        turn = self.part("acquire", (*self.updates["b"], *self.updates["d"]))
        assert commit_in_turn(turn, self.run.spec.memory, patience=0) is None
        self._returns("acquire", turn.shared)
        return None if turn.granted is None else turn.granted.grant

    def write(self, task: str, grant: Any) -> dict[str, Any]:
        """Run a committer under a grant; references to the new values that it leaves."""
        committer = self.committer(task)
        committer.write_under(grant)
        self.states[task] = "success"
        return committer.left

    def committer(self, task: str) -> PhaseCommit:
        return self.part(task, self.updates[task])

    def commit(self, *tasks: str) -> None:
        """Run committers as Airflow does: what they return is an XCom."""
        for task in tasks:
            self._returns(task, self.committer(task).write_in_phase())
            self.states[task] = "success"

    def returns(self, task: str, value: Any, key: str = "return_value") -> None:
        """Let a task between the committers end with this result."""
        self._returns(task, value, key)
        own = self.run.begun
        note = {"txid": own.txid, "attempt": own.attempt.attempt, "digest": xcom_fingerprint(value)}
        self._returns(task, note, INSIDE_KEY)
        self.states[task] = "success"

    def mark(self) -> None:
        """Run the last task of the phase."""
        self.part("mark", (*self.updates["b"], *self.updates["d"])).mark_in_phase()

    @property
    def shared(self) -> Mapping[str, Any]:
        """What the first task has shared."""
        found: Mapping[str, Any] = self.xcoms["acquire", "return_value", -1]
        return found

    def _returns(self, task: str, value: Any, key: str = "return_value") -> None:
        self.xcoms[task, key, -1] = None if value is None else json.loads(json.dumps(value))
