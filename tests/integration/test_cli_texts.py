"""Texts that a terminal has no characters for, through the commands that read, in a process with its encoding."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest

from airflow_tx.ledger.api import Put
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from tests.integration.cli_runs import Runs, fail
from tests.integration.commands import DAG, Commands
from tests.integration.pipeline import Pipeline

TEXT = "gr\udcf6sse \ud83d \x00 \u202e é 😀 \x1b[31m"
READS = (
    ("list", "--no-lag"),
    ("list", "flights"),
    ("show", "flights", "--no-lag"),
    ("show", "flights", "1"),
    ("show", "flights", "2"),
    ("receipts", "flights"),
    ("find", "sse"),
    ("verify", "flights"),
)
RUN = """
import json, sys, traceback
from airflow.cli import cli_parser
parser = cli_parser.get_parser()
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["airflow", *arguments]
    try:
        args = parser.parse_args(arguments)
        args.func(args)
    except SystemExit as end:
        print("ended", ascii(end.code))
    except Exception:
        print("BROKEN", arguments, ascii(traceback.format_exc()))
"""
TERMINALS = ({"PYTHONIOENCODING": "latin-1"}, {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})


@pytest.fixture(scope="module")
def airflow(commands: Commands) -> Commands:
    commands.begin({"the_dag.py": DAG}, known=True)
    return commands


@pytest.fixture
def told(pipeline: Pipeline, store: ZooKeeperStore, runs: Runs) -> Pipeline:
    """A committed transaction, and a failed one whose record says the text as it was given."""
    pipeline.run("r1")
    fail(pipeline, pipeline.begin("r2"), TEXT)
    path = pipeline.paths.transaction(2)
    node = store.get(path)
    assert node is not None
    said = json.loads(node.data)
    deed = {"who": TEXT, "when": said["created"], "why": TEXT}
    said |= {"error": TEXT, "remedy": None, "lost": [TEXT], "skip": deed, "size": {"rows": 1, "why": TEXT}}
    store.multi([], [Put(path, json.dumps(said).encode())])
    return pipeline


@pytest.mark.parametrize("terminal", TERMINALS, ids=["latin-1", "C"])
def test_no_text_in_a_record_causes_an_error_in_a_command(
    airflow: Commands, told: Pipeline, zookeeper_root: str, terminal: dict[str, str]
) -> None:
    asked = [["tx", *each, "--output", output] for each, output in itertools.product(READS, ("table", "json", "yaml"))]
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(asked)],
        env={**airflow.environment, "AIRFLOW__TX__ROOT": zookeeper_root, **terminal},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=240,
    )
    output = done.stdout.decode("latin-1")
    assert done.returncode == 0, done.stderr
    assert "BROKEN" not in output, output
    assert b"Traceback" not in done.stderr, done.stderr
    assert "gr\\udcf6sse" in output


def test_a_reason_typed_in_a_latin_1_terminal_is_stored_with_escape_sequences(
    airflow: Commands, pipeline: Pipeline, store: ZooKeeperStore, runs: Runs, zookeeper_root: str
) -> None:
    fail(pipeline, pipeline.begin("r1"))
    runs.make(r1="failed")
    done = subprocess.run(
        [sys.executable, "-m", "airflow", *"tx skip flights 1 --yes --why".split(), b"gr\xf6sse"],
        env={**airflow.environment, "AIRFLOW__TX__ROOT": zookeeper_root, "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr, done.stderr
    skipped = pipeline.ledger.skipped(1)
    assert skipped is not None
    assert skipped.skip.why == os.fsdecode(b"gr\xf6sse").encode("ascii", "backslashreplace").decode()
