"""The fence of a lake table, as stored in a file when the fence is raised. Source: protocol.md §7."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from airflow_tx.ledger import Grant, Token, holds_for_good
from airflow_tx.state.api import Fence
from airflow_tx.state.fence import may_have_written

_FORMAT = 1


@dataclass(frozen=True)
class RaisedFence:
    """A fence, and the facts that a write under this fence needs.

    :param number: number of the raise. The commit of the files records it, to prove that it belongs to this raise.
    :param again: whether an earlier grant may have added rows of this transaction.
    :param replaces: the transaction whose rows this transaction removes; None if it is no restatement.
    :param taken: whether an earlier grant of this restatement has removed these rows.
    """

    fence: Fence
    number: int
    again: bool = False
    replaces: int | None = None
    taken: bool = False

    @property
    def text(self) -> str:
        """Return the fence as JSON."""
        fence = self.fence
        return json.dumps(
            {
                "format": _FORMAT,
                "incarnation": fence.incarnation,
                "token": fence.token.to_json(),
                "batch": fence.batch,
                "state": fence.state,
                "number": self.number,
                "again": self.again,
                "replaces": self.replaces,
                "taken": self.taken,
            }
        )

    @classmethod
    def of(cls, text: str, applied: int | None) -> RaisedFence | None:
        """Read a fence from JSON that `text` returned. Return None if there is no fence.

        :param applied: number of the raise whose updates are all in the table.
        :raises ValueError: the text was written by a later version of this package or by another program.
        """
        if not text:
            return None
        try:
            found = json.loads(text)
            if found["format"] != _FORMAT:
                raise ValueError(f"its fence has format {found['format']} instead of {_FORMAT}")
            token = Token.from_json(found["token"])
            fence = Fence(
                found["incarnation"],
                token,
                found["number"] == applied,
                found["batch"],
                found["state"],
            )
            rest = {name: found[name] for name in ("number", "again", "replaces", "taken")}
        except (KeyError, TypeError) as error:
            raise ValueError(f"its fence is unreadable: {text[:120]!r}") from error
        return cls(fence, **rest)

    def is_held_by(self, grant: Grant) -> bool:
        """Return whether this exact grant raised the fence."""
        return self.fence.token == grant.token

    def took_out(self, txid: int, birth: str, incarnation: str) -> bool:
        """Return whether this transaction is a restatement that has removed the rows of its original transaction."""
        written = self.replaces is not None and self.fence.applied
        given = [self.fence] if self.taken or written else []
        return holds_for_good(given, txid, birth, incarnation)


def next_raise(
    found: RaisedFence | None, fence: Fence, grant: Grant, *, number: int
) -> RaisedFence:
    """Return the fence that is written when a grant raises it.

    :param found: the fence in the table; None if there is none.
    :param fence: the new fence, from the rules of `airflow_tx.state.fence`.
    :param number: number of this raise, which no other raise of the table has.
    """
    replaces = grant.replaces
    if found is None:
        # Without a fence, the table's rows may belong to any transaction.
        return RaisedFence(fence, number, True, replaces)
    again = may_have_written(found.fence.token, grant.token)
    taken = found.took_out(grant.txid, grant.token.birth, grant.incarnation)
    return RaisedFence(replace(fence, applied=False), number, again, replaces, taken)
