"""A committer among others: it commits attempts of one transaction until the last one is in.

Usage: table_race.py TABLE GRANTS NUMBER      GRANTS: pickled, in the order of their ranks
"""

from __future__ import annotations

import pickle
import random
import sys
import time
from pathlib import Path

from airflow_tx.base.errors import StateError
from tests.integration.tables import table_at


def main(uri: str, grants: str, number: int) -> None:
    table = table_at(uri)
    for grant in pickle.loads(Path(grants).read_bytes())[number::2]:
        n = grant.token.attempt
        update = table.update(grant, [{"n": n}] * 3)
        try:
            if random.random() < 0.5:
                table.state.raise_and_write(grant, update)
            else:
                table.state.raise_fence(grant)
                # The other one raises in between, or not.
                time.sleep(random.random() / 50)
                table.state.write(grant, update)
            print("written", n)
        except StateError as error:
            print("refused", n, type(error).__name__)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
