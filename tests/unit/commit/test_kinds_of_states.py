"""The commands that a person types after each loss of each public kind of state, as the refusals advise, and the end.

A new kind has no row in the table, and fails until it has one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base import compat
from tests.unit.commit.kinds import (
    BEFORE_THE_LOSS,
    CHANGED,
    EVENTS,
    KINDS,
    LEDGER,
    LOST,
    ON_SERVERS,
    PARTS,
    RESTATE,
    ROLL,
    UNNOTICED,
    Story,
    public_kinds,
    without_txids,
)

BY_KEY = {
    "backup": [ROLL],
    "lost": [ROLL],
    "renamed": [ROLL],
    "forgotten": [ROLL],
    "ledger lost": [LEDGER],
    "by hand": [ROLL, CHANGED],
    "restated": [ROLL],
}
ANSWERS: dict[str, dict[str, list[str]]] = {
    "SqlState": BY_KEY,
    "SqlState transactional": BY_KEY,
    "SqlState largest": BY_KEY,
    "SqlState reducer": {**BEFORE_THE_LOSS, "by hand": [LOST]},
    "SqlTable": BY_KEY,
    "SqlTable without rows in the journal": {
        **{event: [RESTATE] for event in EVENTS},
        "by hand": [RESTATE, CHANGED],
        "ledger lost": [LEDGER],
    },
    "SqlGuard": {event: BEFORE_THE_LOSS[event] for event in ("backup", "lost", "ledger lost")},
    "DeltaTable": {"backup": [ROLL], "lost": [f"{ROLL} refused", RESTATE], "ledger lost": [LEDGER], "restated": [ROLL]},
    "MemoryState": {event: BY_KEY[event] for event in ("backup", "lost", "ledger lost", "restated")},
    "OpaqueMap": UNNOTICED,
    "TransactionalMap": UNNOTICED,
    "NonTransactionalMap": UNNOTICED,
}
"""Per kind and event, the commands that lead back."""
CELLS = [(kind, event) for kind, row in ANSWERS.items() for event in row]


@pytest.fixture(autouse=True)
def no_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "runs_of", lambda dag_id, run_ids: {})


@pytest.mark.parametrize(("name", "event"), CELLS)
def test_the_recommended_commands_recover_each_kind_of_state_after_each_event(
    make: Any, tmp_path: Path, name: str, event: str
) -> None:
    story = Story(make, KINDS[name](tmp_path))
    truth = getattr(story, event.replace(" ", "_"))()
    story.goes_on()
    expected = ANSWERS[name][event]
    assert story.typed == expected
    # What was accepted as lost is lost; and nothing notices that a store without a fence went back.
    is_exact = LOST not in expected and ANSWERS[name] is not UNNOTICED
    is_again = RESTATE in expected
    assert (without_txids(story.mended) == without_txids(truth) if is_again else story.mended == truth) is is_exact


def test_each_public_kind_of_state_has_a_row_in_the_recovery_table() -> None:
    named = {name.partition(" ")[0] for name in ANSWERS}
    assert named | ON_SERVERS | PARTS == public_kinds()
    assert KINDS.keys() == ANSWERS.keys()


def test_each_event_in_the_recovery_table_applies_to_at_least_one_kind_of_state() -> None:
    assert {event for row in ANSWERS.values() for event in row} == set(EVENTS)


def test_the_page_about_recovery_has_a_row_for_each_kind_of_state() -> None:
    page = (Path(__file__).parents[3] / "docs/howto/back-up.md").read_text()
    kinds = {re.sub(r" .*", "", name) for name in ANSWERS} | ON_SERVERS
    rows = [line for line in page.partition("## Kinds of states")[2].splitlines() if line.startswith("|")]
    assert [kind for kind in sorted(kinds - {"MemoryState"}) if not any(f"`{kind}`" in row for row in rows)] == []
