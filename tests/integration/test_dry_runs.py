"""What every action would do, and what it then does, on a real ZooKeeper and a real database of Airflow."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_tx.operations.actions.request import ActionName
from tests.integration.cli_runs import Runs
from tests.integration.commands import DAG, Commands
from tests.integration.deeds import (
    ASKED,
    World,
    a_coordinator,
    a_live_one_to_be_skipped,
    a_lost_state,
    a_lost_state_and_a_failed_commit,
    a_renamed_state,
    a_state_that_is_gone,
    all_taken,
    one_committed,
    one_failed,
    one_failed_one_live,
    one_in_a_state_that_is_gone,
    one_live_one_to_be_skipped,
    one_of_other_code,
    one_readmitted,
    one_skipped,
    one_that_was_changed_by_hand,
    one_whose_predecessor_moved,
    one_with_failed_checks,
    some_yielded,
    two_open_without_runs,
)
from tests.integration.kinds.answers import check_data
from tests.integration.pipeline import Pipeline

_LOSES = """
from airflow_tx.sources.api import Loss

class LosingSource(FileSource):
    def losses(self, position):
        return [] if (position or 0) >= 5 else [Loss("", position, 5, f"rows {(position or 0) + 1} to 5")]

coordinator = DAG("flights_coordinator", schedule=None)
with DAG("the_dag\""""
_ASK = """
import json
from airflow_tx.operations.actions.dag_server import DagServer
from airflow_tx.base.errors import TxError
try:
    print(json.dumps(DagServer().answer(json.loads(arguments[0]))))
except TxError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture(scope="module")
def airflow(commands: Commands) -> Iterator[Commands]:
    text = DAG.replace('\nwith DAG("the_dag"', _LOSES).replace("source=FileSource(", "source=LosingSource(")
    commands.begin({"the_dag.py": text}, known=True)
    yield commands
    commands.begin({})


Said = Mapping[Any, str]


@dataclass(frozen=True)
class Case:
    """An action on a topology.

    :param command: after `airflow tx`, without its reason; "": there is none.
    :param would: per txid, or per run without one, what it says that it would do; `refused`: and would not.
    :param did: what it then says that it did; a text: the error that it fails with.
    """

    name: str
    prepare: Callable[[World], None]
    command: str
    request: dict[str, Any]
    did: Said | str
    would: Said = field(default_factory=dict)
    refused: Said = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def replay(*txids: int, **options: bool) -> dict[str, Any]:
    return {"name": "replay", "txids": txids, **options}


NOT_OPEN = (
    "No transaction 7 of topology 'flights' in the ledger at {transactions}. To see the transactions that there "
    "are: airflow tx list flights"
)
ALONE = "its run is running; with force it is replayed anyway"
LEFT = "its run was left alone: it is running (--force starts it again anyway)"
KEEPS = (
    "Transaction 1 of flights keeps its rows: it may be in state tx_state.gone already, which cannot undo it. Nothing "
    "was changed. Give the source its earlier rows back, and replay it without --changed-rows until it is "
    "committed: airflow tx replay flights 1"
)
BACK = "To get its rows back: airflow tx readmit flights {} --why TEXT"
LATER = "to be skipped at its turn; it waits for transaction 1.1 (run r1, PROCESSING)"
STALE = "its batch does not start where transaction 1 ended, so it is replayed first, and then skipped"
COMMITTED = "Transaction 1 is committed. Nothing was changed."
NOT_SKIPPED = (
    "Transaction 1 of flights cannot be re-admitted: it is {}. Nothing was changed; airflow tx list flights shows the "
    "skipped ones."
)
NOT_FAILED = (
    "Check 'sums' of transaction 1 of flights is not accepted: it has not failed in the newest attempt, "
    "whose failed checks are: 'no gaps', 'positive'. Nothing was changed."
)
AS_RECEIPTS_SAY = (
    "Change of state 'tx_state.two' of topology 'flights' not accepted: its values match its receipts. Nothing "
    "was changed."
)
NO_OTHER_CODE = "None of 1 transaction of topology flights is stale. Nothing was changed. No acceptance is needed"
NEXT = "; generation {}; transaction 2 commits next"
REPAIRED = ". Generation {}; transaction 2 commits next."
RENAMED = "state tx_state.old, at transaction 1, is called tx_state.one now"
ALONG = "state tx_state.one: it takes over the fence, which is at transaction 1"
LEFT_OUT = "state tx_state.gone was at transaction 1; the topology continues without it"
LOST = "state tx_state.one was at transaction 1; what it holds now is accepted: its transactions up to 0"
NO_BOOK = (
    "Repair --ends of topology 'flights' refused: it keeps no book of ends: DAG 'the_dag' updates no table, and reads "
    "none of another topology. Nothing was changed. Let the DAG update a SqlTable or a DeltaTable, then repeat: "
    "airflow tx repair flights --ends --why TEXT"
)
NO_STATE = (
    "Repair --state-lost of topology 'flights' refused: the DAG has no state 'nosuch'; its states: tx_state.one, "
    "tx_state.two. "
    "Nothing was changed. To continue without it: airflow tx state forget flights nosuch"
)
IN_THE_DAG = (
    "Topology 'flights' is not changed: DAG the_dag updates state tx_state.one. Take the update out of the DAG first. "
    "If the values are lost: airflow tx repair flights --state-lost tx_state.one"
)
NOT_RENAMED = "State 'tx_state.one' of topology 'flights' is not renamed: the DAG updates tx_state.one, tx_state.two. *"
WAITS = (
    "it has failed, and a coordinator replays it after the repair. Without a coordinator: airflow tx replay flights 2"
)
RUN_WORKS = (
    "Repair --ledger-lost of topology 'flights' refused: runs of DAG 'the_dag' work on its transactions: r2 (running). "
    "Nothing was changed. Pause the DAG, end them, and repeat."
)
WHOLE = "transaction 1 is complete in every state; 2 is next"
NOTHING_LOST = "Topology 'flights' has lost nothing: *"
CASES = (
    Case(
        "replay of a failed one", one_failed, "replay flights 1", replay(1),
        would={1: "its run is cleared, and begins as attempt 2"}, did={1: "its run was cleared"},
    ),
    Case(
        "replay of those without a run", two_open_without_runs, "replay flights 2 1", replay(2, 1),
        would=dict.fromkeys((1, 2), "its run is created again, and begins as attempt 2"),
        did=dict.fromkeys((1, 2), "its run did not exist, and was created again"),
    ),
    Case(
        "replay of a live one", one_failed_one_live, "replay flights 1 2", replay(1, 2),
        would={1: "its run is cleared, and begins as attempt 2"}, refused={2: ALONE},
        did={1: "its run was cleared", 2: LEFT},
    ),
    Case(
        "replay of a live one alone", one_failed_one_live, "replay flights 2", replay(2),
        refused={2: ALONE}, did={2: LEFT},
    ),
    Case(
        "replay of all that failed where none has", one_live_one_to_be_skipped, "replay flights --failed",
        {"name": "replay-failed"},
        refused={2: "left alone: *"}, did={2: "left alone: *"},
    ),
    Case(
        "replay of a live one with force", one_failed_one_live, "replay flights 2 --force", replay(2, force=True),
        would={2: "its run is cleared, and begins as attempt 2"}, did={2: "its run was cleared"},
    ),
    Case(
        "replay of a live one that is to be skipped", a_live_one_to_be_skipped, "replay flights 2", replay(2),
        would={2: f"its skip is withdrawn; {ALONE}"}, did={2: f"its skip was withdrawn, {LEFT}"},
    ),
    Case(
        "replay of one that is not there", one_failed, "replay flights 1 7", replay(1, 7),
        refused={7: NOT_OPEN, 1: "not replayed, since transaction 7 is refused"}, did=NOT_OPEN,
    ),
    Case(
        "replay of a committed one", one_committed, "replay flights 1", replay(1),
        refused={1: COMMITTED}, did=COMMITTED,
    ),
    Case(
        "replay with changed rows", one_failed_one_live, "replay flights 1 2 --changed-rows",
        replay(1, 2, changed_rows=True),
        would={1: "its rows are decided again, its run is cleared, and begins as attempt 2"}, refused={2: ALONE},
        did={1: "its rows are decided again: its run was cleared", 2: LEFT},
    ),
    Case(
        "replay with changed rows of what a state keeps", one_in_a_state_that_is_gone,
        "replay flights 2 1 --changed-rows", replay(2, 1, changed_rows=True),
        refused={1: KEEPS, 2: "not replayed, since transaction 1 is refused"}, did=KEEPS,
    ),
    Case(
        "replay of all that failed", some_yielded, "replay flights --failed", {"name": "replay-failed"},
        would={
            1: "its run is cleared", "waits": "is cleared: it had yielded to transaction 1",
            "gone": "is forgotten: it had yielded, and was deleted",
        },
        refused={3: "left alone: it is skipped at its turn; to replay it, name its txid"},
        did={
            1: "its run was cleared", "waits": "cleared: it had yielded to transaction 1",
            "gone": "forgotten: it had yielded, and was deleted",
            3: "left alone: it is skipped at its turn; to replay it, name its txid",
        },
    ),
    Case(
        "replay of nothing", one_committed, "replay flights --failed", {"name": "replay-failed"}, did={},
    ),
    Case(
        "skip at its turn", two_open_without_runs, "skip flights 1", {"name": "skip", "txids": (1,)},
        would={1: "skipped at once, and its rows are counted nowhere until they are re-admitted"},
        did={1: f"skipped. {BACK.format(1)}"},
    ),
    Case(
        "skip before its turn", two_open_without_runs, "skip flights 2", {"name": "skip", "txids": (2,)},
        would={2: LATER}, did={2: LATER},
    ),
    Case(
        "skip of a batch whose predecessor moved", one_whose_predecessor_moved, "skip flights 2",
        {"name": "skip", "txids": (2,)}, would={2: STALE}, did={2: f"{STALE}: its run was cleared"},
    ),
    Case(
        "skip of what a state keeps", one_in_a_state_that_is_gone, "skip flights 1", {"name": "skip", "txids": (1,)},
        refused={1: "*an earlier try may have written to state tx_state.gone*"},
        did="*an earlier try may have written to state tx_state.gone*",
    ),
    Case(
        "skip of a skipped one", one_skipped, "skip flights 1", {"name": "skip", "txids": (1,)},
        refused={1: "Transaction 1 is skipped. To get it back: airflow tx readmit flights 1 --why TEXT"},
        did={1: f"it is already skipped. {BACK.format(1)}"},
    ),
    Case(
        "skip of a committed one", one_committed, "skip flights 1", {"name": "skip", "txids": (1,)},
        refused={1: COMMITTED}, did=COMMITTED,
    ),
    Case(
        "readmit", one_skipped, "readmit flights 1", {"name": "readmit", "txids": (1,)},
        would={
            1: "its run is cleared, and processes the current rows at the same place in the source as a new "
            "transaction"
        },
        did={
            1: "re-admitted: its run was cleared, and takes the current rows at the same place in the source, as a new "
            "transaction"
        },
    ),
    Case(
        "readmit of a committed one", one_committed, "readmit flights 1", {"name": "readmit", "txids": (1,)},
        refused={1: NOT_SKIPPED.format("not skipped")}, did=NOT_SKIPPED.format("not skipped"),
    ),
    Case(
        "readmit again", one_readmitted, "readmit flights 1", {"name": "readmit", "txids": (1,)},
        refused={1: NOT_SKIPPED.format("re-admitted as 2")}, did=NOT_SKIPPED.format("re-admitted as 2"),
    ),
    Case(
        "accept-loss", one_failed, "accept-loss flights", {"name": "accept-loss"},
        would={None: "rows 2 to 5"}, did={None: "accepted as lost: rows 2 to 5"},
    ),
    Case(
        "accept-loss of nothing", all_taken, "accept-loss flights", {"name": "accept-loss"},
        refused={None: NOTHING_LOST}, did=NOTHING_LOST,
    ),
    Case(
        "accept-check", one_with_failed_checks, "accept-check flights 1 positive",
        {"name": "accept-check", "txids": (1,), "names": ("positive",)},
        would={1: "positive: failed: positive: 3 of 9 rows"},
        did={1: "accepted: *; not committed: these checks also failed: no gaps. Accept them, or correct the code"},
    ),
    Case(
        "accept-check of all that failed", one_with_failed_checks, "accept-check flights 1 'no gaps' positive",
        {"name": "accept-check", "txids": (1,), "names": ("no gaps", "positive")},
        would={1: "no gaps: failed: no gaps: 3 of 9 rows; positive: failed: positive: 3 of 9 rows"},
        did={1: "accepted: no gaps: *; accepted: positive: *; its failed tasks were cleared"},
    ),
    Case(
        "accept-check of one that has not failed", one_with_failed_checks, "accept-check flights 1 sums",
        {"name": "accept-check", "txids": (1,), "names": ("sums",)}, refused={1: NOT_FAILED}, did=NOT_FAILED,
    ),
    Case(
        "accept-change", one_that_was_changed_by_hand, "accept-change flights --state tx_state.one",
        {"name": "accept-change", "names": ("tx_state.one",)},
        would={None: "column n adds up to 6, and its receipts to 1"},
        did={None: "accepted: column n adds up to 6, and its receipts to 1"},
    ),
    Case(
        "accept-change of what was not changed", one_that_was_changed_by_hand,
        "accept-change flights --state tx_state.two", {"name": "accept-change", "names": ("tx_state.two",)},
        refused={None: AS_RECEIPTS_SAY}, did=AS_RECEIPTS_SAY,
    ),
    Case(
        "accept-change of a state that is not there", one_that_was_changed_by_hand,
        "accept-change flights --state nosuch", {"name": "accept-change", "names": ("nosuch",)},
        refused={None: "*the DAG updates tx_state.one, tx_state.two*"},
        did="*the DAG updates tx_state.one, tx_state.two*",
    ),
    Case(
        "accept-code", one_of_other_code, "restate flights --stale --accept", {"name": "accept-code"},
        would={None: "task count: 1 transaction made by other code, 1 to 1"},
        did={None: "accepted: task count: 1 transaction made by other code, 1 to 1"},
    ),
    Case(
        "accept-code of what has the same code", one_committed, "restate flights --stale --accept",
        {"name": "accept-code"}, refused={None: NO_OTHER_CODE}, did=NO_OTHER_CODE,
    ),
    Case(
        "rename of a state", a_renamed_state, "state rename flights tx_state.old tx_state.one",
        {"name": "state-rename", "names": ("tx_state.old", "tx_state.one")},
        would={None: f"{RENAMED}{NEXT.format(2)}; {ALONG}"}, did={None: f"{RENAMED}{REPAIRED.format(2)}"},
    ),
    Case(
        "rename of a state that the DAG has", one_committed, "state rename flights tx_state.one tx_state.other",
        {"name": "state-rename", "names": ("tx_state.one", "tx_state.other")},
        refused={None: NOT_RENAMED}, did=NOT_RENAMED,
    ),
    Case(
        "forget a state", a_state_that_is_gone, "state forget flights tx_state.gone",
        {"name": "state-forget", "names": ("tx_state.gone",)},
        would={None: f"{LEFT_OUT}{NEXT.format(2)}"}, did={None: f"{LEFT_OUT}{REPAIRED.format(2)}"},
    ),
    Case(
        "forget a state that the DAG has", one_committed, "state forget flights tx_state.one",
        {"name": "state-forget", "names": ("tx_state.one",)}, refused={None: IN_THE_DAG}, did=IN_THE_DAG,
    ),
    Case(
        "repair of a lost state", a_lost_state, "repair flights --state-lost tx_state.one",
        {"name": "repair", "repair": "state-lost", "names": ("tx_state.one",)},
        would={None: f"{LOST}{NEXT.format(2)}"}, did={None: f"{LOST}{REPAIRED.format(2)}"},
    ),
    Case(
        "repair of a state that is not there", a_lost_state, "repair flights --state-lost nosuch",
        {"name": "repair", "repair": "state-lost", "names": ("nosuch",)}, refused={None: NO_STATE}, did=NO_STATE,
    ),
    Case(
        "ends of a topology without a table", one_committed, "repair flights --ends",
        {"name": "repair", "repair": "ends"}, refused={None: NO_BOOK}, did=NO_BOOK,
    ),
    Case(
        "roll forward of what lacks nothing", one_committed, "repair flights --roll-forward",
        {"name": "repair", "repair": "roll-forward"}, did={},
    ),
    Case(
        "repair of a lost ledger", one_committed, "repair flights --ledger-lost",
        {"name": "repair", "repair": "ledger-lost"},
        would={None: f"{WHOLE}{NEXT.format(2)}"}, did={None: f"{WHOLE}{REPAIRED.format(2)}"},
    ),
    Case(
        "repair of a lost ledger while a run works", one_failed_one_live, "",
        {"name": "repair", "repair": "ledger-lost"}, refused={None: RUN_WORKS}, did=RUN_WORKS,
    ),
    Case(
        "repair of a lost state whose commit has failed", a_lost_state_and_a_failed_commit,
        "repair flights --state-lost tx_state.one",
        {"name": "repair", "repair": "state-lost", "names": ("tx_state.one",)},
        would={None: f"{LOST}{NEXT.format(2)}", 2: WAITS}, did={None: f"{LOST}{REPAIRED.format(2)}", 2: WAITS},
    ),
    Case(
        "pause", a_coordinator, "", {"name": "pause"},
        would={None: "DAG flights_coordinator starts and replays nothing until it is unpaused"},
        did={None: "DAG flights_coordinator is paused"},
    ),
    Case(
        "unpause of what goes on", a_coordinator, "", {"name": "unpause"},
        refused={None: "DAG flights_coordinator is not paused."},
        did="The coordinator of topology 'flights' has changed since. Nothing was done; *",
    ),
)  # fmt: skip


@pytest.mark.worth("each action of a person has a preview; the first test makes Airflow's database")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_preview_changes_nothing_and_its_effects_match_the_executed_action(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str, case: Case
) -> None:
    world = World(airflow, pipeline, runs)
    case.prepare(world)
    before, stood = world.everything(), world.summary()

    preview = ask(airflow, zookeeper_root, case.request, "preview")
    would, refused = said(preview["effects"]), said(preview["refused"])
    if case.command:
        tried = airflow.tried("tx", *shlex.split(case.command), "--dry-run", "--output", "json", root=zookeeper_root)
        check_data(json.loads(tried.output))
        texts = [each["what"] for each in preview["effects"]]
        texts += [f"refused: {each['what']}" for each in preview["refused"]]
        assert [row["done"] for row in json.loads(tried.output)] == texts
        is_refused = bool(refused) and not would and "--failed" not in case.command
        assert tried.code == (next(iter(refused.values())) if is_refused else None)
        if isinstance(case.did, str):
            assert_said({None: str(tried.code)}, {None: case.did}, pipeline)
    assert world.everything() == before
    assert_said(would, case.would, pipeline)
    assert_said(refused, case.refused, pipeline)
    version = preview["version"]
    done = ask(airflow, zookeeper_root, case.request, "execute", who="ann", why="bad file", version=version)
    if isinstance(case.did, str):
        assert_said({None: done}, {None: case.did}, pipeline)
    else:
        assert_said(said(done), case.did, pipeline)
    assert (world.summary() == stood) == (not would)


@pytest.mark.parametrize("name", ActionName, ids=lambda name: str(name.value))
def test_an_action_with_an_unknown_preview_version_is_refused_and_changes_nothing(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str, name: ActionName
) -> None:
    world = World(airflow, pipeline, runs)
    prepare, named = ASKED[name]
    prepare(world)
    before = world.everything()
    request = {"name": name.value, **named}
    done = ask(airflow, zookeeper_root, request, "execute", who="ann", why="bad file", version="nonsense")
    assert str(done).endswith(
        "of topology 'flights' has changed since. Nothing was done; have another look, then repeat."
    )
    assert world.everything() == before


_STARTS_RUNS = ("replay", "replay-failed", "readmit", "unpause", "accept-check")
_OF_A_JOURNAL = ("restate", "withdraw")  # see test_cli_restate.py


def doable(name: str) -> tuple[Callable[[World], None], dict[str, Any]]:
    """Find a topology in which an action can be done, and the request."""
    for case in CASES:
        if case.request["name"] == name and case.would:
            return case.prepare, case.request
    prepare, named = ASKED[ActionName(name)]
    return prepare, {"name": name, **named}


@pytest.mark.parametrize("why", ["paused", "broken", "gone"])
@pytest.mark.parametrize("name", [each.value for each in ActionName if each.value not in _OF_A_JOURNAL])
def test_an_action_warns_before_and_after_its_execution_if_airflow_would_start_no_run(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str, name: str, why: str
) -> None:
    world = World(airflow, pipeline, runs)
    prepare, request = doable(name)
    prepare(world)
    with runs.held_up(why) as held_up:
        preview = ask(airflow, zookeeper_root, request, "preview")
        version = preview["version"]
        done = ask(airflow, zookeeper_root, request, "execute", who="ann", why="bad file", version=version)
    told = name in _STARTS_RUNS
    *_, last = said(preview["effects"]).values()
    assert (preview["sentence"].endswith(f" {held_up}."), last.endswith(held_up)) == (told, told)
    assert (done[-1]["what"] == held_up) == told


def test_a_refused_action_does_not_mention_the_paused_dag(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str
) -> None:
    one_committed(World(airflow, pipeline, runs))
    with runs.held_up("paused"):
        preview = ask(airflow, zookeeper_root, {"name": "replay", "txids": (1,)}, "preview")
    assert (preview["effects"], "paused" in preview["sentence"]) == ([], False)


def test_an_unknown_kind_of_repair_is_refused_with_a_list_of_the_kinds(
    airflow: Commands, pipeline: Pipeline, runs: Runs, zookeeper_root: str
) -> None:
    world = World(airflow, pipeline, runs)
    one_committed(world)
    before = world.everything()
    for kind, told in {
        "nosuch": "name the kind of repair: back, ends, ledger-lost, reset, roll-forward, state-lost",
        "": "name the kind of repair: back, ends, ledger-lost, reset, roll-forward, state-lost",
        "back": "name one transaction",
    }.items():
        for what in ("preview", "execute"):
            more = {"who": "ann", "why": "x", "version": ""} if what == "execute" else {}
            refused = ask(airflow, zookeeper_root, {"name": "repair", "repair": kind}, what, **more)
            assert refused == f"repair of topology 'flights': {told}. Nothing was done."
    assert world.everything() == before


def ask(airflow: Commands, root: str, request: dict[str, Any], what: str, **more: Any) -> Any:
    """Ask the process of the DAG files for a preview, or for the action, as the page does."""
    place = {"conn_id": "zookeeper_default", "root": root, "coordinator": "flights_coordinator"}
    full = {"topology": "flights", **place, "txids": (), **request}
    question = json.dumps({"what": what, "action": full, **more})
    return json.loads(airflow.run("python", _ASK, question, root=root).splitlines()[-1])


def said(effects: list[dict[str, Any]]) -> dict[Any, str]:
    """Per txid; of a run without one, per run."""
    found = dict[Any, list[str]]()
    for each in effects:
        found.setdefault(each["txid"] or each["run_id"] or None, []).append(each["what"])
    return {of: "; ".join(told) for of, told in found.items()}


def assert_said(found: Said, expected: Said, pipeline: Pipeline) -> None:
    """Each text is as expected, in which * is any."""
    assert found.keys() == expected.keys(), found
    for txid, text in found.items():
        pattern = re.escape(expected[txid].replace("{transactions}", pipeline.paths.transactions))
        assert re.fullmatch(pattern.replace(r"\*", ".*"), text), text
