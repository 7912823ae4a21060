"""The DAG that is watched on the board; its params are fields of the form with which a run is triggered."""

from __future__ import annotations

import os
from pathlib import Path

from counting import counting_dag

signals = Path(os.environ["AIRFLOW_TX_DATA"]) / "signals"
dag = counting_dag("boarded", params={"hold": str(signals / "boarded_go_on"), "fail_while": str(signals / "never")})
