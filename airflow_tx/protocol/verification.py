"""What ledger, receipts and fences say of each other. Pure. Source: docs/protocol.md §10."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_tx.protocol.chain import Chain, in_short
from airflow_tx.protocol.decisive import compare_decisive
from airflow_tx.protocol.evidence import HeldFence, LedgerEvidence, StateEvidence
from airflow_tx.protocol.loss import ACCEPT_LOSS
from airflow_tx.protocol.move import RENAME
from airflow_tx.protocol.receipt import Receipt, digest_of, restated
from airflow_tx.protocol.records import RepairRecord
from airflow_tx.protocol.repair import ACCEPT_CHANGE, RENAMED, STATE_LOST
from airflow_tx.protocol.roll_forward import ROLL_FORWARD, heals, nonces

_HARMLESS = frozenset({ACCEPT_CHANGE, ACCEPT_LOSS, RENAME, ROLL_FORWARD})
"""Repairs after which it is still known what the values of states add up to."""


@dataclass(frozen=True)
class Verified:
    """The findings.

    :param first: from which transaction on the chain vouches; None: there is no receipt.
    :param last: the last final transaction that was looked at.
    :param findings: what does not fit, one line each.
    :param notes: skips, losses, repairs, and facts that are unknown.
    """

    first: int | None
    last: int
    findings: tuple[str, ...]
    notes: tuple[str, ...]


def verified(
    ledger: LedgerEvidence,
    states: Sequence[StateEvidence],
    *,
    first: int = 1,
    last: int | None = None,
) -> Verified:
    """Compare what ledger and states say of the transactions from `first` to `last`.

    :param last: None: the last final one.
    """
    final = ledger.current - 1
    end = final if last is None else min(last, final)
    chain = Chain(ledger, states, first, end)
    chain.follow()
    chain.positions()
    for state in states:
        if state.receipts is not None:
            _compare_receipts(chain, state)
    if end == final:
        _compare_ends(chain)
        for state in states:
            _compare_fence(chain, state)
            _compare_totals(chain, state)
            _compare_rows(chain, state)
    compare_decisive(chain, states, whole=end == final)
    chain.tell()
    vouched = None if chain.begins is None else max(chain.begins, first)
    return Verified(vouched, end, tuple(chain.findings), tuple(chain.notes))


def _compare_receipts(chain: Chain, state: StateEvidence) -> None:
    """Compare the receipts of a state with the receipts of the ledger."""
    held = chain.held[state.name]
    gone = list[int]()
    forgets = state.receipts_kept is not None and len(held) >= state.receipts_kept
    since = min(held, default=chain.last + 1)
    for txid in range(max(chain.first, chain.ledger.oldest), chain.last + 1):
        own = held.get(txid)
        receipt = chain.receipts.get(txid)
        if chain.changed & {("", txid), (state.name, txid)}:
            continue
        if own is not None:
            if receipt is None:
                chain.find(txid, f"state {state.name} has a receipt of it, and the ledger none")
            else:
                _compare_one(chain, state.name, own, receipt)
        elif receipt is not None and state.name in receipt.written:
            if (forgets and txid < since) or _is_lost(chain, state.name, receipt):
                gone.append(txid)
            else:
                chain.find(txid, f"its receipt in state {state.name} is missing")
    if gone:
        why = (
            f"transactions {gone[0]} to {gone[-1]}: state {state.name} keeps their receipts no more"
        )
        chain.notes.append(f"{why}; only the ledger has them")


def _is_lost(chain: Chain, state: str, receipt: Receipt) -> bool:
    """Ask whether a person has accepted since that the state went back, or has renamed it: another one has its name."""
    begins = chain.ledger.topology.taken_back_from.get(state, 0)
    return any(
        each.generation > receipt.generation
        and (
            (each.what == STATE_LOST and each.told.startswith(f"state {state} "))
            or (
                receipt.txid < begins
                and each.what == RENAMED
                and each.told.startswith(f"state {state},")
            )
        )
        for each in chain.ledger.life
    )


def _compare_one(chain: Chain, state: str, own: Receipt, receipt: Receipt) -> None:
    # A state that was renamed since kept it under its name of then.
    now = chain.ledger.topology.renamed
    given = {
        **{now.get(name, name): each for name, each in receipt.written.items()},
        **receipt.written,
    }
    written = {name: given[name] for name in own.written if name in given}
    different = own.differences(replace(receipt, written=written))
    if different:
        names = ", ".join(different)
        chain.find(
            receipt.txid, f"its receipts in state {state} and in the ledger differ in {names}"
        )


def _compare_ends(chain: Chain) -> None:
    """Compare where the source stands now, and what was the last transaction of each state."""
    ledger = chain.ledger
    last = chain.receipts.get(ledger.current - 1)
    if last is not None:
        for where, one, two in chain.apart(last.after, ledger.position):
            ended = f"transaction {last.txid} ended at {in_short(one)}"
            chain.findings.append(f"ledger: {where}it continues at {in_short(two)}, and {ended}")
    for name, txid in ledger.topology.states.items():
        own = [each.txid for each in chain.receipts.values() if name in each.written]
        if own and max(own) != txid and txid > ledger.topology.rebuilt:
            said = (
                f"the ledger says that transaction {txid} was its last one, the receipts {max(own)}"
            )
            chain.findings.append(f"state {name}: {said}")


def _compare_fence(chain: Chain, state: StateEvidence) -> None:
    fence = state.fence
    topology = chain.ledger.topology
    where = f"state {state.name}:"
    last = topology.states.get(state.name)
    if fence is None:
        if state.receipts is None:
            chain.notes.append(
                f"{where} it keeps no fence and no receipts; only the ledger knows its commits"
            )
        elif last is not None:
            chain.findings.append(
                f"{where} it has no fence, and transaction {last} was committed to it"
            )
        return
    txid = fence.token.txid
    if fence.incarnation != topology.incarnation:
        said = f"its fence is of ledger {fence.incarnation}, this is ledger {topology.incarnation}"
        chain.findings.append(f"{where} {said}")
    elif last is not None and txid < last:
        chain.findings.append(
            f"{where} its fence says transaction {txid}, and {last} was committed to it"
        )
    elif txid == last and txid in chain.receipts:
        again = fence.token.nonce in nonces(topology, chain.ledger.life, state.name)
        for name, said, kept in _fence_apart(fence, chain.receipts[txid], again=again):
            of = f"the receipt of transaction {txid} {in_short(kept)}"
            chain.findings.append(f"{where} its fence says {name} {in_short(said)}, {of}")
    elif txid > max(chain.ledger.current, chain.ledger.latest):
        said = f"its fence says transaction {txid}, and it is the turn of {chain.ledger.current}"
        chain.findings.append(f"{where} {said}")


@dataclass(frozen=True)
class ColumnTotal:
    """The total of a value column, and what the receipts and accepted changes say that it is.

    :param unknown: how many receipts do not say how much was added.
    """

    column: str
    total: int
    expected: int
    unknown: int = 0

    @property
    def is_changed(self) -> bool:
        return not self.unknown and self.total != self.expected


def changed_columns(
    ledger: LedgerEvidence, states: Sequence[StateEvidence], name: str
) -> list[ColumnTotal] | str:
    """Find the columns of a state whose total is not what the receipts and accepted changes say.

    :return: why they cannot be compared, instead.
    """
    chain = Chain(ledger, states, 1, ledger.current - 1)
    chain.follow()
    found = _column_totals(chain, next(each for each in states if each.name == name))
    return found if isinstance(found, str) else [each for each in found if each.is_changed]


def _compare_totals(chain: Chain, state: StateEvidence) -> None:
    """Compare the totals of value columns with what all receipts together say was added to them."""
    if state.totals is None:
        return
    found = _column_totals(chain, state)
    if isinstance(found, str):
        chain.notes.append(f"state {state.name}: its values were not compared: {found}")
        return
    for each in _accepted(chain, state.name):
        chain.notes.append(f"state {each.told} ({each.who}, {each.when}: {each.why})")
    for one in found:
        if one.unknown:
            unknown = f"{one.unknown} of its receipts do not say how much was added to {one.column}"
            chain.notes.append(f"state {state.name}: {unknown}")
        elif one.is_changed:
            said = f"its column {one.column} adds up to {one.total}, and its receipts to {one.expected}"
            chain.findings.append(f"state {state.name}: {said}")


def _compare_rows(chain: Chain, state: StateEvidence) -> None:
    """Compare how many rows a state has of each transaction with what the receipts say."""
    if state.rows is None:
        return
    fence = state.fence
    written = {
        txid: each.written[state.name]["keys"]
        for txid, each in sorted(chain.receipts.items())
        if state.name in each.written
    }
    if fence is not None and not (fence.applied and fence.token.txid == max(written, default=0)):
        chain.notes.append(
            f"state {state.name}: its rows were not compared: it was being written to"
        )
        return
    replaced = restated(chain.receipts)
    for txid, keys in written.items():
        expected = 0 if txid in replaced else keys
        found = state.rows.get(txid, 0)
        if found != expected:
            chain.find(txid, f"state {state.name} has {found} rows of it instead of {expected}")


def _column_totals(chain: Chain, state: StateEvidence) -> list[ColumnTotal] | str:
    """Add up what the receipts and accepted changes say of each column, or say why that is not known."""
    written = {
        each.txid: each.written[state.name]
        for each in chain.receipts.values()
        if state.name in each.written
    }
    repair = next(
        (each for each in chain.ledger.life if not _is_harmless(chain, each, state.name)), None
    )
    fence = state.fence
    if not state.totals:
        return "no column of it can be added up"
    if repair is not None:
        return f"the ledger was repaired ({repair.what}), so their starting values are unknown"
    if chain.begins != 1:
        return "the receipts do not go back to transaction 1"
    if fence is None and written:
        return "it has no fence, so a process may be writing to it"
    if fence is not None and not (fence.applied and fence.token.txid == max(written, default=0)):
        return "it was being written to"
    accepted = [each.change["columns"] for each in _accepted(chain, state.name)]
    return [
        _column_total(name, total, [*written.values()], accepted)
        for name, total in state.totals.items()
    ]


def _is_harmless(chain: Chain, repair: RepairRecord, state: str) -> bool:
    """Ask whether it is still known after a repair what the values of a state add up to."""
    if repair.what in _HARMLESS:
        return True
    return repair.what == STATE_LOST and any(
        heals(each, state, repair) for each in chain.ledger.life
    )


def _column_total(
    name: str,
    total: int,
    written: Sequence[Mapping[str, Any]],
    accepted: Sequence[Mapping[str, int]],
) -> ColumnTotal:
    parts = [each.get("sums", {}).get(name) for each in written if each["keys"]]
    expected = sum(part for part in parts if part is not None) + sum(
        each.get(name, 0) for each in accepted
    )
    return ColumnTotal(name, total, expected, parts.count(None))


def _accepted(chain: Chain, state: str) -> list[RepairRecord]:
    """List the changes of a state that a person has accepted."""
    return [
        each
        for each in chain.ledger.life
        if each.what == ACCEPT_CHANGE and each.change["state"] == state
    ]


def _fence_apart(
    fence: HeldFence, receipt: Receipt, *, again: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Name in what a fence and the receipt of its transaction differ, with what each says.

    :param again: whether the transaction was written again from the journal: by another grant than the receipt names.
    """
    of_the_grant = () if again else ("generation", "nonce")
    for name in ("txid", "attempt", "epoch", "birth", *of_the_grant):
        if getattr(fence.token, name) != getattr(receipt, name):
            yield name, getattr(fence.token, name), getattr(receipt, name)
    if not fence.applied:
        yield "that its update is not complete", False, True
    try:
        kept = json.loads(fence.batch)
        pairs = [("rows", receipt.metadata), ("position", receipt.after), ("prev", receipt.before)]
        yield from (
            (name, kept[name], one)
            for name, one in pairs
            if digest_of(kept[name]) != digest_of(one)
        )
    except (ValueError, KeyError, TypeError):
        yield "batch", fence.batch[:40], "rows and positions"
