"""A state with Trident's two methods, or a factory of such, as a commit sees it. Source: trident-state seed.

There is no fence. The ledger keeps commits in their order, and the values of a map what a replay needs; a committer
that was thought dead and writes late is not refused, and a store that lost its values is not found out.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from airflow_tx.errors import ConfigError, StateError
from airflow_tx.state.api import Fence, FencedState, Grant, StateKind
from airflow_tx.state.trident.partitions import PartitionedState
from airflow_tx.state.trident.portable import portable
from airflow_tx.state.trident.roll_back import RollBackMap

_log = logging.getLogger(__name__)
_KINDS = ", ".join(f'"{kind.value}"' for kind in StateKind)


def is_factory(made: Any) -> bool:
    """Whether an object makes states (Trident's StateFactory)."""
    return has_methods(made, "make_state")


def is_map(made: Any) -> bool:
    """Whether an object keeps values by key (Trident's MapState)."""
    return has_methods(made, "begin_commit", "commit", "multi_get", "multi_update", "multi_put")


def is_snapshottable(made: Any) -> bool:
    """Whether an object keeps one value (Trident's Snapshottable)."""
    return has_methods(made, "begin_commit", "commit", "get", "update", "set")


def has_methods(made: Any, *names: str) -> bool:
    """Whether an object has methods of these names."""
    return all(callable(getattr(made, name, None)) for name in names)


def made_by(
    given: Any, conf: Mapping[str, Any] | None = None, index: int = 0, count: int = 1
) -> Any:
    """Let a factory make the state of one writer; another object stays unchanged.

    :param conf: what the update gives the factory.
    :param index: the partition of the writer, one of `count`.
    """
    return given.make_state(dict(conf or {}), index, count) if is_factory(given) else given


class TridentState(FencedState):
    """A state without a fence: what begins, commits and undoes a transaction in it.

    A class of the user's own need not be one of ours: what it says of itself is read here, and only here.

    :param given: a state, or a factory; that one is asked when the state is used, not when a DAG is parsed.
    :param kind: what it promises; None: its attribute `kind`, and without one it is non-transactional.
    :param option: where it was given, for messages.
    :param rolls_back: whether it can, unless it has an attribute `can_roll_back`; None: if it is an opaque map.
    :param conf: the argument of a factory; it is shown nowhere.
    """

    has_fence = False

    def __init__(
        self,
        given: Any,
        kind: StateKind | str | None,
        *,
        option: str,
        rolls_back: bool | None = None,
        conf: Mapping[str, Any] | None = None,
    ) -> None:
        self.given = given
        self._conf = conf
        self.name = str(getattr(given, "name", type(given).__name__))
        self.kind = _kind(given, kind, option)
        self.normalize(kind=self.kind)
        opaque = self.kind is StateKind.OPAQUE
        default = (is_map(given) and opaque) if rolls_back is None else rolls_back and opaque
        self.can_roll_back = bool(getattr(given, "can_roll_back", default))

    @cached_property
    def state(self) -> Any:
        """Make the state when it is first used.

        :raises StateError: the factory made something else than it says.
        """
        return self._made()

    def _made(self, index: int = 0, count: int = 1) -> Any:
        made = made_by(self.given, self._conf, index, count)
        promised = self.kind in (StateKind.NON_TRANSACTIONAL, getattr(made, "kind", self.kind))
        if not has_methods(made, "begin_commit", "commit") or not promised:
            problem = f"{type(self.given).__name__}.make_state gave a {type(made).__name__}, which is no state that "
            problem += f"is {self.kind.value}"
            remedy = (
                "Let it make one with begin_commit and commit, and let the factory say what that state "
                'is, such as kind = "opaque".'
            )
            raise StateError(state=self.name, problem=problem, remedy=remedy)
        return self.prepared(made, index, count)

    def prepared(self, made: Any, index: int = 0, count: int = 1) -> Any:
        """Prepare the state for its use: an opaque map notes its keys, unless it says itself what it can roll back."""
        if self.can_roll_back and is_map(made) and not hasattr(made, "can_roll_back"):
            return RollBackMap(made, index, count)
        return made

    def for_readers(self, *, local: bool) -> TridentState:
        copied = copy.copy(self)
        copied.given = portable(self.given)
        return copied

    def raise_fence(self, grant: Grant) -> None:
        """Say, once in the life of the state, that there is no fence."""
        if grant.last_txids.get(self.name) is None:
            _log.warning(
                "State %s has no fence: commits to it are in order, and a replay is exact for its kind (%s). But "
                "a late write of a committer that was declared dead is not refused. Lost values of the store are not "
                "noticed (docs/state.md, States without a fence).",
                self.name,
                self.kind.value,
            )

    def pass_over(self, grant: Grant) -> None:
        """Let a state that can roll back undo a skipped transaction: it begins again and has no rows.

        :raises StateError: it fails to; the transaction stays open, and the skip can be repeated.
        """
        if not self.can_roll_back:
            return
        try:
            self.state.begin_commit(grant.txid)
            self.state.commit(grant.txid)
        except Exception as error:
            problem = f"it did not undo transaction {grant.txid}: {type(error).__name__}: {error}"
            remedy = "The transaction stays open. Remove the cause and repeat the skip."
            raise StateError(state=self.name, problem=problem, remedy=remedy) from error

    def holds(self, txid: int) -> bool | None:
        state = self.state
        parts = state.parts if isinstance(state, PartitionedState) else [state]
        answers = [bool(part.holds(txid)) if has_methods(part, "holds") else None for part in parts]
        return True if True in answers else None if None in answers else False

    def fence(self) -> Fence | None:
        return None


def _kind(given: Any, kind: StateKind | str | None, option: str) -> StateKind:
    own = getattr(given, "kind", None)
    found = own if kind is None else kind
    if found is None:
        return StateKind.NON_TRANSACTIONAL
    if found not in list(StateKind):
        raise ConfigError(option=f"{option}(kind=)", value=found, remedy=f"Use one of {_KINDS}.")
    if own is not None and own != found:
        remedy = f"{type(given).__name__} is {StateKind(own).value}: leave kind out, or give it another state."
        raise ConfigError(option=f"{option}(kind=)", value=found, remedy=remedy)
    return StateKind(found)
