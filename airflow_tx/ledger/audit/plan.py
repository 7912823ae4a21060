"""The plan for rebuilding a ledger, derived from the fences of its states. Source: docs/protocol.md §§5, 7."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_tx.base.errors import RepairRefused, UnreadableRecord
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger.api import Create, Paths, Write
from airflow_tx.ledger.attempt import Token
from airflow_tx.ledger.json_text import digest, replace
from airflow_tx.ledger.life import LEDGER_LOST, holds_for_good
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.receipt import FenceBatch, Outcome, Receipt
from airflow_tx.ledger.records import Binding, Metadata, Phase, Restating, TransactionRecord, encode
from airflow_tx.ledger.steps.processing import counted_of
from airflow_tx.ledger.steps.step import Stamp, acks_of, put_or_create


@dataclass(frozen=True)
class HeldState:
    """The evidence from a state's fence for rebuilding the ledger.

    :param undoable: whether a later grant of the same txid undoes earlier writes, as in an opaque state.
    :param holds: whether the state may have output from the transaction in the fence.
    :param applied: whether the update of this transaction is complete.
    :param batch: the facts about this transaction in the fence.
    :param receipts: the receipts of final transactions that the state keeps.
    :param change: number of the newest accepted change in the fence.
    :param takes_out: the transactions whose receipts show that they removed rows of a restated transaction.
    """

    state: str
    undoable: bool
    holds: bool
    incarnation: str
    token: Token
    applied: bool
    batch: FenceBatch = field(hash=False)
    receipts: tuple[Receipt, ...] = field(hash=False, default=())
    change: int = 0
    takes_out: frozenset[int] = frozenset()

    @property
    def receipt(self) -> Receipt:
        """The receipt of the fence's transaction, without the number of written rows."""
        batch = self.batch
        return Receipt(
            **self.token.to_json(),
            topology="",
            incarnation=self.incarnation,
            outcome=(Outcome.COMMITTED if batch.skip is None else Outcome.SKIPPED).value,
            key=batch.key,
            run_id=batch.run_id,
            granted=batch.granted,
            metadata=batch.rows,
            before=batch.prev,
            after=batch.position,
            previous="",
            skip=batch.skip,
            journal=batch.journal,
            replaces=batch.replaces,
        )

    @classmethod
    def of(
        cls,
        state: str,
        *,
        undoable: bool,
        fence: Any,
        holds: Callable[[int], bool | None] = lambda txid: None,
        receipts: Iterable[Any] | None = None,
    ) -> HeldState:
        """Create the evidence from a fence.

        :param holds: function that returns whether the state has output from a transaction; None if unknown.
        :param receipts: receipts of the state; changed receipts are ignored.
        :raises UnreadableRecord: the fence has no valid batch.
        """
        if fence.kept is None:
            raise UnreadableRecord(
                path=f"the fence of state {state!r}",
                reason=f"it keeps no batch ({fence.batch[:40]!r})",
            )
        held = holds(fence.token.txid) is not False
        known = tuple(
            each for stored in receipts or () if (each := _receipt_of(stored, fence.incarnation))
        )
        return cls(
            state,
            undoable,
            held,
            fence.incarnation,
            fence.token,
            fence.applied,
            fence.kept,
            known,
            fence.change,
            frozenset(stored.txid for stored in receipts or () if stored.takes_out),
        )


def _receipt_of(stored: Any, incarnation: str) -> Receipt | None:
    """Read a receipt of a state. Return None if it was changed or belongs to another ledger."""
    try:
        receipt = Receipt.from_json(json.loads(stored.text))
    except (ValueError, UnreadableRecord):
        return None
    return receipt if receipt.hash == stored.hash and receipt.incarnation == incarnation else None


