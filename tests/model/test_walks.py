"""Random walks over real states, a table and the ledger: commits, deaths, backups, losses, and what refusals advise.

A seed that fails prints its walk, cut to the steps that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.state.sql.fence import Imprint
from tests.model.mutants import ONE, Mutant, applied
from tests.model.walks import Setting, Step, Walk, shortened, steps_of, walked

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
ON_ZOOKEEPER = range(200, 215)


class InMemory(MemoryStore):
    """A ledger that can be lost."""

    def erase(self, root: str) -> None:
        self._nodes = {}


@pytest.fixture
def walk_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Walk]:
    """Makes the world of a seed; each time another one."""
    made = count()

    def make(seed: int, store: Any = None) -> Walk:
        folder = tmp_path / str(next(made))
        folder.mkdir()
        monkeypatch.setenv("AIRFLOW_HOME", str(folder))
        return Walk(SETTINGS[seed % len(SETTINGS)], folder, InMemory() if store is None else store)

    return make


def walks(walk_of: Callable[..., Walk], seed: int, make_store: Callable[[], Any] = InMemory) -> Walk:
    """Take the walk of a seed.

    :raises AssertionError: with the shortest walk that fails in the same way.
    """
    steps = steps_of(seed, STEPS)
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
def test_a_walk_ends_with_what_the_bindings_say(walk_of: Callable[..., Walk], seed: int) -> None:
    assert walks(walk_of, seed).counts["recounts"]


def test_a_walk_notices_that_the_rows_of_a_small_table_are_only_counted(walk_of: Callable[..., Walk]) -> None:
    counted = Imprint.missing, "or now.txid < self.txid", ""
    with applied(Mutant("the greatest txid is compared", (counted,), ONE)):
        failed = walked(walk_of(21), steps_of(21, STEPS))
    assert failed is not None
    assert failed.kind == "wrong"


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG)
def test_any_walk_ends_with_what_the_bindings_say(walk_of: Callable[..., Walk], seed: int) -> None:
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
def test_a_walk_on_a_real_zookeeper_ends_with_what_the_bindings_say(
    walk_of: Callable[..., Walk], on_zookeeper: Callable[[], Any], seed: int
) -> None:
    walks(walk_of, seed, on_zookeeper)
