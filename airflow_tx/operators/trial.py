"""A trial of a DAG: a run of its transaction that does not change the ledger, the source or any state.

Source: Airflow's DAG.test; Storm's LocalCluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from inspect import signature
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from airflow.sdk import timezone
from msgspec import to_builtins

from airflow_tx.base import compat
from airflow_tx.base.config import Settings
from airflow_tx.base.errors import TrialRefused
from airflow_tx.ledger import Begun, CheckNote, MemoryStore, check_in_words, counted
from airflow_tx.operators.commit import CommitOperator
from airflow_tx.outputs import StagingArea
from airflow_tx.sources import TrialSource
from airflow_tx.state import (
    AnyTrialState,
    PersistedState,
    TrialChange,
    TrialState,
    trial_state,
)
from airflow_tx.transaction import (
    RETURN_KEY,
    AlarmCallbacks,
    AlarmLimits,
    HasTransaction,
    TransactionSpec,
    Update,
    is_ref,
    rows_of_output,
    spec_of,
    states_of,
)

if TYPE_CHECKING:
    from airflow.sdk import DAG


FOLDER = "@trial"
"""The staging folder for the output of trials. No topology can have this name."""
_SHOWN = 20
_NO_EXECUTOR = "Leave --use-executor (use_executor=True) out."


@dataclass(frozen=True)
class TrialSpec(TransactionSpec):
    """The description of a DAG's transaction for a trial, with a ledger in memory.

    :param ledger_store: the in-memory store of the ledger.
    """

    ledger_store: MemoryStore | None = None

    @contextmanager
    def store(self) -> Iterator[Any]:
        yield self.ledger_store

    @property
    def requires_proof(self) -> bool:
        return False


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial.

    :param state: the state of the run: "success" or "failed".
    :param outputs: the rows or value of each output, by names such as ``count`` or ``count.totals``.
    :param states: the trial states with the changes that a real run would make, by state name.
    :param checks: the result of each check by check name, as in the receipt. After a failed run, only the failed
        checks.
    :param rejected: the name of the state with the rejected rows, or "" if tasks cannot reject rows.
    """

    state: str
    outputs: Mapping[str, Any]
    states: Mapping[str, AnyTrialState]
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rejected: str = ""

    def changes(self, state: str) -> list[TrialChange]:
        """Return the changes that a real run would make to a state with columns."""
        found = self.states[state]
        return list(found.changes()) if isinstance(found, TrialState) else []

    def text(self) -> str:
        """Return the table that `airflow dags test` finally prints."""
        lines = [
            f"Trial: the run ended as {self.state}. The ledger, the source and the states were not touched."
        ]
        lines += [
            f"Check {check_in_words(name, CheckNote(**each))}" for name, each in self.checks.items()
        ]
        for name, found in self.states.items():
            lines += [
                "",
                *(
                    _table(name, found)
                    if isinstance(found, TrialState)
                    else _rows(name, found.rows, rejected=name == self.rejected)
                ),
            ]
        return "\n".join(lines)


