"""How a state under test is opened: what the state suite leaves out is filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from airflow_tx.state import Aggregator, FencedState, Sum
from airflow_tx.testing.suites.state_tools import MakeState


def opening(state: Callable[..., FencedState]) -> MakeState:
    """What the suite opens states with.

    :param state: takes the name, and as in the constructors of states keys, values, kind and types.
    """

    def make(
        kind: str,
        name: str = "first",
        *,
        keys: Sequence[str] = ("key",),
        values: Mapping[str, Aggregator] | None = None,
        types: Mapping[str, str] | None = None,
    ) -> FencedState:
        return state(name, keys=keys, values=values or {"n": Sum()}, kind=kind, types=types)

    return make
