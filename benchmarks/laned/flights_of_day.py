"""What the source of the laned DAGs reads."""

from __future__ import annotations

import csv
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from examples.flights import OPTIONS, SCHEMA


def flights_of_day(start: datetime, end: datetime, spark: Any = None) -> Any:
    """The flights of a day."""
    path = Path(os.environ["FLIGHTS"], f"flights-{start:%Y-%m-%d}.csv")
    if spark is not None:
        return spark.read.csv(str(path), schema=SCHEMA, header=True, **OPTIONS)
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))
