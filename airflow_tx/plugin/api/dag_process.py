"""The process that runs the code of DAG files for an api-server. The api-server itself must not run this code."""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from typing import Any

from airflow_tx.base.config import Settings
from airflow_tx.base.errors import Refused, TxError
from airflow_tx.ledger import Words
from airflow_tx.plugin.api.snapshots import TopologySnapshot
from airflow_tx.transaction import AlarmLimits

# --- dag process --------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

IDLE = 300.0
"""Seconds without a request after which the process ends."""
ANSWERED_WITHIN = 60.0
"""The seconds to wait for the response to a request that changes nothing."""
COMMAND = (sys.executable, "-m", "airflow_tx.operations.actions.dag_server")


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
    """Return the environment variables of an api-server that the code of DAG files receives.

    :param environ: the environment of the api-server.
    :param own: the names of further variables that the DAG files need. In a name, `*` matches any text.
    """
    sections = [f"AIRFLOW__{section.upper()}__*" for section in _OF_SECTIONS]
    patterns = (*_OF_SYSTEM, *_OF_AIRFLOW, *sections, *own)
    found = {
        name: value
        for name, value in environ.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns) and not fnmatchcase(name, _USERS)
    }
    # Read Connections and Variables from Airflow's database and secrets backends, like the manager
    # of the DAG processor.
    return {**found, "_AIRFLOW_PROCESS_CONTEXT": "server"}


class RefusedThere(Refused):
    """A refusal, with the text from the process that ran the DAG file's code."""

    template = "{text}"


class FailedThere(TxError):
    """The code of a DAG file failed, so the request has no response."""

    template = "{text}"


class NotAnsweredThere(FailedThere):
    """The process that runs the code of DAG files hung or ended, so the request has no response."""


@dataclass(frozen=True)
class _Left:
    """A DAG file that hangs, and is temporarily not read.

    :param path: the path of the file, or None if it is unknown.
    :param changed: the modification time of the file, in nanoseconds.
    :param text: the error of requests that need the file.
    :param until: when the file may be read again, by `time.monotonic`. A file that has changed is read earlier.
    """

    path: str | None
    changed: int | None
    text: str
    until: float

    def is_due(self) -> bool:
        """Return whether the file may be read again."""
        try:
            changed = None if self.path is None else os.stat(self.path).st_mtime_ns
        except OSError:
            changed = None
        return time.monotonic() >= self.until or changed != self.changed


MOST_PROCESSES = 3
"""Processes at the same time: a new one starts beside a process in which a DAG file hangs."""
_ENDED = {"failed": "The process that reads DAG files has ended. Repeat the request."}


