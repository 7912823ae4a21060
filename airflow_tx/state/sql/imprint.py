"""The imprint of a table, kept beside its fence: it shows at the next raise that rows are gone. Source: protocol.md §7.

It costs a commit the same in a table of any size. A small table is counted. In a larger one some rows of the last
writer are looked up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_tx.state.keys import encode_key

COUNTED = 1_000
"""Rows up to which a table is counted."""
SAMPLED = 8
"""Keys of an update that are kept."""
# Beside the aggregators, whose columns have other names: an older release reads those and leaves this alone.
IMPRINT = "tx_imprint"


@dataclass(frozen=True)
class Imprint:
    """The imprint of a table. Rows are never deleted, and their txids never fall, unless an attempt is undone.

    :param txid: of the transaction that wrote the keys, or that a guard has noted.
    :param keys: some keys, as text.
    :param types: of the key columns.
    :param rows: how many there are; None: more than are counted.
    :param txids: the sum of their txids, if they are counted.
    """

    txid: int = 0
    keys: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    rows: int | None = None
    txids: int = 0

    @classmethod
    def of(cls, definition: Mapping[str, object]) -> Imprint | None:
        """Read the one in a definition; None: a release without imprints has written it."""
        found = definition.get(IMPRINT)
        if not isinstance(found, dict):
            return None
        return cls(**{**found, "keys": tuple(found.get("keys", ()))})

    @property
    def text(self) -> dict[str, object]:
        """Give it as plain JSON, without what it does not know."""
        unknown = asdict(Imprint())
        return {name: value for name, value in asdict(self).items() if value != unknown[name]}

    def with_rows(self, now: Imprint) -> Imprint:
        """Take the rows of another one."""
        return replace(self, rows=now.rows, txids=now.txids)

    def with_keys(self, wrote: Imprint, types: Mapping[str, str]) -> Imprint:
        """Take the keys of a write, if it had any."""
        if not wrote.keys:
            return self
        return replace(self, txid=wrote.txid, keys=wrote.keys[:SAMPLED], types=dict(types))

    def missing_keys(self, txids: Sequence[int | None]) -> str:
        """Say which key has gone or gone back since then; "": none.

        :param txids: of the rows with the keys; None: there is no such row.
        """
        for key, txid in zip(self.keys, txids, strict=True):
            if txid is None:
                return f"its key {key} is missing"
            if txid < self.txid:
                return f"its key {key} is of transaction {txid}, and was of {self.txid}"
        return ""

    def missing(self, now: Imprint) -> str:
        """Say what a table has lost since then; "": nothing that shows."""
        if self.rows is None:
            if now.rows is None:
                return ""
            return f"{now.rows} of more than {COUNTED} rows are there"
        if now.rows is None:
            return ""
        if now.rows < self.rows:
            return f"{now.rows} of {self.rows} rows are there"
        if now.txids < self.txids:
            return "rows are of earlier transactions"
        return ""


def imprint_of_rows(connection: Connection, table: sa.Table) -> Imprint:
    """Count the rows of a small table."""
    rows, txids = connection.execute(_count(table, COUNTED)).one()
    return Imprint() if rows > COUNTED else Imprint(rows=rows, txids=int(txids))


@lru_cache
def _count(table: sa.Table, most: int) -> sa.Select[Any]:
    """Count up to one more than `most` rows. Built once: that takes longer than to send it."""
    some = sa.select(table.c.tx_txid).limit(most + 1).subquery()
    query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(some.c.tx_txid), 0))
    return query.select_from(some)


def sampled(kinds: Sequence[str], keys: Sequence[Sequence[object]]) -> list[str]:
    """Choose some of the keys, which are given column by column, from the first to the last.

    :param kinds: type of each column.
    """
    if not keys:
        return []
    size = len(keys[0])
    numbers = sorted({size * each // SAMPLED for each in range(SAMPLED)})
    return [encode_key(kinds, [column[i] for column in keys]).decode() for i in numbers]


def sample_text(keys: Sequence[str]) -> str:
    """Write the sample of a portion."""
    return json.dumps(list(keys))


def sample_of(texts: Sequence[str | None]) -> list[str]:
    """Choose from the samples of portions."""
    return [key for text in texts if text for key in json.loads(text)[:1]][:SAMPLED]
