"""The process that runs the code of DAG files for an api-server, which does not run it itself."""

from __future__ import annotations

import itertools
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from airflow_tx.config import Settings
from airflow_tx.errors import Refused, TxError

log = logging.getLogger(__name__)

IDLE = 300.0
"""Seconds without a question after which the process ends."""
COMMAND = (sys.executable, "-m", "airflow_tx.actions.dag_server")


_OF_SYSTEM = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TEMP", "TMP",
    "LD_*", "DYLD_*", "PYTHON*", "VIRTUAL_ENV", "CONDA_*", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
    "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy", "SSL_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "KRB5*",
)  # fmt: skip
_OF_AIRFLOW = (
    "AIRFLOW_HOME",
    "AIRFLOW_CONFIG",
    "AIRFLOW_CONN_*",
    "AIRFLOW_VAR_*",
    "AIRFLOW_TX_*",
)
_OF_SECTIONS = (
    "core",
    "dag_processor",
    "database",
    "logging",
    "secrets",
    "traces",
    "tx",
    "workers",
)
_USERS = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_*"


def dag_environment(environ: Mapping[str, str], own: Iterable[str]) -> dict[str, str]:
    """Choose the variables that the code of DAG files gets of the environment of an api-server.

    :param own: names of variables that the DAG files of this Airflow need; `*` matches any text.
    """
    sections = [f"AIRFLOW__{section.upper()}__*" for section in _OF_SECTIONS]
    patterns = (*_OF_SYSTEM, *_OF_AIRFLOW, *sections, *own)
    found = {
        name: value
        for name, value in environ.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns) and not fnmatchcase(name, _USERS)
    }
    # Connections and Variables of Airflow's database and of secrets backends, as in the DAG processor's manager.
    return {**found, "_AIRFLOW_PROCESS_CONTEXT": "server"}


class RefusedThere(Refused):
    """A refusal, in the words of the process that ran the code."""

    template = "{text}"


class FailedThere(TxError):
    """A question that needs the code of a DAG file, which failed."""

    template = "{text}"


class NotAnsweredThere(FailedThere):
    """A question that needs the code of a DAG file, and that was not answered: its process hung, or has ended."""


@dataclass(frozen=True)
class _Waiting:
    """A question that was asked."""

    process: subprocess.Popen[str]
    answer: Future[Any]


_ENDED = {"failed": "The process that reads DAG files has ended; repeat it."}


class DagProcess:
    """Starts the process when it is needed, and ends it when it was not for a while.

    :param environ: the environment of which it gets `dag_environment`.
    """

    def __init__(
        self,
        command: tuple[str, ...] = COMMAND,
        *,
        idle: float = IDLE,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._command = command
        self._idle = idle
        self._environ = environ
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._numbers = itertools.count(1)
        self._asked_at = 0.0

    def ask(self, question: dict[str, Any], *, seconds: float) -> Any:
        """Ask, and wait for the answer. `Questions` bounds how many people wait.

        :raises RefusedThere: it is refused.
        :raises FailedThere: the code of the DAG file failed.
        :raises NotAnsweredThere: the process has ended, or does not answer in time; the next question has another one.
        """
        number = next(self._numbers)
        answer = Future[Any]()
        with self._lock:
            process = self._running()
            self._waiting[number] = _Waiting(process, answer)
            self._asked_at = time.monotonic()
            try:
                assert process.stdin is not None
                print(json.dumps({"id": number, **question}), file=process.stdin, flush=True)
            except OSError:
                answer.set_result(_ENDED)
        try:
            found = answer.result(timeout=seconds)
        except FutureTimeout:
            self._retire(process)
            text = (
                f"There was no answer within {seconds:g} s: the DAG file, a source or a state takes longer. The "
                "process that reads DAG files is replaced; repeat it."
            )
            raise NotAnsweredThere(text=text) from None
        finally:
            self._waiting.pop(number, None)
            self._end_if_retired(process)
        if found is _ENDED:
            raise NotAnsweredThere(text=found["failed"])
        if "refused" in found:
            raise RefusedThere(text=found["refused"])
        if "failed" in found:
            raise FailedThere(text=found["failed"])
        return found["found"]

    def end(self) -> None:
        """End the process; the next question starts another one."""
        with self._lock:
            self._end()

    def _retire(self, process: subprocess.Popen[str]) -> None:
        """Let the next question start another process; this one may hang forever."""
        with self._lock:
            if self._process is process:
                self._process = None

    def _end_if_retired(self, process: subprocess.Popen[str]) -> None:
        """End a process that gets no more questions, once no request waits for its answers."""
        with self._lock:
            is_retired = self._process is not process
            is_asked = any(each.process is process for each in list(self._waiting.values()))
        if is_retired and not is_asked:
            process.kill()
            process.wait()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._process = subprocess.Popen(
            self._command,
            env=dag_environment(self._environ, Settings.load().dag_environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            close_fds=True,
        )
        for what in (self._read, self._watch):
            threading.Thread(
                target=what, args=(self._process,), name="airflow_tx-dags", daemon=True
            ).start()
        return self._process

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                answer = json.loads(line)
                waiting = self._waiting.get(answer["id"])
            except (ValueError, KeyError, TypeError):
                log.warning("The process that reads DAG files wrote %.200r", line)
                continue
            if waiting is not None and not waiting.answer.done():
                waiting.answer.set_result(answer)
        # Retire it before it ends: it would never answer another question.
        self._retire(process)
        for each in list(self._waiting.values()):
            if each.process is process and not each.answer.done():
                each.answer.set_result(_ENDED)

    def _watch(self, process: subprocess.Popen[str]) -> None:
        while process.poll() is None:
            time.sleep(min(self._idle, 5.0))
            with self._lock:
                if self._process is process and time.monotonic() - self._asked_at >= self._idle:
                    self._end()

    def _end(self) -> None:
        process = self._process
        self._process = None
        if process is not None:
            process.kill()
            process.wait()


_dag_process = DagProcess()


def dag_process() -> DagProcess:
    """Return the one of this process."""
    return _dag_process
