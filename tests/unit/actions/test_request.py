"""A request gives an action what the constructor of its class names, and nothing else."""

from __future__ import annotations

from typing import Any, cast

import pytest

from airflow_tx.ledger.api import Paths
from airflow_tx.operations.actions.action import ActionTarget
from airflow_tx.operations.actions.request import ActionName, ActionRequest, UnclearRequest


class Target:
    """A topology that no action reads."""

    class ledger:
        paths = Paths("/tx", "flights")


def made(name: str, **asked: Any) -> Any:
    request = ActionRequest("flights", "zookeeper", "/tx", "coordinator", ActionName(name), **asked)
    assert ActionRequest.from_json(request.to_json()) == request
    return request.action(cast(ActionTarget, Target()))


def given(name: str, **asked: Any) -> dict[str, Any]:
    return {key: each for key, each in vars(made(name, **asked)).items() if key not in ("target", "ledger", "subject")}


@pytest.mark.parametrize(
    ("name", "asked", "fields"),
    [
        ("skip", {"txids": (7,)}, {"txid": 7}),
        ("accept-check", {"txids": (7,), "names": ("a", "b")}, {"txid": 7, "names": ["a", "b"]}),
        ("state-rename", {"names": ("old", "new")}, {"state": "old", "new": "new"}),
        ("state-forget", {"names": ("old",)}, {"state": "old"}),
        ("withdraw", {}, {"txids": []}),
        ("withdraw", {"txids": (8, 7)}, {"txids": [7, 8]}),
        ("pause", {}, {"dag_id": "coordinator", "paused": True}),
        ("unpause", {}, {"dag_id": "coordinator", "paused": False}),
        ("repair", {"repair": "state-lost", "names": ("one",)}, {"state": "one", "unseen": False}),
        ("repair", {"repair": "back", "txids": (7,)}, {"last": 7}),
        ("repair", {"repair": "reset"}, {}),
        ("repair", {"repair": "ledger-lost"}, {}),
        ("repair", {"repair": "ends"}, {}),
    ],
)
def test_an_action_reads_only_its_own_fields_of_a_request(
    name: str, asked: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert given(name, **asked) == fields


def test_a_request_to_restate_after_an_upstream_correction_needs_no_reason() -> None:
    assert type(made("restate", follow=True)).__name__ == "CorrectionRestatement"
    assert not made("restate", follow=True).needs_reason
    assert made("restate").needs_reason


def test_a_replay_reads_its_options_from_the_request() -> None:
    action = made("replay", txids=(7,), force=True)
    assert (action.txids, action.force, action.changed_rows) == ([7], True, False)


@pytest.mark.parametrize(
    ("name", "asked", "problem"),
    [
        ("skip", {}, "name one transaction"),
        ("replay", {}, "name the transactions"),
        ("replay-failed", {"txids": (7,)}, "leave out the transactions"),
        ("skip", {"txids": (7,), "names": ("a",)}, "leave out the names"),
        ("skip", {"txids": (7,), "force": True}, "force is only for replay"),
        ("accept-check", {"txids": (7,)}, "name the checks"),
        ("accept-change", {"names": ("a", "b")}, "name one state"),
        ("state-rename", {"names": ("a",)}, "name the state, and its new name"),
        ("readmit", {"txids": (7,), "changed_rows": True}, "changed_rows is only for replay and restate"),
        ("restate", {"restate": True}, "restate is only for the repair roll-forward"),
        ("restate", {"follow": True, "txids": (7,)}, "leave out the transactions"),
        ("restate", {"follow": True, "changed_rows": True}, "changed_rows is only for replay and restate"),
        ("skip", {"txids": (7,), "follow": True}, "follow and stale are only for restate"),
        ("skip", {"txids": (7,), "repair": "back"}, "a kind of repair is only for repair"),
        ("repair", {"repair": "back"}, "name one transaction"),
        (
            "repair",
            {"repair": "x"},
            "name the kind of repair: back, ends, ledger-lost, reset, roll-forward, state-lost",
        ),
    ],
)
def test_a_request_with_a_field_that_the_action_does_not_have_is_refused(
    name: str, asked: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UnclearRequest, match=problem):
        made(name, **asked)
