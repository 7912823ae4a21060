"""The protocol allows each history that real processes leave, and its judge finds what the protocol does not allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.history import (
    CHANGES,
    History,
    NoJudge,
    build_judge,
    changed,
    counted_again,
    is_eventful,
    judged,
    recorded,
)
from tests.chaos.mutant import AGAIN

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
SECONDS = 30.0
SEED = 1


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build_judge(tmp_path_factory.mktemp("judge"))
    except NoJudge as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def history(judge: Path, tmp_path_factory: pytest.TempPathFactory) -> History:
    return recorded(tmp_path_factory.mktemp("history"), SECONDS, SEED, shows=is_eventful)


def test_the_protocol_allows_the_recorded_history_of_killed_and_disconnected_processes(
    judge: Path, history: History, tmp_path: Path
) -> None:
    assert judged(judge, history, tmp_path / "history.json") == "Ok", history
    assert is_eventful(history), history


@pytest.mark.parametrize("name", CHANGES)
def test_the_judge_finds_each_history_that_the_protocol_does_not_allow(
    judge: Path, history: History, tmp_path: Path, name: str
) -> None:
    said = judged(judge, changed(history, name), tmp_path / "changed.json")
    assert said.startswith("Illegal"), history


def test_the_judge_reports_a_history_in_which_a_second_grant_adds_its_rows_again(judge: Path, tmp_path: Path) -> None:
    history = recorded(tmp_path, SECONDS / 2, SEED, mutant=AGAIN, shows=counted_again)
    assert counted_again(history), history
    assert judged(judge, history, tmp_path / "history.json").startswith("Illegal"), history
