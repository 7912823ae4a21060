"""A SqlTable on each database: the table that it makes, a table of one's own, and what becomes of rows."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import SkipRefused, StateBehind, StateDiffers, StateError
from airflow_tx.state import SqlTable
from airflow_tx.state.sql.dialect import Dialect
from airflow_tx.testing.suites.state_tools import Grants, about_to_restate, about_to_skip

MakeTable = Callable[..., SqlTable]
DAY = dt.date(2026, 1, 2)
NOON = dt.datetime(2026, 1, 2, 12, 0, 0, 5)
ROW = {
    "id": 1,
    "day": DAY,
    "name": "tab\there, line\nand \\N, 'quote' \"double\" é 🙂 %s :x",
    "price": Decimal("12.50"),
    "weight": 0.1,
    "paid": True,
    "at": NOON,
    "seen": NOON.replace(tzinfo=dt.timezone.utc),
    "raw": b"\x00\\x\n",
    "more": {"b": [1, None], "a": "\\"},
}


@pytest.fixture(params=["sqlite", "postgres", "mariadb", pytest.param("mysql", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/orders.db"
    return str(request.getfixturevalue(request.param).url())


@pytest.fixture
def name() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


@pytest.fixture
def table(url: str, name: str) -> MakeTable:
    def make(**given: Any) -> SqlTable:
        return SqlTable.from_url(url, table=name, **given)

    return make


@pytest.fixture
def run(url: str) -> Iterator[Callable[[str], None]]:
    engine = sa.create_engine(url)

    def execute(sql: str) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(sql)

    yield execute
    engine.dispose()


@pytest.fixture
def grants() -> Grants:
    return Grants()


def ids(state: SqlTable) -> list[tuple[Any, Any]]:
    return [(row["tx_txid"], row["id"]) for row in state.read()]


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": number} for number in numbers]


def without_ours(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("tx_")}


def test_the_first_rows_create_the_table_and_all_values_are_read_back_unchanged(
    table: MakeTable, grants: Grants
) -> None:
    grants.commit_rows(1, table(), [ROW, dict.fromkeys(ROW)])
    first, second = table().read()
    assert without_ours(first) == ROW
    assert {type(value) for value in without_ours(first).values()} == {type(value) for value in ROW.values()}
    assert without_ours(second) == dict.fromkeys(ROW)
    assert [(row["tx_txid"], row["tx_row"]) for row in (first, second)] == [(1, 0), (1, 1)]


def test_rows_are_numbered_in_the_order_in_which_they_were_written(table: MakeTable, grants: Grants) -> None:
    grants.commit_rows(1, table(), rows(*range(25_000, 0, -1)))
    found = table().read()
    assert [row["tx_row"] for row in found] == list(range(25_000))
    assert [row["id"] for row in found] == list(range(25_000, 0, -1))


def test_a_column_with_only_null_values_in_the_first_rows_needs_a_declared_type(
    table: MakeTable, grants: Grants
) -> None:
    given = [{"id": 1, "note": None}]
    with pytest.raises(StateError, match='column note has no clear type .*all are NULL.*types={"note": "text"}'):
        grants.commit_rows(1, table(), given)
    grants.commit_rows(1, table(types={"note": "text"}), given, attempt=2)
    assert [without_ours(row) for row in table().read()] == given


def test_a_column_with_integers_and_decimals_becomes_a_decimal_column(table: MakeTable, grants: Grants) -> None:
    grants.commit_rows(1, table(), [{"n": 1}, {"n": Decimal("0.5")}])
    assert [row["n"] for row in table().read()] == [1, Decimal("0.5")]


def test_a_column_with_both_texts_and_numbers_is_refused(table: MakeTable, grants: Grants) -> None:
    with pytest.raises(StateError, match="column n has no clear type in the first 2 rows: its values are bigint, text"):
        grants.commit_rows(1, table(), [{"n": 1}, {"n": "one"}])


def test_a_value_that_does_not_fit_is_refused_with_its_row_and_column(table: MakeTable, grants: Grants) -> None:
    grants.commit_rows(1, table(), rows(1))
    with pytest.raises(StateError, match="row 10001, column id: 'two' is not an integer.*The column is bigint"):
        grants.commit_rows(2, table(), [*rows(*range(10_001)), {"id": "two"}])
    assert ids(table()) == [(1, 1)]


def test_an_unknown_column_is_refused_with_the_statement_that_adds_it(
    table: MakeTable, grants: Grants, run: Callable[[str], None]
) -> None:
    grants.commit_rows(1, table(), rows(1))
    with pytest.raises(StateDiffers, match="lacks column note.*add_columns=True.*: ALTER TABLE") as refusal:
        grants.commit_rows(2, table(), [{"id": 2, "note": "new"}])
    run(str(refusal.value).rpartition(": ")[2].replace("%", "%%"))
    grants.commit_rows(2, table(), [{"id": 2, "note": "new"}], attempt=2)
    assert [row["note"] for row in table().read()] == [None, "new"]


def test_an_unknown_column_is_added_if_add_columns_is_set(table: MakeTable, grants: Grants) -> None:
    grants.commit_rows(1, table(), rows(1))
    state = table(add_columns=True)
    grants.commit_rows(2, state, [{"id": 2, "n": 7}, {"id": 3}])
    assert [row["n"] for row in state.read()] == [None, 7, None]
    with pytest.raises(StateError, match="row 0, column n: 'x' is not an integer"):
        grants.commit_rows(3, state, [{"id": 4, "n": "x"}])


@pytest.mark.parametrize("first", [[], [{"id": 1}]])
def test_a_column_name_that_differs_from_another_only_by_case_is_refused(
    table: MakeTable, grants: Grants, first: list[dict[str, int]]
) -> None:
    grants.commit_rows(1, table(), first)
    with pytest.raises(StateDiffers, match="column ID differs from column id by case alone.*Name it id"):
        grants.commit_rows(2, table(add_columns=True), [{"id": 1, "ID": 2}])
    with pytest.raises(StateDiffers, match="a column TX_TXID, a name that this state uses itself"):
        grants.commit_rows(2, table(add_columns=True), [{"TX_TXID": 2}])
    grants.commit_rows(2, table(add_columns=True), [{"id": 2}], attempt=2)
    assert len(table().read()) == len(first) + 1


def test_a_column_that_first_appears_after_10000_rows_needs_a_declared_type(table: MakeTable, grants: Grants) -> None:
    late = [*rows(*range(10_000)), {"id": 0, "note": "late"}]
    with pytest.raises(StateDiffers, match="column note is in row 10000, but not in the first 10000 rows.*types="):
        grants.commit_rows(1, table(add_columns=True), late)
    state = table(add_columns=True, types={"note": "text"})
    grants.commit_rows(1, state, late, attempt=2)
    assert state.read()[-1]["note"] == "late"


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_table_that_was_created_but_has_no_rows_gets_its_column_types_from_later_rows(
    table: MakeTable, grants: Grants, is_kept: bool
) -> None:
    kept = table()
    later: list[dict[str, Any]] = [{"id": 1, "n": "one", "more": True}]
    for attempt, given in enumerate(([{"id": 1, "n": 1}], [], later), 1):
        grants.commit_rows(1, kept if is_kept else table(), given, attempt)
    assert [without_ours(row) for row in table().read()] == later


PLAIN = "CREATE TABLE {t} (tx_txid BIGINT NOT NULL, tx_row BIGINT NOT NULL, {c}, PRIMARY KEY (tx_txid, tx_row))"


@pytest.mark.parametrize("column", ["n DOUBLE PRECISION DEFAULT 0 NOT NULL", "n DOUBLE PRECISION"])
def test_a_table_that_a_person_created_keeps_its_column_types(
    table: MakeTable, name: str, grants: Grants, run: Callable[[str], None], column: str
) -> None:
    run(PLAIN.format(t=name, c=column))
    for txid, value in enumerate((3, 2.5), 1):
        grants.commit_rows(txid, table(), [{"n": value}])
    assert [row["n"] for row in table().read()] == [3.0, 2.5]
    with pytest.raises(StateError, match="column n: 'x' is not a float"):
        grants.commit_rows(3, table(), [{"n": "x"}])


def test_a_table_that_a_person_recreated_keeps_its_column_types(
    table: MakeTable, name: str, grants: Grants, run: Callable[[str], None]
) -> None:
    grants.commit_rows(1, table(), [{"n": 1}])
    run(f"DROP TABLE {name}")
    run(PLAIN.format(t=name, c="n DOUBLE PRECISION"))
    table().accept_values()
    grants.commit_rows(2, table(), [{"n": 1}])
    with pytest.raises(StateError, match="column n: 'x' is not a float"):
        grants.commit_rows(3, table(), [{"n": "x"}])


def test_refused_rows_do_not_determine_the_column_types_of_the_table(table: MakeTable, grants: Grants) -> None:
    for attempt, number in enumerate((1, 1.5), 1):
        wrong: list[dict[str, Any]] = [*[{"n": number}] * 10_000, {"n": "x"}]
        with pytest.raises(StateError, match="'x' is not"):
            grants.commit_rows(1, table(), wrong, attempt)
    grants.commit_rows(1, table(), [{"n": "x"}], attempt=3)
    assert [row["n"] for row in table().read()] == ["x"]


def test_rows_with_column_names_of_the_package_are_refused(table: MakeTable, grants: Grants) -> None:
    with pytest.raises(StateDiffers, match="the rows have a column tx_row, a name that this state uses itself"):
        grants.commit_rows(1, table(), [{"id": 1, "tx_row": 1}])


# --- a table of one's own -----------------------------------------------------------------------------------------


def test_a_user_table_can_contain_rows_of_transactions_and_rows_of_the_user(
    table: MakeTable, name: str, grants: Grants, run: Callable[[str], None]
) -> None:
    run(f"CREATE TABLE {name} (id BIGINT NOT NULL, source VARCHAR(20) DEFAULT 'here' NOT NULL, tx_txid BIGINT)")
    run(f"CREATE INDEX {name}_i ON {name} (tx_txid, id)")
    run(f"INSERT INTO {name} (id) VALUES (0)")
    grants.commit_rows(1, table(), rows(1, 2))
    assert table().rows_by_txid() == {None: 1, 1: 2}
    assert {row["source"] for row in table().read()} == {"here"}
    grants.commit_rows(1, table(), rows(3), attempt=2)
    assert table().rows_by_txid() == {None: 1, 1: 1}
    table().clear()
    assert table().rows_by_txid() == {None: 1}


def test_a_column_of_a_user_table_accepts_only_values_that_it_stores_unchanged(
    table: MakeTable, name: str, url: str, grants: Grants, run: Callable[[str], None]
) -> None:
    run(f"CREATE TABLE {name} (id INTEGER, name VARCHAR(5), tx_txid BIGINT)")
    run(f"CREATE INDEX {name}_i ON {name} (tx_txid)")
    given = [{"id": 1, "name": "Ä "}, {"id": 2, "name": "ä"}]
    grants.commit_rows(1, table(), given)
    assert [without_ours(row) for row in table().read()] == given
    if not url.startswith("sqlite"):  # which has no lengths
        too_much: list[dict[str, Any]] = [
            {"id": 3, "name": "longer"},
            {"id": 3, "name": "AB    "},
            {"id": 2**31, "name": "a"},
        ]
        for wrong in too_much:
            with pytest.raises(StateError, match="the database says: |column name: '.*' has 6 characters, but the"):
                grants.commit_rows(2, table(), [wrong])
        assert [without_ours(row) for row in table().read()] == given


def test_a_column_type_that_would_round_values_is_refused(
    table: MakeTable, name: str, url: str, grants: Grants, run: Callable[[str], None]
) -> None:
    kind = {"postgresql": "TIMESTAMP(0)", "sqlite": "NUMERIC"}.get(url.partition("+")[0].partition(":")[0], "DATETIME")
    run(f"CREATE TABLE {name} (at {kind}, tx_txid BIGINT)")
    run(f"CREATE INDEX {name}_i ON {name} (tx_txid)")
    with pytest.raises(StateDiffers, match="column at of table .* which would change the values"):
        grants.commit_rows(1, table(), [{"at": NOON}])


def test_a_user_table_is_refused_with_the_missing_statement_until_it_is_complete(
    table: MakeTable, name: str, grants: Grants, run: Callable[[str], None]
) -> None:
    run(f"CREATE TABLE {name} (id BIGINT NOT NULL)")
    for problem in ("lacks column tx_txid", "no index of table .* begins with tx_txid"):
        with pytest.raises(StateDiffers, match=problem) as refusal:
            grants.commit_rows(1, table(), rows(1))
        run(str(refusal.value).rpartition(": ")[2])
    grants.commit_rows(1, table(), rows(1))
    assert ids(table()) == [(1, 1)]


def test_rows_without_a_value_for_a_not_null_column_without_a_default_are_refused(
    table: MakeTable, name: str, grants: Grants, run: Callable[[str], None]
) -> None:
    run(f"CREATE TABLE {name} (id BIGINT, n BIGINT NOT NULL, tx_txid BIGINT)")
    run(f"CREATE INDEX {name}_i ON {name} (tx_txid)")
    with pytest.raises(StateDiffers, match="the rows lack column n, which is NOT NULL"):
        grants.commit_rows(1, table(), rows(1))
    with pytest.raises(StateError, match="row 1, column n: is NULL, and the column is NOT NULL"):
        grants.commit_rows(1, table(), [{"id": 1, "n": 1}, {"id": 2, "n": None}], attempt=2)
    assert table().read() == []


@pytest.fixture
def with_default(name: str, run: Callable[[str], None]) -> None:
    """A table whose column `status` has a default, and whose column `n` has the default NULL."""
    run(f"CREATE TABLE {name} (id BIGINT, status VARCHAR(9) DEFAULT 'new', n BIGINT DEFAULT NULL, tx_txid BIGINT)")
    run(f"CREATE INDEX {name}_i ON {name} (tx_txid)")


@pytest.mark.usefixtures("with_default")
def test_a_column_with_a_default_gets_the_default_if_all_rows_leave_it_out(table: MakeTable, grants: Grants) -> None:
    grants.commit_rows(1, table(), [{"id": 1}, {"id": 2, "n": 5}])
    grants.commit_rows(2, table(), [{"id": 3, "status": None}])
    found = sorted((row["id"], row["status"], row["n"]) for row in table().read())
    assert found == [(1, "new", None), (2, "new", 5), (3, None, None)]


@pytest.mark.usefixtures("with_default")
@pytest.mark.parametrize("first", [1, 10_000])
@pytest.mark.parametrize("reverse", [False, True])
def test_rows_are_refused_if_only_some_leave_out_a_column_with_a_default(
    table: MakeTable, grants: Grants, first: int, *, reverse: bool
) -> None:
    given = [*rows(*range(first)), {"id": first, "status": "paid"}]
    with pytest.raises(StateError, match="column status has a default, and some of .* rows lack it.*in no row"):
        grants.commit_rows(1, table(), given[::-1] if reverse else given)
    assert table().read() == []


def test_a_failed_check_constraint_of_the_table_refuses_all_rows_of_the_update(
    table: MakeTable, name: str, grants: Grants, run: Callable[[str], None]
) -> None:
    run(f"CREATE TABLE {name} (id BIGINT, tx_txid BIGINT, CONSTRAINT {name}_c CHECK (id > 0))")
    run(f"CREATE INDEX {name}_i ON {name} (tx_txid)")
    with pytest.raises(StateError, match=f"the database says: .*(?s:{name}_c|CHECK).*No row of this update") as refusal:
        grants.commit_rows(1, table(), rows(*range(20_000, -1, -1)))
    assert "\n" not in str(refusal.value)
    assert table().read() == []


FAMILY = {
    "partition": (
        "CREATE TABLE {t} (tx_txid BIGINT, region TEXT, n BIGINT) PARTITION BY LIST (region)",
        "CREATE TABLE {t}_eu PARTITION OF {t} FOR VALUES IN ('eu')",
    ),
    "grandchild": (
        "CREATE TABLE {t} (tx_txid BIGINT, region TEXT, n BIGINT) PARTITION BY LIST (region)",
        "CREATE TABLE {t}_all PARTITION OF {t} FOR VALUES IN ('eu') PARTITION BY LIST (region)",
        "CREATE TABLE {t}_eu PARTITION OF {t}_all FOR VALUES IN ('eu')",
    ),
    "INHERITS": (
        "CREATE TABLE {t} (tx_txid BIGINT, region TEXT, n BIGINT)",
        "CREATE TABLE {t}_eu () INHERITS ({t})",
        "CREATE INDEX ON {t}_eu (tx_txid)",
    ),
}


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
@pytest.mark.parametrize("statements", list(FAMILY.values()), ids=list(FAMILY))
@pytest.mark.parametrize("suffixes", [("", "_eu"), ("_eu", "")])
def test_a_table_that_shares_rows_with_another_fenced_table_is_refused(
    url: str, name: str, run: Callable[[str], None], statements: tuple[str, ...], suffixes: tuple[str, str]
) -> None:
    for statement in (statements[0], "CREATE INDEX ON {t} (tx_txid)", *statements[1:]):
        run(statement.format(t=name))
    first, second = (SqlTable.from_url(url, table=name + suffix) for suffix in suffixes)
    given = [{"region": "eu", "n": 1}]
    Grants().commit_rows(1, first, given)
    second.read()
    with pytest.raises(
        StateDiffers, match="share rows .*each update could delete rows of the other.*DELETE FROM"
    ) as refused:
        Grants().commit_rows(1, second, given)
    assert first.rows_by_txid() == {1: 1}
    run(str(refused.value).rpartition(": ")[2])
    if second.rows_by_txid():
        with pytest.raises(StateDiffers, match="it has values of transaction 1 and no fence") as refused:
            Grants().commit_rows(1, second, given)
        run(str(refused.value).rpartition(": ")[2])
    Grants().commit_rows(1, second, given)


# --- restatements, skips ------------------------------------------------------------------------------------------


def test_a_restatement_replaces_the_rows_of_the_restated_transaction(table: MakeTable, grants: Grants) -> None:
    grants.commit_rows(1, table(), rows(1, 2))
    grants.commit_rows(2, table(), rows(3))
    grant = about_to_restate(grants(3), 1)
    table().raise_fence(grant)
    # Until its write, readers have the rows of the restated one.
    assert ids(table()) == [(1, 1), (1, 2), (2, 3)]
    table().write(grant, rows(4))
    assert ids(table()) == [(2, 3), (3, 4)]


def test_a_restatement_without_rows_removes_the_rows_of_the_restated_transaction(
    table: MakeTable, grants: Grants
) -> None:
    grants.commit_rows(1, table(), rows(1))
    grant = about_to_restate(grants(2), 1)
    table().raise_and_write(grant, [])
    assert table().holds(2)
    assert table().read() == []


@pytest.mark.parametrize("given", [(), (4,)])
def test_a_restatement_that_has_written_to_the_table_cannot_be_skipped(
    table: MakeTable, grants: Grants, given: tuple[int, ...]
) -> None:
    grants.commit_rows(1, table(), rows(1))
    table().raise_and_write(about_to_restate(grants(2), 1), rows(*given))
    with pytest.raises(SkipRefused):
        table().raise_fence(about_to_skip(about_to_restate(grants(2, 2), 1)))
    # A later attempt raises the fence, and its fence forgets what the first one has written.
    table().raise_fence(about_to_restate(grants(2, 3), 1))
    with pytest.raises(SkipRefused):
        table().raise_fence(about_to_skip(about_to_restate(grants(2, 4), 1)))
    table().raise_and_write(about_to_restate(grants(2, 5), 1), rows(5))
    assert ids(table()) == [(2, 5)]


def test_a_restatement_that_has_only_raised_the_fence_of_the_table_can_be_skipped(
    table: MakeTable, grants: Grants
) -> None:
    grants.commit_rows(1, table(), rows(1))
    table().raise_fence(about_to_restate(grants(2), 1))
    skip = about_to_skip(about_to_restate(grants(2, 2), 1))
    table().raise_fence(skip)
    table().pass_over(skip)
    assert ids(table()) == [(1, 1)]


def next_life(grants: Grants, *, reset: bool) -> Grants:
    """The grants of another transaction of each number: after a reset, or in a ledger that was rebuilt."""
    after = Grants()
    if not reset:
        after.incarnation = grants.incarnation
        after.generation = grants.generation + 1
    return after


@pytest.mark.parametrize("reset", [True, False])
def test_a_later_transaction_that_reuses_the_txid_of_a_restatement_can_be_skipped(
    table: MakeTable, grants: Grants, *, reset: bool
) -> None:
    grants.commit_rows(1, table(), rows(1))
    table().raise_and_write(about_to_restate(grants(2), 1), rows(5))
    if reset:
        table().clear()
    after = next_life(grants, reset=reset)
    table().raise_fence(after(2))
    skip = about_to_skip(after(2, 2))
    table().raise_fence(skip)
    table().pass_over(skip)
    assert not table().holds(2)


def test_a_skip_removes_the_rows_of_its_transaction(table: MakeTable, grants: Grants) -> None:
    grants.commit_rows(1, table(), rows(1))
    table().raise_and_write(grants(2), rows(2))
    skip = about_to_skip(grants(2, 2))
    table().raise_fence(skip)
    table().pass_over(skip)
    assert ids(table()) == [(1, 1)]


# --- rows that are gone -------------------------------------------------------------------------------------------


def test_a_table_that_lost_the_rows_of_its_last_transaction_is_refused(
    table: MakeTable, name: str, grants: Grants, run: Callable[[str], None]
) -> None:
    grants.commit_rows(1, table(), rows(1))
    grants.commit_rows(2, table(), rows(2, 3))
    run(f"DELETE FROM {name} WHERE tx_txid = 2")
    with pytest.raises(StateBehind, match="the table has no row of the 2 rows of transaction 2"):
        grants.commit_rows(3, table(), rows(4))
    table().accept_values()
    grants.commit_rows(3, table(), rows(4), attempt=2)
    assert ids(table()) == [(1, 1), (3, 4)]


@pytest.mark.parametrize("last", [(), ((),), ((), ())], ids=len)
def test_an_emptied_table_is_refused_even_if_the_last_transactions_had_no_rows(
    table: MakeTable, name: str, grants: Grants, run: Callable[[str], None], last: tuple[tuple[()], ...]
) -> None:
    state = table()
    for txid, given in enumerate([rows(1), rows(2, 3), *last], 1):
        grants.commit_rows(txid, state, given)
    run(f"DELETE FROM {name}")
    for opened in (state, table()):
        with pytest.raises(StateBehind, match="the table has no row of the 2 rows of transaction 2"):
            grants.commit_rows(5, opened, [])


def test_a_table_emptied_between_raise_and_write_is_refused_by_the_next_commit(
    table: MakeTable, name: str, grants: Grants, run: Callable[[str], None]
) -> None:
    grants.commit_rows(1, table(), rows(1))
    grant = grants(2)
    table().raise_fence(grant)
    run(f"DELETE FROM {name}")
    table().write(grant, [])
    grants.final(grant, table())
    with pytest.raises(StateBehind, match="the table has no row of the 1 rows of transaction 1"):
        grants.commit_rows(3, table(), rows(3))


def test_a_loss_of_older_rows_is_noticed_after_the_newest_were_restated_to_no_rows(
    table: MakeTable, name: str, grants: Grants, run: Callable[[str], None]
) -> None:
    for txid in (1, 2):
        grants.commit_rows(txid, table(), rows(txid))
    grant = about_to_restate(grants(3), 2)
    table().raise_and_write(grant, [])
    grants.final(grant, table())
    grants.commit_rows(4, table(), [])
    run(f"DELETE FROM {name} WHERE tx_txid = 1")
    with pytest.raises(StateBehind, match="the table has no row of the 1 rows of transaction 1"):
        grants.commit_rows(5, table(), [])


def test_rows_of_an_earlier_ledger_may_be_deleted_after_a_release(
    table: MakeTable, name: str, grants: Grants, run: Callable[[str], None]
) -> None:
    grants.commit_rows(1, table(), rows(1))
    table().release()
    grants = Grants()
    grants.commit_rows(1, table(), [])
    run(f"DELETE FROM {name}")
    grants.commit_rows(2, table(), rows(2))
    assert ids(table()) == [(2, 2)]


def test_a_released_table_keeps_its_rows_when_another_ledger_writes_rows(table: MakeTable, grants: Grants) -> None:
    for txid in (1, 2):
        grants.commit_rows(txid, table(), rows(txid))
    table().release()
    grants = Grants()
    grants.commit_rows(1, table(), rows(7))
    assert table().rows_by_txid() == {None: 2, 1: 1}
    table().release()
    Grants().commit_rows(1, table(), rows(8))
    assert table().rows_by_txid() == {None: 3, 1: 1}
    assert sorted(row["id"] for row in table().read()) == [1, 2, 7, 8]


# --- other drivers ------------------------------------------------------------------------------------------------


def test_rows_are_the_same_if_the_database_driver_has_no_copy_command(
    table: MakeTable, grants: Grants, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = table()
    grants.commit_rows(1, state, [ROW])
    monkeypatch.setattr(type(state._store._dialect), "append_rows", Dialect.append_rows)
    grants.commit_rows(2, table(), [ROW, dict.fromkeys(ROW)])
    one, two, three = map(without_ours, table().read())
    assert one == two == ROW
    assert three == dict.fromkeys(ROW)
