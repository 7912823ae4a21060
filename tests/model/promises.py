"""What has to hold: in every step, and in every world in which all runs are final."""

from __future__ import annotations

from typing import Any

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.ledger.attempt import of_lane
from airflow_tx.ledger.audit.chain import ledger_evidence
from airflow_tx.ledger.audit.verification import verified
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import Reader, RotatingTransactionalState
from airflow_tx.ledger.records import Ack, Phase, TransactionRecord, decode
from tests.model.product import memory_state
from tests.model.programs import spans
from tests.model.shapes import PATHS, Shape
from tests.model.world import Final, ModelStore, Offer, Violation, World

ALLOWED = {
    Phase.PROCESSING: (Phase.PROCESSED, Phase.FAILED),
    Phase.PROCESSED: (Phase.PROCESSING, Phase.COMMITTING, Phase.FAILED),
    Phase.COMMITTING: (Phase.PROCESSING,),
    Phase.FAILED: (Phase.PROCESSING,),
}


def check_phases(before: World, after: World) -> None:
    """Of one write: the turn moves on by one, and a transaction goes only where the protocol lets it.

    :raises Violation: it does not.
    """
    if after.current not in (before.current, before.current + 1):
        raise Violation(f"current went from {before.current} to {after.current}")
    for txid in range(before.current, before.allocated + 1):
        if after.nodes.get(PATHS.transaction(txid)) is before.nodes.get(PATHS.transaction(txid)):
            continue
        one, two = before.record(txid), after.record(txid)
        if one is None or two is None:
            continue
        if two.epoch < one.epoch or two.attempt < one.attempt:
            raise Violation(f"attempt or epoch of transaction {txid} went back")
        # A skip may be taken from any phase, and withdrawn.
        allowed = ALLOWED[one.phase]
        if of_lane(one.request) and one.phase is Phase.PROCESSING:
            allowed = (*allowed, Phase.COMMITTING)  # by its last ack, in one multi
        if one.phase is not two.phase and two.phase not in allowed and one.skip is None:
            raise Violation(f"transaction {txid} went from {one.phase.value} to {two.phase.value}")


def became_final(before: World, after: World) -> World:
    """One transaction more is final: whoever reads the book later does not ask the ledger.

    :raises Violation: it should not be, or not with these rows.
    """
    txid = before.current
    store = ModelStore()
    store.nodes = before.nodes
    skipped = PATHS.skipped(txid) in after.nodes
    tries: tuple[str, ...] = ()
    record = before.record(txid)
    if not skipped:
        tries = _check_mark(before)
    elif record is None or record.skip is None:
        raise Violation(f"transaction {txid} was skipped, and nobody wanted it")
    _check_receipts(before, after)
    assert record is not None
    rows = spans(RotatingTransactionalState(Reader(store), PATHS).get_state(txid).rows)
    final = Final(txid, skipped, rows, tries, record.replaces.txid if record.replaces else None)
    counted = {other.txid: other for other in after.counted()}
    if final.replaces is not None and final.replaces not in counted:
        raise Violation(f"transaction {txid} replaces {final.replaces}, which does not count")
    counted.pop(final.replaces or 0, None)
    taken = {row for other in counted.values() for row in _rows(other)}
    if taken & _rows(final):
        raise Violation(f"transaction {txid} has rows {final.spans}, of which others were final before")
    return replace(after, book=(*before.book, final))


def offered(shape: Shape, before: World, after: World) -> World:
    """Note what a grant has for the states: a reader who sees one of them with its rows expects them in the others.

    Of a transaction that has become final nothing is expected any more.
    """
    if after.current != before.current:
        return replace(after, offers=())
    one, two = before.record(after.current), after.record(after.current)
    if shape.states == 1 or two is None or not two.granted or (one is not None and one.epoch == two.epoch):
        return after
    store = ModelStore()
    store.nodes = after.nodes
    batches = [spans(RotatingTransactionalState(Reader(store), PATHS).get_state(after.current).rows)]
    if two.replaces:
        batches += [final.spans for final in after.book if final.txid == two.replaces.txid]
    filled = {row % 2 for batch in batches for _, low, high in batch for row in range(low, high)}
    filled |= {0} if shape.varies else set()
    offer = Offer(two.attempt, two.epoch, (0 in filled, 1 in filled))
    return replace(after, offers=(*after.offers, offer))


