"""Random walks over real states, a table and the ledger: commits, deaths, backups, losses, and what refusals advise.

A seed that fails prints its walk, cut to the steps that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from airflow_tx.ledger import life
from airflow_tx.ledger.audit import plan
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.state import fence
from airflow_tx.state.sql.fence import FencedStore, Imprint
from airflow_tx.transaction.commit import committer, restatement
from airflow_tx.transaction.commit.roll_forward import RollForward
from tests.model.mutants import ONE, Mutant, applied
from tests.model.steps import Setting, Step, steps_of
from tests.model.walks import Walk, shortened, walked

SETTINGS = (
    Setting(source="transactional"),
    Setting(second="max"),
    Setting(shared=True),
    Setting(source="transactional", state="transactional", second="max"),
    Setting(ledger_lost=True),
)
STEPS = 60
QUICK = range(6)
LONG = range(100, 180)
RENAMING = range(300, 320)
ON_ZOOKEEPER = range(200, 215)


class InMemory(MemoryStore):
    """A ledger that can be lost."""

    def erase(self, root: str) -> None:
        self._nodes = {}


@pytest.fixture
def walk_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Walk]:
    """Makes the world of a seed; each time another one."""
    made = count()

    def make(seed: int | Setting, store: Any = None) -> Walk:
        folder = tmp_path / str(next(made))
        folder.mkdir()
        monkeypatch.setenv("AIRFLOW_HOME", str(folder))
        setting = SETTINGS[seed % len(SETTINGS)] if isinstance(seed, int) else seed
        return Walk(setting, folder, InMemory() if store is None else store)

    return make


def walks(
    walk_of: Callable[..., Walk],
    seed: int,
    make_store: Callable[[], Any] = InMemory,
    *,
    more: Mapping[str, int] = MappingProxyType({}),
) -> Walk:
    """Take the walk of a seed.

    :param more: steps that are not taken otherwise, with their weights.
    :raises AssertionError: with the shortest walk that fails in the same way.
    """
    steps = steps_of(seed, STEPS, more)
    walk = walk_of(seed, make_store())
    failed = walked(walk, steps)
    if failed is None:
        return walk
    kind = failed.kind

    def fails(tried: Sequence[Step]) -> bool:
        again = walked(walk_of(seed, make_store()), tried)
        return again is not None and again.kind == kind

    steps = shortened(steps, fails)
    walk = walk_of(seed, make_store())
    failed = walked(walk, steps)
    told = "\n".join([*walk.trail, str(failed), "steps: " + "; ".join(map(str, steps))])
    pytest.fail(f"seed {seed}, {walk.setting}:\n{told}")


@pytest.mark.parametrize("seed", QUICK)
def test_a_short_random_walk_ends_with_the_values_of_all_committed_transactions(
    walk_of: Callable[..., Walk], seed: int
) -> None:
    assert walks(walk_of, seed).counts["recounts"]


# --- what ends wrong if a rule is left out ----------------------------------------------------------------------------

_HELD = fence._check_no_look, "stored.token.is_look and", "False and"
_PUT_BACK = RollForward.take, "history.state.put_back(grant)", "pass"
_IMPRINT = FencedStore._has_lost, "bool(lost) or", ""
_REMADE = plan.plan_rebuild, "RemadeTransaction.of(held, newest)", "None"
_LAST = committer.Commit.updates_to_write, "self._cannot_be_undone(update)", "False"
_LEFT = restatement.differences, "may_lack if may_lack and _is_for_good(case, topology.incarnation) else ()", "()"
_GREATEST = Imprint.missing, "or now.txid < self.txid", ""
_NAMES = life._Walk._takes_name, "self.name = old", "pass"
_FOR_GOOD = life.holds_for_good, "(each.txid, each.birth, each.incarnation) == mine", "False"

LARGEST = Setting(second="max")
REFUSED = "turn 0 0; turn 0 0; turn 0 0; cut 0 3; rows-lost 1 0; roll 0 0; commit 5 3"
"""The rows of transaction 3 are lost in the second state, which has rows of 4 and cannot be written again."""
LEFT_OUT: dict[str, tuple[Setting, str, tuple[Any, ...], str]] = {
    "a refused roll forward keeps what the state lacks": (LARGEST, REFUSED, (_IMPRINT,), "wrong"),
    "a refused roll forward changes nothing, and a look stops commits": (
        LARGEST,
        REFUSED,
        (_IMPRINT, _PUT_BACK, _HELD),
        "wrong",
    ),
    "of a small table the greatest txid is compared": (
        LARGEST,
        "turn 0 0; turn 0 0; turn 0 0; keep 1 0; lose 1 0; accept 0 0; turn 0 0; values-back 1 0",
        (_GREATEST,),
        "wrong",
    ),
    "a state is written again by the names of before": (
        Setting(),
        "turn 0 0; turn 0 0; rename 0 0; turn 0 0; lose 0 0; turn 0 0",
        (_NAMES,),
        "wrong",
    ),
    "what took rows out is not skipped": (Setting(), "turn 0 0; restate 0 4; cut 0 3; skip 1 1", (_FOR_GOOD,), "wrong"),
    "a state that may lack it is passed over": (
        Setting(),
        "turn 0 0; keep 0 0; turn 0 0; restate 1 4; cut 0 3; put-back 0 0; accept 0 0; turn 0 0",
        (_LEFT,),
        "dead-end",
    ),
    "a rebuild makes its record again": (
        Setting(ledger_lost=True),
        "turn 0 0; keep 0 0; restate 0 4; cut 0 3; put-back 0 0; ledger-lost 0 0; turn 0 0",
        (_REMADE,),
        "wrong",
    ),
}
LAST = Setting(ledger_lost=True, table_first=True)
CUT_BETWEEN = "turn 0 0; restate 0 4; cut 0 0; ledger-lost 0 0; turn 0 0"


def directed(walk_of: Callable[..., Walk], setting: Setting, steps: str, *changes: Any) -> str:
    """Take the steps of a text, with a rule left out; the kind of what is found wrong, "": nothing."""
    with applied(Mutant("a rule is left out", changes, ONE)):
        failed = walked(walk_of(setting), [Step.of(each) for each in steps.split("; ")])
    return "" if failed is None else failed.kind


@pytest.mark.parametrize("rule", LEFT_OUT, ids=lambda rule: rule.replace(" ", "-"))
def test_a_random_walk_finds_each_missing_rule(walk_of: Callable[..., Walk], rule: str) -> None:
    setting, steps, changes, kind = LEFT_OUT[rule]
    assert directed(walk_of, setting, steps) == ""
    assert directed(walk_of, setting, steps, *changes) == kind


def test_a_walk_finds_the_error_if_a_table_that_removes_rows_is_not_written_last(walk_of: Callable[..., Walk]) -> None:
    # Where it was written last, a death between two states has taken nothing out, and no record is made again.
    assert directed(walk_of, LAST, CUT_BETWEEN, _REMADE) == ""
    assert directed(walk_of, LAST, CUT_BETWEEN, _REMADE, _LAST) == "wrong"


@pytest.mark.long
@pytest.mark.parametrize("seed", RENAMING)
def test_a_random_walk_with_renamed_states_ends_with_the_values_of_committed_transactions(
    walk_of: Callable[..., Walk], seed: int
) -> None:
    walks(walk_of, seed, more={"rename": 6})


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG)
def test_a_long_random_walk_ends_with_the_values_of_all_committed_transactions(
    walk_of: Callable[..., Walk], seed: int
) -> None:
    walks(walk_of, seed)


@pytest.fixture
def on_zookeeper(request: pytest.FixtureRequest) -> Iterator[Callable[[], Any]]:
    """Ledgers on a real ZooKeeper, each of which can be lost."""
    from airflow_tx.ledger.store.client import ClientConfig, connect
    from airflow_tx.ledger.store.zookeeper import ZooKeeperStore

    server = request.getfixturevalue("zookeeper")

    with ExitStack() as stack:
        client = connect(ClientConfig(hosts=server.hosts))
        stack.callback(client.close)
        stack.callback(client.stop)

        class Erasable(ZooKeeperStore):
            def erase(self, root: str) -> None:
                client.delete(root, recursive=True)

        def make() -> Any:
            if client.exists("/airflow_tx"):
                client.delete("/airflow_tx", recursive=True)
            return Erasable(client)

        yield make


@pytest.mark.long
@pytest.mark.parametrize("seed", ON_ZOOKEEPER)
def test_a_random_walk_on_a_real_zookeeper_ends_with_the_values_of_committed_transactions(
    walk_of: Callable[..., Walk], on_zookeeper: Callable[[], Any], seed: int
) -> None:
    walks(walk_of, seed, on_zookeeper)
