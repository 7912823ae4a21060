"""Where a lost ledger has to go on, as the fences of its states say. Pure. Source: protocol.md §7."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_tx.errors import RepairRefused, UnreadableRecord
from airflow_tx.protocol.attempt import Token
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.records import Metadata

LEDGER_LOST = "ledger-lost"


@dataclass(frozen=True)
class Held:
    """What the fence of a state says.

    :param undoable: whether the next grant of the same txid undoes what was written (an opaque state).
    :param holds: whether something of the token's transaction may be in the state.
    :param applied: whether all of it is.
    :param batch: {"rows", "position", "prev"} of that transaction; and whose it is, unless an older release granted it.
    """

    state: str
    undoable: bool
    holds: bool
    incarnation: str
    token: Token
    applied: bool
    batch: Any = field(hash=False)

    @classmethod
    def of(cls, state: str, *, undoable: bool, fence: Any, holds: Callable[[int], bool] = lambda txid: True) -> Held:
        """From a fence row as the state gives it.

        :param holds: whether the state may have something of a transaction.
        :raises UnreadableRecord: the batch kept beside the fence is not one.
        """
        try:
            batch = json.loads(fence.batch)
            complete = {"rows", "position", "prev"} <= batch.keys()
        except (ValueError, AttributeError):
            complete = False
        if not complete:
            raise UnreadableRecord(
                path=f"the fence of state {state!r}", reason=f"it keeps no batch ({fence.batch[:40]!r})"
            )
        return cls(state, undoable, holds(fence.token.txid), fence.incarnation, fence.token, fence.applied, batch)


@dataclass(frozen=True)
class Rebuilt:
    """Where the ledger goes on, as the states say.

    :param last: per state, the last txid that is final in it.
    :param births: per state, the birth that its fence holds.
    :param meta: metadata of transaction `current` − 1; None if there is none.
    :param told: of that transaction, if the fences hold it: {"key", "run_id", "skip"}.
    :param granted: when the states' newest grant was given: what began later, no state knows. None: nobody knows.
    """

    incarnation: str
    generation: int
    current: int
    meta: Metadata | None
    last: dict[str, int]
    births: dict[str, str]
    summary: str
    told: Mapping[str, Any] = field(hash=False, default_factory=dict)
    granted: str | None = None


def rebuilt(paths: Paths, held: Sequence[Held]) -> Rebuilt:
    """Where the ledger has to go on. The fence of every state is raised before the first write to any, so the
    greatest txid was begun by all; it is complete only if it is applied in all.

    :raises RepairRefused: there is no fence, or the states do not fit together.
    """
    _check_one_life(paths, held)
    newest = max(held, key=lambda each: each.token.rank)
    txid = newest.token.txid
    generation = max(each.token.generation for each in held) + 1
    births = {each.state: each.token.birth for each in held}
    times = [each.batch.get("granted") for each in held if each.token.txid == txid]
    granted = min(times) if all(times) else None
    complete = all(each.token.txid == txid and each.applied for each in held)
    if complete and len(set(births.values())) == 1:
        meta = Metadata(newest.token.attempt, newest.batch["rows"], newest.batch["position"])
        last = {each.state: txid for each in held}
        summary = f"transaction {txid} is complete in every state; {txid + 1} is next"
        told = newest.batch if "key" in newest.batch else {}
        return Rebuilt(newest.incarnation, generation, txid + 1, meta, last, births, summary, told, granted)
    _check_open(paths, held, txid)
    before = txid - 1
    prev = Metadata(1, None, newest.batch["prev"]) if before else None
    last = {each.state: before for each in held} if before else {}
    summary = f"transaction {txid} is not complete in every state; it is next, from where transaction {before} ended"
    return Rebuilt(newest.incarnation, generation, txid, prev, last, births, summary, granted=granted)


def _check_one_life(paths: Paths, held: Sequence[Held]) -> None:
    if not held:
        raise _refuse(paths, "no state of the DAG has a fence", "Nothing was ever committed to them: use --reset.")
    lives = {each.incarnation: each.state for each in held}
    if len(lives) > 1:
        of = "; ".join(f"{state!r} of ledger {life}" for life, state in sorted(lives.items()))
        raise _refuse(paths, f"its states belong to different ledgers ({of})", "One state serves one topology.")


def _check_open(paths: Paths, held: Sequence[Held], txid: int) -> None:
    for each in held:
        behind = each.token.txid < txid - 1 or (each.token.txid == txid - 1 and not each.applied)
        if behind:
            raise _refuse(
                paths,
                f"state {each.state!r} is at transaction {each.token.txid}, another one at {txid}",
                "It went back: restore it to the same moment as the others, or --reset begins anew.",
            )
        if each.token.txid == txid and each.holds and not each.undoable:
            much = "complete" if each.applied else "half written"
            others = ", but not in all others" if each.applied else ""
            raise _refuse(
                paths,
                f"transaction {txid} is {much} in state {each.state!r}, which cannot undo it{others}",
                f"Restore all states from backups of one moment, then repeat it; or begin anew: airflow tx repair "
                f'{paths.topology} --reset. kind="opaque" states can undo it.',
            )


def _refuse(paths: Paths, problem: str, remedy: str) -> RepairRefused:
    return RepairRefused(what=LEDGER_LOST, topology=paths.topology, problem=problem, remedy=remedy)
