"""`python -m airflow_tx.operations.actions.dag_server`: answer api-server requests that need DAG code.

The process reads requests from stdin, and writes responses to stdout in any order. Each line is one JSON object. The
process ends when stdin is closed.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from airflow.sdk.configuration import conf
from sqlalchemy.exc import DBAPIError

from airflow_tx.base import compat
from airflow_tx.base.config import Settings
from airflow_tx.base.errors import Refused, TxError
from airflow_tx.base.inquiry import Inquiry
from airflow_tx.ledger import Audit, Ledger, LedgerView, Paths
from airflow_tx.operations.actions.action import ActionTarget, ParsedDag, PersonalAction
from airflow_tx.operations.actions.dags import checked_dag, dag_path, elsewhere, transactional_dag
from airflow_tx.operations.actions.rejected import (
    check_rejected,
    rejected_rows_of,
    rejected_table,
)
from airflow_tx.operations.actions.request import ActionRequest
from airflow_tx.operations.actions.search import Found, search_ledger
from airflow_tx.operations.actions.stale import StaleReading
from airflow_tx.outputs import AckerWatch, shared_ackers
from airflow_tx.sources import Lag, LagWatch, Source
from airflow_tx.state import RejectedFilter
from airflow_tx.transaction import TransactionSpec

log = logging.getLogger(__name__)

READ_WITHIN = 30.0
PARSED_FOR = 60.0
"""Maximum age, in seconds, of a parsed DAG file that is used to query lags."""
LAGS_WITHIN_THERE = 10.0
"""Seconds to wait for the responses of all sources."""
ACKERS_WITHIN_THERE = 1.0
"""Minimum number of seconds to wait for the ackers of a topology."""
FIND_WITHIN_THERE = 15.0
"""Time limit of a search, in seconds. A search then returns its matches so far."""
REJECTED_SHOWN = 20
"""Maximum number of rejected rows in one response."""
REASONS_SHOWN = 50
LONGEST_REJECTED = 2000
"""Maximum number of characters of a rejected row, or of its reason, in a response."""
TURN_WITHIN = 3.0
"""Seconds that a request waits while another DAG file is read. Then another process handles it."""
READ_AGAIN = 120.0
"""Seconds until a DAG file whose import timed out is read again. A changed file is read earlier."""
_AT_ONCE = 16
_DATABASE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
_NOT_ALLOWED = "airflow-db-not-allowed:///"

DagQuestion = dict[str, Any]


class SourceElsewhere(TxError):
    """Signals that the DAG file now has another topology, so the source of this topology is unknown."""

    template = "{problem}"


@dataclass(frozen=True)
class _SourceQuestion:
    """A topology whose source is queried.

    :param name: name of the topology in the response.
    :param dag_id: DAG that the topology record names.
    """

    name: str
    dag_id: str
    conn_id: str
    root: str
    topology: str

    @classmethod
    def of(cls, asked: Sequence[str]) -> _SourceQuestion:
        """Parse a request about one topology. Its response does not repeat the topology's name."""
        return cls(asked[-1], *asked)

    @property
    def paths(self) -> Paths:
        return Paths(self.root, self.topology)


class DagNotRead(TxError):
    """Signals that a DAG file was not read in time. Its code is probably waiting for a server that does not respond."""

    template = (
        "The file of DAG {dag_id}{file} has not been read within {seconds:g} s, "
        "the limit of [core] dagbag_import_timeout.",
        "Its code must not contact a server while the file is imported. "
        "The file is read again once it has changed, or after {again:g} s.",
    )


class DagSlow(TxError):
    """Signals that a request was not processed, since the process is still reading another DAG file.

    :param read: the DAG whose file is being read.
    """

    template = (
        "The process has been reading another DAG file for more than {seconds:g} s.",
        "Nothing was done",
    )


class DagLeft(TxError):
    """Signals that a DAG file must not be read now, since it hung recently or another process is reading it."""

    template = "{text}"


