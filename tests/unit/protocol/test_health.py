"""How a topology is, and what a person can do about it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.ledger.records import AlarmNote, BlockMark, Phase
from airflow_tx.ledger.views.view import HealthCode, topology_health
from airflow_tx.operations.cli import render
from airflow_tx.plugin.api.timeline import timeline_row
from tests.remedies import remedy_of
from tests.unit.protocol.first_transaction import with_first

REMEDY = remedy_of("Restore it, or accept what it holds: <airflow tx repair {t} --state-lost t>", t="flights")
REFUSED: dict[str, Any] = {
    "error": "task commit: AirflowFailException: State 't' refused: it went back.",
    "remedy": REMEDY,
}
COMMITS = [Phase.PROCESSED, Phase.COMMITTING]
PHASES = [*COMMITS, Phase.FAILED]


@pytest.mark.parametrize("phase", PHASES)
def test_a_refused_transaction_has_failed_and_its_advice_is_the_remedy_of_the_refusal(phase: Phase) -> None:
    view = with_first(phase=phase, **REFUSED)
    health = topology_health(view)
    then = f"{REMEDY}. Then: airflow tx replay flights 1"
    assert (health.code, health.txid, str(health.remedy)) == (HealthCode.FAILED, 1, then)
    assert health.sentence.endswith("State 't' refused: it went back.")
    assert "replay" not in health.sentence
    (shown,) = view.transactions
    assert shown.waiting_for == f"a person: {then}"


@pytest.mark.parametrize("phase", PHASES)
def test_the_advice_for_a_failed_transaction_is_a_replay_if_its_error_has_no_remedy(phase: Phase) -> None:
    health = topology_health(with_first(phase=phase, error="task commit: ValueError: no"))
    assert health.code is HealthCode.FAILED
    assert str(health.remedy) == "airflow tx replay flights 1, or clear its failed task"


def test_the_sentence_about_a_failure_does_not_contain_the_remedy() -> None:
    health = topology_health(with_first(phase=Phase.FAILED, error="ValueError: no", failed_task="commit"))
    assert health.sentence == "Transaction 1 has failed: task commit: ValueError: no."


def test_the_sentence_of_a_blocked_transaction_does_not_contain_the_remedy_of_its_refusal() -> None:
    mark = BlockMark(1, 1, REFUSED["error"], "2013-01-01T00:00:00+00:00")
    health = topology_health(with_first(phase=Phase.FAILED, blocked=mark, **REFUSED))
    assert health.sentence.count("airflow tx") == 0
    assert str(health.remedy).startswith(f"{REMEDY}. Then: airflow tx replay flights 1, or airflow tx skip flights 1 ")


@pytest.mark.parametrize("phase", PHASES)
def test_the_list_of_topologies_shows_a_refused_commit_as_failed_and_names_the_problem(phase: Phase) -> None:
    line = render.topology(with_first(phase=phase, **REFUSED))
    assert line["failed"] == 1
    assert line["problem"] == f"transaction 1 has failed: {REFUSED['error']} {REMEDY}"


@pytest.mark.parametrize("phase", COMMITS)
def test_the_bars_of_a_failed_transaction_in_the_timeline_do_not_grow(phase: Phase) -> None:
    (failed,) = with_first(phase=phase, **REFUSED).transactions
    row = timeline_row(failed, (), has_run=True)
    assert (row.phase, row.waiting, row.commit) == ("FAILED", None, None)
    (alive,) = with_first(phase=phase).transactions
    row = timeline_row(alive, (), has_run=True)
    bar = row.commit or row.waiting
    assert bar is not None
    assert (row.phase, bar.end) == (phase.value, None)


def test_a_late_topology_still_shows_its_failure() -> None:
    health = topology_health(
        with_first(phase=Phase.FAILED, **REFUSED), {"late": AlarmNote("", "2013-01-01T00:00:00+00:00")}
    )
    assert health.code is HealthCode.FAILED


LATE = {"late": AlarmNote("", "2013-01-01T00:00:00+00:00")}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    "given", [{}, REFUSED, {"blocked": BlockMark(1, 1, "it broke", "2013-01-01T00:00:00+00:00"), **REFUSED}]
)
def test_a_sentence_about_a_transaction_begins_with_its_name_unless_the_topology_is_late(
    phase: Phase, given: dict[str, Any]
) -> None:
    for alarms in ({}, LATE):
        health = topology_health(with_first(phase=phase, **given), alarms)
        assert health.txid == 1
        assert health.sentence.startswith("Transaction 1 ") is (health.code is not HealthCode.LATE)
