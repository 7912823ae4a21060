"""A committer among others: it commits attempts of one transaction until the last one is in.

Usage: table_race.py TABLE GRANTS NUMBER      GRANTS: pickled, in the order of their ranks
"""

from __future__ import annotations

import pickle
import random
import sys
import time
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]

from airflow_tx.base.errors import StateError
from airflow_tx.state import DeltaTable
from tests.lake import staged


def main(uri: str, grants: str, number: int) -> None:
    table = DeltaTable(uri)
    for grant in pickle.loads(Path(grants).read_bytes())[number::2]:
        n = grant.token.attempt
        files = staged(table, grant.attempt, pa.table({"n": pa.array([n] * 3, pa.int64())}))
        try:
            table.raise_fence(grant)
            # The other one raises in between, or not.
            time.sleep(random.random() / 50)
            table.write(grant, files)
            print("written", n)
        except StateError as error:
            print("refused", n, type(error).__name__)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