class DagReader:
    """Reads DAG files one at a time, since they share Airflow's context. A hanging file delays other files only once.

    :param seconds: maximum number of seconds to read a file.
    :param turn: seconds that a request waits while another file is read, or -1 for no limit.
    :param report: function that reports a file to the api-server if its read hangs or is slow.
    """

    def __init__(
        self,
        seconds: float,
        turn: float = -1,
        report: Callable[[dict[str, Any]], None] = lambda event: None,
    ) -> None:
        self._seconds = seconds
        self._wait = turn
        self._report = report
        self._turn = threading.Lock()
        self._reading = ""
        self._hanging: dict[str, Inquiry[ParsedDag]] = {}
        self.left: Mapping[str, str] = {}
        """The DAGs whose files must not be read now, each with the reason."""

    def read(
        self, dag_id: str, parse: Callable[[], ParsedDag], *, in_turn: bool = False
    ) -> ParsedDag:
        """Read the file of a DAG.

        :param parse: function that reads the file.
        :param in_turn: whether to wait indefinitely until other files have been read.
        :raises DagNotRead: the read takes too long. The file is not read again while its code is still running.
        :raises DagSlow: another file takes too long. No code of this file has run.
        :raises DagLeft: the file must not be read now.
        """
        self._check(dag_id)
        if not self._turn.acquire(timeout=-1 if in_turn else self._wait):
            raise DagSlow(seconds=self._wait, read=self._reading)
        try:
            self._check(dag_id)
            self._reading = dag_id
            began = time.monotonic()
            reading = Inquiry[ParsedDag](f"file of {dag_id}")
            reading.ask(lambda: parse)
            if not reading.wait(self._seconds):
                self._hanging[dag_id] = reading
                error = self._not_read(dag_id)
                self._report({"hangs": hanging_file(dag_id, str(error))})
                raise error
        finally:
            self._turn.release()
        if 0 <= self._wait < time.monotonic() - began:
            self._report({"read": dag_id})
        if reading.answer is None:
            raise reading.error or self._not_read(dag_id)
        return reading.answer

    def _check(self, dag_id: str) -> None:
        hanging = self._hanging.get(dag_id)
        if hanging is not None and not hanging.wait(0.0):
            raise self._not_read(dag_id)
        if dag_id in self.left:
            raise DagLeft(text=self.left[dag_id])

    def _not_read(self, dag_id: str) -> DagNotRead:
        _, file = _known_path(dag_id)
        return DagNotRead(dag_id=dag_id, file=file, seconds=self._seconds, again=READ_AGAIN)


def hanging_file(dag_id: str, text: str = "") -> dict[str, Any]:
    """Describe a DAG file that takes long to read. All requests about its topology get this response.

    :param text: text of the error, or "" while the file is still being read.
    :return: JSON with `path` (null if it is unknown), `changed` (modification time), and `again` (seconds until the
        next read).
    """
    path, file = _known_path(dag_id)
    still = f"The file of DAG {dag_id}{file} takes long to read, and is still being read. Try again in a minute."
    try:
        changed = None if path is None else path.stat().st_mtime_ns
    except OSError:
        changed = None
    return {
        "dag_id": dag_id,
        "path": None if path is None else str(path),
        "changed": changed,
        "text": text or still,
        "again": READ_AGAIN,
    }


def _known_path(dag_id: str) -> tuple[Path | None, str]:
    """Return the file of a DAG, and its path in parentheses for an error message."""
    try:
        path = dag_path(dag_id)
    except Exception:  # noqa: BLE001 - the database or the bundle may be away; the error still names the DAG
        path = None
    return path, "" if path is None else f" ({path})"