class Trial:
    """Replaces a DAG's ledger, source, staging area and states during one run.

    :param rows: the rows of the batch as dicts or a frame, or None for the first rows of the source.
    :param states: the rows of each state before the run, by state name, or None for the rows of the real states.
    :raises TrialRefused: a trial of the DAG is not possible.
    """

    def __init__(
        self,
        dag: DAG,
        *,
        rows: Any = None,
        states: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    ) -> None:
        self._dag = dag
        self._spec = spec_of(dag)
        compat.policies_are_over(dag)
        _check(self._spec, dag, rows)
        self._area = StagingArea(f"{self._spec.staging().root}/{FOLDER}/{uuid4().hex}")
        most = Settings.load().trial_rows
        source = TrialSource(self._spec.source, most=most, rows=rows)
        own = {each.name: getattr(self._spec, each.name) for each in fields(TransactionSpec)}
        own |= {
            "source": source,
            "area": self._area,
            "journal": timedelta(0),
            "tables": {},
            "limits": AlarmLimits(),
            "callbacks": AlarmCallbacks(),
        }
        self._trial_spec = TrialSpec(**own, ledger_store=MemoryStore())
        self.states = {
            name: trial_state(real, None if states is None else states.get(name, ()))
            for name, real in states_of(dag).items()
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        """Treat each run of the DAG in this process as a trial until the `with` block ends.

        Then remove the staged output.
        """
        changes: list[tuple[Any, str, Any]] = [(task, "retries", 0) for task in self._dag.tasks]
        # Remove the outlets, because an asset event would start other DAGs although nothing was
        # committed.
        changes += [(task, "outlets", []) for task in self._dag.tasks]
        for task in self._dag.tasks:
            if isinstance(task, HasTransaction):
                changes.append((task, "transaction", self._trial_spec))
        for committer in _committers(self._dag):
            changes.append((committer, "updates", tuple(map(self._update, committer.updates))))
        with ExitStack() as stack:
            stack.callback(self._area.files.remove_tree, "")
            stack.enter_context(compat.dated_as_scheduled())
            for task, name, value in changes:
                stack.enter_context(_changed(task, name, value))
            yield

    def result(self, run: Any) -> TrialResult:
        """Return the result of a run. Call this inside `running`, which removes the staged output when it exits."""
        pushed = {
            (task, index, name): value for task, name, index, value in compat.pushed_xcoms(run)
        }
        begun = pushed.get((self._spec.begin, -1, RETURN_KEY))
        outputs = dict[str, Any]()
        for (task, index, name), value in pushed.items():
            if task == self._spec.begin or name.startswith("_"):
                continue
            instance = task if index < 0 else f"{task}[{index}]"
            if begun is not None and is_ref(value):
                value = list(rows_of_output(self._trial_spec, value, Begun.from_json(begun)))
            outputs[instance if name == RETURN_KEY else f"{instance}.{name}"] = value
        rejected = self._spec.rejected
        name = "" if rejected is None else rejected.name
        return TrialResult(compat.text(run.state), outputs, self.states, self._checks(), name)

    def _checks(self) -> Mapping[str, Mapping[str, Any]]:
        with self._trial_spec.store() as store:
            ledger = self._trial_spec.ledger(store)
            record = ledger.status(1)
            history = ledger.outcome(1)
        receipt = None if history is None else history.receipt
        found = record.checks if record is not None else receipt and receipt.checks
        return dict(to_builtins(found or {}))

    def _update(self, update: Update) -> Update:
        return replace(
            update,
            state=self.states[update.state.name],
            writers="worker",
            spark_from_rows=None,
            together=False,
        )


def try_out(
    test: Callable[..., Any], dag: DAG, *args: Any, use_executor: bool = False, **kwargs: Any
) -> Any:
    """Run `DAG.test` as a trial, and print its table.

    :param test: Airflow's `test` method, bound to the DAG.
    :return: the DAG run.
    :raises SystemExit: a trial of the DAG is not possible. The message explains this in one line.
    """
    try:
        if use_executor:
            raise TrialRefused(
                dag_id=dag.dag_id,
                problem="an executor runs tasks in other processes, which a trial cannot reach",
                remedy=_NO_EXECUTOR,
            )
        if compat.is_scheduled(dag.dag_id):
            remedy = f"Pause the DAG first: airflow dags pause {dag.dag_id}"
            raise TrialRefused(
                dag_id=dag.dag_id, problem="the scheduler would start its tasks", remedy=remedy
            )
        given = signature(test).bind(*args, **kwargs).arguments
        if "logical_date" in given:
            check_date(dag, given["logical_date"])
        trial = Trial(dag)
    except TrialRefused as refused:
        # The command line prints only the text of a SystemExit, without a traceback.
        raise SystemExit(str(refused)) from None
    with trial.running():
        run = test(*args, **kwargs)
        print(trial.result(run).text())
    return run


def check_date(dag: DAG, logical_date: datetime | None) -> None:
    """Refuse the date of an existing run, because Airflow would delete that run to create the test run.

    :raises TrialRefused: a run has this date. The error names the run.
    """
    # Airflow interprets a date without a time zone in its default time zone.
    date = timezone.coerce_datetime(logical_date)
    run = compat.run_that_a_test_deletes(dag.dag_id, date)
    if run is None:
        return
    free = (date or timezone.utcnow()) + timedelta(seconds=1)
    raise TrialRefused(
        dag_id=dag.dag_id,
        problem=f"Airflow would delete run {run!r} to test the date {date and date.isoformat()}",
        remedy=f"Give a date and time that no run has, such as {free.isoformat()}.",
    )


def _check(spec: TransactionSpec, dag: DAG, rows: Any) -> None:
    def refused(problem: str, remedy: str) -> TrialRefused:
        return TrialRefused(dag_id=dag.dag_id, problem=problem, remedy=remedy)

    if spec.ackers is not None:
        raise refused(
            "its messages leave the DAG, and a trial cannot wait for them",
            "Try out a DAG without ackers.",
        )
    if spec.source.stages and rows is None:
        raise refused(
            f"{spec.source!r} removes its rows from the queue when it reads them",
            "Give the rows: airflow_tx.testing.trial(dag, rows=[...]).",
        )
    for task in _committers(dag):
        for update in task.updates:
            state = update.state
            if (
                isinstance(state, PersistedState)
                and not state.updates_map
                and update.new_values is not None
            ):
                raise refused(
                    f"a trial cannot compute new values {update.new_values!r}, which only the updater of "
                    f"{state.name} knows",
                    "Test the updater by itself, or let it update a map.",
                )


@contextmanager
def _changed(task: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(task, name)
    setattr(task, name, value)
    try:
        yield
    finally:
        setattr(task, name, before)


def _committers(dag: DAG) -> list[CommitOperator]:
    return [task for task in dag.tasks if isinstance(task, CommitOperator)]


def _table(name: str, state: TrialState) -> list[str]:
    changes = list(state.changes())
    keys = list(dict.fromkeys(tuple(change.key.items()) for change in changes))
    shown = set(keys[:_SHOWN])
    header = [*state.columns.keys, "column", "before", "added", "after"]
    lines = [
        [
            *map(_text, change.key.values()),
            change.column,
            *map(_text, (change.before, change.added, change.after)),
        ]
        for change in changes
        if tuple(change.key.items()) in shown
    ]
    more = [f"... and {len(keys) - _SHOWN} more keys"] if len(keys) > _SHOWN else []
    return [f"State {name}: {len(keys)} keys would be written.", *_aligned([header, *lines]), *more]


def _rows(name: str, rows: Sequence[Mapping[str, Any]], *, rejected: bool) -> list[str]:
    more = [f"... and {len(rows) - _SHOWN} more rows"] if len(rows) > _SHOWN else []
    said = f"{counted(len(rows), 'rows')} would be rejected"
    return [
        f"State {name}: {said if rejected else f'it would receive {len(rows)} rows'}.",
        *map(str, islice(rows, _SHOWN)),
        *more,
    ]


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _text(value: object) -> str:
    return "-" if value is None else str(value)
