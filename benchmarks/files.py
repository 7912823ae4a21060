"""Through how many files of the package one transaction passes, from the DAG file to the row. Usage: script/bench files

A file counts if one of its functions ran: while the DAG file was parsed, in `begin`, in the task, or in the commit.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

from airflow_tx.testing.airflow import connection
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper

ROOT = Path(__file__).parent.parent
PACKAGE = str(ROOT / "airflow_tx")
DAG_FILE = """
from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, FileSource, Transaction, current_batch, persistent_aggregate
from airflow_tx.state import Count, SqlState

totals = SqlState("tx_state", table="totals", keys=["key"], values={"n": Count()})


@task
def count():
    return [{"key": row["key"], "n": 1} for row in current_batch().read()]


with DAG("files", schedule=None) as dag:
    with Transaction(source=FileSource("*.csv", files_per_batch=1)):
        CommitOperator(task_id="commit", updates=[persistent_aggregate(count(), state=totals)])
"""


@contextmanager
def noted(files: set[str]) -> Iterator[None]:
    """Note the files of the package whose functions run."""

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_flags & CO_OPTIMIZED:
            files.add(str(Path(code.co_filename).relative_to(PACKAGE)))

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def parsed(folder: Path) -> Any:
    """The DAG, as Airflow parses its file."""
    path = folder / "files_dag.py"
    path.write_text(DAG_FILE)
    found: dict[str, Any] = {}
    exec(compile(DAG_FILE, str(path), "exec"), found)
    return found["dag"]


def run(dag: Any) -> None:
    """One transaction, task by task."""
    from airflow_tx.ledger.attempt import TaskTry
    from airflow_tx.transaction.commit.committer import Commit
    from airflow_tx.transaction.commit.turn import commit_in_turn
    from airflow_tx.transaction.processing.batch import CurrentBatch
    from airflow_tx.transaction.processing.outputs import returned
    from airflow_tx.transaction.processing.task import Processing
    from airflow_tx.transaction.spec import spec_of
    from benchmarks import topology
    from benchmarks.requests import Silent

    spec = spec_of(dag)
    begun = topology.begin(spec, "run1")
    processing = Processing(spec, begun, TaskTry("count", -1, topology.TaskInstance("count", "").id), anchored=True)
    processing.start()
    rows = [{"key": row["key"], "n": 1} for row in CurrentBatch(processing).read()]
    processing.ack(returned(rows, multiple=False))
    ti = topology.TaskInstance("commit", "run1", xcom=rows)
    with spec.store() as store:
        commit = Commit(spec, begun, dag.get_task("commit").updates, spec.ledger(store), ti, Silent())
        assert commit_in_turn(commit, store, patience=0) is None


def main() -> None:
    """Count and print."""
    files: set[str] = set()
    with tempfile.TemporaryDirectory() as home, LocalZooKeeper() as zookeeper:
        folder = Path(home)
        (folder / "a.csv").write_text("key\na\nb\n")
        os.environ |= {
            "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=zookeeper.hosts),
            "AIRFLOW_CONN_TX_STATE": connection("sqlite", host=str(folder / "state.db")),
            "AIRFLOW__TX__STAGING": (folder / "staging").as_uri(),
            "AIRFLOW_TX_DATA": home,
        }
        with noted(files):
            dag = parsed(folder)
            run(dag)
        assert [row["n"] for row in dag.get_task("commit").updates[0].state.read()] == [1, 1]
    rooms = Counter(file.partition("/")[0] for file in files)
    print(f"{len(files)} files: " + ", ".join(f"{room} {count}" for room, count in sorted(rooms.items())))
    if "-v" in sys.argv:
        print(*sorted(files), sep="\n")


if __name__ == "__main__":
    main()
