"""Imported once, in the process that all others are forked from."""

from __future__ import annotations

import os

from tests.chaos.topology import FiredTopology
from tests.chaos.worker import main as main

if "AIRFLOW_TX_DATA" in os.environ:
    assert FiredTopology("rows").lane is not None
