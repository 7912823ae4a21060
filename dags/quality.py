"""Clean the flights that left New York in 2013 with polars, without Spark, and check them before the commit.

The task rejects rows that it cannot read, with a reason. After you have corrected the rule, restate the months to count
the rejected rows.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, FileSource, Transaction, append, check, current_batch, persistent_aggregate
from airflow_tx.state import Count, SqlState, SqlTable, Sum

flights = SqlTable("tx_state", table="quality_flights", types={"delay": "bigint"})
aside = SqlTable("tx_state", table="quality_aside")
totals = SqlState("tx_state", table="quality_totals", keys=["carrier"], values={"flights": Count(), "delay": Sum()})


@task(multiple_outputs=True)
def clean(unit: str, least: str) -> dict[str, Any]:
    """Return the rows with their delays in minutes. Reject rows that cannot be read.

    :param unit: the unit that may follow the minutes.
    :param least: the shortest distance of a flight.
    """
    import polars as pl

    batch = current_batch()
    read = pl.DataFrame(batch.arrow())
    minutes = pl.col("dep_delay").replace("NA", None).str.strip_suffix(unit).str.strip_chars()
    read = read.with_columns(minutes.cast(pl.Int64, strict=False).alias("delay"), pl.col("distance").cast(pl.Int64))
    no_number = (pl.col("dep_delay") != "NA") & pl.col("delay").is_null()
    too_short = pl.col("distance") < int(least)
    batch.reject(read.filter(no_number).drop("delay"), "dep_delay is no number")
    batch.reject(read.filter(too_short & ~no_number).drop("delay"), "the distance is too short")
    good = read.filter(~no_number & ~too_short)
    return {
        "flights": good.select("month", "carrier", "flight", "origin", "dest", "distance", "delay"),
        "totals": good.group_by("carrier").agg(pl.len().alias("flights"), pl.col("delay").sum()),
    }


with DAG("quality", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    with Transaction(
        source=FileSource("months/*.csv", files_per_batch=1), max_pending=4, rejected=aside, max_rejected=0.05
    ):
        # The rule is in Airflow Variables, which users may change. A replay reads the current
        # values on purpose. Restate a month to apply a new rule.
        cleaned: Any = clean(
            "{{ var.value.get('delay_unit', ' ') }}",  # noqa: TX106
            "{{ var.value.get('least_distance', '0') }}",  # noqa: TX106
        )
        CommitOperator(
            task_id="commit",
            updates=[
                append(cleaned["flights"], state=flights),
                persistent_aggregate(cleaned["totals"], state=totals),
            ],
            checks=[
                check("some flights", cleaned["flights"], value="count(*) > 0"),
                check("positive distance", cleaned["flights"], rows="distance > 0"),
            ],
        )
