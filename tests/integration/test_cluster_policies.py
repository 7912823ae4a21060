"""What a cluster policy, or a line after the block, sets on the tasks of a DAG; Airflow's own DagBag and policies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.policies import hookimpl
from airflow.sdk import DAG
from airflow.settings import get_policy_plugin_manager

from airflow_tx.testing.dag_trial import trial

FILE = """
from airflow.sdk import DAG, task
from airflow_tx import CommitOperator, Transaction, commit_phase, current_batch, persistent_aggregate
from airflow_tx.sources.memory import MemorySource
from airflow_tx.state import Count, SqlState

@task
def read():
    return [{"word": row["word"], "count": 1} for row in current_batch().read()]

@task.branch
def choose(rows):
    return "few"

@task
def many(rows):
    return rows

@task
def few(rows):
    return rows

@task(trigger_rule="none_failed_min_one_success")
def join(rows):
    return rows

def words():
    return SqlState("tx_state", table="words", keys=["word"], values={"count": Count()})

def called(context):
    pass

with DAG("branched", schedule=None, max_active_runs=8, on_failure_callback=called) as branched:
    with Transaction(source=MemorySource({"0": [{"word": "cat"}]}, per_batch=5), max_pending=4):
        rows = read()
        mapped = many.partial().expand(rows=[rows])
        chosen = choose(rows)
        joined = join(rows)
        chosen >> [many.override(task_id="all")(rows), few(rows), mapped] >> joined
        CommitOperator(task_id="commit", updates=[persistent_aggregate(joined, state=words())])

with DAG("phased", schedule=None, max_active_runs=8) as phased:
    with Transaction(source=MemorySource({"0": [{"word": "cat"}]}, per_batch=5), max_pending=4):
        rows = read()
        with commit_phase():
            CommitOperator(task_id="first", updates=[persistent_aggregate(rows, state=words())]) >> few(rows)
"""
COUNTED = [{"word": "cat", "count": 1}]
CALLBACKS = ("on_success_callback", "on_failure_callback", "on_skipped_callback")
HOOKS = ("_pre_execute_hook", "_post_execute_hook", "retry_policy")


def told(*context: Any) -> None:
    pass


@pytest.fixture(autouse=True)
def no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", raising=False)


@pytest.fixture
def read(tmp_path: Path) -> Callable[[], DagBag]:
    """Read the file as Airflow does."""
    (tmp_path / "dags.py").write_text(FILE)
    return lambda: DagBag(dag_folder=str(tmp_path))


class Policy:
    """A policy of the cluster: it calls a function for each task, or for each DAG."""

    def __init__(self) -> None:
        self.of_task: Callable[[Any], None] = told
        self.of_dag: Callable[[Any], None] = told

    @hookimpl
    def task_policy(self, task: Any) -> None:
        self.of_task(task)

    @hookimpl
    def dag_policy(self, dag: Any) -> None:
        self.of_dag(dag)


@pytest.fixture
def policy() -> Iterator[Policy]:
    manager, made = get_policy_plugin_manager(), Policy()
    manager.register(made)
    yield made
    manager.unregister(made)


def setting(options: dict[str, Any]) -> Callable[[Any], None]:
    def policy(task: Any) -> None:
        for name, value in options.items():
            setattr(task, name, value)

    return policy


def hooks(dag: DAG, name: str) -> dict[str, Any]:
    return {each.task_id: getattr(each, name) for each in dag.tasks if not each.is_mapped}


def test_a_branch_task_acks_although_a_cluster_policy_sets_callbacks(
    read: Callable[[], DagBag], policy: Policy
) -> None:
    policy.of_task = setting({name: [told] for name in CALLBACKS})
    result = trial(read().dags["branched"], states={})
    assert (result.state, result.states["tx_state.words"].read()) == ("success", COUNTED)


def test_a_branch_task_acks_although_the_dag_file_sets_callbacks_after_the_transaction(
    read: Callable[[], DagBag],
) -> None:
    dag = read().dags["branched"]
    for each in dag.tasks:
        setting({name: [told] for name in CALLBACKS})(each)
    result = trial(dag, states={})
    assert (result.state, result.states["tx_state.words"].read()) == ("success", COUNTED)


@pytest.mark.parametrize("dag_id", ["branched", "phased"])
@pytest.mark.parametrize("name", CALLBACKS)
@pytest.mark.parametrize("theirs", [told, [told], []])
def test_callbacks_of_the_package_run_before_callbacks_of_a_cluster_policy(
    read: Callable[[], DagBag], policy: Policy, dag_id: str, name: str, theirs: Any
) -> None:
    ours = hooks(read().dags[dag_id], name)
    assert any(ours.values())
    policy.of_task = setting({name: theirs})
    found = hooks(read().dags[dag_id], name)
    given = theirs if isinstance(theirs, list) else [theirs]
    assert {task: found[task] for task, each in ours.items() if each} == {
        task: [*each, *given] for task, each in ours.items() if each
    }


@pytest.mark.parametrize("dag_id", ["branched", "phased"])
@pytest.mark.parametrize("name", HOOKS)
def test_a_task_keeps_the_hooks_of_the_package_if_a_cluster_policy_removes_them(
    read: Callable[[], DagBag], policy: Policy, dag_id: str, name: str
) -> None:
    ours = {task: repr(each) for task, each in hooks(read().dags[dag_id], name).items()}
    assert any(each != "None" for each in ours.values())
    policy.of_task = setting({name: None})
    assert {task: repr(each) for task, each in hooks(read().dags[dag_id], name).items()} == ours


def test_a_mapped_task_keeps_the_hooks_of_the_package(read: Callable[[], DagBag], policy: Policy) -> None:
    policy.of_task = setting({"on_failure_callback": [told], "on_success_callback": []})
    mapped: Any = read().dags["branched"].get_task("many")
    options = mapped.partial_kwargs
    assert [each.__name__ for each in options["on_failure_callback"]] == ["task_failed", "told"]
    assert [each.__name__ for each in options["on_success_callback"]] == ["task_ended"]


def test_a_dag_callback_set_by_a_cluster_policy_is_not_called_for_a_run_that_yielded(
    read: Callable[[], DagBag], policy: Policy
) -> None:
    policy.of_dag = setting({"on_failure_callback": told})
    callbacks: Any = read().dags["branched"].on_failure_callback
    assert [(type(each).__name__, each.callback) for each in callbacks] == [("UnlessYielded", told)]


def test_waiting_and_committing_tasks_keep_their_options_despite_a_cluster_policy(
    read: Callable[[], DagBag], policy: Policy
) -> None:
    def own() -> list[Any]:
        dags = read().dags
        tasks = [dags["branched"].get_task("commit"), *map(dags["phased"].get_task, ("begin", "commit_phase.mark"))]
        return [(each.retries, each.retry_delay, each.trigger_rule) for each in tasks]

    before = own()
    policy.of_task = setting({"retries": 0, "retry_delay": None, "trigger_rule": "one_failed"})
    assert own() == before


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_active_runs": 1}, r"max_active_runs = 1 .* Set DAG\(max_active_runs=5\)"),
        ({"max_consecutive_failed_dag_runs": 3}, r"Set DAG\(max_consecutive_failed_dag_runs=0\)"),
    ],
)
def test_a_cluster_policy_that_breaks_a_transaction_causes_an_import_error(
    read: Callable[[], DagBag], policy: Policy, options: dict[str, Any], match: str
) -> None:
    policy.of_dag = setting(options)
    bag = read()
    (error,) = bag.import_errors.values()
    assert re.search(match, error)
    assert "branched" not in bag.dags
