"""A person repairs the ledger of a world."""

from __future__ import annotations

from dataclasses import replace

from airflow_tx.base.errors import RepairRefused
from airflow_tx.ledger.audit.plan import HeldState
from airflow_tx.ledger.audit.rebuild import Repairs
from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.steps.step import Audit
from tests.model.machine import Env
from tests.model.product import memory_state
from tests.model.programs import spans
from tests.model.shapes import PATHS, Shape
from tests.model.world import Final, ModelStore, World


def rebuilt(shape: Shape, world: World) -> World | None:
    """After `airflow tx repair --ledger-lost`; None: it is refused."""
    held = _held(shape, world)
    store = ModelStore()
    store.nodes = world.nodes
    ids = Env("rebuild", ())
    request = TopologyRequest("model", shape.source, world.topology.max_pending, shape.partitions)
    try:
        Repairs(Ledger(store, PATHS, clock=ids, ids=ids)).ledger_lost(held, request, Audit("ada", "why"))
    except RepairRefused:
        return None
    after = replace(world.with_nodes(store.nodes), restored=True)
    if after.current == world.current:
        return after
    batch = max(held, key=lambda each: each.token.rank).batch
    # What was acked of it is not asked: its attempt may have been replayed since.
    final = Final(
        world.current,
        batch.skip is not None,
        spans(batch.rows),
        replaces=None if batch.replaces is None else batch.replaces.txid,
    )
    return replace(after, book=(*after.book, final))


def _held(shape: Shape, world: World) -> list[HeldState]:
    found = []
    for index, snapshot in enumerate(world.states):
        state = memory_state(index, shape.source)
        state.database.restore(snapshot)
        fence = state.fence()
        if fence is not None:
            undoable = shape.source != "transactional"
            receipts = state.receipts()
            found.append(HeldState.of(state.name, undoable=undoable, fence=fence, holds=state.holds, receipts=receipts))
    return found