class DagServer:
    """Processes requests. A source that does not respond delays only the requests about it."""

    def __init__(self, report: Callable[[dict[str, Any]], None] = lambda event: None) -> None:
        # Airflow reports a file that takes longer as broken. With the option 0, there is no limit.
        limit = conf.getfloat("core", "dagbag_import_timeout", fallback=READ_WITHIN)
        self._reader = DagReader(limit or READ_WITHIN, TURN_WITHIN, report)
        self._searches: set[str] = set()
        self._parsed: dict[str, tuple[float, ParsedDag]] = {}
        self._watches: dict[_SourceQuestion, LagWatch] = {}
        self._acker_watches: dict[_SourceQuestion, AckerWatch] = {}

    def answer(self, question: DagQuestion) -> Any:
        """Process one request.

        :raises TxError: the request cannot be processed.
        """
        self._reader.left = question.get("leave", {})
        if "lags" in question:
            return self._lags(question["lags"])
        if "stale" in question:
            return self._stale(_SourceQuestion.of(question["stale"]))
        if "find" in question:
            asked = _SourceQuestion.of(question["find"])
            return asdict(self._search(asked, question["what"], question.get("search", "")))
        if "rejected" in question:
            return self._rejected(_SourceQuestion.of(question["rejected"]), question["txid"])
        is_done = question["what"] != "preview"
        action = self._action(ActionRequest.from_json(question["action"]), in_turn=is_done)
        if question["what"] == "preview":
            return asdict(action.preview())
        audit = Audit(question["who"], question["why"])
        return [asdict(each) for each in action.effects(audit, question["version"])]

    def end_search(self, name: str) -> None:
        """Stop a search after the browser has disconnected."""
        self._searches.discard(name)

    def _search(self, asked: _SourceQuestion, what: str, name: str) -> Found:
        ledger = _ledger(asked.conn_id, asked.paths)
        self._searches.add(name)
        try:
            return search_ledger(
                ledger,
                self._source(asked),
                what,
                seconds=FIND_WITHIN_THERE,
                has_left=lambda: name != "" and name not in self._searches,
            )
        finally:
            self._searches.discard(name)

    def _rejected(self, asked: _SourceQuestion, txid: int) -> dict[str, Any]:
        """Return some rejected rows of a transaction, with the reasons.

        Long texts are shortened, since a row may be megabytes long.
        """
        ledger = _ledger(asked.conn_id, asked.paths)
        check_rejected(LedgerView(ledger.store, ledger.paths).details(txid).transaction, asked.name)
        found = rejected_rows_of(
            rejected_table(self._spec(asked)),
            RejectedFilter(txid, txid),
            topology=asked.name,
            incarnation=ledger.incarnation(),
            most=REJECTED_SHOWN,
            most_counts=REASONS_SHOWN,
        )
        counts = found.counts
        shown = [
            {name.removeprefix("tx_"): each for name, each in row.items()} for row in found.rows
        ]
        return {
            "reasons": [_cut(asdict(each)) for each in counts.counts],
            "others": counts.others,
            "rows": counts.rows,
            "shown": list(map(_cut, shown)),
        }

    def _stale(self, asked: _SourceQuestion) -> dict[str, Any]:
        """Read the DAG file of a topology, and compare the topology's receipts with it.

        It raises the same errors as `_source`.
        """
        parsed = self._reader.read(asked.dag_id, _parse(asked.dag_id))
        found = StaleReading(_ledger(asked.conn_id, asked.paths), _checked(parsed, asked)).read()
        groups = [{**vars(each), "transactions": each.transactions} for each in found.groups]
        return {"groups": groups, "compared": found.compared, "unknown": found.unknown}

    def _lags(self, asked: Sequence[tuple[str, ...]]) -> dict[str, dict[str, Any]]:
        questions = [_SourceQuestion(*each) for each in asked]
        found = {each.name: self._ask(each) for each in questions}
        deadline = time.monotonic() + LAGS_WITHIN_THERE
        for each in questions:
            watch = self._watches[each]
            in_time = watch.wait(max(deadline - time.monotonic(), 0.0))
            if isinstance(watch.answer, Lag):
                # An old response is better than none. The page shows its age.
                found[each.name] = {
                    "count": watch.answer.count,
                    "unit": watch.answer.unit,
                    "age": watch.age,
                }
            elif not in_time:
                found[each.name] = {
                    "why": f"its source has not answered within {LAGS_WITHIN_THERE:g} s"
                }
            elif watch.answer is not None:
                found[each.name] = {"why": str(watch.answer.reason), "age": watch.age}
        for each in questions:
            spec = self._known_spec(each)
            if spec is not None:
                left = max(deadline - time.monotonic(), ACKERS_WITHIN_THERE)
                found[each.name]["description"] = repr(spec.source)
                found[each.name]["limits"] = asdict(spec.limits)
                found[each.name]["ackers"] = self._acker_load(each, spec, left)
        return found

    def _acker_load(
        self, question: _SourceQuestion, spec: TransactionSpec, seconds: float
    ) -> dict[str, Any] | None:
        """Query the load of a topology's ackers. Return None if it has no ackers, or they do not respond in time."""
        if not spec.ackers:
            return None
        watch = self._acker_watches.setdefault(question, AckerWatch(spec.topology))
        try:
            ledger = _ledger(question.conn_id, question.paths)
            connect = partial(shared_ackers, spec.acker_store, ledger.store, ledger.paths.root)
            opened = ledger.open_records()
            watch.ask_ackers(connect, opened, ledger.incarnation())
        except TxError as error:
            log.info("The ackers of topology %s are not shown: %s", question.name, error)
            return None
        in_time = watch.wait(seconds)
        if in_time and watch.error is None and watch.answer is not None:
            return asdict(watch.answer)
        why = (watch.error if in_time else None) or f"no answer within {seconds:g} s"
        log.info("The ackers of topology %s are not shown: %s", question.name, why)
        return None

    def _ask(self, question: _SourceQuestion) -> dict[str, Any]:
        """Query a source in the background, unless an earlier query is still pending. An error becomes the response."""
        if question not in self._watches:
            self._watches[question] = LagWatch(
                question.topology, lambda: self._source(question), every=0.0
            )
        try:
            self._watches[question].latest(_ledger(question.conn_id, question.paths).position)
        except TxError as error:
            return {"why": str(error)}
        return {"why": "its source was not queried"}

    def _source(self, question: _SourceQuestion) -> Source:
        """Find the source of a topology.

        :raises SourceElsewhere: the DAG now has another topology, or names another ledger for the topology.
        """
        return self._spec(question).source

    def _spec(self, question: _SourceQuestion) -> TransactionSpec:
        """Find the `Transaction` of a topology. Raises the same errors as `_source`."""
        return _checked(self._parsed_lately(question.dag_id), question)[0]

    def _known_spec(self, question: _SourceQuestion) -> TransactionSpec | None:
        """Return the `Transaction` of a topology from its DAG file.

        Return None if the file was not read, or has another topology.
        """
        _, parsed = self._parsed.get(question.dag_id, (None, None))
        if parsed is None or elsewhere(parsed[0], question.paths, question.conn_id):
            return None
        return parsed[0]

    def _parsed_lately(self, dag_id: str) -> ParsedDag:
        at, found = self._parsed.get(dag_id, (float("-inf"), None))
        if found is None or time.monotonic() - at > PARSED_FOR:
            found = self._reader.read(dag_id, _parse(dag_id))
            self._parsed[dag_id] = (time.monotonic(), found)
        return found

    def _action(self, request: ActionRequest, *, in_turn: bool) -> PersonalAction:
        ledger = _ledger(request.conn_id, Paths(request.root, request.topology))
        record = ledger.topology()

        def parsed() -> ParsedDag:
            parse = partial(checked_dag, record.dag_id, ledger.paths, request.conn_id, option="DAG")
            # An action waits indefinitely. Another process must not start it a second time.
            return self._reader.read(record.dag_id, parse, in_turn=in_turn)

        target = ActionTarget(
            ledger,
            record,
            parsed,
            request.may_create,
            request.sees_audit,
            request.coordinator,
            check_runs=True,
        )
        return request.action(target)


