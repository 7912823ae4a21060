"""The steps of a roll forward, which writes the transactions that a state restored from a backup lacks.

Source: docs/protocol.md §5.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from msgspec import structs

from airflow_tx.base.errors import RepairRefused
from airflow_tx.base.remedy import Command
from airflow_tx.ledger.answers import Repaired
from airflow_tx.ledger.api import Delete, Paths, Put, Write
from airflow_tx.ledger.attempt import Token
from airflow_tx.ledger.book import Book
from airflow_tx.ledger.json_text import is_shortened, replace
from airflow_tx.ledger.life import BACK, BEGAN, CHANGE, EMPTIED, ROLL_FORWARD
from airflow_tx.ledger.reading import Reader, RotatingTransactionalState, repairs_of
from airflow_tx.ledger.receipt import Outcome, Receipt
from airflow_tx.ledger.records import (
    Binding,
    Counter,
    EndLine,
    Metadata,
    RollingNote,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    encode,
)
from airflow_tx.ledger.steps.step import (
    Audit,
    Decision,
    Stamp,
    left,
    put_or_create,
    taken_back_before,
)

GENERATIONS = 2
"""Each run raises the generation by this number: one step to read the values of a state, and one to write."""


@dataclass(frozen=True)
class Rolling:
    """A run of the command `repair --roll-forward`. It has exclusive access to the states.

    :param generation: generation of the grants that write. Grants that only read the values of a state use the
        generation before it.
    :param nonce: nonce of this run. A later run replaces it.
    :param current: the transaction that has the turn.
    :param birth: birth of that transaction; "" if it has not begun.
    :param found: the last transaction that each state had before the first run of the command.
    """

    generation: int
    nonce: str
    current: int
    birth: str
    found: Mapping[str, int] = field(hash=False, default_factory=dict)


@dataclass(frozen=True)
class RolledState:
    """A state after a roll forward has written to it.

    :param found: the last transaction of the state before the roll forward.
    :param last: the last transaction of the state after the roll forward.
    :param birth: birth of the transaction `last`.
    :param grant: attempt and epoch of that transaction.
    :param whole: whether no later transaction was committed to the state.
    :param change: the newest accepted change that the values include.
    :param heals: whether the roll forward restored everything removed by an accepted loss.
    :param holes: transactions without rows in the journal. The table lacks them until they are restated.
    """

    found: int
    last: int
    birth: str
    grant: tuple[int, int]
    whole: bool
    change: int = 0
    heals: bool = True
    holes: Sequence[int] = ()

    @classmethod
    def of(cls, receipt: Receipt, found: int, **how: Any) -> RolledState:
        """Create the entry of a state from the receipt of its last transaction."""
        grant = (receipt.attempt, receipt.epoch)
        return cls(found, receipt.txid, receipt.birth, grant, **how)


def begin_roll_forward(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    found: Mapping[str, int],
    audit: Audit,
    *,
    holes: Mapping[str, Collection[int]] | None = None,
) -> Decision[Rolling]:
    """Reserve the states for this run of the command. It outranks an earlier run, which may have died.

    :param found: the last transaction of each state that will be written.
    :param holes: transactions without rows in the journal, by table. The roll forward skips them.
    """
    topology = read.get(TopologyRecord, paths.record)
    current = read.get(Counter, paths.current).txid
    opened = read.find(TransactionRecord, paths.transaction(current))
    generation = topology.generation + GENERATIONS
    by = structs.asdict(audit.noted(stamp))
    before = topology.rolling or RollingNote(**by, found={}, nonces=[], generation=generation)
    found = {**found, **before.found}
    passed = holes or {}
    noted = RollingNote(
        **by,
        found=found,
        nonces=[*before.nonces, stamp.op],
        generation=generation,
        holes={
            name: sorted({*before.holes.get(name, ()), *passed.get(name, ())})
            for name in sorted({*before.holes, *passed})
        },
    )
    after = replace(topology, generation=generation, rolling=noted, op=stamp.op)
    birth = "" if opened is None else opened.birth
    rolling = Rolling(generation, stamp.op, current, birth, found)
    return Decision(rolling, (Put(paths.record, encode(after)),), paths.record)


def end_roll_forward(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    nonce: str,
    rolled: Mapping[str, RolledState],
    *,
    unchanged: Collection[int] = (),
    audit: Audit,
) -> Decision[Repaired]:
    """Release the states, so that transactions can commit again.

    If the run wrote no state, a blocked transaction stays blocked, although the generation has risen.

    :param nonce: nonce of this run.
    :param unchanged: accepted changes that the user withdraws.
    :raises RepairRefused: a later run of the command has taken over the states.
    """
    topology = read.get(TopologyRecord, paths.record)
    runs = [""] if topology.rolling is None else topology.rolling.nonces
    if runs[-1] != nonce:
        raise RepairRefused(
            what=ROLL_FORWARD,
            topology=paths.topology,
            problem="another run of the command has taken over",
            remedy="That run continues. There is nothing to do.",
        )
    whole = {name: each for name, each in rolled.items() if each.whole}
    current = read.peek(Counter, paths.current).txid
    after = replace(
        topology,
        rolling=None,
        # A new generation ends a permanent refusal, so no transaction is blocked any more.
        blocked=None if rolled else topology.blocked,
        states={**topology.states, **{name: each.last for name, each in whole.items()}},
        births={**topology.births, **{name: each.birth for name, each in whole.items()}},
        grants={**topology.grants, **{name: [*each.grant] for name, each in whole.items()}},
        accepted={
            **topology.accepted,
            **{name: _accepted(topology, name, each.change) for name, each in whole.items()},
        },
        op=stamp.op,
    )
    told = "; ".join(
        f"state {name} had transactions up to {each.found}, and has those up to {each.last}"
        for name, each in sorted(rolled.items())
    )
    noted = {name: asdict(each) for name, each in rolled.items()}
    return audit.repair(
        read,
        stamp,
        paths,
        [
            Put(paths.record, encode(after)),
            *([] if rolled else _refused_still(read, stamp, paths, topology, current, runs=runs)),
        ],
        what=ROLL_FORWARD,
        after=after,
        current=current,
        summary=told or "no state was written again",
        change={
            "states": noted,
            "nonces": runs,
            **({"unchanged": [*unchanged]} if unchanged else {}),
        },
    )


def _accepted(topology: TopologyRecord, name: str, change: int) -> dict[str, Any]:
    """Return the facts to compare a state's fence with. They omit an accepted loss.

    :param change: the newest accepted change that the values include.
    """
    before = topology.accepted.get(name, {})
    kept = {each: before[each] for each in (BEGAN, EMPTIED) if each in before}
    return {**kept, CHANGE: change} if change else kept


def _refused_still(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    topology: TopologyRecord,
    current: int,
    *,
    runs: Sequence[str],
) -> Iterator[Put]:
    """Yield the write that extends a permanent refusal of the current transaction to the new generation.

    :param runs: the nonces of all runs since the refusal. Each run raised the generation.
    """
    record = read.find(TransactionRecord, paths.transaction(current))
    before = topology.generation - GENERATIONS * len(runs)
    if record is not None and 0 < before <= record.for_good:
        yield Put(
            paths.transaction(current),
            encode(replace(record, for_good=topology.generation, op=stamp.op)),
        )


# --- back ---------------------------------------------------------------------------------------------------------
# The repair for a source and states that were restored to the same transaction. It takes back all
# later transactions. Source: docs/protocol.md §5.


def back(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    to: int,
    *,
    tokens: Mapping[str, Token | None],
    marks: Mapping[str, int],
    position: Any,
    audit: Audit,
) -> Decision[Repaired]:
    """Take back every transaction after `to`, the transaction to which the source and the states were restored.

    Their txids are never reused.

    The bindings of their runs are removed, so that these runs can process the rows again.

    :param to: the last transaction that stays.
    :param tokens: the token in the fence of each state of the DAG; None if the state has no complete fence.
    :param marks: the newest accepted change in the fence of a state, by state. Later changes are lost.
    :param position: the position of the source after `to`, as in the fences.
    :raises RepairRefused: a fence names another transaction, or records of these transactions are missing.
    """
    topology = read.get(TopologyRecord, paths.record)
    current = read.get(Counter, paths.current).txid
    last = read.get(Counter, paths.allocated).txid
    opened = [int(name) for name in read.names_if_any(paths.transactions)]
    records = {txid: read.get(TransactionRecord, paths.transaction(txid)) for txid in opened}
    kept = _receipts_from(read, paths, to, current)
    receipt = kept.pop(to)
    _check_fences(paths, topology, tokens, receipt)
    keys = {each.key: each.run_id for each in kept.values()}
    keys |= {each.key: each.run_id for each in records.values()}
    if to == last and not topology.losses:
        problem = f"no transaction after {to} has begun"
        raise _back_refused(paths, to, problem, "Clear the runs that have failed.")
    bound: dict[str, Binding | None] = dict.fromkeys(keys)
    writes = list[Write]()
    for txid, each in sorted(kept.items(), reverse=True):
        if each.replaces is not None and each.replaces.txid <= to:
            bound[each.key] = Binding(each.replaces.txid, each.replaces.entry)
        writes.append(Delete(paths.history(txid)))
    for txid, record in records.items():
        if record.replaces is not None and record.replaces.txid <= to:
            entry = Binding(record.replaces.txid, record.replaces.entry)
            bound[record.key] = bound[record.key] or entry
        writes.append(Delete(paths.transaction(txid)))
    writes += _skipped_before(read, stamp, paths, to, kept, bound=bound)
    for key, binding in bound.items():
        path = paths.run(key)
        if binding is not None:
            writes.append(put_or_create(read, path, encode(binding)))
        elif read.find(Binding, path) is not None:
            writes.append(Delete(path))
    state = RotatingTransactionalState(read, paths)
    for name in read.names_if_any(paths.metas):
        writes += state.remove_state(int(name)) if int(name) != last else ()
    wishes = [name for name in read.names_if_any(paths.wishes) if int(name) > to]
    whole = {name: token for name, token in tokens.items() if token is not None}
    after = replace(
        topology,
        generation=topology.generation + 1,
        states={**topology.states, **dict.fromkeys(whole, to)},
        births={**topology.births, **{name: each.birth for name, each in whole.items()}},
        grants={
            **topology.grants,
            **{name: [each.attempt, each.epoch] for name, each in whole.items()},
        },
        receipt=receipt.hash,
        accepted={
            **topology.accepted,
            **{name: _accepted(topology, name, mark) for name, mark in marks.items()},
        },
        # No loss remains accepted: the source has these rows again, or will report the loss again.
        losses=[],
        rolling=None,
        blocked=None,
        bid=None,
        skips=[],
        op=stamp.op,
    )
    acks = [paths.acks(name) for name in read.names_if_any(paths.all_acks)]
    after = left(after, paths, *acks)
    # The repair may be repeated, since its first response was lost.
    before = [each.change for each in repairs_of(read, paths) if each.what == BACK]
    again = [run for each in before if each["txid"] >= to for run in each["runs"]]
    runs = sorted({*keys.values(), *again})
    return audit.repair(
        read,
        stamp,
        paths,
        [
            *writes,
            *(Delete(f"{paths.wishes}/{name}") for name in wishes),
            state.override_state(last, Metadata(receipt.attempt, None, position)),
            Put(paths.current, encode(Counter(last + 1))),
            Put(paths.record, encode(after)),
            *_lines_taken_back(read, paths, topology, {**kept, **records}),
        ],
        what=BACK,
        after=after,
        current=last + 1,
        summary=f"transactions {to + 1} to {last} are taken back; their runs begin again when they are cleared: "
        f"{', '.join(runs)}",
        change={"txid": to, "last": last, "runs": runs, "marks": dict(marks)},
    )


def _lines_taken_back(
    read: Reader,
    paths: Paths,
    topology: TopologyRecord,
    gone: Mapping[int, Receipt | TransactionRecord],
) -> tuple[Write, ...]:
    """Return the writes after which these transactions no longer count in the book, but the restated ones do."""
    if not topology.book:
        return ()
    book = Book(read, paths)
    lines = {txid: EndLine(txid, each.birth, each.key) for txid, each in gone.items()}
    for each in (gone[txid] for txid in sorted(gone, reverse=True)):
        replaced = each.replaces
        begins = None if replaced is None else book.line(replaced.begins)
        if replaced is not None and begins is not None and replaced.txid not in gone:
            end = 0 if replaced.txid == begins.txid else replaced.txid
            lines[begins.txid] = replace(begins, end=end)
    return book.with_lines(lines[txid] for txid in sorted(lines) if txid >= topology.book)


def _back_refused(paths: Paths, txid: int, problem: str, remedy: str = "") -> RepairRefused:
    return RepairRefused(
        what=BACK,
        topology=paths.topology,
        problem=problem,
        remedy=remedy
        or (
            "Restore all states and the source from backups of one moment, then repeat: "
            + Command.of("repair", paths.topology, "--back", txid)
        ),
    )


def _receipts_from(read: Reader, paths: Paths, txid: int, current: int) -> dict[int, Receipt]:
    """Read the receipts of the transactions from `txid` to the last final one.

    :raises RepairRefused: `txid` is not a final transaction, or a receipt is forgotten.
    """
    if not 0 < txid < current:
        known = f"Name a transaction from 1 to {current - 1}."
        raise _back_refused(paths, txid, f"--back {txid} is no final transaction", known)
    found = dict[int, Receipt]()
    for each in range(txid, current):
        history = read.find(TransactionRecord, paths.history(each))
        if history is None and each in taken_back_before(read, paths):
            continue
        if history is None or history.receipt is None:
            raise _back_refused(paths, txid, f"the ledger has no receipt of transaction {each}")
        found[each] = history.receipt
    if txid not in found:
        raise _back_refused(paths, txid, f"transaction {txid} was already taken back")
    return found


def _check_fences(
    paths: Paths, topology: TopologyRecord, tokens: Mapping[str, Token | None], receipt: Receipt
) -> None:
    """Raise an error unless this is exactly the state's last transaction, and it is complete."""
    for name in sorted({*topology.states, *tokens}):
        token = tokens.get(name)
        if token is None:
            said = "has no complete fence" if name in tokens else "is not in the DAG"
            raise _back_refused(paths, receipt.txid, f"state {name!r} {said}")
        grant = (token.txid, token.birth, token.attempt, token.epoch)
        if grant != (receipt.txid, receipt.birth, receipt.attempt, receipt.epoch):
            problem = f"the fence of state {name!r} names transaction {token.txid}.{token.attempt}, not {receipt.txid}"
            raise _back_refused(paths, receipt.txid, problem)


