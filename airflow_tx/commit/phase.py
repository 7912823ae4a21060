"""A commit by several tasks: the first takes the turn, others write, the last one marks.

The task that takes the turn raises every fence, which undoes what an earlier grant wrote. A committer that has
succeeded under that one does not run again when only another task is cleared, so its update is written again at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_tx import compat
from airflow_tx.commit.commit import Commit, Completion
from airflow_tx.commit.handoff import NewValues
from airflow_tx.commit.rows import RowsToWrite, check_empty, rows_to_write
from airflow_tx.commit.update import Update
from airflow_tx.commit.write import explain_outranked, take_other_output, write_update
from airflow_tx.errors import FenceOutranked, LedgerBehind, Outranked, PhaseIncomplete, StagingError
from airflow_tx.failpoints import failpoint
from airflow_tx.processing.outputs import RETURN_KEY, is_ref, xcom_fingerprint
from airflow_tx.protocol.answers import Granted, Processed
from airflow_tx.protocol.attempt import Token
from airflow_tx.protocol.receipt import Written
from airflow_tx.spark.new_values import newest_outputs
from airflow_tx.spec import PhaseSpec
from airflow_tx.state.api import Grant, StateKind

INSIDE_KEY = "airflow_tx_inside"
"""XCom in which a task of the phase says of which attempt its result is, and what it is."""


def grant_of(shared: Any, topology: str) -> Grant | None:
    """Return the grant that the phase's first task shared; None: the transaction was final already."""
    if shared.get("final"):
        return None
    own = (shared["incarnation"], Token.from_json(shared["token"]), shared["last"])
    return Grant(topology, *own, claim=shared["claim"])


class PhasePart(Commit):
    """A task's part of the phase; its updates may take the output of a task inside."""

    @property
    def phase(self) -> PhaseSpec:
        assert self.spec.phase is not None
        return self.spec.phase

    def read_shared(self) -> Any:
        """Read what the first task of the phase shared.

        :raises PhaseIncomplete: nothing.
        """
        shared = compat.pull(self.ti, self.phase.acquire)
        if not isinstance(shared, dict):
            raise self.incomplete(f"{self.phase.acquire} has not taken the turn", self.phase.acquire)
        if not shared.get("final"):
            self.epoch = shared["token"]["epoch"]
        return shared

    def incomplete(self, problem: str, task: str) -> PhaseIncomplete:
        """Make the error that names the task to clear."""
        own = self.begun
        return PhaseIncomplete(txid=own.txid, attempt=own.attempt.attempt, problem=problem, task=task)

    def _put(self, grant: Grant, update: Update, staged: NewValues) -> Written:
        rows, own = self._read(update), staged.of(update)
        return write_update(update, grant, rows, dag_file=self.own_run.dag_file, log=self.log, output=own)

    def _left(self, grant: Grant, staged: NewValues) -> dict[str, dict[str, Any]]:
        """Make the new values visible; references by name.

        All tries of a committer write under the one grant of the phase. One thought dead may have looked them up when
        a later transaction had changed them, so they count only if nobody can have: the grant still holds afterwards.

        :raises Outranked: it does not.
        """
        if staged.any and not self.ledger.holds(grant.token):
            raise Outranked(txid=grant.txid, token=str(grant.token), found="a later grant, or a commit")
        return staged.finish()

    def _read(self, update: Update) -> RowsToWrite:
        task, name = update.input.operator.task_id, update.input.key
        if task not in self.phase.inside:
            return super()._read(update)
        if task in self.phase.committers:
            return self._left_by(task, update)
        value = compat.pull(self.ti, task, name)
        self._check_inside(task, name, value)
        if value is None and self.begun.metadata is not None:
            check_empty(update, self.begun.attempt)
        values = [] if value is None else [value]
        return rows_to_write(update, values, self.spec.staging(), self.begun.attempt)

    def _left_by(self, task: str, update: Update) -> RowsToWrite:
        area, own = self.spec.staging().kept, self.begun.attempt
        found = newest_outputs(area, self.spec.topology, own.txid, task, own.birth)
        values = [found[update.input.key].to_json()] if update.input.key in found else []
        return rows_to_write(update, values, area, own)

    def _check_inside(self, task: str, name: str, value: Any) -> None:
        """Refuse the output of an earlier attempt: only the XCom says of which one it is."""
        own = self.begun
        found = compat.pull(self.ti, task, INSIDE_KEY)
        fits = isinstance(found, dict) and (found["txid"], found["attempt"]) == (own.txid, own.attempt.attempt)
        if fits and (name != RETURN_KEY or is_ref(value) or found["digest"] == xcom_fingerprint(value)):
            return
        raise StagingError(
            output=name,
            task=task,
            txid=own.txid,
            attempt=own.attempt.attempt,
            problem="its XCom is not what the task gave in this attempt",
            remedy=f"Clear task {task}.",
        )