def _parse(dag_id: str) -> Callable[[], ParsedDag]:
    return partial(transactional_dag, dag_id, anywhere=False, option="DAG")


def _checked(parsed: ParsedDag, question: _SourceQuestion) -> ParsedDag:
    if problem := elsewhere(parsed[0], question.paths, question.conn_id):
        raise SourceElsewhere(problem=problem)
    return parsed


def _ledger(conn_id: str, paths: Paths) -> Ledger:
    from airflow_tx.hooks import shared_store

    return Ledger(shared_store(conn_id), paths, history=Settings.load().history)


def _cut(row: Mapping[str, Any]) -> dict[str, Any]:
    """Shorten the long texts in a rejected row."""
    long = {
        name: f"{value[:LONGEST_REJECTED]} ..."
        for name, value in row.items()
        if isinstance(value, str) and len(value) > LONGEST_REJECTED
    }
    return {**row, **long}


def _answered(question: DagQuestion, answer: Callable[[DagQuestion], Any]) -> DagQuestion:
    """Return the response to a request as JSON. If the request fails, return its error."""
    try:
        return {"id": question["id"], "found": answer(question)}
    except DagSlow as error:
        return {"id": question["id"], "slow": hanging_file(error.read)}
    except Refused as error:
        return {"id": question["id"], "refused": compat.masked(str(error))}
    except DBAPIError as error:  # the error text contains the SQL statement
        text = f"Airflow's database cannot be used now: {error.orig}"
        return {"id": question["id"], "failed": compat.masked(text)}
    except Exception as error:  # noqa: BLE001 - the code of a DAG file may raise anything
        text = str(error) if isinstance(error, TxError) else f"{type(error).__name__}: {error}"
        return {"id": question["id"], "failed": compat.masked(text)}


