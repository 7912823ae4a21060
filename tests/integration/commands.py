"""`airflow …` in a home of its own, with one DAG file; one warm process for all commands of the run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_tx.testing.deadline import run_command
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper

DAG = """
from airflow.sdk import DAG, task
from airflow_tx import CommitOperator, Transaction, persistent_aggregate
from airflow_tx.sources.files.source import FileSource
from airflow_tx.state import SqlState, Sum

def state(table):
    return SqlState("tx_state", table=table, keys=["key"], values={"n": Sum()})

with DAG("the_dag", schedule=None, max_active_runs=16):
    with Transaction(source=FileSource("/nowhere/*.csv"), topology="flights") as tx:
        @task
        def count(batch):
            return []
        counted = count(tx.batch)
        CommitOperator(task_id="commit", updates=[
            persistent_aggregate(counted, state=state("one")), persistent_aggregate(counted, state=state("two"))])
"""

USAGE = 2
"""The exit code of a command line that cannot be understood; what is wrong is beside the output."""

# Airflow's own parser and the function it names, as the console script calls them.
_SERVE = """
import contextlib, io, json, os, sys, traceback
from airflow.cli import cli_parser

asked, answers = sys.stdin, os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # a logger that holds stdout already writes no answers
parser = cli_parser.get_parser()
for line in asked:
    arguments, environment = json.loads(line)
    os.environ.update(environment)
    sys.argv = ["airflow", *arguments]
    sys.stdin = io.StringIO()
    code, out, told, broken = None, io.StringIO(), io.StringIO(), ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
        try:
            if arguments[0] == "python":
                exec(arguments[1], {"arguments": arguments[2:]})
            else:
                args = parser.parse_args(arguments)
                args.func(args)
        except SystemExit as end:
            code = end.code
        except Exception:
            broken = traceback.format_exc()
    print(json.dumps([code, out.getvalue(), told.getvalue(), broken]), file=answers, flush=True)
"""


@dataclass(frozen=True)
class Tried:
    """What a command line gave.

    :param code: what it exits with: None, a number, or one line of text.
    :param told: what it says beside its output.
    :param broken: the traceback that it ends with; "": it ends with none.
    """

    code: int | str | None
    output: str
    told: str
    broken: str

    @property
    def refusal(self) -> str:
        """What it says when it refuses."""
        return self.told if self.code in (1, USAGE) else str(self.code or "")


class Commands:
    """Commands one after the other in one process, since importing Airflow costs seconds."""

    def __init__(self, home: Path, server: LocalZooKeeper) -> None:
        self.dags = home / "dags"
        self.database = f"{home}/state.db"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            # Files of one name follow one another within a second.
            "PYTHONDONTWRITEBYTECODE": "1",
            "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": json.dumps({"conn_type": "zookeeper", "host": server.hosts}),
            "AIRFLOW_CONN_TX_STATE": json.dumps({"conn_type": "sqlite", "host": self.database}),
        }
        self._process: subprocess.Popen[str] | None = None
        self.python("from airflow.utils.db import initdb; initdb()")

    def begin(self, files: Mapping[str, str], *, known: bool = False) -> None:
        """Make these the DAG files, by name; the states hold nothing.

        :param known: whether Airflow's database has them, too.
        """
        shutil.rmtree(self.dags, ignore_errors=True)
        self.dags.mkdir(parents=True)
        for name, text in files.items():
            (self.dags / name).write_text(text)
        Path(self.database).unlink(missing_ok=True)
        if known:
            self.run("dags", "reserialize", root="/unused")

    def python(self, code: str, *arguments: str) -> None:
        """Run code, which knows its `arguments`."""
        self.run("python", code, *arguments, root="/unused")

    def in_a_process(self, *arguments: str, root: str = "/unused") -> str:
        """The output of a command as the console script gives it, in a process of its own."""
        done = run_command(
            [str(Path(sys.executable).parent / "airflow"), *arguments],
            env={**self.environment, "AIRFLOW__TX__ROOT": root},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, *arguments: str, root: str, fails: bool = False) -> str:
        """The output of a command; what it says on failure, if it `fails`."""
        code, output, told = self._answer(arguments, root)
        assert (code is not None) == fails, (code, output)
        if not fails:
            return str(output)
        return str(told) if code == USAGE else str(code)

    def json(self, *arguments: str, root: str) -> Any:
        """The output of a command as JSON."""
        return json.loads(self.run(*arguments, "--output", "json", root=root))

    def told(self, *arguments: str, root: str) -> str:
        """What a command says beside its output."""
        code, output, told = self._answer(arguments, root)
        assert code is None, (code, output)
        return str(told)

    def exit_code(self, *arguments: str, root: str) -> int:
        """The exit code of a command, as a shell has it."""
        code, *_ = self._answer(arguments, root)
        if code is None:
            return 0
        return code if isinstance(code, int) else 1  # Python prints a text, and exits with 1

    def refused(self, *arguments: str, root: str) -> tuple[Any, str]:
        """The output of a command as JSON, and the line with which it is refused."""
        tried = self.tried(*arguments, "--output", "json", root=root)
        assert not tried.broken, tried.broken
        assert tried.refusal
        return json.loads(tried.output), tried.refusal

    def both(self, *arguments: str, root: str) -> tuple[Any, list[str]]:
        """The output of a command as JSON, and what it says of lag beside it, line by line."""
        code, output, told = self._answer((*arguments, "--output", "json"), root)
        assert code is None, (code, output)
        return json.loads(output), [line for line in told.splitlines() if line.startswith("The lag")]

    def _answer(self, arguments: tuple[str, ...], root: str) -> tuple[Any, str, str]:
        found = self.tried(*arguments, root=root)
        assert not found.broken, found.broken
        return found.code, found.output, found.told

    def tried(self, *arguments: str, root: str) -> Tried:
        """What a command gives, however it ends."""
        process = self._process or subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        environment = {**self.environment, "AIRFLOW__TX__ROOT": root}
        print(json.dumps([arguments, environment]), file=process.stdin, flush=True)
        return Tried(*json.loads(process.stdout.readline()))

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