@dataclass(frozen=True)
class RebuildPlan:
    """The point from which the rebuilt ledger continues, according to the states.

    :param last: last final transaction of each state.
    :param births: birth in the fence of each state.
    :param meta: metadata of transaction `current` − 1; None if there is none.
    :param granted: time of the newest grant in the states. No state contains traces of transactions that began later.
    :param bound: binding of the run with the newest grant, by run key, if its transaction is an open restatement. The
        binding names the transaction that counts.
    :param last_run: run key of transaction `current` − 1; "" if no fence has it.
    :param ended: receipts of the transactions before `current`, by txid, from the states' fences and receipts.
    :param change: number of the newest accepted change in any fence.
    """

    incarnation: str
    generation: int
    current: int
    meta: Metadata | None
    last: dict[str, int]
    births: dict[str, str]
    summary: str
    granted: str
    last_run: str = ""
    bound: Mapping[str, Binding] = field(hash=False, default_factory=dict)
    ended: Mapping[int, Receipt] = field(hash=False, default_factory=dict)
    change: int = 0
    remade: RemadeTransaction | None = None


@dataclass(frozen=True)
class RemadeTransaction:
    """An open restatement that a state cannot undo. A rebuild creates its record again, so its run can be replayed.

    :param batch: the batch in the newest fence.
    :param token: the token in the newest fence.
    :param receipt: the receipt of the restatement in the state.
    :param fenced: the states that have a fence.
    """

    token: Token
    batch: FenceBatch = field(hash=False)
    receipt: Receipt = field(hash=False)
    fenced: tuple[str, ...]

    @classmethod
    def of(cls, held: Sequence[HeldState], newest: HeldState) -> RemadeTransaction | None:
        """Return the restatement in the newest fence if a state cannot undo it; otherwise None."""
        token = newest.token
        kept = [
            each
            for state in held
            for each in state.receipts
            if each.takes_out and each.txid in state.takes_out
        ]
        found = [
            each
            for each in kept
            if holds_for_good([each], token.txid, token.birth, newest.incarnation)
        ]
        if not found or newest.batch.replaces is None:
            return None
        fenced = tuple(sorted(each.state for each in held))
        return cls(token, newest.batch, found[-1], fenced)

    @property
    def bound(self) -> dict[str, Binding]:
        """The binding of the restatement's run. The restated transaction counts until the restatement is committed."""
        restating = Restating(self.token.txid, self.token.birth)
        replaced = self.batch.replaces
        assert replaced is not None, "`of` looks for it"
        return {self.batch.key: Binding(replaced.txid, replaced.entry, restating)}

    def writes(self, read: Reader, stamp: Stamp, paths: Paths) -> list[Write]:
        """Return the writes of the record, the rows and the acks folder."""
        token = self.token
        batch = self.batch
        record = TransactionRecord(
            txid=token.txid,
            key=batch.key,
            run_id=batch.run_id,
            request="",
            attempt=token.attempt,
            epoch=token.epoch,
            op=stamp.op,
            phase=Phase.FAILED,
            base=digest(batch.prev),
            ended=digest(batch.position),
            rows_digest=digest(batch.rows),
            tasks={},
            created=stamp.now,
            began=stamp.now,
            granted=True,
            pinned=True,
            outputs=batch.outputs,
            fenced=list(self.fenced),
            error="the ledger was rebuilt",
            birth=token.birth,
            changed=self.receipt.changed,
            acks=acks_of(stamp, token.txid, token.attempt),
            counted=counted_of(self.receipt.rows, self.receipt.digest),
            journal=batch.journal,
            replaces=batch.replaces,
            wish=self.receipt.wish,
        )
        rows = Metadata(token.attempt, batch.rows, batch.position)
        return [
            put_or_create(read, paths.transaction(token.txid), encode(record)),
            put_or_create(read, paths.meta(token.txid), encode(rows)),
            Create(paths.acks(record.acks), b""),
        ]


