"""How commands end on an error."""

from __future__ import annotations

import sqlite3
from argparse import Namespace

import pytest
from sqlalchemy.exc import OperationalError

from airflow_tx.cli.context import command


@pytest.mark.parametrize(
    ("error", "advised"),
    [(sqlite3.OperationalError("database is locked"), True), (Exception("it is away\x1b[0m"), False)],
)
def test_a_command_advises_another_database_only_on_sqlite(error: Exception, advised: bool) -> None:
    @command
    def fails(args: Namespace) -> None:
        raise OperationalError("SELECT 1", {}, error)

    with pytest.raises(SystemExit) as ended:
        fails(Namespace(verbose=False))
    text = str(ended.value)
    assert text.startswith("Airflow's metadata database: ")
    assert ("Use PostgreSQL" in text) is advised
    assert "\x1b" not in text