def is_torn(shape: Shape, world: World) -> bool:
    """Whether a reader who looks now sees rows of a transaction in one of the first two states alone.

    Rows that were written under another grant are others, except in a transactional state.
    """
    if shape.states == 1:
        return False
    same = shape.source == "transactional"
    shown = [_grants_shown(rows, world.current, same=same) for _, rows, _ in world.states[:2]]
    for offer in world.offers:
        own = {(0, 0) if same else (offer.attempt, offer.epoch)}
        if all(found == (own if filled else set()) for found, filled in zip(shown, offer.rows, strict=True)):
            return False
    return any(shown)


def _grants_shown(rows: Any, txid: int, *, same: bool) -> set[tuple[int, int]]:
    """The grants whose rows of a transaction a state shows."""
    tokens = (stored.token for _, stored in rows if stored.txid == txid and stored.token is not None)
    return {(0, 0) if same else (token.attempt, token.epoch) for token in tokens}


def check_together(shape: Shape, world: World) -> None:
    """Check that a reader sees what was committed in all states of one store, or in none of them, in every world.

    The committers of a phase write one after the other, and so does a reader see it.

    :raises Violation: it sees a part.
    """
    if shape.together and not shape.phase and is_torn(shape, world):
        shown = [_grants_shown(rows, world.current, same=False) for _, rows, _ in world.states[:2]]
        raise Violation(f"of transaction {world.current} a reader sees attempts {shown}, granted are {world.offers}")


def _check_receipts(before: World, after: World) -> None:
    """Of the transaction that became final there is one receipt in the ledger, and one in each state that has it."""
    txid, record = before.current, before.record(before.current)
    assert record is not None
    path = PATHS.history(txid)
    receipt = decode(TransactionRecord, path, after.nodes[path].data).receipt
    assert receipt is not None
    found = (receipt.txid, receipt.attempt, receipt.epoch, receipt.nonce, receipt.birth, receipt.previous)
    expected = (txid, record.attempt, record.epoch, record.nonce, record.birth, before.topology.receipt)
    if found != expected or after.topology.receipt != receipt.hash:
        raise Violation(f"the receipt of transaction {txid} is {found}, expected {expected}")
    for index, (fence, _, kept) in enumerate(after.states):
        name = f"s{index}"
        if fence is None or fence.token.txid != txid:
            continue  # it has lost it
        own = [each.text for each in kept if each.txid == txid]
        if own != [replace(receipt, written={name: receipt.written[name]}).text]:
            raise Violation(f"of transaction {txid}, state {name} has the receipts {own}, the ledger {receipt.text}")


def _check_mark(world: World) -> tuple[str, ...]:
    """What is being committed is what the newest try of every task has acked."""
    folder = world.acks(world.current) + "/"
    found = []
    for path, node in world.nodes.items():
        if path.startswith(folder):
            entry = decode(Ack, path, node.data)
            if not entry.done:
                raise Violation(f"transaction {world.current} commits, and {path} has not acked")
            found.append(entry.task_try)
    return tuple(sorted(found))


def _rows(final: Final) -> set[tuple[str, int]]:
    return {(name, row) for name, low, high in final.spans for row in range(low, high)}


def check_verify(world: World) -> None:
    """Check that `verify` finds nothing in a ledger that nobody has changed by hand.

    :raises Violation: it finds something.
    """
    store = ModelStore()
    store.nodes = world.nodes
    try:
        found = verified(ledger_evidence(store, PATHS), ())
    except UnreadableRecord as error:
        raise Violation(f"verify cannot read the ledger: {error}") from error
    if found.findings:
        raise Violation(f"verify finds {found.findings}")


def ending(world: World) -> Any:
    """What people would see of a world at rest: attempts and rows of every transaction, and the stored values."""
    histories = [
        decode(TransactionRecord, path, node.data)
        for path, node in world.nodes.items()
        if path.startswith(PATHS.histories + "/")
    ]
    values = [[(key, stored.value) for key, stored in rows if stored.value is not None] for _, rows, _ in world.states]
    return frozenset((h.txid, h.attempt, h.rows) for h in histories), tuple(frozenset(found) for found in values)