class DagProcess:
    """Starts the process at the first request, and ends it after a time without requests.

    :param command: the command line of the process.
    :param idle: seconds without a request after which the process ends.
    :param environ: the environment of the api-server. The process gets the part that `dag_environment` selects.
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
        self._waiting: dict[int, tuple[subprocess.Popen[str], Future[Any]]] = {}
        self._numbers = itertools.count(1)
        self._left: dict[str, _Left] = {}
        self._asked_at = 0.0

    def ask(self, question: dict[str, Any], *, seconds: float = ANSWERED_WITHIN) -> Any:
        """Send a request to the process, and wait for the response. `Questions` limits the number of waiting users.

        :param question: the request, as JSON.
        :param seconds: the longest time to wait for the response, in seconds.
        :raises RefusedThere: the process refuses the request.
        :raises FailedThere: the code of the DAG file failed.
        :raises NotAnsweredThere: the process has ended, or has not responded in time. The next request starts a new
            process.
        """
        until = time.monotonic() + seconds
        found = self._answer(question, seconds, until)
        while "slow" in found:  # not started, since another DAG file hangs
            found = self._answer(question, seconds, until)
        if found is _ENDED:
            raise NotAnsweredThere(text=found["failed"])
        if "refused" in found:
            raise RefusedThere(text=found["refused"])
        if "failed" in found:
            raise FailedThere(text=found["failed"])
        return found["found"]

    def _answer(self, question: dict[str, Any], seconds: float, until: float) -> dict[str, Any]:
        number = next(self._numbers)
        answer = Future[Any]()
        with self._lock:
            process = self._running()
            self._waiting[number] = (process, answer)
            self._asked_at = time.monotonic()
            asked = {"id": number, "leave": self._left_alone(), **question}
            if not _told(process, asked):
                answer.set_result(_ENDED)
        try:
            found: dict[str, Any] = answer.result(timeout=max(until - time.monotonic(), 0.0))
            if "slow" in found:
                self._leave(process, found["slow"])
            return found
        except FutureTimeout:
            self._retire(process)
            text = (
                f"There was no answer within {seconds:g} s, because the DAG file, a source or a state takes longer. "
                "The process that reads DAG files is replaced. Repeat the request."
            )
            raise NotAnsweredThere(text=text) from None
        finally:
            self._waiting.pop(number, None)
            self._end_if_retired(process)

    def end_search(self, name: str) -> None:
        """End a search whose browser has disconnected."""
        with self._lock:
            for process in self._asked():
                _told(process, {"end_search": name})

    def _asked(self) -> set[subprocess.Popen[str]]:
        """Return the processes that are working on a request."""
        return {process for process, _ in list(self._waiting.values())}

    def _left_alone(self) -> dict[str, str]:
        """Return the DAGs whose files are temporarily not read, each with the error."""
        self._left = {dag_id: each for dag_id, each in self._left.items() if not each.is_due()}
        return {dag_id: each.text for dag_id, each in self._left.items()}

    def _leave(self, process: subprocess.Popen[str], file: Mapping[str, Any]) -> None:
        """Record that a DAG file hangs in a process, and send later requests to another process."""
        with self._lock:
            until = time.monotonic() + file["again"]
            self._left[file["dag_id"]] = _Left(file["path"], file["changed"], file["text"], until)
            if self._process is process and len({*self._asked(), process}) < MOST_PROCESSES:
                self._process = None

    def end(self) -> None:
        """End the process. The next request starts a new process."""
        with self._lock:
            self._end()

    def _retire(self, process: subprocess.Popen[str]) -> None:
        """Send later requests to a new process, because this one may hang forever."""
        with self._lock:
            if self._process is process:
                self._process = None

    def _end_if_retired(self, process: subprocess.Popen[str]) -> None:
        """End a process that receives no more requests.

        Requests that are waiting for its response are finished first.
        """
        with self._lock:
            is_retired = self._process is not process
            is_asked = process in self._asked()
        if is_retired and not is_asked:
            _kill(process)

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
            start_new_session=True,
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
                if self._noted(process, answer):
                    continue
                _, waiting = self._waiting.get(answer["id"], (None, None))
            except (ValueError, KeyError, TypeError):
                log.warning(
                    "The process that reads DAG files wrote an unexpected line: %.200r", line
                )
                continue
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)
        # Stop sending requests to the process before it ends, since they would get no response.
        self._retire(process)
        for asked, waiting in list(self._waiting.values()):
            if asked is process and not waiting.done():
                waiting.set_result(_ENDED)

    def _noted(self, process: subprocess.Popen[str], told: Mapping[str, Any]) -> bool:
        """Handle a message of the process about a DAG file that hangs or was read.

        :return: whether it was such a message. Any other message is the response to a request.
        """
        if "hangs" in told:
            self._leave(process, told["hangs"])
            self._end_if_retired(process)
        elif "read" in told:
            with self._lock:
                self._left.pop(told["read"], None)
        return "id" not in told and ("hangs" in told or "read" in told)

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
            _kill(process)


def _told(process: subprocess.Popen[str], message: dict[str, Any]) -> bool:
    """Send a message to a process. Return False if the process has ended."""
    assert process.stdin is not None
    try:
        print(json.dumps(message), file=process.stdin, flush=True)
    except OSError:
        return False
    return True


def _kill(process: subprocess.Popen[str]) -> None:
    """End a process, and all processes that DAG file code has started in it."""
    if process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


_dag_process = DagProcess()


def dag_process() -> DagProcess:
    """Return the DAG process of this api-server."""
    return _dag_process


# --- lag board ----------------------------------------------------------------------------------------------------
# The lag of each source. A background thread requests the lags, so that no viewer has to wait.


@dataclass(frozen=True, kw_only=True)
class SourceLine:
    """The source of a topology.

    :param kind: transactional, opaque or non-transactional.
    :param description: the source as its DAG file defines it, or null if the file was not read yet.
    """

    kind: str
    partitioned: bool
    description: Words | None = None


@dataclass(frozen=True, kw_only=True)
class LagLine:
    """The lag of a topology: the data in its source that no transaction has taken.

    :param value: the lag, or null if it is unknown for the reason in `why`.
    :param at: when the source responded.
    :param why: the reason why the lag is unknown.
    """

    value: int | None = None
    unit: str | None = None
    at: datetime | None = None
    why: Words | None = None


@dataclass(frozen=True, kw_only=True)
class AckersLine:
    """The load of the ackers of a topology whose tasks emit messages.

    :param trees: the number of incomplete message trees.
    :param acks_a_second: the number of acked messages per second since the previous request, or null after the first
        request.
    :param at: when the ackers responded.
    """

    trees: int
    acks_a_second: float | None
    at: datetime


EVERY = 15.0
"""The seconds between two requests for a source's lag."""
_MOST_SEEN = 240
_Key = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class LagPoint:
    """The lag of a source at one moment."""

    at: datetime
    value: int


