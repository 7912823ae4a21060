"""The receipts that a SQL state keeps beside its fence: one row a transaction. Source: protocol.md §10."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_tx.errors import StateDiffers
from airflow_tx.protocol.receipt import Receipt
from airflow_tx.state.api import StoredReceipt
from airflow_tx.state.sql.types import LONG_TEXT, NAME

RECEIPTS_TABLE = "airflow_tx_receipts"


def receipts_table(schema: str | None) -> sa.Table:
    """The table that stands beside the fence table of a schema, for all states of that schema.

    A ledger that is emptied begins with transaction 1 again, as another incarnation.
    """
    return sa.Table(
        RECEIPTS_TABLE,
        sa.MetaData(),
        sa.Column("state", NAME, primary_key=True),
        sa.Column("incarnation", sa.String(64), primary_key=True),
        sa.Column("txid", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("topology", LONG_TEXT, nullable=False),
        sa.Column("receipt", LONG_TEXT, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        schema=schema,
    )


def check_columns(table: sa.Table, found: Collection[str], *, state: str) -> None:
    """Refuse a table of somebody else.

    :raises StateError: naming a column that it lacks, and what to do.
    """
    missing = [column.name for column in table.c if column.name not in found]
    if missing:
        name = table.fullname
        raise StateDiffers(
            state=state,
            problem=f"table {name} exists with other columns: {', '.join(sorted(found))}; it lacks {missing[0]}",
            remedy=f"Nothing was written. Rename it (ALTER TABLE {name} RENAME TO {RECEIPTS_TABLE}_other), or drop "
            "it; then clear the commit task: it makes a new one.",
        )


def row_of(receipt: Receipt, identity: str) -> dict[str, Any]:
    """The row of a receipt.

    :param identity: of the state, as its fence has it.
    """
    of_the_transaction = {"txid": receipt.txid, "attempt": receipt.attempt, "topology": receipt.topology}
    own = {"state": identity, "incarnation": receipt.incarnation}
    return {**own, **of_the_transaction, "receipt": receipt.text, "hash": receipt.hash}


def read_receipts(connection: Connection, table: sa.Table, identity: str) -> list[StoredReceipt]:
    """The receipts of a state, in the order of their txids."""
    wanted = (table.c.txid, table.c.attempt, table.c.receipt, table.c.hash)
    query = sa.select(*wanted).where(table.c.state == identity).order_by(table.c.txid, table.c.incarnation)
    return [StoredReceipt(*row) for row in connection.execute(query)]