def check(shape: Shape, world: World) -> None:
    """Whatever must hold in every world in which all runs are final, zombies about or not.

    :raises Violation: it does not.
    """
    if any(run.stage != "green" for run in world.runs):
        return
    if world.restored and any(fence is not None and fence.token.txid >= world.current for fence, _, _ in world.states):
        return  # a restatement was forgotten by a repair: what is left of it goes with the next transaction
    check_verify(world)
    last = world.current - 1
    begun = sum(world.bound(shape, run.number) is not None for run in world.runs)
    if last != world.allocated and begun_late(shape, world):
        return  # somebody has to replay it
    if last != world.allocated or last < begun:
        raise Violation(f"all {len(world.runs)} runs are final, and {last} of {world.allocated} transactions")
    counted = world.counted()
    _check_rows(world, counted)
    expected = _expected(shape, world, [final for final in counted if not final.skipped])
    # The keys of an output that was replaced stay, with 0.
    tries = {f"{final.txid} by {each}" for final in world.book for each in final.tries}
    found, made = _found(shape, world)
    if found != expected:
        raise Violation(f"of {[(f.txid, f.spans) for f in counted]} expected {expected}, found {found}")
    if shape.varies and made != tries:
        raise Violation(f"committed were {sorted(tries)}, and written were {sorted(made)}")


def _expected(shape: Shape, world: World, counted: list[Final]) -> dict[str, int]:
    """What the states have to hold: as if the last output of each batch had been there from the start."""
    expected: dict[str, int] = {}
    for final in counted:
        for name, row in _rows(final):
            key = name + ("odd" if row % 2 else "even")
            index = row % 2 % shape.states
            if (index, final.txid) not in world.missing:
                expected[key] = expected.get(key, 0) + final.weight
            if shape.states == 3:
                expected[name + "rows"] = expected.get(name + "rows", 0) + final.weight
    return expected


def check_outputs(shape: Shape, world: World) -> None:
    """Of each transaction a transactional state holds one output, in every world.

    :raises Violation: it holds several.
    """
    if not shape.varies or shape.source != "transactional":
        return
    _, made = _found(shape, world)
    txids = [each.split(" by ")[0] for each in made]
    if len(txids) > len(set(txids)):
        raise Violation(f"several outputs of one transaction are mixed: {sorted(made)}")


def begun_late(shape: Shape, world: World) -> list[int]:
    """The runs that ended for want of data before an older `begin` of theirs, held up, took a transaction for them."""
    ended = [
        run.number
        for run in world.runs
        if run.stage == "green" and (shape.restates or run.task("begin").state == "skipped")
    ]
    return [number for number in ended if world.record(world.bound(shape, number)) is not None]


def _check_rows(world: World, counted: list[Final]) -> None:
    """Each row up to where the source stands is in one batch; one that it has lost is in none."""
    store = ModelStore()
    store.nodes = world.nodes
    last = world.current - 1
    try:
        position = RotatingTransactionalState(Reader(store), PATHS).get_state(last).position if last else None
    except UnreadableRecord as error:
        raise Violation(f"where the source stands after transaction {last} is forgotten: {error}") from error
    ends = position if isinstance(position, dict) else {"": position or 0}
    rows = sorted(row for final in counted for row in _rows(final))
    wanted = sorted((name, row) for name, end in ends.items() for row in range(end))
    if world.lost is not None:
        wanted = [(name, row) for name, row in wanted if row != world.lost or (name, row) in rows]
    if rows != wanted:
        raise Violation(f"of {ends} rows these are in a committed or skipped batch: {rows}")


def _found(shape: Shape, world: World) -> tuple[dict[str, int], set[str]]:
    values: dict[str, int] = {}
    tries = set()
    for index, snapshot in enumerate(world.states):
        state = memory_state(index, shape.source)
        state.database.restore(snapshot)
        for row in state.read():
            if " by " in row["key"]:
                tries.add(row["key"])
            else:
                values[row["key"]] = values.get(row["key"], 0) + row["n"]
    return values, tries