def prepare() -> None:
    """Import modules and configure the mappers of Airflow's models before a second thread starts.

    Otherwise two threads can deadlock. One thread imports a model and needs SQLAlchemy's mapper lock. The other
    configures the mappers and needs an import lock.
    """
    from airflow.dag_processing import dagbag  # noqa: F401
    from airflow.dag_processing.bundles import manager  # noqa: F401
    from airflow.models import import_all_models
    from sqlalchemy.orm import configure_mappers

    from airflow_tx.hooks import shared_store  # noqa: F401
    from airflow_tx.ledger import WatchedStore  # noqa: F401

    import_all_models()  # type: ignore[no-untyped-call]
    configure_mappers()


def hide_database() -> None:
    """Hide the address of Airflow's database from DAG code, as Airflow's DAG processor does.

    This process has already configured its sessions.
    """
    from airflow import settings

    assert settings.engine is not None
    for name in [name for name in os.environ if name.startswith(_DATABASE)]:
        del os.environ[name]
    # Environment variables take precedence over the configuration file.
    os.environ[_DATABASE] = _NOT_ALLOWED
    settings.SQL_ALCHEMY_CONN = _NOT_ALLOWED


def main() -> None:
    """Process requests until the api-server closes stdin."""
    from airflow.utils.providers_configuration_loader import providers_configuration_loaded

    questions = sys.stdin
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # DAG code may print text, which is not part of a response
    writing = threading.Lock()

    @providers_configuration_loaded
    def serve() -> None:
        prepare()
        hide_database()

        def write(answer: dict[str, Any]) -> None:
            with writing:
                print(json.dumps(answer), file=answers, flush=True)

        server = DagServer(write)
        pool = ThreadPoolExecutor(_AT_ONCE)
        for line in questions:
            question = json.loads(line)
            if "end_search" in question:
                server.end_search(question["end_search"])
            else:
                pool.submit(lambda asked: write(_answered(asked, server.answer)), question)

    serve()
    # Do not wait for a thread whose source does not respond.
    os._exit(0)


if __name__ == "__main__":
    main()
