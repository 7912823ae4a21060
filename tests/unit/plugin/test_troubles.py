"""What people are advised in each trouble, from the ledger to the buttons: the step that helps stands first."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

import pytest
from airflow.cli import cli_parser

from airflow_tx.base.errors import (
    FenceForeign,
    LedgerBehind,
    OutputChanged,
    RollingForward,
    StateBehind,
    StateRenamed,
    StateUnavailable,
    TopologyClaimed,
    TxError,
)
from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger.answers import FailureNoted
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.audit import rebuild
from airflow_tx.ledger.audit.rebuild import Repairs
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.views.status import with_run_end
from airflow_tx.ledger.views.view import TopologyView, topology_health, topology_view
from airflow_tx.operations.actions.ledger_places import LedgerPlace
from airflow_tx.operations.actions.request import ActionName
from airflow_tx.plugin.api.advice import Advice, said_advice, transaction_advice
from airflow_tx.plugin.api.snapshots import TopologySnapshot
from airflow_tx.state.aggregators import Count
from airflow_tx.state.memory import MemoryState
from airflow_tx.transaction.commit.check import ChecksFailed
from tests.model.driver import Run, Topology
from tests.remedies import remedy_of
from tests.unit.plugin.users import user

ADA = Audit("ada", "the disk is gone")


@pytest.fixture
def topology() -> Topology:
    """Transaction 1 is committed to state `words`; transaction 2 has begun, and transaction 3 behind it."""
    store = MemoryStore()
    made = Topology(lambda: store, "/tx", [MemoryState("words", values={"n": Count()})])
    Run(made, "r1").whole(1, {"a": 1})
    for run_id in ("r2", "r3"):
        run = Run(made, run_id)
        run.processed(1, {"a": 1})
        run.committer().processed()
    return made


def refused(topology: Topology, error: TxError, txid: int = 2) -> None:
    """Note a refusal as a committer does."""
    record = topology.record(txid)
    assert record is not None
    noted: Any = {"reason": error.problem_text, "remedy": error.advice, "for_good": error.for_good}
    attempt = TransactionAttempt(txid, record.attempt)
    assert topology.ledger().note_commit_failed(attempt, record.epoch, **noted) == FailureNoted(first=True)


def viewed(topology: Topology) -> TopologyView:
    return topology_view(topology.store(), topology.paths)


def advice_on(topology: Topology, txid: int = 2, view: TopologyView | None = None, *, acts: bool = True) -> Advice:
    found = view or viewed(topology)
    place = LedgerPlace("trace", "zookeeper", topology.paths)
    snapshot = TopologySnapshot(found.record, place, None, found)
    return transaction_advice(snapshot, snapshot.open_by_txid[txid], user(acts=acts))


def buttons(advice: Advice) -> list[str]:
    """Each button as its action with all that it names."""
    actions = [each.action for each in advice.steps if each.action is not None]
    named = ((each.action.value, each.repair, *each.names, *each.txids) for each in actions)
    return [" ".join(str(word) for word in each if word != "") for each in named]


def command(advice: Advice) -> str | None:
    return next((each.command for each in advice.steps if each.command), None)


PLACEHOLDERS = {"TXID": "1", "DATE": "2013-01-01"}


def parsed(text: str) -> Any:
    """Read a command as the command line does; it ends the process where it is none."""
    words = [PLACEHOLDERS.get(each, each) for each in shlex.split(text)]
    assert words[:2] == ["airflow", "tx"]
    return cli_parser.get_parser().parse_args(words[1:])


# --- troubles


STATE = MemoryState("words", values={"n": Count()})
BEHIND = {"state": "words", "expected": 1, "found": "nothing"}
ANOTHER = {"state": "words", "expected": "here", "found": "there", "topology": "trace", "txid": 2}
REPLAY, SKIP = "replay 2", "skip 2"
COUNTED_NOWHERE = "airflow tx skip trace 2 --why TEXT"


@dataclass(frozen=True)
class Trouble:
    """A refusal of transaction 2, and what the page advises about it.

    :param sentence: a part of how the topology is; `command`: what is copied; `buttons`: in their order.
    :param then: what the text says last.
    """

    error: TxError
    sentence: str
    command: str
    buttons: Sequence[str]
    then: str = "Then: airflow tx replay trace 2"


def lost(remedy: Any) -> StateBehind:
    return StateBehind(remedy=remedy, **BEHIND)


class Alone(MemoryState):
    rolls_forward = False


TROUBLES = {
    "a renamed state": Trouble(
        StateRenamed(topology="trace", txid=2, new="all words", old="words", last=1),
        "the DAG updates state all words, which the ledger does not know",
        "airflow tx state rename trace words 'all words'",
        ["state-rename words all words", "state-forget words", REPLAY, SKIP],
    ),
    "a lost state": Trouble(
        lost(Alone("words", values={"n": Count()}).remedy_behind("trace")),
        "the ledger committed transaction 1 to it, its fence says nothing",
        "airflow tx repair trace --state-lost words",
        ["repair state-lost words", REPLAY, SKIP],
    ),
    "a lost state that the journal has": Trouble(
        lost(STATE.remedy_behind("trace")),
        "its fence says nothing",
        "airflow tx repair trace --roll-forward words",
        ["repair roll-forward words", "repair state-lost words", REPLAY, SKIP],
    ),
    "a failed check": Trouble(
        ChecksFailed(txid=2, attempt=1, topology="trace", problem="check 'a b' failed", names=["a b"]),
        "check 'a b' failed",
        "airflow tx replay trace 2",
        [REPLAY, "accept-check a b 2", SKIP],
        "Or accept the output: airflow tx accept-check trace 2 'a b' --why TEXT",
    ),
    "a ledger that went back": Trouble(
        LedgerBehind(**{**ANOTHER, "expected": 1, "found": 5}),
        "its fence says transaction 5, the ledger is at 2",
        "airflow tx repair trace --ledger-lost",
        ["repair ledger-lost", REPLAY, SKIP],
        "Then clear its run, or if the transaction is still open: airflow tx replay trace 2",
    ),
    "the fence of another ledger": Trouble(
        FenceForeign(**ANOTHER),
        "its fence belongs to ledger there, this topology is ledger here",
        "airflow tx repair trace --ledger-lost",
        ["repair ledger-lost", REPLAY, SKIP],
        "Then clear its run, or if the transaction is still open: airflow tx replay trace 2",
    ),
    "a changed output": Trouble(
        OutputChanged(state="words", txid=2, digest="of b", found="of a"),
        "transaction 2 has output of b, an earlier attempt had of a",
        "airflow tx replay trace 2",
        [REPLAY, SKIP],
        "To replay it: airflow tx replay trace 2",
    ),
    "a state that cannot be reached": Trouble(
        StateUnavailable(state="words", where="db", reason="no route"),
        "cannot be reached: no route",
        "airflow tx replay trace 2",
        [REPLAY, SKIP],
        "To replay it: airflow tx replay trace 2",
    ),
    "a roll forward that died": Trouble(
        RollingForward(topology="trace", when="2013-01-01", states=["words"]),
        "its states are being written again from the journal, since 2013-01-01",
        "airflow tx repair trace --roll-forward words",
        ["repair roll-forward words", REPLAY, SKIP],
    ),
}


@pytest.fixture(params=TROUBLES.items(), ids=lambda each: each[0])
def trouble(request: pytest.FixtureRequest) -> Trouble:
    found: Trouble = request.param[1]
    return found


def test_the_advice_lists_the_steps_of_the_refusal_first_and_then_the_replay_and_the_skip_last(
    topology: Topology, trouble: Trouble
) -> None:
    refused(topology, trouble.error)
    health = topology_health(viewed(topology))
    advice = advice_on(topology)
    known = {each.value for each in ActionName}
    assert trouble.sentence in health.sentence
    assert "airflow tx" not in health.sentence
    assert command(advice) == trouble.command
    assert buttons(advice) == [each for each in trouble.buttons if each.split()[0] in known]
    assert str(advice.remedy).endswith(trouble.then)
    assert advice.remedy == str(health.remedy)
    assert advice.steps[-1].command == COUNTED_NOWHERE


def test_the_command_line_accepts_every_recommended_command(topology: Topology, trouble: Trouble) -> None:
    refused(topology, trouble.error)
    for step in advice_on(topology).steps:
        if step.command is not None:
            parsed(step.command)


def test_a_blocked_transaction_gets_the_same_advice_as_a_failed_one(topology: Topology, trouble: Trouble) -> None:
    refused(topology, trouble.error)
    before = buttons(advice_on(topology))
    topology.note_replay(2, 1, limit=0)
    blocked = advice_on(topology)
    assert viewed(topology).record.blocked is not None
    assert buttons(blocked) == before
    assert str(blocked.remedy).count(COUNTED_NOWHERE) == 1


def renamed(ledger: Ledger) -> None:
    ledger.run(rebuild.rename_state, "words", "all words", audit=ADA)


def forgotten(ledger: Ledger) -> None:
    Repairs(ledger).forget_state("words", ADA)


def accepted(ledger: Ledger) -> None:
    Repairs(ledger).state_lost("words", ADA)


@pytest.mark.parametrize(
    ("name", "repair"),
    [("a renamed state", renamed), ("a renamed state", forgotten), ("a lost state", accepted)],
)
def test_a_repair_that_was_made_is_not_recommended_again(
    topology: Topology, name: str, repair: Callable[[Ledger], None]
) -> None:
    refused(topology, TROUBLES[name].error)
    repair(topology.ledger())
    advice = advice_on(topology)
    assert (buttons(advice), command(advice)) == ([REPLAY, SKIP], "airflow tx replay trace 2")
    assert "The topology has been repaired since then." in topology_health(viewed(topology)).sentence


def test_a_repair_that_the_first_open_transaction_needs_is_recommended_only_for_it(topology: Topology) -> None:
    for txid in (2, 3):
        refused(topology, TROUBLES["a lost state"].error, txid)
    behind = advice_on(topology, 3)
    assert buttons(behind) == ["replay 3", "skip 3"]
    assert behind.cause is not None
    assert behind.cause.txid == 2
    assert advice_on(topology, 2).cause is None


def test_a_failed_transaction_after_another_failed_one_refers_to_the_earlier_transaction(topology: Topology) -> None:
    for txid in (2, 3):
        refused(topology, StateUnavailable(state="words", where="db", reason="no route"), txid)
    cause = advice_on(topology, 3).cause
    assert cause is not None
    assert cause.txid == 2


def test_a_general_failure_offers_the_replay_first_and_shows_no_sentence_next_to_the_buttons(
    topology: Topology,
) -> None:
    topology.ledger().note_commit_failed(TransactionAttempt(2, 1), 1, reason="ValueError: no", failed_task="commit")
    advice = advice_on(topology)
    assert (advice.remedy, buttons(advice)) == (None, [REPLAY, SKIP])
    told = advice_on(topology, acts=False)
    assert str(told.remedy) == "airflow tx replay trace 2, or clear its failed task"
    assert buttons(told) == []
    assert command(told) == "airflow tx replay trace 2"


def test_a_deleted_run_offers_the_replay_first(topology: Topology) -> None:
    view = viewed(topology)
    over = tuple(with_run_end("trace", each, None) if each.txid == 2 else each for each in view.transactions)
    advice = advice_on(topology, view=replace(view, transactions=over))
    assert (command(advice), buttons(advice)) == ("airflow tx replay trace 2", [REPLAY, SKIP])


def snapshot(topology: Topology) -> TopologySnapshot:
    found = viewed(topology)
    return TopologySnapshot(found.record, LedgerPlace("trace", "zookeeper", topology.paths), None, found)


def test_a_run_whose_rows_are_lost_offers_to_accept_the_loss_and_then_to_clear_begin(
    topology: Topology,
) -> None:
    remedy = remedy_of("Nothing was allocated. Or: <airflow tx accept-loss {topology} --why TEXT>", topology="trace")
    advice = said_advice(snapshot(topology), remedy, user(), None)
    assert (command(advice), buttons(advice)) == ("airflow tx accept-loss trace --why TEXT", ["accept-loss"])
    assert advice.steps[-1].words == "Clear the task begin of the run"


def test_the_advice_for_a_topology_of_another_dag_is_to_rename_it_before_the_run_is_cleared(topology: Topology) -> None:
    error = TopologyClaimed(topology="trace", owner="old", dag_id="new")
    advice = said_advice(snapshot(topology), error.advice, user(), None)
    assert command(advice) == "airflow tx rename trace --dag-id new --why TEXT"
    assert (buttons(advice), advice.steps[-1].words) == ([], "Clear the task begin of the run")


def test_a_topology_in_a_roll_forward_shows_how_to_finish_the_roll_forward(topology: Topology) -> None:
    topology.ledger().begin_roll_forward({"words": 0}, ADA)
    remedy = topology_health(viewed(topology)).remedy
    assert remedy is not None
    repeat, replay = map(str, remedy.commands)
    assert (repeat, replay) == (
        "airflow tx repair trace --roll-forward words",
        "airflow tx replay trace --failed",
    )


# --- every error


def errors(root: type[TxError] = TxError) -> Iterator[type[TxError]]:
    for each in root.__subclasses__():
        yield each
        yield from errors(each)


OURS = sorted(
    {each for each in errors() if each.__module__.startswith("airflow_tx.")}, key=lambda each: each.__qualname__
)


@pytest.mark.parametrize("error", OURS, ids=lambda each: each.__name__)
def test_every_error_states_the_problem_before_the_remedy(error: type[TxError]) -> None:
    problem = error.template if isinstance(error.template, str) else error.template[0]
    assert isinstance(problem, str)
    assert ". " not in problem


NAMED = [each for each in OURS if not isinstance(each.template, str) and Remedy(each.template).commands]


@pytest.mark.parametrize("error", NAMED, ids=lambda each: each.__name__)
@pytest.mark.parametrize("topology_name", ["flights", "a, b", "-x"])
def test_the_command_line_accepts_every_command_of_every_error(error: type[TxError], topology_name: str) -> None:
    fields: dict[str, Any] = {name: 1 for _, name, _, _ in Formatter().parse("".join(map(str, error.template))) if name}
    fields |= {"topology": topology_name, "states": ["s"], "names": ["c"]}
    made = error(**fields)
    assert made.advice is not None
    assert made.advice.commands
    for each in made.advice.commands:
        parsed(str(each))
