"""The board's API in wrong hands: any path and any question, of a viewer of one DAG, and any preview of a user."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import airflow_tx.plugin
from airflow_tx.plugin.api.app import MOST_BODY
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks.requests import received
from tests.examples import examples
from tests.integration.board.server import OF_ONE_DAG, SAME_ORIGIN, Board
from tests.integration.cli_runs import Runs, fail
from tests.integration.pipeline import Pipeline

API = json.loads((Path(airflow_tx.plugin.__file__).parent / "ui" / "openapi.json").read_text())
TIMES_OUT = 240.0
"""Seconds after which an answer hangs."""
MOST_ASKED = 400
"""Packets to ZooKeeper that one answer may cost, with what the board asks in the background. The ledger is small."""
MOST_SENT = 2**20
MOST_REFUSED = 2000
"""Bytes of a refusal."""
MOST_BUSY = 5_000_000
"""Numbers that Python adds up in the time of a processor that a refusal takes at most, a tenth of a second or so. The
api-server answers no one else meanwhile."""
MOST_GROWTH = 96 * 2**20
"""Bytes by which the api-server may grow."""


@dataclass(frozen=True)
class Wrong:
    """A request as it is sent, byte for byte.

    :param target: path and query; its percent codes stay as they are.
    :param body: None: a GET; bytes are sent as they are.
    """

    target: str
    body: Any = None

    @property
    def content(self) -> bytes | None:
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return json.dumps(self.body).encode()


# --- what is asked ------------------------------------------------------------------------------------------------

_LONG = "x" * 3000
_KNOWN = {
    "topology": ["flights", "nosuch"],
    "dag_id": ["the_dag", "lossy", "hangs"],
    "run_id": ["r1", "r2"],
    "txid": ["1", "2", "3"],
    "action": [],
}
_ODD = [
    *("", "/", "//", "..", "%2F", "%2e%2e%2f", "flights/", "flights%00", "%0d%0a", "%1b[31m", "%ff", "%ED%A0%80"),
    *("99999999", "0", "-1", "1e3", "1.0", "٣", "+1", "9" * 30, "9" * 4500, "0x1", "None", "NaN", "true", "null"),
    *("%F0%9F%98%80", "the_dag%27--", "%5B", "%25", "%", "flights@", "flights@zookeeper_default/", "@/", _LONG),
]
_TIMES = [
    *("2026-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-23:59"),
    *("0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "-1", "253402300799", "1e300", "inf", "2026-02-30T00:00:00Z"),
]


def _path_values(name: str, schema: Mapping[str, Any]) -> st.SearchStrategy[str]:
    known = [*_KNOWN[name], *_schema(schema).get("enum", [])]
    free = st.one_of(st.text(max_size=40), st.integers().map(str)).map(lambda each: quote(each, safe=""))
    # Most requests should come past the first segment.
    return st.one_of(st.sampled_from(known), st.sampled_from(known), st.sampled_from(_ODD), free)


def _query_values(schema: Mapping[str, Any]) -> st.SearchStrategy[str]:
    known = [str(each) for part in _parts(schema) for each in part.get("enum", [])]
    odd = [*known, *_TIMES, *(each for each in _ODD if "%" not in each)]
    return st.one_of(st.sampled_from(odd), st.integers().map(str), st.datetimes().map(str), st.text(max_size=40))


def _schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in schema:
        return schema
    found: Mapping[str, Any] = API["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def _parts(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for each in schema.get("anyOf", [schema]):
        yield _schema(each.get("items", each))


@st.composite
def _wrong(draw: st.DrawFn, method: str) -> Wrong:
    paths = [path for path, of in API["paths"].items() if method in of and not path.endswith("/actions/{action}")]
    path = draw(st.sampled_from(paths))
    asked = {each["name"]: each for each in API["paths"][path][method].get("parameters", [])}
    query = []
    for name, each in asked.items():
        if each["in"] == "path":
            path = path.replace(f"{{{name}}}", draw(_path_values(name, each["schema"])))
        elif draw(st.booleans()):
            values = draw(st.lists(_query_values(each["schema"]), min_size=1, max_size=3))
            query += [(name, value) for value in values]
    target = "/tx" + quote(path, safe="/%@:;=+,!$&'()*~[]") + (f"?{urlencode(query)}" if query else "")
    return Wrong(target, None if method == "get" else draw(_bodies))


_bodies = st.one_of(
    st.fixed_dictionaries(
        {"txids": st.lists(st.one_of(st.integers(1, 3), st.integers()), max_size=120)},
        optional={"force": st.booleans(), "changed_rows": st.booleans()},
    ),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=20)),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
        max_leaves=8,
    ),
)

_T = "/tx/api/v1/topologies"
KILLERS = [
    *(Wrong(f"{_T}/flights/transactions/{txid}") for txid in ("99999999", "9" * 30, "9" * 4500, "-1", "0", "1" * 19)),
    *(Wrong(f"{_T}/{name}/transactions") for name in ("", "/", "%2F", "flights%2F", "%00", "%0a", "..", "%FF", _LONG)),
    *(Wrong(f"{_T}/{name}") for name in ("", "/", "%2e%2e%2fflights", "%2e", "a%2F%2Fb", "%EF%BF%BF", "%C2%80")),
    *(Wrong(f"/tx/api/v1/dags/{name}") for name in ("%00", "%2F", _LONG, "%F0%9F%98%80")),
    *(Wrong(f"/tx/api/v1/dags/the_dag/runs/{name}") for name in ("%00", "/", "a/../b", "%2F%2F", _LONG, "..", ".")),
    *(Wrong(f"{_T}/flights/transactions?since={quote(at)}&until={quote(at)}") for at in _TIMES),
    *(Wrong(f"{_T}/flights/transactions?before={at}") for at in ("99999999", "9" * 30, "-1", "1")),
    *(Wrong(f"{_T}?offset={at}&text={at}&limit={at}") for at in ("9" * 30, "-1", "1")),
    Wrong(f"{_T}?offset={'9' * 25}"),
    Wrong(f"{_T}?" + "&".join(["state=fine"] * 2000)),
]
"""What once took the api-server down, and its like."""
_P = f"{_T}/flights/actions/replay/preview"
KILLER_PREVIEWS = [
    Wrong(_P, {"txids": list(range(1, 1001))}),
    Wrong(_P, {"txids": list(range(1, 101))}),
    Wrong(_P, {"txids": [99_999_999, 10**30, 2**63, 2**31]}),
    Wrong(_P, {"txids": [1] * 100}),
]


MARK = "marked-input"


def _full(start: str, repeated: str, end: str) -> bytes:
    """A body that is as long as one may be."""
    return (start + repeated * ((MOST_BODY - len(start) - len(end)) // len(repeated)) + end).encode()


KILLER_BODIES = {
    "no numbers": _full('{"txids": [1', ',"x"', "]}"),
    "lists": _full('{"txids": [1', ",[]", "]}"),
    "numbers": _full('{"txids": [1', ",1", "]}"),
    "one number": _full('{"txids": [', "9", "]}"),
    "fractions": _full('{"txids": [1', ",1e-9", "]}"),
    "not a number": _full('{"txids": [1', ",NaN", "]}"),
    "names": ("{" + ",".join(f'"{number}":1' for number in range(6000)) + "}").encode(),
    "one name": _full('{"', "x", '": 1}'),
    "escapes": _full('{"txids": ["', "\\ud83d", '"]}'),
    "depth": b"[" * 900 + b"]" * 900,
    "too much depth": _full("", '{"txids":[', ""),
    "spaces": _full("", " ", ""),
    "no text": b"\xff\xfe" * (MOST_BODY // 2),
    "zeros": bytes(MOST_BODY),
    "no json": _full("", "txids=1&", ""),
    "nothing": b"",
}


# --- what is answered ---------------------------------------------------------------------------------------------


class Adversary:
    """Sends requests, and judges each answer.

    :param user: who is logged in.
    """

    def __init__(self, board: Board, zookeeper: LocalZooKeeper, user: str) -> None:
        self._client = board.client(user)
        self._client.timeout = httpx.Timeout(TIMES_OUT)
        self._zookeeper = zookeeper

    def send(self, wrong: Wrong) -> int:
        """Send a request, and count the work that its answer costs; its status."""
        before = received(self._zookeeper.port)
        answer = self.ask(wrong)
        asked = received(self._zookeeper.port) - before
        assert asked <= MOST_ASKED, (wrong, asked)
        return answer.status_code

    def ask(self, wrong: Wrong) -> httpx.Response:
        """Send a request; its answer."""
        method = "GET" if wrong.body is None else "POST"
        # A client would mend the path.
        extensions = {"target": wrong.target.encode()}
        headers = {} if wrong.body is None else {**SAME_ORIGIN, "Content-Type": "application/json"}
        answer = self._client.request(method, "/", content=wrong.content, headers=headers, extensions=extensions)
        assert answer.status_code < 500 or answer.status_code in (503, 504), (wrong, answer.text)
        assert len(answer.content) <= MOST_SENT, (wrong, len(answer.content))
        return answer

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def filled(board: Board, pipeline: Pipeline, runs: Runs) -> Pipeline:
    """One transaction is committed, one has failed, one waits."""
    pipeline.run("r1")
    fail(pipeline, pipeline.begin("r2"))
    pipeline.process(pipeline.begin("r3"))
    runs.make(r1="success", r2="failed", r3="running", r4="queued")
    return pipeline


@pytest.fixture
def viewer(board: Board, zookeeper: LocalZooKeeper, filled: Pipeline) -> Iterator[Adversary]:
    adversary = Adversary(board, zookeeper, OF_ONE_DAG)
    assert adversary.send(Wrong(f"{_T}/flights")) == 200
    yield adversary
    adversary.close()
    _check_pages(board)


@pytest.fixture
def user(board: Board, zookeeper: LocalZooKeeper, filled: Pipeline) -> Iterator[Adversary]:
    adversary = Adversary(board, zookeeper, "ulf")
    assert adversary.send(Wrong(_P, {"txids": [2]})) == 200
    yield adversary
    adversary.close()
    _check_pages(board)


def _check_pages(board: Board) -> None:
    """Every page is as it was, for everybody."""
    for reader in (OF_ONE_DAG, "vera"):
        lines = board.get("topologies", reader)["topologies"]
        assert "flights" in [line["topology"] for line in lines]
        assert [each["txid"] for each in board.get("topologies/flights/transactions", reader)["transactions"]] == [
            3,
            2,
            1,
        ]
        assert board.get("dags/the_dag", reader)["topology"] == "flights"
        assert board.get("dags/the_dag/runs/r2", reader)["txid"] == 2


@pytest.mark.long
def test_requests_that_once_made_the_page_unavailable_are_answered_with_bounded_work(viewer: Adversary) -> None:
    for wrong in KILLERS:
        viewer.send(wrong)


@pytest.mark.long
def test_previews_that_were_once_slow_are_answered_with_bounded_work(user: Adversary) -> None:
    for wrong in KILLER_PREVIEWS:
        user.send(wrong)


_ON_ONE_BOARD = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@pytest.mark.lead
@pytest.mark.worth("starts the api-server of the board, then asks it anything")
@settings(max_examples=examples(100, 2000), suppress_health_check=_ON_ONE_BOARD)
@given(wrong=_wrong("get"))
def test_random_read_requests_are_answered_with_bounded_work(viewer: Adversary, wrong: Wrong) -> None:
    viewer.send(wrong)


@pytest.mark.lead
@settings(max_examples=examples(40, 500), suppress_health_check=_ON_ONE_BOARD)
@given(wrong=_wrong("post"))
def test_random_preview_requests_are_answered_with_bounded_work(user: Adversary, wrong: Wrong) -> None:
    user.send(wrong)


@pytest.mark.long
def test_thousands_of_different_requests_do_not_increase_memory(board: Board, viewer: Adversary) -> None:
    for number in range(_WARM):
        _storm(viewer, number)
    before = board.resident_bytes
    for number in range(_WARM, _WARM + _STORM):
        _storm(viewer, number)
    assert board.resident_bytes - before < MOST_GROWTH


_WARM, _STORM = 50, 400
"""Rounds of a storm; each has five requests, whose addresses no other round has."""


def _storm(viewer: Adversary, number: int) -> None:
    moment = f"2025-{number % 12 + 1:02}-{number % 28 + 1:02}T{number % 24:02}:{number % 60:02}:00Z"
    for target in (
        f"{_T}/flights/transactions?since={moment}&limit={number % 1000 + 1}",
        f"{_T}/flights/transactions/{number + 10}",
        f"{_T}/{'n' * 200}{number}/transactions",
        f"/tx/api/v1/dags/d{number}/runs/{'r' * 200}{number}",
        f"{_T}?text={number}&offset={number}",
    ):
        viewer.ask(Wrong(target))


def test_a_viewer_request_with_a_huge_body_is_refused(board: Board, viewer: Adversary) -> None:
    body = '{"txids": [' + "1, " * 4_000_000 + "1]}"
    headers = {**SAME_ORIGIN, "Content-Type": "application/json"}
    with board.client(OF_ONE_DAG) as client:
        answer = client.post(_P.removeprefix("/tx"), content=body, headers=headers)
    assert answer.status_code == 413
    assert len(answer.content) < 100


@pytest.mark.parametrize("action", ["replay/preview", pytest.param("replay", marks=pytest.mark.lead)])
def test_a_malformed_request_body_is_refused_with_bounded_work(board: Board, viewer: Adversary, action: str) -> None:
    for kind, body in KILLER_BODIES.items():
        before = board.processor_seconds
        for _ in range(_AGAIN):
            answer = viewer.ask(Wrong(f"{_T}/flights/actions/{action}", body))
            assert 400 <= answer.status_code < 500, (kind, answer.text)
            assert len(answer.content) < MOST_REFUSED, (kind, answer.text)
        busy = (board.processor_seconds - before) / _AGAIN
        assert busy < _seconds_to_add(MOST_BUSY), (kind, busy)


def _seconds_to_add(count: int) -> float:
    """Measure the processor of this machine, as busy as it is."""
    before = time.process_time()
    sum(range(count))
    return time.process_time() - before


_AGAIN = 10
"""How often a body is sent, since the clock of a processor ticks a hundred times a second."""


@pytest.mark.lead
@settings(max_examples=examples(60, 500), suppress_health_check=_ON_ONE_BOARD)
@given(body=st.one_of(st.binary(max_size=300), _bodies.map(json.dumps).map(str.encode)), wrong=_wrong("post"))
def test_any_action_request_of_a_viewer_is_refused(viewer: Adversary, body: bytes, wrong: Wrong) -> None:
    for target in (wrong.target, wrong.target.removesuffix("/preview")):
        assert 400 <= viewer.send(Wrong(target, body)) < 500, target


def _with_a_mark() -> Iterator[Wrong]:
    """Every route, with a mark in one of its parts after the other."""
    for path, of in API["paths"].items():
        for method, operation in of.items():
            body = None if method == "get" else b"{}"
            known = {name: (values or ["replay"])[0] for name, values in _KNOWN.items()}
            names = [each["name"] for each in operation.get("parameters", []) if each["in"] == "path"]
            asked = [each["name"] for each in operation.get("parameters", []) if each["in"] == "query"]
            for marked in names:
                yield Wrong("/tx" + path.format(**{**known, marked: MARK}), body)
                yield Wrong("/tx" + path.format(**{**known, marked: f"{MARK}~00"}), body)
            plain = "/tx" + path.format(**known)
            for value in (MARK, MARK * 300, f"{MARK}\0"):
                yield from (Wrong(f"{plain}?{urlencode({name: value})}", body) for name in asked)
            if body is not None:
                bodies: list[Any] = [{MARK: 1}, {"txids": [MARK]}, {"txids": {MARK: 1}}, MARK, [MARK], {"force": MARK}]
                yield from (Wrong(plain, json.dumps(each).encode()) for each in bodies)
                yield Wrong(plain, f'{{"{MARK}'.encode())


def test_no_error_response_repeats_a_part_of_the_request(viewer: Adversary) -> None:
    refused = 0
    for wrong in _with_a_mark():
        answer = viewer.ask(wrong)
        if answer.status_code >= 400:
            refused += 1
            assert MARK not in answer.text, (wrong, answer.text)
    assert refused > 40
