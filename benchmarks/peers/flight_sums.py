"""What every way to use Spark does with the flights of a batch."""

from __future__ import annotations

from typing import Any

COLUMNS = (
    "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay carrier flight tailnum origin "
    "dest air_time distance hour minute time_hour"
).split()
SCHEMA = ", ".join(f"{name} STRING" for name in COLUMNS)
USED = ("carrier", "origin", "dep_delay")


def flight_sums(flights: Any) -> Any:
    """How many flights there are of each carrier and airport, and the sum of their delays."""
    from pyspark.sql import functions as F

    delay = F.expr("try_cast(dep_delay AS BIGINT)")  # NA if it was cancelled
    return flights.groupBy(F.concat_ws("-", "carrier", "origin").alias("key")).agg(
        F.count("*").alias("n"), F.coalesce(F.sum(delay), F.lit(0)).alias("total")
    )
