"""Failpoints: nothing without the variable, and each rule once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airflow_tx.base.failpoints import VARIABLE, FailpointError, Rule, failpoint
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.failpoints import Failpoints


@pytest.fixture
def failpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Failpoints:
    made = Failpoints(tmp_path / "failpoints")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def test_a_failpoint_does_nothing_if_the_environment_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    failpoint("commit.before_mark", txid=1)


def test_a_failpoint_rule_acts_once_and_only_if_its_context_matches(failpoints: Failpoints) -> None:
    armed = failpoints.arm("commit.before_mark", "raise", txid=5, topology="flights")
    failpoint("commit.before_mark", txid=4, topology="flights")
    failpoint("commit.before_mark", txid=5)
    failpoint("commit.before_write", txid=5, topology="flights")
    assert not armed.reached

    with pytest.raises(FailpointError, match=r"commit\.before_mark:txid=5:topology=flights:raise"):
        failpoint("commit.before_mark", txid=5, topology="flights")
    assert armed.reached
    failpoint("commit.before_mark", txid=5, topology="flights")


def test_a_pause_ends_when_it_is_released(failpoints: Failpoints) -> None:
    armed = failpoints.arm("begin.allocated", "pause")
    thread = threading.Thread(target=failpoint, args=("begin.allocated",))
    thread.start()
    eventually(lambda: armed.reached, 60, "the thread stands at the point")
    assert thread.is_alive()
    armed.release()
    thread.join(300)
    assert not thread.is_alive()


def test_a_killed_process_ends_by_sigkill_and_the_next_process_passes_the_failpoint(failpoints: Failpoints) -> None:
    failpoints.arm("here", "kill")
    code = "from airflow_tx.base.failpoints import failpoint; failpoint('here'); print('passed')"
    ends = [subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode for _ in range(2)]
    assert ends == [-9, 0]


def test_failpoint_rules_can_be_set_in_the_environment_variable_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "marker"
    monkeypatch.setenv(VARIABLE, f"other:kill:once={marker}; here:txid=1:raise:once={marker}")
    with pytest.raises(FailpointError):
        failpoint("here", txid=1)
    failpoint("other")


def test_a_failpoint_rule_is_unchanged_after_it_is_written_as_text_and_parsed() -> None:
    for text in ("a:txid=1:kill:once=/m", "a:raise:once=/m", "a:pause=/f:once=/m"):
        assert str(Rule.parse(text)) == text


@pytest.mark.parametrize("text", ["a", "a:kill", "a:once=/m", "a:explode:once=/m", ":kill:once=/m"])
def test_the_error_for_an_unreadable_failpoint_rule_shows_the_rule(text: str) -> None:
    with pytest.raises(ValueError, match="failpoint rule"):
        Rule.parse(text)
