"""The committer takes exactly what the tasks acked (tests/model/TRACES.md: 11)."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.serde import deserialize, serialize

from airflow_tx.base.errors import StagingError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.records import Ack
from airflow_tx.state import Count, DeltaTable, MemoryState, SqlGuard
from airflow_tx.state.api import FencedState
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.commit.write import output_digest, values_of
from airflow_tx.transaction.processing.outputs import returned, xcom_fingerprint

ATTEMPT = TransactionAttempt(7, 2)
STATE = MemoryState("words", keys=["word"], values={"count": Count()})
ROWS = [{"word": "man", "count": 2}]
REF = {
    "topology": "t", "txid": 7, "attempt": 2, "task_id": "count", "map_index": -1, "task_try": "a",
    "name": "counts", "path": "p", "rows": 1, "digest": "d",
}  # fmt: skip


def update(name: str = "return_value", *, allow_empty: bool = False) -> Update:
    return Update(SimpleNamespace(operator=SimpleNamespace(task_id="count"), key=name), STATE, allow_empty=allow_empty)


def acks(**outputs: Any) -> dict[tuple[str, int], Ack]:
    return {("count", int(index[1:]) if index != "one" else -1): ack(found) for index, found in outputs.items()}


def ack(outputs: list[Any]) -> Ack:
    return Ack("try", "op", done=True, outputs=outputs)


def pull(values: dict[int, Any]) -> Any:
    return lambda task, name, index: values[index]


def xcom(value: Any) -> Any:
    return deserialize(serialize(value))


@pytest.mark.parametrize(
    "value",
    [
        ROWS,
        {"b": 1, "a": [1.5, None, True]},
        [{"day": dt.date(2013, 1, 2), "price": Decimal("1.10")}],
        [{"at": dt.datetime(2013, 1, 2, 3, 4, tzinfo=dt.timezone.utc)}],
        (1, 2),
    ],
)
def test_a_value_has_the_same_fingerprint_before_and_after_it_is_stored_as_an_xcom(value: Any) -> None:
    assert xcom_fingerprint(value) == xcom_fingerprint(xcom(value))


def test_different_values_have_different_fingerprints() -> None:
    values = [ROWS, [*ROWS, *ROWS], [], {}, [{"day": dt.date(2013, 1, 2)}], [{"day": dt.date(2013, 1, 3)}]]
    assert len({xcom_fingerprint(value) for value in values}) == len(values)


def test_each_entry_of_a_dict_with_multiple_outputs_is_acked_under_its_name() -> None:
    value = {"words": ROWS, "lines": 1}
    assert {entry["name"] for entry in returned(value, multiple=True)} == {"return_value", "words", "lines"}
    assert [entry["name"] for entry in returned(value, multiple=False)] == ["return_value"]


def test_a_task_that_returns_nothing_is_refused_unless_this_is_allowed_or_the_batch_is_empty() -> None:
    nothing = acks(one=returned(None, multiple=False))
    with pytest.raises(
        StagingError, match=r"task count .* returned nothing\. Let it return its rows, .*allow_empty=True"
    ):
        values_of(update(), nothing, ATTEMPT, pull({}))
    assert values_of(update(allow_empty=True), nothing, ATTEMPT, pull({})) == []
    assert values_of(update(), nothing, ATTEMPT, pull({}), empty=True) == []
    assert values_of(update(), acks(one=returned([], multiple=False)), ATTEMPT, pull({-1: []})) == [[]]


@pytest.mark.parametrize(
    ("state", "verb"),
    [
        (STATE, "persistent_aggregate"),
        (DeltaTable("/lake/words"), "append"),
        (SqlGuard("db", name="words", statements=["INSERT INTO words VALUES (:word)"]), "partition_persist"),
    ],
    ids=["values", "table", "guard"],
)
def test_the_error_for_a_task_without_rows_names_the_update_that_may_allow_it(state: FencedState, verb: str) -> None:
    nothing = acks(one=returned(None, multiple=False))
    with pytest.raises(StagingError, match=rf"allow_empty=True in the {verb}\(\.\.\.\) of the commit task"):
        values_of(Update(update().input, state), nothing, ATTEMPT, pull({}))


def test_a_spark_application_without_output_counts_as_no_rows_if_its_update_allows_it() -> None:
    with pytest.raises(StagingError, match="returned nothing"):
        values_of(update("counts"), acks(one=[]), ATTEMPT, pull({}))
    assert values_of(update("counts", allow_empty=True), acks(one=[]), ATTEMPT, pull({})) == []


def test_a_task_without_rows_does_not_affect_the_output_of_another_task() -> None:
    found = {**acks(one=returned(ROWS, multiple=False)), ("audit", -1): Ack("try 2", "op", done=True)}
    assert values_of(update(), found, ATTEMPT, pull({-1: ROWS})) == [ROWS]


def test_the_committer_reads_the_value_that_the_task_has_acked() -> None:
    assert values_of(update(), acks(one=returned(ROWS, multiple=False)), ATTEMPT, pull({-1: ROWS})) == [ROWS]


def test_an_xcom_that_differs_from_the_acked_value_is_refused() -> None:
    with pytest.raises(StagingError, match=r"task count in transaction 7\.2 refused: its XCom differs from"):
        values_of(update(), acks(one=returned(ROWS, multiple=False)), ATTEMPT, pull({-1: [*ROWS, *ROWS]}))


def test_a_missing_xcom_is_refused() -> None:
    with pytest.raises(StagingError):
        values_of(update(), acks(one=returned(ROWS, multiple=False)), ATTEMPT, pull({-1: None}))


def test_a_reference_from_an_earlier_try_is_refused() -> None:
    assert values_of(update("counts"), acks(one=[REF]), ATTEMPT, pull({-1: dict(REF)})) == [REF]
    with pytest.raises(StagingError):
        values_of(update("counts"), acks(one=[REF]), ATTEMPT, pull({-1: {**REF, "task_try": "b"}}))


def test_the_error_for_an_unknown_output_lists_the_names_of_the_existing_outputs() -> None:
    with pytest.raises(StagingError, match="the task emitted 'counts'"):
        values_of(update("words"), acks(one=[REF]), ATTEMPT, pull({}))


def test_the_output_of_every_mapped_instance_is_read_and_checked() -> None:
    found = acks(i0=returned(ROWS, multiple=False), i1=returned(None, multiple=False), i2=returned([], multiple=False))
    assert values_of(update(allow_empty=True), found, ATTEMPT, pull({0: ROWS, 2: []})) == [ROWS, []]
    with pytest.raises(StagingError, match=r"task count\[1\] .* returned nothing"):
        values_of(update(), found, ATTEMPT, pull({0: ROWS, 2: []}))
    with pytest.raises(StagingError):
        values_of(update(), found, ATTEMPT, pull({0: [], 2: ROWS}))


def test_a_skipped_task_has_no_rows() -> None:
    assert values_of(update(), {}, ATTEMPT, pull({})) == []


def test_the_output_digest_does_not_depend_on_the_order_of_the_rows() -> None:
    rows = [{"word": "man", "count": 1}, {"word": "dog", "count": 2}]
    assert output_digest(rows, update().state) == output_digest(rows[::-1], update().state)
    assert output_digest(rows, update().state) != output_digest(rows[:1], update().state)