class PhaseTurn(PhasePart):
    """Takes the turn for the phase, with the updates of all its committers; `grant` is there once it is taken."""

    grant: Grant | None = None
    healed: Mapping[str, Mapping[str, Any]] = {}
    """By committer that is not to run again, what was written for it: per state, as JSON."""

    def prepare(self) -> None:
        if self._rows is None:
            self._rows = [
                self._read(each) if each.state.kind is StateKind.TRANSACTIONAL else () for each in self.updates
            ]

    def _granted(self, granted: Granted, processed: Processed, rows: Sequence[RowsToWrite]) -> None:
        grant = granted.grant
        self.log.info("Transaction %s of %s commits", self.begun.attempt, self.spec.topology)
        failpoint("commit.after_acquire", **self._where)
        try:
            for state in self.states.values():
                state.raise_fence(grant)
            take_other_output(self.ledger, self.states, grant, granted.changed, self._outputs)
            self.healed = self._heal(grant)
        except (LedgerBehind, FenceOutranked) as error:
            raise explain_outranked(self.ledger, self.states, grant, error) from None
        self.grant = grant

    def shared(self) -> dict[str, Any]:
        """Describe the grant for the other tasks of the phase."""
        if self.grant is None:
            return {"final": True}
        grant = self.grant
        return {
            "token": grant.token.to_json(),
            "incarnation": grant.incarnation,
            "last": dict(grant.last_txids),
            "healed": list(self.healed),
            "written": self.healed,
            "claim": grant.claim,
        }

    def _heal(self, grant: Grant) -> dict[str, dict[str, Any]]:
        """Write again what committers that are not to run again had written under an earlier grant."""
        inside = {task: self._inputs_inside(task) for task in self.phase.committers}
        states = compat.task_states(self.ti, {*inside, *(each for found in inside.values() for each in found)})
        # One whose input is made again has to run again, too: the last task names it.
        done = tuple(
            task for task, found in inside.items() if all(states.get(each) == "success" for each in (task, *found))
        )
        healed = dict[str, dict[str, Any]]()
        for task in done:
            self.log.info("What task %s wrote under an earlier grant is written again", task)
            staged = self._new_values(grant, task)
            written = {each.state.name: self._put(grant, each, staged) for each in self.of(task)}
            healed[task] = {name: each.to_json() for name, each in written.items()}
            self._left(grant, staged)
        return healed

    def _inputs_inside(self, task: str) -> set[str]:
        return {update.input.operator.task_id for update in self.of(task)}.intersection(self.phase.inside)

    def of(self, task: str) -> tuple[Update, ...]:
        return tuple(self.ti.task.dag.get_task(task).updates)


class PhaseWrite(PhasePart):
    """One committer of the phase, with its own updates."""

    def run(self) -> dict[str, Any] | None:
        """Write under the grant that the first task shared; returns what the last task checks.

        :raises Refused, StateError: nothing was written.
        """
        grant = grant_of(self.read_shared(), self.spec.topology)
        if grant is None:
            self._log_already()
            return None
        written = self.write(grant)
        return {"token": grant.token.to_json(), "written": {name: each.to_json() for name, each in written.items()}}

    def write(self, grant: Grant) -> dict[str, Written]:
        """Write its updates under the grant of the phase; a retry does the same again.

        :return: what was written to each state; nothing, if the transaction is final.
        :raises Refused, StateError: nothing was written.
        """
        # First, for it knows whether the transaction was skipped, or is committed.
        completion = self.complete()
        if completion is Completion.OVER:
            return {}
        if completion is Completion.NOT_YET or not self.ledger.holds(grant.token):
            raise Outranked(txid=grant.txid, token=str(grant.token), found="a later grant")
        try:
            staged, written = self._new_values(grant), dict[str, Written]()
            for update in self.updates:
                failpoint("commit.before_write", state=update.state.name, **self._where)
                written[update.state.name] = done = self._put(grant, update, staged)
                self.log.info("State %s: %s keys", update.state.name, done.keys)
            self.new_values = self._left(grant, staged)
            return written
        except (LedgerBehind, FenceOutranked) as error:
            raise explain_outranked(self.ledger, self.states, grant, error) from None


class PhaseEnd(PhasePart):
    """Marks the commit, if every task of the phase has done its part under one grant."""

    def run(self) -> None:
        """Mark the commit, unless the transaction was final when the phase began. Raises as `mark`."""
        shared = self.read_shared()
        grant = grant_of(shared, self.spec.topology)
        if grant is not None:
            self.mark(shared, grant)

    def mark(self, shared: Any, grant: Grant) -> None:
        """Make the transaction final.

        :raises PhaseIncomplete: a task inside has not succeeded, or a committer wrote under another grant.
        """
        completion = self.complete()
        if completion is Completion.OVER:
            return  # an earlier try has marked it
        if completion is Completion.NOT_YET:
            raise self.incomplete("a task before the phase works again", self.phase.acquire)
        self._check_states()
        written = {name: Written(**each) for name, each in self._written(shared).items()}
        assert self._processed is not None
        self._done(self._mark_final(grant, self._processed, written))

    def _written(self, shared: Any) -> dict[str, Any]:
        """Collect what each committer wrote, per state and as JSON.

        :raises PhaseIncomplete: one of them wrote under another grant.
        """
        found = dict[str, Any]()
        for task in self.phase.committers:
            if task in shared["healed"]:
                found |= shared["written"][task]
                continue
            wrote = compat.pull(self.ti, task)
            if not isinstance(wrote, dict) or wrote.get("token") != shared["token"]:
                raise self.incomplete(f"{task} has not written under the grant of this phase", task)
            found |= wrote["written"]
        return found

    def _check_states(self) -> None:
        states = compat.instance_states(self.ti, self.phase.inside, self.phase.mapped)
        for (task, index), state in sorted(states.items()):
            allowed = ("success",) if task in self.phase.committers else ("success", "skipped", "removed")
            if state not in allowed:
                name = task if index < 0 else f"{task}[{index}]"
                raise self.incomplete(f"{name} is {state or 'not run'}", task)
