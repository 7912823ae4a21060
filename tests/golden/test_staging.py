"""What a task leaves for the next one: the descriptor of its batch, and the manifest of its output."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.ledger.steps.processing import OutputName
from airflow_tx.outputs.staging.area import MANIFEST, StagingArea, write_manifest, write_rows
from airflow_tx.outputs.staging.descriptor import Ackers, Descriptor, Input
from tests.golden.written import check_golden

ATTEMPT = TransactionAttempt(3, 2, "b17")
TASK = TaskTry("counts", 1, "try-1")


def test_the_descriptor_of_a_batch_matches_the_golden_file() -> None:
    source = ("airflow_tx.sources.memory.MemorySource", {"partitions": {"a": [{"n": 1}]}})
    inputs = {"rows": Input(("file:///staged/part-0.parquet",), ("n",), (OutputName("extract", -1, "rows"),), 5)}
    ackers = Ackers(4, "redis", "/tx", anchored=True)
    descriptor = Descriptor("flights", ATTEMPT, TASK, [0, 3], source, "file:///staged", inputs, ackers)
    short = Descriptor("flights", ATTEMPT, TASK, {"a": [0, 1]}, source, "file:///staged")
    check_golden("descriptors", {"all": descriptor.to_json(), "short": short.to_json()})


def test_the_manifest_of_an_output_matches_the_golden_file(tmp_path: Path) -> None:
    where = StagingArea(tmp_path.as_uri()).try_dir("flights", ATTEMPT, TASK)
    output = write_rows(where, "counts", [{"carrier": "AA", "n": 1}, {"carrier": "UA", "n": 2}])
    refs = write_manifest(where, {"counts": output}, consumed_rows=3, code="c0de", trees=1)
    with where.files.open(where.child(MANIFEST)) as file:
        manifest = json.loads(file.read())
    # How many bytes a file has is a matter of the version of Parquet's writer.
    for each in manifest["outputs"]["counts"]["files"]:
        each["size"] = 0
    check_golden("manifest", {"manifest": manifest, "reference": asdict(refs["counts"])})
