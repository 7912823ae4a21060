"""What an update may be given in a DAG file, and what is refused there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.base.errors import ConfigError
from airflow_tx.state import Count, MemoryMap, MemoryState, OpaqueMap, SqlGuard
from airflow_tx.state.trident import TridentAggregate
from airflow_tx.transaction.commit.update import Update, checked_updates, partition_persist, persistent_aggregate

SOURCE: Any = SimpleNamespace(operator=SimpleNamespace(task_id="count"), key="return_value")
COLUMNS: dict[str, Any] = {"keys": ["word"], "values": {"count": Count()}}


def words() -> MemoryState:
    return MemoryState("words", keys=["word"], values={"count": Count()})


def update(state: Any = None, **options: Any) -> Update:
    return persistent_aggregate(SOURCE, state=state if state is not None else words(), **options)


def opaque_map() -> OpaqueMap[Any]:
    backing: Any = MemoryMap()
    return OpaqueMap(backing)


class Own:
    """A state of one's own."""

    kind = "opaque"

    def begin_commit(self, txid: int | None) -> None: ...

    def commit(self, txid: int | None) -> None: ...

    def update_state(self, state: Any, rows: Any) -> None: ...


class OneValue(Own):
    """A Snapshottable."""

    def get(self) -> Any: ...

    def update(self, updater: Any) -> Any: ...

    def set(self, value: Any) -> None: ...


class Factory:
    """A StateFactory."""

    kind = "opaque"

    def make_state(self, conf: Any, index: int, of: int) -> Any:
        return opaque_map()


def test_an_update_stores_its_options() -> None:
    kept = update(writers="spark", spark="sc://spark:15002", new_values="w", allow_empty=True)
    assert (kept.writers, kept.spark, kept.new_values, kept.allow_empty) == ("spark", "sc://spark:15002", "w", True)
    assert update(spark_from_rows=1).spark_from_rows == 1
    own = partition_persist(SOURCE, state=Own(), updater=Own(), new_values="moved", allow_empty=True)
    assert (own.writers, own.new_values, own.allow_empty) == ("worker", "moved", True)


def test_the_repr_of_an_update_without_a_task_shows_the_type_of_its_input() -> None:
    assert repr(Update(5, words())).startswith("persistent_aggregate(int, state=MemoryState('words'")


@pytest.mark.parametrize("name", ["", "_words", ".words", "return_value"])
def test_new_values_whose_name_is_not_a_valid_output_name_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"persistent_aggregate\(new_values=\).*Use a name that begins with a letter"):
        update(new_values=name)
    with pytest.raises(ConfigError, match=r"partition_persist\(new_values=\).*Use a name that begins with a letter"):
        partition_persist(SOURCE, state=Own(), updater=Own(), new_values=name)


def test_new_values_for_a_state_that_cannot_be_queried_are_refused() -> None:
    guard = SqlGuard("tx_state", name="guard", statements=["SELECT 1"])
    with pytest.raises(ConfigError, match="SqlGuard cannot return the values of keys"):
        update(guard, new_values="words")


@pytest.mark.parametrize(("option", "value"), [("keys", ["word"]), ("values", {"count": Count()}), ("kind", "opaque")])
def test_columns_for_a_state_with_its_own_columns_are_refused(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"persistent_aggregate\({option}=\).*already defines it: leave {option}"):
        update(**{option: value})


@pytest.mark.parametrize("state", [opaque_map(), OneValue(), Factory()])
def test_a_state_without_columns_uses_the_columns_of_the_update(state: Any) -> None:
    keys = [] if isinstance(state, OneValue) else ["word"]
    made = update(state, keys=keys, values={"count": Count()}, kind="opaque").state
    assert isinstance(made, TridentAggregate)
    assert list(made.columns.keys) == keys
    assert list(made.columns.values) == ["count"]
    assert made.kind.value == "opaque"


@pytest.mark.parametrize("missing", ["keys", "values"])
def test_an_update_without_columns_for_a_state_without_columns_is_refused(missing: str) -> None:
    with pytest.raises(ConfigError, match=rf"persistent_aggregate\({missing}=\).*OpaqueMap has no columns: give keys="):
        update(opaque_map(), **{**COLUMNS, missing: None})


def test_the_error_for_a_map_without_txids_names_the_map_that_must_wrap_it() -> None:
    with pytest.raises(ConfigError, match=r"It keeps values without txids: state=OpaqueMap\(MemoryMap\(...\)\)"):
        update(MemoryMap(), **COLUMNS)


def test_the_error_for_a_custom_state_without_keys_recommends_partition_persist() -> None:
    with pytest.raises(ConfigError, match=r"It has no multi_get, .*: use partition_persist\(..., updater=...\)"):
        update(Own(), **COLUMNS)


def test_an_update_accepts_an_invalid_state_and_leaves_the_check_to_the_dag() -> None:
    assert update(5).state == 5  # type: ignore[comparison-overlap]


# --- of a committer


@pytest.mark.parametrize("updates", [5, "one update"])
def test_updates_that_are_not_in_a_list_are_refused(updates: Any) -> None:
    given: Any = update() if isinstance(updates, str) else updates
    with pytest.raises(ConfigError, match=r"CommitOperator\(updates=\).*Give a list"):
        checked_updates(given)


def test_two_updates_of_one_committer_with_new_values_need_two_names() -> None:
    several = [update(new_values="b"), update(), update(new_values="a"), update()]
    assert checked_updates(iter(several)) == tuple(several)
    with pytest.raises(ConfigError, match="new_values.*'a'.*different names"):
        checked_updates([*several, update(new_values="a")])