def plan_rebuild(paths: Paths, held: Sequence[HeldState]) -> RebuildPlan:
    """Decide at which transaction the ledger continues, and which earlier transactions are known from the states.

    :raises RepairRefused: no state has a fence, or the states contradict each other.
    """
    _check_one_life(paths, held)
    # Every fence is raised before the first write to any state, so every fence has the highest
    # txid.
    newest = max(held, key=lambda each: each.token.rank)
    txid = newest.token.txid
    receipt = newest.receipt
    is_complete = _is_complete(held, txid)
    kept = _put_together(held)
    ended = {number: each for number, each in kept.items() if number < txid}
    bound = dict[str, Binding]()
    remade = None
    if is_complete:
        current = txid + 1
        meta: Metadata | None = Metadata(receipt.attempt, receipt.metadata, receipt.after)
        known = kept.get(txid)
        # The fence does not record the number of written rows.
        written = {} if known is None or known.birth != receipt.birth else known.written
        ended[txid] = replace(receipt, written=written)
        summary = f"transaction {txid} is complete in every state; {txid + 1} is next"
    else:
        _check_open(paths, held, txid)
        current = txid
        meta = Metadata(1, None, receipt.before) if txid > 1 else None
        summary = (
            f"transaction {txid} is not complete in every state; "
            f"it is next, from where transaction {txid - 1} ended"
        )
        remade = RemadeTransaction.of(held, newest)
        if receipt.replaces is not None:
            replaced = receipt.replaces.txid
            bound = {receipt.key: Binding(replaced, receipt.replaces.entry)}
            summary += (
                f"; it restated transaction {replaced}, which counts: what the states hold of it goes with the next "
                "commit"
                if remade is None
                else f"; it restates transaction {replaced}, whose rows it has taken out finally, so it stays open: "
                "replay it"
            )
    final = current - 1
    return RebuildPlan(
        incarnation=newest.incarnation,
        generation=max(each.token.generation for each in held) + 1,
        current=current,
        meta=meta,
        last={each.state: final for each in held} if final else {},
        births={each.state: each.token.birth for each in held},
        summary=summary,
        last_run=receipt.key if is_complete else "",
        bound=bound if remade is None else remade.bound,
        granted=min(each.batch.granted for each in held if each.token.txid == txid),
        ended=ended,
        change=max(each.change for each in held),
        remade=remade,
    )


def _put_together(held: Sequence[HeldState]) -> dict[int, Receipt]:
    """Merge the states' receipts, by txid. Each state knows only the number of its own written rows."""
    found = dict[int, Receipt]()
    for each in (receipt for state in held for receipt in state.receipts):
        known = found.get(each.txid)
        parts = {} if known is None or known.birth != each.birth else known.written
        found[each.txid] = replace(each, written={**parts, **each.written})
    return found


def _is_complete(held: Sequence[HeldState], txid: int) -> bool:
    """Return whether every state has completely applied the same transaction with this txid."""
    applied = all(each.token.txid == txid and each.applied for each in held)
    return applied and len({each.token.birth for each in held}) == 1


def _check_one_life(paths: Paths, held: Sequence[HeldState]) -> None:
    if not held:
        raise rebuild_refused(
            paths,
            "no state of the DAG has a fence",
            "No transaction was ever committed to the states: use --reset.",
        )
    lives = {each.incarnation: each.state for each in held}
    if len(lives) > 1:
        of = "; ".join(f"{state!r} of ledger {life}" for life, state in sorted(lives.items()))
        raise rebuild_refused(
            paths,
            f"its states belong to different ledgers ({of})",
            "One state serves one topology.",
        )


def _check_open(paths: Paths, held: Sequence[HeldState], txid: int) -> None:
    for each in held:
        behind = each.token.txid < txid - 1 or (each.token.txid == txid - 1 and not each.applied)
        if behind:
            raise rebuild_refused(
                paths,
                f"state {each.state!r} is at transaction {each.token.txid}, but another state is at transaction {txid}",
                "This state went back in time. Restore it to the same moment as the others, "
                "or start from the beginning: --reset.",
            )
        if each.token.txid == txid and each.holds and not each.undoable:
            much = "complete" if each.applied else "half written"
            others = ", but not in all others" if each.applied else ""
            raise rebuild_refused(
                paths,
                f"transaction {txid} is {much} in state {each.state!r}, which cannot undo it{others}",
                "Restore all states from backups of one moment, then repeat it. Or start from the beginning: "
                + Command.of("repair", paths.topology, "--reset", "--why", "TEXT")
                + '. kind="opaque" states can undo it.',
            )


def rebuild_refused(paths: Paths, problem: str, remedy: Remedy | str) -> RepairRefused:
    return RepairRefused(what=LEDGER_LOST, topology=paths.topology, problem=problem, remedy=remedy)
