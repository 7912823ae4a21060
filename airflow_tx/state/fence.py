"""The rules of the fence, as pure decisions. Every store applies them under its own lock. Source: protocol.md §7."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from msgspec import structs

from airflow_tx.base.errors import (
    FenceForeign,
    FenceOutranked,
    LedgerBehind,
    OutputChanged,
    PortionsLost,
    SkipRefused,
    StateBehind,
    StateDiffers,
    StateError,
)
from airflow_tx.ledger import (
    CHANGE,
    FenceBatch,
    Token,
    dumps,
    same_output,
    skip_refused,
)
from airflow_tx.state.api import COVERS, Fence, Grant


def raised(
    stored: Fence | None,
    grant: Grant,
    *,
    state: str,
    there: bool = False,
    holds: Callable[[], bool] | None = None,
    missing: Callable[[], str] = str,
    is_empty: Callable[[], bool] = lambda: True,
) -> Fence:
    """Return the raised fence. Check identity, rank and continuity, in this order, and then the content of the state.

    The callables run under the exclusive lock under which the fence was read.

    :param stored: the fence in the store; None if there is none.
    :param there: whether the table or location of the values exists, if the state keeps its values outside the fence.
    :param holds: returns whether the state has rows of this transaction that it cannot undo; None if the state cannot
        determine this.
    :param missing: describes the values lost since the updates under the fence were complete; "" if none are lost.
    :param is_empty: returns whether a state without a fence has no values.
    :raises FenceForeign: the fence belongs to another ledger, or to another life of this one.
    :raises LedgerBehind: the ledger went back. A txid with two births also proves this.
    :raises StateBehind: the state went back, or the store lost written rows and kept the fence, or an update was never
        completed.
    :raises FenceOutranked: a later grant has raised the fence.
    :raises StateError: this grant has raised the fence for a state of another name.
    :raises OutputChanged: the state already has rows of the transaction that this grant does not write.
    :raises SkipRefused: the grant skips the transaction, and the state has rows of it that cannot be undone.
    """
    last = grant.last_txids.get(state)
    known = grant.accepted.get(state, {})
    _check_looked_at(stored, grant, state=state)
    if stored is None:
        if last is not None:
            raise StateBehind(state=state, topology=grant.topology, expected=last, found="nothing")
        _check_accepted(stored, grant, known, state=state)
        batch = _text(grant.batch, known.get(CHANGE, 0), is_empty())
        return Fence(grant.incarnation, grant.token, False, batch, state, there)
    if stored.incarnation != grant.incarnation:
        raise FenceForeign(
            state=state,
            topology=grant.topology,
            found=stored.incarnation,
            expected=grant.incarnation,
        )
    _check_rank(stored, grant, state=state)
    _check_no_look(stored, grant, last, state=state)
    _check_birth(stored, grant, last, state=state)
    _check_continuity(stored, grant, last, state=state)
    is_accepted = accepted(stored, grant, state=state)
    if is_accepted:
        _check_accepted(stored, grant, known, state=state)
    else:
        _check_change(stored, grant, known, state=state)
    if stored.wrote and (not is_accepted or known.get("whole")):
        lost = missing() if there else "the written values are missing"
        if lost:
            found = f"{stored.token.txid}, but {lost}"
            raise StateBehind(
                state=state, topology=grant.topology, expected=_shown(last), found=found
            )
    refusal = if_held(stored, grant, state=state)
    if refusal is not None and (isinstance(refusal, OutputChanged) if holds is None else holds()):
        raise refusal
    if stored.token == grant.token:
        _check_one_update(stored, state=state)
        return replace(stored, wrote=there)
    if grant.token.is_look:
        return Fence(grant.incarnation, grant.token, False, _covering(stored), state, there)
    change = known.get(CHANGE, 0) if is_accepted else stored.change
    began = stored.began if stored.token.txid == grant.txid else None
    batch = _text(grant.batch, change, began)
    return Fence(grant.incarnation, grant.token, False, batch, state, there)


def if_held(stored: Fence, grant: Grant, *, state: str) -> OutputChanged | SkipRefused | None:
    """Return the error to raise if a state that cannot undo writes already has rows of this transaction.

    The fence records the output that its grant was about to write. So the state can compare the output even if a
    restored ledger has forgotten that grant.

    :return: the error; None if the fence is of another transaction, or if the output is unchanged or unknown.
    """
    if stored.token.txid != grant.txid or stored.token == grant.token:
        return None
    if grant.is_skip:
        return skip_refused(grant.txid, [state], noted=True)
    mine = _output(grant.batch, state)
    found = _output(stored.kept, stored.state)
    if found is None:
        found = grant.noted.get(state)
    if mine is None or found is None or same_output(mine, found):
        return None
    return OutputChanged(state=state, txid=grant.txid, digest=mine, found=found)


def check_write(stored: Fence | None, grant: Grant, *, state: str) -> None:
    """Raise FenceOutranked unless the fence holds exactly this grant. The fence must be read under a shared lock."""
    if stored is None or stored.incarnation != grant.incarnation or stored.token != grant.token:
        found = "nothing" if stored is None else str(stored.token)
        raise FenceOutranked(state=state, token=str(grant.token), found=found)


def check_portions(found: int, grant: Grant, *, state: str, where: str) -> None:
    """Refuse to complete a grant if the store has lost portions of it.

    The store transaction that writes a portion also writes a note, so a missing note means a missing portion.

    :param found: number of this grant's notes in the store.
    :raises PortionsLost: the store has fewer notes than the portions it has confirmed.
    """
    lost = grant.portions - found
    if lost > 0:
        raise PortionsLost(
            state=state, where=where, lost=lost, portions=grant.portions, txid=grant.txid
        )


def accepted(stored: Fence, grant: Grant, *, state: str) -> bool:
    """Return whether a repair has accepted the values since this fence was raised."""
    return grant.last_txids.get(state) is None and stored.token.generation < grant.token.generation


def owns(grant: Grant, *, state: str) -> bool:
    """Return whether values without a fence belong to the state, because a repair has accepted or inspects them."""
    known = "generation" in grant.accepted.get(state, {}) or state in grant.over
    return known or grant.token.is_look


def of_nobody(txid: int, *, state: str, release: str, fenced: int = 0) -> StateDiffers:
    """Return the error for values that no transaction of this ledger wrote. A commit would mistake them for its own.

    :param txid: the greatest txid in the values.
    :param release: the command that removes all txids from the values.
    :param fenced: the txid of the fence; 0 if there is none.
    """
    known = f"its fence says {fenced}" if fenced else "no fence"
    return StateDiffers(
        state=state,
        problem=f"it has values of transaction {txid} and {known}, as if it were a copy of another state",
        remedy=f"Nothing was written. To keep these values, remove their txids, then clear the commit task: {release}",
    )


def uncovered(stored: Fence | None, grant: Grant, *, state: str) -> Fence:
    """Return the original fence that a *look* contains. The roll forward restores it if nothing was changed.

    :param stored: the fence, read under an exclusive lock.
    :param grant: the grant that raised the look.
    :raises FenceOutranked: the fence no longer holds this look.
    """
    check_write(stored, grant, state=state)
    assert stored is not None
    return stored.covered or stored


def with_change(stored: Fence, change: int) -> Fence:
    """Return the fence, with an accepted manual change recorded in it.

    :param change: number of the repair; 0 if it is unknown.
    """
    if stored.kept is None or change <= stored.change:
        return stored
    return replace(stored, batch=_text(stored.kept, change, stored.began))


def check_as_of(stored: Fence | None, txid: int, newest: int, *, state: str, kept: int = 0) -> None:
    """Refuse to read values as of a final transaction if a later transaction has replaced them.

    :param newest: the newest final transaction.
    :param kept: number of transactions for which the state keeps the earlier values.
    :raises StateError: the state no longer has the values. The message names a later transaction, as of which the state
        is readable.
    """
    if stored is not None and stored.txid > txid + kept:
        why = (
            "it keeps only the values before its last transaction"
            if kept
            else "it keeps no earlier values"
        )
        raise not_as_of(txid, newest, later=stored.txid, why=why, state=state)


def not_as_of(txid: int, newest: int, *, later: int, why: str, state: str) -> StateError:
    """Return the error for reading values as of a final transaction after a later transaction has replaced them."""
    is_open = later > newest
    problem = (
        f"it is not readable as of {txid}{f' while {later} commits' if is_open else ''}: {why}"
    )
    remedy = f"Read it as of {later}{' when that one has ended' if is_open else ''}."
    return StateError(state=state, problem=problem, remedy=remedy)


def applied(stored: Fence) -> Fence:
    """Return the fence, marked to show that all updates of its grant are in the store."""
    return replace(stored, applied=True)


def _covering(stored: Fence) -> str:
    """Return a fence as text for the batch of a *look*.

    If the fence is itself a look of a run that has died, use the original fence that it contains.
    """
    return stored.batch if stored.token.is_look else dumps({COVERS: asdict(stored)})


def _text(batch: FenceBatch | None, change: int, was_empty: bool | None) -> str:
    """Return a batch as text, including what a fence records about its state."""
    if batch is None:
        return "null"
    return structs.replace(batch, change=change, was_empty=was_empty).text


def _output(batch: FenceBatch | None, state: str) -> str | None:
    """Return the output that a grant was about to write. Return None if the batch does not contain it."""
    return None if batch is None else batch.outputs.get(state)


def _shown(last: int | None) -> int | str:
    return "nothing" if last is None else last


def _check_looked_at(stored: Fence | None, grant: Grant, *, state: str) -> None:
    """Refuse a repair that inspected a different fence than the current one.

    Its grant has no last txid, so it would replace the current fence.
    """
    found = None if stored is None else stored.token
    if state in grant.over and found not in (grant.over[state], grant.token):
        shown = "nothing" if found is None else str(found)
        raise FenceOutranked(state=state, token=str(grant.token), found=shown)


def _check_rank(stored: Fence, grant: Grant, *, state: str) -> None:
    found = stored.token
    mine = grant.token
    if found.generation == mine.generation and (found.txid > mine.txid or _is_another(found, mine)):
        return  # the following checks raise a more precise error: LedgerBehind, or the error for a manual change
    if found.rank > mine.rank or (found.rank == mine.rank and found.nonce != mine.nonce):
        raise FenceOutranked(state=state, token=str(mine), found=str(found))


def _check_no_look(stored: Fence, grant: Grant, last: int | None, *, state: str) -> None:
    """Refuse a fence that is only a *look* of a roll forward.

    The values may be older than the original fence, which the look contains.
    """
    known = state in grant.over or accepted(stored, grant, state=state)
    if stored.token.is_look and not known:
        found = f"{stored.token.txid}, from a roll forward that has not ended"
        raise StateBehind(state=state, topology=grant.topology, expected=_shown(last), found=found)


def _check_accepted(
    stored: Fence | None, grant: Grant, known: Mapping[str, Any], *, state: str
) -> None:
    """Refuse a fence that differs from the fence that a user accepted.

    The state may be restored from another backup.
    """
    if "fence" not in known or state in grant.over:
        return
    if stored is not None and stored.token.generation >= known["generation"]:
        return
    seen = known["fence"]
    if (None if stored is None else stored.token.to_json()) != seen:
        there = "nothing" if stored is None else f"{stored.token.txid}"
        then = "nothing" if seen is None else f"{seen['txid']}"
        found = f"{there}, but the fence that a person accepted was {then}"
        raise StateBehind(state=state, topology=grant.topology, expected="nothing", found=found)


def _check_change(stored: Fence, grant: Grant, known: Mapping[str, Any], *, state: str) -> None:
    """Refuse values that are older than an accepted manual change.

    This works even if no transaction followed the change.
    """
    change = known.get(CHANGE, 0)
    if stored.change < change:
        found = f"{stored.token.txid}, and the values lack the change that repair {change} accepted"
        last = _shown(grant.last_txids.get(state))
        raise StateBehind(state=state, topology=grant.topology, expected=last, found=found)


def _check_by_hand(found: Token, grant: Grant, last: int | None, *, state: str) -> None:
    """Refuse a manually changed fence. Its birth shows that the ledger did not go back."""
    births = {grant.births.get(state, ""): last or found.txid, grant.token.birth: grant.txid}
    refusal = found.by_hand(births, state, grant.topology)
    if refusal:
        raise StateDiffers(state=state, **refusal)


def _is_another(found: Token, mine: Token) -> bool:
    """Return whether the ledger has allocated a txid twice, because it went back to an older version."""
    return found.txid == mine.txid and found.birth != mine.birth


def _check_birth(stored: Fence, grant: Grant, last: int | None, *, state: str) -> None:
    """Refuse another transaction with the same txid, because the tokens of the two transactions cannot be compared."""
    found = stored.token
    known = grant.births.get(state)
    if found.birth == known or accepted(stored, grant, state=state):
        return
    shown = f"{found.txid} (another transaction with the same number)"
    if _is_another(found, grant.token):
        raise LedgerBehind(
            state=state,
            topology=grant.topology,
            found=shown,
            expected=_shown(last),
            txid=grant.txid,
        )
    if known is not None and found.txid == last:
        raise StateBehind(state=state, topology=grant.topology, expected=last, found=shown)


def _check_one_update(stored: Fence, *, state: str) -> None:
    """Refuse a transaction's second update of the same table.

    It would start from the values before the first update, and overwrite that update.
    """
    if stored.state != state:
        problem = f"two updates of this DAG write to one table: {stored.state!r} and {state!r}"
        remedy = "Make them one update, or give one of them another table."
        raise StateDiffers(state=state, problem=problem, remedy=remedy)


def _check_continuity(stored: Fence, grant: Grant, last: int | None, *, state: str) -> None:
    found = stored.token.txid
    if found == grant.txid or accepted(stored, grant, state=state):
        return
    # Compare final transactions before granted ones. Otherwise, a fence that matched a later `last`
    # would be lowered.
    if found == last and found < grant.txid:
        final = grant.grants.get(state)
        mine = final is None or (stored.token.attempt, stored.token.epoch) == tuple(final)
        if stored.applied and mine:
            return
        # The store kept the raise but lost the values, because it responds before it writes to disk
        # or to a standby. Or it was restored to a moment between two attempts of its last
        # transaction.
        shown = (
            f"{last}, but some of its updates are missing"
            if mine
            else f"{last}.{stored.token.attempt}"
        )
        raise StateBehind(state=state, topology=grant.topology, expected=last, found=shown)
    _check_by_hand(stored.token, grant, last, state=state)
    if found > grant.txid or found > (last if last is not None else 0):
        raise LedgerBehind(
            state=state,
            topology=grant.topology,
            found=found,
            expected=_shown(last),
            txid=grant.txid,
        )
    raise StateBehind(state=state, topology=grant.topology, expected=last, found=found)


def may_have_written(before: Token, token: Token) -> bool:
    """Return whether an earlier grant may have written rows of the transaction. These rows must be undone.

    If the fence holds this token, raising the fence has undone the rows. If the fence holds an earlier transaction, no
    grant of this transaction has written rows. After a repair, this is unknown.
    """
    return before != token and (before.txid >= token.txid or before.generation != token.generation)
