"""What the page advises: actions and commands that are found in what a remedy says, and the log to read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_tx.base.errors import RollingForward
from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.receipt import Deed
from airflow_tx.ledger.records import Phase
from airflow_tx.ledger.views.view import TopologyView
from airflow_tx.operations.actions.ledger_places import LedgerPlace
from airflow_tx.operations.actions.request import ActionName
from airflow_tx.plugin.api.advice import Advice, failed_log, said_advice, transaction_advice
from airflow_tx.plugin.api.airflow_runs import COMMIT, TaskBar
from airflow_tx.plugin.api.snapshots import TopologySnapshot
from tests.remedies import remedy_of
from tests.unit.plugin.users import user
from tests.unit.protocol.first_transaction import with_first

REPLAYED = remedy_of("Then: <airflow tx replay {t} 7>, or wait.", t="flights")


def snapshot(name: str = "flights", topology: str = "flights", view: TopologyView | None = None) -> TopologySnapshot:
    found = view or with_first(phase=Phase.PROCESSING)
    return TopologySnapshot(found.record, LedgerPlace(name, "zookeeper", Paths("/tx", topology)), None, found)


def told(advice: Advice) -> list[tuple[str, Sequence[int], bool]]:
    actions = [each.action for each in advice.steps if each.action is not None]
    return [(each.action.value, each.txids, each.changed_rows) for each in actions]


def copied(advice: Advice) -> str | None:
    return next((each.command for each in advice.steps if each.command), None)


@pytest.mark.parametrize(
    ("remedy", "command", "actions"),
    [
        (
            "Make room. Then: <airflow tx replay {t} 7>, or <airflow tx skip {t} 7 --why TEXT>.",
            "airflow tx replay flights 7",
            [("replay", [7], False), ("skip", [7], False)],
        ),
        (
            "Or take its rows: <airflow tx replay {t} 7 --changed-rows --why TEXT>.",
            "airflow tx replay flights 7 --changed-rows --why TEXT",
            [("replay", [7], True)],
        ),
        (
            "Accept that (<airflow tx accept-loss {t} --why TEXT>); later rows stay.",
            "airflow tx accept-loss flights --why TEXT",
            [("accept-loss", [], False)],
        ),
        (
            "To withdraw it: <airflow tx restate {t} 3 --withdraw>",
            "airflow tx restate flights 3 --withdraw",
            [("withdraw", [3], False)],
        ),
        (
            "Write it again: <airflow tx repair {t} --roll-forward one>. Or restore it.",
            "airflow tx repair flights --roll-forward one",
            [("repair", [], False)],
        ),
        # There is no button for these.
        (
            "Take them back: <airflow tx repair {t} --back 7>, or <airflow tx repair {t} --back TXID>",
            "airflow tx repair flights --back 7",
            [("repair", [7], False)],
        ),
        (
            "Start again: <airflow tx repair {t} --reset --why TEXT>",
            "airflow tx repair flights --reset --why TEXT",
            [("repair", [], False)],
        ),
        ("<airflow tx list {t}> shows the skipped ones.", "airflow tx list flights", []),
        ("<airflow tx skip {t} TXID --why TEXT>", "airflow tx skip flights TXID --why TEXT", []),
        ("Let the source be reached.", None, []),
    ],
)
def test_the_commands_of_a_remedy_become_buttons_if_a_button_for_the_action_exists(
    remedy: str, command: str | None, actions: list[Any]
) -> None:
    advice = said_advice(snapshot(), remedy_of(remedy, t="flights"), user(), None)
    assert (copied(advice), told(advice)) == (command, actions)


def test_a_command_contains_the_address_of_the_topology_in_this_airflow() -> None:
    elsewhere = snapshot("flights@other/root")
    advice = said_advice(elsewhere, REPLAYED, user(), None)
    assert (copied(advice), told(advice)) == ("airflow tx replay flights@other/root 7", [("replay", [7], False)])


def test_a_name_with_spaces_is_one_argument_of_the_command() -> None:
    advice = said_advice(snapshot("a, b", "a, b"), REPLAYED.named("flights", "a, b"), user(), None)
    assert copied(advice) == "airflow tx replay 'a, b' 7"


def test_the_advice_quotes_names_in_a_command_for_a_shell() -> None:
    view = failed()
    advice = transaction_advice(snapshot("-a b", "flights", view), view.transactions[0], user(acts=False))
    assert advice.remedy == "airflow tx replay -- '-a b' 1, or clear its failed task"
    assert copied(advice) == "airflow tx replay -- '-a b' 1"


def failed(**changes: Any) -> TopologyView:
    return with_first(phase=Phase.FAILED, error="task count: it broke", **changes)


def advice_of(view: TopologyView, *, acts: bool = True) -> Advice:
    return transaction_advice(snapshot(view=view), view.transactions[0], user(acts=acts))


def test_a_user_who_may_act_gets_buttons_without_a_sentence_that_repeats_them() -> None:
    advice = advice_of(failed())
    assert told(advice) == [("replay", [1], False), ("skip", [1], False)]
    assert (advice.remedy, copied(advice)) == (None, "airflow tx replay flights 1")


def test_a_user_who_may_not_act_gets_the_sentence_with_the_command() -> None:
    advice = advice_of(failed(), acts=False)
    assert (told(advice), copied(advice)) == ([], "airflow tx replay flights 1")
    assert advice.remedy == "airflow tx replay flights 1, or clear its failed task"


def test_the_remedy_of_a_refusal_is_shown_as_a_sentence_next_to_the_buttons() -> None:
    remedy = remedy_of("Restore it, or accept what it holds: <airflow tx repair {t} --state-lost t>", t="flights")
    advice = advice_of(with_first(phase=Phase.FAILED, error="It went back.", remedy=remedy))
    assert advice.remedy == f"{remedy}. Then: airflow tx replay flights 1"
    assert copied(advice) == "airflow tx repair flights --state-lost t"
    assert told(advice) == [("repair", [], False), ("replay", [1], False), ("skip", [1], False)]


def test_a_transaction_that_is_processing_needs_no_advice() -> None:
    advice = advice_of(with_first(phase=Phase.PROCESSING))
    assert advice == Advice(steps=[])


def test_the_advice_for_a_transaction_with_a_requested_skip_does_not_offer_to_skip_it_again() -> None:
    noted = Deed("ada", "2013-01-01T00:00:00+00:00", "bad")
    assert told(advice_of(failed(skip=noted))) == [("replay", [1], False)]


def bar(task_id: str, minute: int, **changes: Any) -> TaskBar:
    fields: dict[str, Any] = {"map_index": -1, "operator": "PythonOperator", "try_number": 1, "attempt": 1, **changes}
    end = datetime(2013, 1, 1, 0, minute, tzinfo=timezone.utc)
    return TaskBar(task_id=task_id, state="failed", start=end, end=end, **fields)


def test_the_advice_links_the_log_of_the_last_failed_task_and_not_of_a_later_committer() -> None:
    tries = [bar("read", 1), bar("count", 2, try_number=3, map_index=4), bar("commit", 3, operator=COMMIT)]
    log = failed_log("a dag", "run/1", tries)
    assert log is not None
    assert log.path == "dags/a%20dag/runs/run%2F1/tasks/count/mapped/4?try_number=3"
    alone = failed_log("a", "r", [bar("commit", 3, operator=COMMIT)])
    assert alone is not None
    assert alone.path == "dags/a/runs/r/tasks/commit?try_number=1"


def test_every_action_that_a_command_can_name_has_a_button() -> None:
    named = {"replay", "skip", "readmit", "restate", "accept-loss"}
    assert named <= {each.value for each in ActionName}


@pytest.mark.parametrize("option", ["", " --unseen"])
def test_a_command_with_an_option_that_no_button_supports_can_only_be_copied(option: str) -> None:
    to_do = remedy_of(f"<airflow tx repair {{t}} --state-lost db.t{option}>", t="flights")
    advice = said_advice(snapshot(), to_do, user(), None)
    assert copied(advice) == str(to_do)
    assert [each.action is None for each in advice.steps if each.command] == [option != ""]


@pytest.mark.parametrize("name", ["NEW", "OLD", "TXID", "STATE", "..."])
@pytest.mark.parametrize(
    "command",
    [
        "repair {t} --state-lost {name}",
        "repair {t} --roll-forward {name}",
        "accept-change {t} --state {name} --why TEXT",
        "state rename {t} {name} other --why TEXT",
        "state forget {t} {name} --why TEXT",
        "accept-check {t} 1 {name} --why TEXT",
    ],
)
def test_the_name_of_a_state_or_a_check_may_look_like_any_word_of_a_command(name: str, command: str) -> None:
    view = with_first(phase=Phase.PROCESSING)
    known = replace(view, record=replace(view.record, states={name: 1}))
    to_do = remedy_of(f"<airflow tx {command}>", t="flights", name=name)
    advice = said_advice(snapshot(view=known), to_do, user(), None)
    assert [name in each.action.names for each in advice.steps if each.action] == [True]


def test_a_repair_that_needs_a_person_to_choose_its_state_has_no_button() -> None:
    advice = said_advice(snapshot(), RollingForward(topology="flights", when="now", states=["a"]).advice, user(), None)
    assert [each.action and each.action.names for each in advice.steps if each.command] == [["a"], None]
