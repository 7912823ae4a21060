"""Every text that a record may hold, in every field of every record, and every question of a viewer about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import cycle, product
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from urllib.parse import quote

import httpx
import pytest
from msgspec import structs

from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger import records
from airflow_tx.ledger.api import Create, Paths
from airflow_tx.ledger.json_text import Moment, Record, replace
from airflow_tx.ledger.records import (
    Ack,
    AlarmNote,
    Binding,
    Metadata,
    RaisedAlarms,
    RepairRecord,
    Skipped,
    TopologyRecord,
    WatcherRecord,
    Wish,
    encode,
)
from airflow_tx.ledger.steps.correction import ComparedUpTo
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.steps.watcher import open_watcher
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from tests.integration.board.people import everything_done
from tests.integration.board.routes import address, routes
from tests.integration.board.server import ROOT, Board
from tests.integration.cli_runs import Runs
from tests.integration.pipeline import Pipeline

TEXTS = {
    "low": "a row with gr\udcf6sse",
    "high": "half an emoji \ud83d",
    "pair": "\ud83d\ude00 in two halves",
    "nul": "a\x00b",
    "turned": "a\u202eb",
    "long": "x" * 100_000,
    "script": "</script><img src=x onerror=alert(1)>",
    "colours": "\x1b[31mred\x1b[0m",
    "empty": "",
}
DAMAGES: dict[str, Any] = {
    "nan": float("nan"),
    "digits": 10**400,
    "number": 5,
    "text": "two",
    "none": None,
    "list": [[]],
    "object": {"a": {}},
    "year": "10000-01-01T00:00:00+00:00",
    "zone": "2026-01-01T00:00:00",
}
WHEN = "2026-01-01T00:00:00+00:00"


@dataclass(frozen=True)
class Node:
    """One record of the ledger that is copied; `kind`: its class, None: it is none, such as a folder."""

    path: str
    data: bytes
    kind: type[Any] | None


DAMAGED = (b"{", b"", b"null", b'{"format":1,"other":1}', b"[" * 50_000)
WHO, WHY = "ada", "because"
AUDIT = Audit(WHO, WHY)


def kinds() -> list[type[Record]]:
    """Every class of a record, also one that nobody has thought of here, without those of values within records."""
    classes = [each for each in vars(records).values() if isinstance(each, type) and issubclass(each, Record)]
    within = {part for each in classes for _, shape in fields_of(each) for part in parts(shape)}
    return [each for each in classes if each.__module__ == records.__name__ and each not in within]


def parts(shape: Any) -> Iterator[Any]:
    """The types that a type is made of, and itself."""
    yield shape
    for each in get_args(shape):
        yield from parts(each)


def kind_of(paths: Paths, path: str) -> type[Any] | None:
    folder = path.rpartition("/")[0]
    known: dict[str, type[Any]] = {
        paths.transactions: records.TransactionRecord,
        paths.metas: Metadata,
        paths.histories: records.TransactionRecord,
        paths.runs: Binding,
        paths.all_skipped: Skipped,
        paths.wishes: Wish,
        paths.repairs: RepairRecord,
        paths.ends: records.BookPage,
        paths.all_behind: records.Behind,
        paths.watchers: WatcherRecord,
    }
    alone = {
        paths.record: records.TopologyRecord,
        paths.current: records.Counter,
        paths.allocated: records.Counter,
        paths.alarms: RaisedAlarms,
        paths.followed: records.Followed,
    }
    if folder.rpartition("/")[0] == paths.all_acks:
        return Ack
    return alone.get(path) or known.get(folder)


def nodes(store: ZooKeeperStore, paths: Paths, path: str) -> Iterator[Node]:
    node, children = store.get(path), store.children(path)
    assert node is not None
    yield Node(path.removeprefix(paths.base), node.data, kind_of(paths, path) if node.data else None)
    for name in children.names if children else ():
        yield from nodes(store, paths, f"{path}/{name}")


def filled(kind: Any, text: str) -> Any:
    """A value of a type, with a text in every place that may have one."""
    origin, within = get_origin(kind), get_args(kind)
    whole = {str: text, Moment: WHEN, Any: {text: [text], "why": text}, Remedy: [text]}
    if kind in whole:
        return whole[kind]
    if origin is Annotated:
        return filled(within[0], text)
    if origin in (Union, UnionType):
        return text if str in within else filled(next(each for each in within if each is not NoneType), text)
    if origin is Literal:
        return within[0]
    if origin is list:
        return [filled(within[0], text)]
    if origin is dict:
        return {text: filled(within[1], text)}
    if isinstance(kind, type) and issubclass(kind, Record):
        return {name: filled(each, text) for name, each in fields_of(kind)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind)).value
    return None if kind is NoneType else kind(1)


def fields_of(kind: type[Record]) -> list[tuple[str, Any]]:
    return [(each.encode_name, each.type) for each in structs.fields(kind)]


def changed(each: Node, kind: type[Any], name: str, value: Any) -> bytes:
    if each.kind is not kind:
        return each.data
    known = json.loads(each.data)
    return json.dumps({**known, name: merged(known.get(name), value)}).encode()


def merged(known: Any, value: Any) -> Any:
    """Keep what a record has within, so that a text alone is what is new."""
    if isinstance(known, dict) and isinstance(value, dict):
        return {**known, **{name: merged(known.get(name), each) for name, each in value.items()}}
    if isinstance(known, list) and isinstance(value, list) and known:
        return [merged(known[0], each) for each in value]
    return value


def plant(
    store: ZooKeeperStore, topology: str, template: Sequence[Node], kind: type[Any], name: str, value: Any
) -> None:
    paths = Paths(ROOT, topology)
    made = [Create(f"{paths.base}{each.path}", changed(each, kind, name, value)) for each in template]
    # ZooKeeper takes a megabyte at once; parents come first.
    for each in made:
        store.multi([], [each])


@pytest.fixture
def template(board: Board, store: ZooKeeperStore, runs: Runs) -> list[Node]:
    """A ledger in which everything was done, with a record of each kind."""
    runs.make(r1="success", r2="success", r3="failed", r4="failed")
    pipeline = Pipeline(store, ROOT, journals=True, upstream="orders")
    pipeline.request = replace(pipeline.request, dag_id="the_dag")
    everything_done(pipeline, AUDIT)
    store.multi([], [Create(pipeline.paths.alarms, encode(RaisedAlarms({"late": AlarmNote("1", WHEN)})))])
    pipeline.ledger.run(open_watcher, "watcher", from_first=True)
    pipeline.ledger.note_behind(1, {3: 9}, why="the journal is over")
    pipeline.ledger.note_compared(ComparedUpTo("orders", 9, "birth"))
    found = list(nodes(store, pipeline.paths, pipeline.paths.base))
    assert {each.kind for each in found} >= set(kinds())
    return found


def questions(topology: str) -> Iterator[str]:
    """Every route that reads about a topology, and about each of its transactions."""
    for method, path in routes():
        if method == "GET" and "{topology" in path:
            for txid in (1, 2, 3, 4) if "{txid}" in path else (1,):
                yield address(path, quote(topology), txid)


def questions_of_all(topologies: int) -> Iterator[str]:
    """Every route that reads about all topologies, page after page, or about one of the runs of a DAG."""
    for method, path in routes():
        if method == "GET" and "{topology" not in path and "/board" not in path:
            for txid in (1, 2, 3, 4) if "run_id" in path else (1,):
                yield address(path, "", txid).replace("runs/r1", f"runs/r{txid}")
    for offset in range(0, topologies + 1, 100):
        yield f"/api/v1/topologies?offset={offset}"


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in value if isinstance(value, (list, dict)) else ():
        yield from texts_in(each)
        yield from texts_in(value[each]) if isinstance(value, dict) else ()


def asked(client: httpx.Client, question: str) -> httpx.Response:
    try:
        return client.get(question)
    except httpx.TransportError:
        return client.get(question)  # an answer with 500 ends the connection


def is_fit(body: bytes) -> bool:
    text = "".join(texts_in(json.loads(body.decode())))
    return text == text.encode("utf-8", "replace").decode()


def is_right(question: str, answer: httpx.Response) -> bool:
    """A source knows the batches of its own DAG alone; a record that is damaged is named where it is asked for."""
    if "/search?" in question and "{" not in question and question.count("/") > 4:
        return answer.status_code in (200, 409)
    asks_dag = question.endswith(("/stale", "/rejected"))
    if asks_dag and answer.status_code in (404, 409):
        return True
    is_named = " cannot be read" in answer.text and ("/transactions/" in question or asks_dag)
    return answer.status_code == 200 or (is_named and answer.status_code == 503)


def read(client: httpx.Client, asked_of: Iterable[str]) -> tuple[int, list[str]]:
    """How many questions are answered, and the other ones."""
    wrong = []
    count = 0
    for question in asked_of:
        count += 1
        answer = asked(client, question)
        if not is_right(question, answer) or not is_fit(answer.content):
            wrong.append(f"{question}: {answer.status_code} {answer.text[:300]}")
    return count, wrong


@pytest.mark.parametrize(
    "called", [pytest.param(each, marks=[] if each in ("low", "nul") else [pytest.mark.long]) for each in TEXTS]
)
def test_no_text_in_a_record_field_causes_an_error_response(
    board: Board, store: ZooKeeperStore, template: list[Node], called: str
) -> None:
    planted = []
    for kind in kinds():
        for name, shape in fields_of(kind):
            value = filled(shape, TEXTS[called])
            if any(True for _ in texts_in(value)):
                planted.append(f"{kind.__name__}-{name}")
                plant(store, planted[-1], template, kind, name, value)
    with board.client("ada") as client:
        some, wrong = read(client, (each for topology in planted for each in questions(topology)))
        more, of_all = read(client, questions_of_all(len(planted)))
    print(f"{called} in {len(planted)} fields: {some + more} answers")
    assert [*wrong, *of_all] == []


def test_a_record_field_of_a_wrong_type_does_not_break_any_list(
    board: Board, store: ZooKeeperStore, template: list[Node]
) -> None:
    planted = []
    damages = cycle(DAMAGES.items())
    for kind in kinds():
        for name in (each for each, _ in fields_of(kind) if each != "dag_id"):
            called, value = next(damages)
            planted.append(f"{called}-{kind.__name__}-{name}")
            plant(store, planted[-1], template, kind, name, value)
    with board.client("ada") as client:
        lists = (each for topology in planted for each in questions(topology) if "/transactions/" not in each)
        some, wrong = read(client, lists)
        more, of_all = read(client, questions_of_all(len(planted)))
    print(f"{len(planted)} damaged fields: {some + more} answers")
    assert [*wrong, *of_all] == []


def test_a_damaged_record_is_reported_and_all_other_records_are_shown(
    board: Board, store: ZooKeeperStore, template: list[Node]
) -> None:
    # Without its record, a topology belongs to no DAG that a user may read.
    kept = [each for each in template if each.kind not in (None, TopologyRecord)]
    planted = {}
    for (number, damaged), data in product(enumerate(kept), DAMAGED):
        paths = Paths(ROOT, f"damaged-{number}-{DAMAGED.index(data)}")
        planted[f"{paths.base}{damaged.path}"] = (paths.topology, damaged)
        nodes_of = {each.path: data if each is damaged else each.data for each in template}
        store.multi([], [Create(f"{paths.base}{path}", each) for path, each in nodes_of.items()])
    unnamed = []
    with board.client("ada") as client:
        for path, (topology, damaged) in planted.items():
            base = f"/api/v1/topologies/{topology}"
            found = [asked(client, f"{base}{part}") for part in ("", "/transactions", "/transactions/4")]
            named = any(f"{path} cannot be read" in each.text for each in found)
            known = {each["txid"] for each in found[1].json().get("transactions", ())}
            is_of_all = damaged.kind is records.Counter
            # Others of them are read where they are asked for.
            if not named and damaged.kind not in (Binding, Metadata, WatcherRecord, records.Followed):
                unnamed.append((path, [each.status_code for each in found]))
            if not known >= ({1, 2, 3} if is_of_all else {1, 2, 3, 4}):
                unnamed.append((path, sorted(known)))
    print(f"{len(planted)} damaged records: {3 * len(planted)} answers")
    assert unnamed == []
