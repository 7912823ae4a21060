"""A commit phase as it stands in a DAG file: what comes before what, and what is refused."""

from __future__ import annotations

from typing import Any, cast

import pytest
from airflow.sdk import TaskGroup

from airflow_tx import CommitOperator, check, commit_phase, persistent_aggregate
from airflow_tx.operators.commit import note_commit_failure
from tests.unit.topology.blocks import block, commit, count, dag, refused, state


def counted(name: str, *arguments: Any) -> Any:
    return count.override(task_id=name)(*arguments)


def committed(name: str, given: Any, kind: str = "opaque") -> CommitOperator:
    return CommitOperator(task_id=name, updates=[persistent_aggregate(given, state=state(f"of_{name}", kind))])


def test_a_phase_takes_the_turn_after_all_its_inputs_and_passes_it_on_after_all_its_tasks() -> None:
    with dag() as made, block() as tx:
        a, aside = counted("a", tx.batch), counted("aside", tx.batch)
        counted("alone", aside)
        with commit_phase():
            b = committed("b", a)
            c = counted("c", a)
            b >> c
            committed("d", c)
    upstream = {each.task_id: each.upstream_task_ids for each in made.tasks}
    assert upstream["commit_phase.acquire"] == {"a", "begin"}
    assert upstream["commit_phase.b"] == {"a", "commit_phase.acquire"}
    assert upstream["commit_phase.c"] == {"a", "commit_phase.b"}
    assert upstream["commit_phase.mark"] == {"commit_phase.acquire", "commit_phase.d"}
    spec = tx.begin.transaction
    assert spec.tasks == ("a",)
    assert spec.phase is not None
    assert spec.phase.committers == ("commit_phase.b", "commit_phase.d")
    assert spec.phase.inside == ("commit_phase.b", "commit_phase.c", "commit_phase.d")


def test_the_last_task_of_a_phase_fails_the_run_and_later_tasks_depend_on_it() -> None:
    with dag() as made:
        with block() as tx, commit_phase("in_order") as phase:
            committed("b", counted("a", tx.batch)) >> counted("c", 1)
        phase.mark >> counted("report", 1)
    mark: Any = made.get_task("in_order.mark")
    assert mark.is_teardown
    assert mark.on_failure_fail_dagrun
    assert made.get_task("report").upstream_task_ids == {"in_order.mark"}


def test_the_failure_of_each_task_in_a_phase_is_recorded_in_the_ledger() -> None:
    with dag() as made, block() as tx:
        a = counted("a", tx.batch)
        with commit_phase("in_order"):
            committed("b", a) >> counted("c", 1)
    assert {
        each.task_id for each in made.tasks if note_commit_failure in cast("list[object]", each.on_failure_callback)
    } == {f"in_order.{name}" for name in ("acquire", "b", "c", "mark")}


def test_a_commit_phase_without_a_committer_is_refused() -> None:
    with dag(), refused("it has no committer"), block() as tx, commit_phase():
        counted("a", tx.batch)


def test_a_committer_outside_of_the_commit_phase_is_refused() -> None:
    with dag(), refused("late is not in its commit phase"), block() as tx:
        a = counted("a", tx.batch)
        with commit_phase():
            committed("b", a)
        committed("late", a)


def test_a_committer_may_commit_only_the_new_values_of_another_committer() -> None:
    def phase(name: str) -> None:
        with dag(), block() as tx, commit_phase():
            update = persistent_aggregate(counted("a", tx.batch), state=state("first"), new_values="totals")
            first = CommitOperator(task_id="first", updates=[update])
            committed("second", first.output[name])

    phase("totals")
    with refused("second commits 'return_value' of .*first, but .*first leaves 'totals'"):
        phase("return_value")


def test_two_commit_phases_in_a_dag_are_refused() -> None:
    with dag(), refused("two commit phases"), block() as tx:
        a = counted("a", tx.batch)
        with commit_phase("one"):
            committed("b", a)
        with commit_phase("two"):
            committed("d", a)


def test_a_task_of_the_transaction_after_the_commit_phase_is_refused() -> None:
    with dag(), refused("after runs after commit_phase.acquire inside the block.*commit_phase"), block() as tx:
        a = counted("a", tx.batch)
        with commit_phase():
            b = committed("b", a)
        b >> counted("after", a)


def test_a_transactional_state_cannot_be_updated_with_an_output_of_its_own_commit_phase() -> None:
    with dag(), refused('commits the output of commit_phase.c.*kind="opaque"'), block() as tx:
        a = counted("a", tx.batch)
        with commit_phase():
            committed("b", a) >> (c := counted("c", a))
            committed("d", c, "transactional")


def test_the_output_of_a_mapped_task_in_the_commit_phase_cannot_be_committed() -> None:
    with dag(), refused("a mapped task of the same phase"), block() as tx:
        a = counted("a", tx.batch)
        with commit_phase():
            committed("b", a) >> (c := count.override(task_id="c").expand(batch=[1, 2]))
            committed("d", c)


def test_several_committers_without_a_phase_are_refused_with_a_hint_to_commit_phase() -> None:
    with dag(), refused("2 committers.*with commit_phase"), block() as tx:
        a = counted("a", tx.batch)
        commit(a, task_id="one")
        commit(a, task_id="two")


def test_a_state_may_be_updated_only_once_in_a_commit_phase() -> None:
    with dag(), refused("is updated 2 times"), block() as tx:
        a = counted("a", tx.batch)
        with commit_phase():
            commit(a, task_id="one")
            commit(a, task_id="two")


def test_tasks_in_groups_inside_the_commit_phase_belong_to_the_phase() -> None:
    with dag(), block() as tx:
        a = counted("a", tx.batch)
        with commit_phase(), TaskGroup("inner"):
            committed("b", a) >> counted("c", a)
    assert tx.begin.transaction.phase is not None
    assert tx.begin.transaction.phase.inside == ("commit_phase.inner.b", "commit_phase.inner.c")


@pytest.mark.parametrize("mapped", [True, False])
def test_tasks_in_a_commit_phase_may_be_mapped_and_committers_may_not(mapped: bool) -> None:
    with dag(), block() as tx:
        a = counted("a", tx.batch)
        with commit_phase():
            b = committed("b", a)
            if mapped:
                b >> count.override(task_id="c").expand(batch=[1, 2])
    phase = tx.begin.transaction.phase
    assert phase is not None
    assert phase.mapped == (frozenset({"commit_phase.c"}) if mapped else frozenset())


def test_a_check_of_an_output_of_its_own_commit_phase_is_refused() -> None:
    told = "check\\('some'\\) of commit_phase.b checks the output of commit_phase.c, which runs in the commit phase"
    with dag(), refused(told):
        with block() as tx:
            a = counted("a", tx.batch)
            with commit_phase():
                c = counted("c", a)
                update = persistent_aggregate(a, state=state("of_b"))
                CommitOperator(task_id="b", updates=[update], checks=[check("some", c, value="count(*) > 0")])


def test_duplicate_names_of_checks_in_a_commit_phase_are_refused() -> None:
    with dag(), refused("it has 2 checks named 'some'"), block() as tx:
        a = counted("a", tx.batch)
        with commit_phase():
            for name in "bd":
                update = persistent_aggregate(a, state=state(f"of_{name}"))
                CommitOperator(task_id=name, updates=[update], checks=[check("some", a, value="count(*) > 0")])
