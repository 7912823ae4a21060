"""The subject of a commit: the attempt, its run, and how a try reaches ledger and Airflow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from airflow_tx.base import compat
from airflow_tx.ledger import (
    Begun,
    BoundStep,
    Committed,
    Granted,
    Ledger,
    Processed,
    Receipt,
    Written,
)
from airflow_tx.outputs import StagingArea
from airflow_tx.state import FencedState, Grant
from airflow_tx.transaction.commit import handoff
from airflow_tx.transaction.commit.check import Check
from airflow_tx.transaction.commit.contributions import Difference
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.commit.write import RowsToWrite
from airflow_tx.transaction.metrics import send_open_of
from airflow_tx.transaction.spec import TransactionSpec

InstanceStates = Mapping[tuple[str, int], "str | None"]
"""States of task instances, by task id and map index (−1: not mapped)."""


@dataclass(frozen=True)
class CommittingRun:
    """The requests of a commit to the run of its transaction.

    :param task_id: the committer; `task_try`: this try of it.
    :param dag_file: the file of its DAG; `dag_version`: the version of its DAG; "": it is not known.
    :param instance_states: gives the state of every instance of tasks, the mapped ones named once more.
    :param output: gives what an instance (task id, name, map index) has returned or emitted; None: nothing.
    """

    run_id: str
    task_id: str
    task_try: str
    dag_file: str
    dag_version: str
    instance_states: Callable[[Collection[str], Collection[str]], InstanceStates]
    output: Callable[[str, str, int], Any]


def airflow_run(ti: Any) -> CommittingRun:
    """Give a DAG run, reached by the task instance of its committer."""
    task = getattr(ti, "task", None)
    return CommittingRun(
        str(ti.run_id),
        str(ti.task_id),
        str(ti.id),
        dag_file=str(task.dag.fileloc) if task is not None else "",
        dag_version=compat.dag_version(ti),
        instance_states=partial(compat.instance_states, ti),
        output=partial(compat.pull, ti),
    )


@dataclass
class KnownEpoch:
    """The newest epoch that a try knows: of its grant, or before that, of the acked output.

    :ivar epoch: None: it knows none.
    """

    epoch: int | None = None


@dataclass(frozen=True)
class CommitCase:
    """The attempt that a try commits, and how the try reaches ledger and Airflow.

    :param updates: what the task adds to which state.
    :param checks: what these outputs have to pass before.
    :param ti: the task instance that reaches Airflow.
    :param run: answers for the run of the transaction; by default the run of `ti`.
    """

    spec: TransactionSpec
    begun: Begun
    updates: Sequence[Update]
    ledger: Ledger
    ti: Any
    log: Any
    own_run: CommittingRun | None = None
    known: KnownEpoch = field(default_factory=KnownEpoch)
    checks: Sequence[Check] = ()

    @cached_property
    def run(self) -> CommittingRun:
        return self.own_run or airflow_run(self.ti)

    @cached_property
    def area(self) -> StagingArea:
        """The staging area of its topology."""
        return self.spec.staging().of_topology(self.begun.incarnation)

    @cached_property
    def states(self) -> dict[str, FencedState]:
        return {update.state.name: update.state for update in self.updates}

    @property
    def where(self) -> Mapping[str, Any]:
        """Name the attempt for a failpoint."""
        return {
            "topology": self.spec.topology,
            "txid": self.begun.txid,
            "attempt": self.begun.attempt.attempt,
        }


@dataclass(frozen=True)
class CommitPorts:
    """What differs between a committer of its own and a lane.

    :param mark: runs the step that marks the commit.
    :param show: shows in the ledger who holds the turn, as long as the block lasts.
    :param log: writes a line for a step of the commit.
    :param clean_up: removes what no task needs after the commit.
    """

    mark: Callable[[BoundStep[Committed]], Committed]
    show: Callable[[Grant], AbstractContextManager[None]]
    log: Callable[..., None]
    clean_up: Callable[[], None]


@dataclass(frozen=True)
class Replacing:
    """The differences of a restatement, formed before its turn.

    :param differences: by state, the rows in place of the output; none, if it is no restatement.
    :param taken_back: per state that the restated transaction named, the state that it is taken from.
    :param held: the ledger's knowledge of these states, see `held_at`: they are formed again if it has changed.
    :param sole: the states whose rows were asked who else has contributed.
    :param left: the states that are passed over: what they held was accepted, and it cannot be skipped any more.
    :param own: per state that keeps its receipt of the restated transaction, this receipt, in a rebuilt ledger.
    """

    differences: Mapping[str, Difference] = field(default_factory=dict)
    taken_back: Mapping[str, str] = field(default_factory=dict)
    held: str = ""
    sole: tuple[str, ...] = ()
    left: frozenset[str] = frozenset()
    own: Mapping[str, Receipt] = field(default_factory=dict)


NOTHING_REPLACED = Replacing()


@dataclass(frozen=True)
class Prepared:
    """The data to commit, read before the turn.

    :param outputs: per transactional state, a text of what is about to be written.
    :param journal: name of the journal entry with its contributions; "": the topology keeps no journal.
    :param replacing: what a restatement writes in place of the output.
    :param notes: what the checks found, as the receipt keeps it.
    """

    processed: Processed
    rows: Sequence[RowsToWrite]
    outputs: Mapping[str, str]
    journal: str = ""
    replacing: Replacing = NOTHING_REPLACED
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Wrote:
    """The writes of a committer: per state, and as references to new values by name."""

    written: Mapping[str, Written]
    left: dict[str, Any]


@dataclass(frozen=True)
class CommitPart:
    """The work of a task once everything has acked: the whole commit, or the part of it that begins a phase.

    :param read: reads the acked output.
    :param use: uses the turn; gives what is left for later tasks.
    :param over: gives what is left for later tasks of a transaction that is committed already, from what it has left.
    """

    read: Callable[[CommitCase, Processed], Prepared]
    use: Callable[[CommitCase, CommitPorts, Prepared, Granted], dict[str, Any]]
    over: Callable[[dict[str, Any]], dict[str, Any]]


def ports_of(case: CommitCase) -> CommitPorts:
    """Give the ports of a committer of its own."""
    return CommitPorts(
        case.ledger.run, partial(_shown, case), case.log.info, partial(_clean_up, case)
    )


def _shown(case: CommitCase, grant: Grant) -> AbstractContextManager[None]:
    shown = {
        "token": grant.token.to_json(),
        "run_id": case.run.run_id,
        "task_try": case.run.task_try,
    }
    return case.ledger.announce_owner(grant.token.nonce, shown)


def _clean_up(case: CommitCase) -> None:
    handoff.clean_up(case.spec, case.ledger, case.ti, case.begun.txid, log=case.log)
    send_open_of(case.ledger)
