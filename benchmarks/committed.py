"""How long it takes to count the rows of a hundred transactions in a table, as a topology does that reads from it.

The table has two hundred transactions of equal size, and every second one is counted: so many rows in total. Each store
counts three times; the first time is apart. On PostgreSQL once as the rows were written, and once after VACUUM. A
DeltaTable has a file a transaction, then as few as OPTIMIZE makes of them. read: the rows of one of them, as Arrow.
Usage: script/bench committed [how many rows are counted, by default 10,000,000]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import deltalake
import pyarrow as pa  # type: ignore[import-untyped]
import sqlalchemy as sa

from airflow_tx.state import CommittedTable, DeltaTable, SqlTable, TableCounts
from airflow_tx.testing.suites.state_tools import Grants
from benchmarks.figures import machine
from tests.lake import staged

COUNTED = 100
ROWS = 10_000_000
TIMES = 3
AT_ONCE = 1_000_000
NUMBERS = {
    "sqlite": "WITH RECURSIVE s(n) AS (SELECT {0} UNION ALL SELECT n + 1 FROM s WHERE n < {1}) SELECT {2} FROM s",
    "postgresql": "SELECT {2} FROM generate_series({0}, {1}) AS s(n)",
    "mariadb": "SELECT {2} FROM (SELECT seq AS n FROM seq_{0}_to_{1}) s",
    "mysql": "WITH RECURSIVE s(n) AS (SELECT {0} UNION ALL SELECT n + 1 FROM s WHERE n < {1}) "
    "SELECT /*+ SET_VAR(cte_max_recursion_depth = 1000000000) */ {2} FROM s",
}
"""Numbers from {0} to {1}, as SQL, of which {2} makes rows."""
COLUMNS = "{div} + 1, n % {each}, n, {text}, n * 0.5"


# --- tables -------------------------------------------------------------------------------------------------------


def in_database(kind: str, url: str, each: int) -> SqlTable:
    """Make a table as its state makes it, and fill it by the database itself."""
    table = SqlTable.from_url(url, table="orders")
    Grants().commit_rows(2 * COUNTED + 1, table, [{"id": 1, "carrier": "C", "distance": 0.5}])
    engine = sa.create_engine(url)
    divided = f"n DIV {each}" if kind in ("mysql", "mariadb") else f"n / {each}"
    carrier = "'C' || n % 16" if kind == "sqlite" else "concat('C', n % 16)"
    made = COLUMNS.format(div=divided, each=each, text=carrier)
    rows = 2 * COUNTED * each
    for start in range(0, rows, AT_ONCE):
        numbers = NUMBERS[kind].format(start, min(start + AT_ONCE, rows) - 1, made)
        into = "INSERT INTO orders (tx_txid, tx_row, id, carrier, distance)"
        with engine.begin() as connection:
            connection.exec_driver_sql(
                f"{into} {numbers}".replace("%", "%%") if kind != "sqlite" else f"{into} {numbers}"
            )
    engine.dispose()
    return table


def in_lake(folder: Path, each: int) -> DeltaTable:
    """Make a table of a lake, with a file for each transaction."""
    table = DeltaTable(folder / "orders")
    grants = Grants()
    for txid in range(1, 2 * COUNTED + 1):
        ids = pa.array(range(txid * each, (txid + 1) * each), pa.int64())
        rows = pa.table({"id": ids, "carrier": ["C1"] * each, "distance": [0.5] * each})
        grants.commit_rows(txid, table, staged(table, grants(txid).attempt, rows))
    return table


# --- measured -----------------------------------------------------------------------------------------------------


def measured(name: str, table: CommittedTable, each: int) -> Iterator[str]:
    """Count a hundred transactions several times, and read one."""
    txids = range(2, 2 * COUNTED + 1, 2)
    taken = list[float]()
    for _ in range(TIMES):
        begun = time.perf_counter()
        counts = table.counts(txids)
        taken.append(time.perf_counter() - begun)
        counts.close()
        assert set(counts.rows.values()) == {each}, counts.rows
    begun = time.perf_counter()
    read = sum(batch.num_rows for batch in table.arrow(TableCounts({4: each})))
    rate = read / (time.perf_counter() - begun)
    again = min(taken[1:])
    yield f"  {name:32} {taken[0]:7.2f} s   again {again:7.2f} s   read {rate:10,.0f} rows/s"


def vacuumed(url: str) -> None:
    """Let PostgreSQL note which pages all transactions see, as autovacuum does."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("VACUUM ANALYZE orders")
    engine.dispose()


def main() -> None:
    """Measure and print."""
    from tests.servers.mariadb import LocalMariaDB
    from tests.servers.postgres import LocalPostgres

    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    each = rows // COUNTED
    print(machine())
    print(f"{COUNTED} of {2 * COUNTED} transactions, {rows:,} rows counted of {2 * rows:,}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers: dict[str, Callable[[], str]] = {
            "sqlite": lambda: f"sqlite:///{folder}/rows.db",
            "postgresql": lambda: stack.enter_context(LocalPostgres(fsync=True)).url(),
            "mariadb": lambda: stack.enter_context(LocalMariaDB()).url(),
        }
        for kind, start in servers.items():
            url = start()
            table = in_database(kind, url, each)
            for line in measured(kind, table, each):
                print(line, flush=True)
            if kind == "postgresql":
                vacuumed(url)
                for line in measured("postgresql, after VACUUM", table, each):
                    print(line, flush=True)
        lake = in_lake(folder, each)
        for line in measured("delta, a file a transaction", lake, each):
            print(line, flush=True)
        deltalake.DeltaTable(lake.uri).optimize.compact()
        for line in measured("delta, after OPTIMIZE", lake, each):
            print(line, flush=True)


if __name__ == "__main__":
    main()
