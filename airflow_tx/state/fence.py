"""The rules of the fence, as pure decisions that every store asks under its own lock. Source: protocol.md §7."""

from __future__ import annotations

from dataclasses import replace

from airflow_tx.errors import FenceForeign, FenceOutranked, LedgerBehind, PortionsLost, StateBehind, StateError
from airflow_tx.protocol.attempt import Token
from airflow_tx.state.api import Fence, Grant


def raised(stored: Fence | None, grant: Grant, *, state: str, there: bool = False) -> Fence:
    """Raise a fence: identity, rank and continuity are checked, in this order.

    :param stored: the fence as read under an exclusive lock.
    :param there: whether the place beside the fence that holds the values is there, of a state that has one.
    :raises FenceForeign: it belongs to another ledger, or to another life of this one.
    :raises LedgerBehind, StateBehind: one of the two went back (so it did if a txid is there again with another birth),
        or what was written is gone without its fence, or was never complete.
    :raises FenceOutranked: a later grant has raised it.
    :raises StateError: this very grant has raised it for a state of another name.
    """
    last = grant.last_txids.get(state)
    if stored is None:
        if last is not None:
            raise StateBehind(state=state, topology=grant.topology, expected=last, found="nothing")
        return Fence(grant.incarnation, grant.token, False, grant.batch, state, there)
    if stored.incarnation != grant.incarnation:
        raise FenceForeign(state=state, topology=grant.topology, found=stored.incarnation, expected=grant.incarnation)
    _check_rank(stored, grant, state=state)
    _check_birth(stored, grant, last, state=state)
    _check_continuity(stored, grant, last, state=state)
    if stored.wrote and not there and not accepted(stored, grant, state=state):
        found = f"{stored.token.txid}, but what was written is missing"
        raise StateBehind(state=state, topology=grant.topology, expected=_shown(last), found=found)
    if stored.token == grant.token:
        _check_one_update(stored, state=state)
        return replace(stored, wrote=there)
    return Fence(grant.incarnation, grant.token, False, grant.batch, state, there)


def check_write(stored: Fence | None, grant: Grant, *, state: str) -> None:
    """Refuse a write, by FenceOutranked, unless the fence, read under a shared lock, holds exactly this grant."""
    if stored is None or stored.incarnation != grant.incarnation or stored.token != grant.token:
        found = "nothing" if stored is None else str(stored.token)
        raise FenceOutranked(state=state, token=str(grant.token), found=found)


def check_portions(found: int, grant: Grant, *, state: str, where: str) -> None:
    """Refuse to complete a grant of which the store has lost portions.

    A portion is noted in the store transaction that writes it. A note that is missing is a portion that is missing.

    :param found: how many notes of this grant the store has.
    :raises PortionsLost: they are fewer than the store has confirmed.
    """
    lost = grant.portions - found
    if lost > 0:
        raise PortionsLost(state=state, where=where, lost=lost, portions=grant.portions, txid=grant.txid)


def accepted(stored: Fence, grant: Grant, *, state: str) -> bool:
    """Whether a repair has accepted what the state holds since this fence was raised."""
    return grant.last_txids.get(state) is None and stored.token.generation < grant.token.generation


def applied(stored: Fence) -> Fence:
    """Note on the fence that all updates of its grant are in the store."""
    return replace(stored, applied=True)


def _shown(last: int | None) -> int | str:
    return "nothing" if last is None else last


def _check_rank(stored: Fence, grant: Grant, *, state: str) -> None:
    found, mine = stored.token, grant.token
    if found.generation == mine.generation and (found.txid > mine.txid or _is_another(found, mine)):
        return  # the checks that follow word this better: the ledger is behind, or the writer is
    if found.rank > mine.rank or (found.rank == mine.rank and found.nonce != mine.nonce):
        raise FenceOutranked(state=state, token=str(mine), found=str(found))


def _is_another(found: Token, mine: Token) -> bool:
    """Whether a ledger that had gone back has allocated a txid twice."""
    return found.txid == mine.txid and found.birth != mine.birth


def _check_birth(stored: Fence, grant: Grant, last: int | None, *, state: str) -> None:
    """Attempts, epochs and generations of two transactions with one txid say nothing about each other."""
    found, known = stored.token, grant.births.get(state)
    if found.birth == known:
        return
    shown = f"{found.txid} (another one of that number)"
    if _is_another(found, grant.token):
        raise LedgerBehind(state=state, topology=grant.topology, found=shown, expected=_shown(last), txid=grant.txid)
    if known is not None and found.txid == last:
        raise StateBehind(state=state, topology=grant.topology, expected=last, found=shown)


def _check_one_update(stored: Fence, *, state: str) -> None:
    """The second update would start from what was there before the first, as if it replaced it."""
    if stored.state not in ("", state):
        problem = f"two updates of this DAG write to one table: {stored.state!r} and {state!r}"
        remedy = "Make them one update, or give one of them another table."
        raise StateError(state=state, problem=problem, remedy=remedy)


def _check_continuity(stored: Fence, grant: Grant, last: int | None, *, state: str) -> None:
    found = stored.token.txid
    if found == grant.txid or accepted(stored, grant, state=state):
        return
    # What is final lies before what is granted: a fence that matched a later `last` would go down.
    if found == last and found < grant.txid:
        if stored.applied:
            return
        # The store kept the raise and lost the values: it writes to its disk, or to a standby, after it answers.
        shown = f"{last}, without all of its updates"
        raise StateBehind(state=state, topology=grant.topology, expected=last, found=shown)
    if found > grant.txid or found > (last if last is not None else 0):
        raise LedgerBehind(state=state, topology=grant.topology, found=found, expected=_shown(last), txid=grant.txid)
    raise StateBehind(state=state, topology=grant.topology, expected=last, found=found)
