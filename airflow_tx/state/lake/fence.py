"""The fence of a table of a lake, as the text that a raise leaves. Source: protocol.md §7."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from airflow_tx.ledger import Grant, Token, holds_for_good
from airflow_tx.state.api import Fence
from airflow_tx.state.fence import may_have_written

_FORMAT = 1


@dataclass(frozen=True)
class RaisedFence:
    """A fence, with what a write under it has to know.

    :param number: of the raise; the commit of files notes it, so that both are known to belong together.
    :param again: whether an earlier grant may have put rows of this transaction in.
    :param replaces: the transaction whose rows this one takes out; None: it is no restatement.
    :param taken: whether an earlier grant of this restatement has taken them out.
    """

    fence: Fence
    number: int
    again: bool = False
    replaces: int | None = None
    taken: bool = False

    @property
    def text(self) -> str:
        """Write it as JSON."""
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
        """Read what `text` wrote; None: there is no fence.

        :param applied: the number of the raise whose updates are all in the table.
        :raises ValueError: a later release or another program has written it.
        """
        if not text:
            return None
        try:
            found = json.loads(text)
            if found["format"] != _FORMAT:
                raise ValueError(f"its fence has format {found['format']}, not {_FORMAT}")
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
            raise ValueError(f"its fence is {text[:120]!r}") from error
        return cls(fence, **rest)

    def is_held_by(self, grant: Grant) -> bool:
        """Whether this very grant has raised it."""
        return self.fence.token == grant.token

    def took_out(self, txid: int, birth: str, incarnation: str) -> bool:
        """Whether this transaction is a restatement that has taken the rows of another one out."""
        written = self.replaces is not None and self.fence.applied
        given = [self.fence] if self.taken or written else []
        return holds_for_good(given, txid, birth, incarnation)


def next_raise(
    found: RaisedFence | None, fence: Fence, grant: Grant, *, number: int
) -> RaisedFence:
    """Make what the raise of a grant leaves.

    :param found: what is there; `fence`: what the rules of the fence made of it.
    :param number: of this raise; no two raises of a table have the same one.
    """
    replaces = grant.replaces
    if found is None:
        # The rows of a table whose fence is gone may belong to any transaction.
        return RaisedFence(fence, number, True, replaces)
    again = may_have_written(found.fence.token, grant.token)
    taken = found.took_out(grant.txid, grant.token.birth, grant.incarnation)
    return RaisedFence(replace(fence, applied=False), number, again, replaces, taken)
