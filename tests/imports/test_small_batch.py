"""A batch of a hundred rows is begun, read, staged, committed and read again without a heavy library."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"delta", "numpy", "pandas", "pyarrow", "pyspark"}

# All parts of a run in one process: `begin`, a task that reads its batch, one that finds what Spark has emitted (its
# file is no Parquet: nobody may open it), the committer, and a task that reads the output.
RUN = """
import json, sys
from pathlib import Path

from airflow_tx.transaction.processing.batch import rows_of_output
from airflow_tx.sources.files.source import FileSource
from airflow_tx.outputs import write_manifest
from airflow_tx.outputs.staging.area import Output, StagedFile
from airflow_tx.state import SqlState, Sum
from tests.integration.spark_runs import Topology, update

folder = Path(sys.argv[1])
source = FileSource(f"{folder}/*.csv", options={"inferSchema": True})
run = Topology(source, folder, str(folder / "dag.py")).begin("one")
rows = list(source.emit_batch(run.begun.attempt, run.begun.metadata))

ti, processing = run._started()
processing.start()
where = processing.staging.try_dir("flights", run.begun.attempt, processing.task)
content = json.dumps({"kinds": {"key": "plain", "n": "plain"}, "rows": [[row["key"], row["n"]] for row in rows]})
where.files.write(where.child("counts/part-0.parquet"), b"PAR1")
output = Output((StagedFile("part-0.parquet", 4, len(rows)),), ("key", "n"), content=content)
(ref,) = [each.to_json() for each in write_manifest(where, {"counts": output}).values()]
ti.pushed = {"counts": ref}
processing.ack([ref])
run._succeeded(ti)

state = SqlState.from_url(f"sqlite:///{folder}/state.db", table="sums", keys=["key"], values={"n": Sum()})
run.commit(update(state))
again = list(rows_of_output(run.topology.spec, ref, run.begun))
print("FOUND", json.dumps([[dict(row) for row in state.read()], again, sorted(sys.modules)]))
"""


@pytest.mark.worth("what a task imports is what a small transaction costs")
@pytest.mark.parametrize("count", [pytest.param(0, marks=pytest.mark.lead), 100])
def test_a_small_batch_loads_no_heavy_library(tmp_path: Path, count: int) -> None:
    (tmp_path / "a.csv").write_text("key,n\n" + "".join(f"k{n:03},{n}\n" for n in range(count)))
    done = subprocess.run([sys.executable, "-c", RUN, str(tmp_path)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    committed, read, modules = json.loads(done.stdout.split("FOUND ")[1])
    rows = [{"key": f"k{n:03}", "n": n} for n in range(count)]
    assert sorted(committed, key=str) == rows
    assert read == rows
    assert {name.partition(".")[0] for name in modules} & HEAVY == set()