class LagBoard:
    """The last responses about the sources of all topologies."""

    def __init__(self, process: DagProcess | None = None) -> None:
        self._process = process or dag_process()
        self._lock = threading.Lock()
        self._asked_at: dict[_Key, float] = {}
        self._found: dict[_Key, tuple[datetime, Mapping[str, Any]]] = {}
        self._seen: dict[_Key, deque[LagPoint]] = {}
        self._thread: threading.Thread | None = None

    def lag_line(self, snapshot: TopologySnapshot) -> LagLine:
        """Return the last known lag of a topology."""
        if _key(snapshot) not in self._found:
            return LagLine(why="The topology's source has not answered yet.")
        at, found = self._found[_key(snapshot)]
        if "count" in found:
            return LagLine(value=found["count"], unit=found["unit"], at=at)
        return LagLine(at=at, why=found["why"])

    def ackers_line(self, snapshot: TopologySnapshot) -> AckersLine | None:
        """Return the last known load of the ackers of a topology, or None if it is unknown."""
        at, found = self._found.get(_key(snapshot), (None, {}))
        load = found.get("ackers")
        return None if at is None or load is None else AckersLine(**load, at=at)

    def seen(self, snapshot: TopologySnapshot) -> Sequence[LagPoint]:
        """Return the lags that this api-server has received, the oldest first.

        It requests them only while a user views them.
        """
        return tuple(self._seen.get(_key(snapshot), ()))

    def limits(self, snapshot: TopologySnapshot) -> AlarmLimits:
        """Return the limits of lateness in the DAG file of a topology. There are no limits until the file was read."""
        _, found = self._found.get(_key(snapshot), (None, {}))
        return AlarmLimits(**found.get("limits", {}))

    def source_line(self, snapshot: TopologySnapshot) -> SourceLine:
        """Return the source of a topology."""
        _, found = self._found.get(_key(snapshot), (None, {}))
        record = snapshot.record
        return SourceLine(
            kind=record.source_kind,
            partitioned=record.partitioned,
            description=found.get("description"),
        )

    def ask_for(self, snapshots: Sequence[TopologySnapshot]) -> None:
        """Request the lags of these topologies in the background, if the last responses are too old."""
        now = time.monotonic()
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            due = [
                each
                for each in snapshots
                if now - self._asked_at.get(_key(each), float("-inf")) >= EVERY
            ]
            if not due:
                return
            self._asked_at.update({_key(each): now for each in due})
            self._thread = threading.Thread(
                target=self._ask, args=(due,), name="airflow_tx-lags", daemon=True
            )
            self._thread.start()

    def _ask(self, due: Sequence[TopologySnapshot]) -> None:
        asked = [(each.name, *each.as_asked) for each in due]
        try:
            found = self._process.ask({"lags": asked})
        except TxError as error:
            found = {each.name: {"why": str(error)} for each in due}
        now = datetime.now(timezone.utc)
        for each in due:
            answer = found[each.name]
            at = now - timedelta(seconds=answer.get("age", 0.0))
            self._found[_key(each)] = (at, answer)
            if "count" in answer:
                self._seen.setdefault(_key(each), deque(maxlen=_MOST_SEEN)).append(
                    LagPoint(at=at, value=answer["count"])
                )


def _key(snapshot: TopologySnapshot) -> _Key:
    """Return the cache key of a lag. It depends on DAG and incarnation, since each may have another source."""
    return snapshot.name, snapshot.record.dag_id, snapshot.record.incarnation


_lag_board = LagBoard()


def lag_board() -> LagBoard:
    """Return the lag board of this api-server."""
    return _lag_board