def _skipped_before(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    txid: int,
    kept: Mapping[int, Receipt],
    *,
    bound: dict[str, Binding | None],
) -> Iterator[Write]:
    """Delete the records of later skips, and move the rows of later readmissions back to the skip records.

    :param bound: dict that receives the bindings of the skipped transactions' runs.
    :raises RepairRefused: the ledger no longer keeps the rows.
    """
    state = RotatingTransactionalState(read, paths)
    for number in map(int, read.names_if_any(paths.all_skipped)):
        skipped = read.get(Skipped, paths.skipped(number))
        again = skipped.readmitted_as
        if number > txid:
            yield Delete(paths.skipped(number))
        elif again is not None and again > txid:
            rows = kept[again].metadata if again in kept else state.get_state(again).rows
            if is_shortened(rows):
                problem = f"the rows of skipped transaction {number}, re-admitted as {again}, are not kept"
                raise _back_refused(paths, txid, problem)
            bound[skipped.key] = Binding(number)
            own = replace(skipped, rows=rows, readmitted_as=None, op=stamp.op)
            yield Put(paths.skipped(number), encode(own))
            history = read.find(TransactionRecord, paths.history(number))
            if history is not None:
                undone = history.with_outcome(Outcome.SKIPPED)
                yield Put(paths.history(number), encode(undone))
