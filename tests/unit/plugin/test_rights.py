"""What each kind of user may see of a topology: every route, asked by each of them, after everything was done twice."""

from __future__ import annotations

import dataclasses
import json
import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest
from airflow import settings
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.base import Base
from fastapi import Request
from fastapi.testclient import TestClient

from airflow_tx.base import compat
from airflow_tx.ledger import ReadOnlyLedger
from airflow_tx.ledger.api import Create, Paths
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.receipt import CheckNote
from airflow_tx.ledger.records import AlarmNote, Loss, RepairRecord, encode
from airflow_tx.ledger.steps.alarm import note_alarm
from airflow_tx.ledger.steps.end import note_readmission, note_skip
from airflow_tx.ledger.steps.recovery import ReplayRequest, note_person, note_replay
from airflow_tx.ledger.steps.replay import WishRequest, note_changed, want
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.operations import ActionName
from airflow_tx.plugin.api import access, app
from airflow_tx.state import SqlTable
from airflow_tx.state.aggregators import Sum
from airflow_tx.state.api import REJECTED_COLUMNS
from airflow_tx.state.sql.state import SqlState
from airflow_tx.testing.suites.state_tools import Grants
from airflow_tx.transaction import WHY_NOT
from airflow_tx.transaction.commit.handoff import take_skip
from tests.golden.board_world import DAG_ID, ROOT, SAME_ORIGIN, KeptStore, airflow, here, store  # noqa: F401 - fixtures
from tests.integration.board.routes import address, routes, routes_of
from tests.integration.cli_runs import fail
from tests.integration.pipeline import Pipeline
from tests.remedies import remedy_of

WHO, WHY, ROW, SAID, BUNDLE = "marked-person", "marked-reason", "marked-row", "marked-words", "marked-code"
OTHER_TEAM = "marked-team"
AUDIT = Audit(WHO, WHY)
ERROR = f"task task0: ValueError: {{'name': '{ROW}'}}"
REMEDY = remedy_of("Correct the code, then replay it: <airflow tx replay trace 8>")

READ, EDIT, CREATE = ("GET", DagAccessEntity.RUN), ("PUT", DagAccessEntity.RUN), ("POST", DagAccessEntity.RUN)
TASKS, LOGS = ("GET", DagAccessEntity.TASK_INSTANCE), ("GET", DagAccessEntity.TASK_LOGS)
XCOMS, LOG_OF_AUDIT = ("GET", DagAccessEntity.XCOM), ("GET", DagAccessEntity.AUDIT_LOG)
VERSIONS = ("GET", DagAccessEntity.VERSION)
SEE = ("GET", None)

NEEDS: Mapping[str, set[Any]] = {
    WHO: {LOG_OF_AUDIT},
    WHY: {LOG_OF_AUDIT},
    ROW: {TASKS, LOGS},
    "?try_number=": {TASKS, LOGS},
    "BeginTransactionOperator": {TASKS},
    "new_totals": {XCOMS},
    SAID: {TASKS, XCOMS},
    BUNDLE: {TASKS, VERSIONS},
}
"""The table of docs/explanation/security.md: who may read a secret that was planted."""

KINDS: Mapping[str, set[Any]] = {
    "no right": set(),
    "sees the DAG": {SEE},
    "reads runs": {SEE, READ},
    "reads tasks": {SEE, READ, TASKS},
    "reads logs": {SEE, READ, TASKS, LOGS},
    "reads logs without tasks": {SEE, READ, LOGS},
    "reads the audit log": {SEE, READ, LOG_OF_AUDIT},
    "reads XComs": {SEE, READ, TASKS, XCOMS},
    "reads versions": {SEE, READ, TASKS, VERSIONS},
    "edits runs": {SEE, READ, EDIT, CREATE},
    "edits runs and reads logs": {SEE, READ, EDIT, CREATE, TASKS, LOGS},
    "edits runs and reads the audit log": {SEE, READ, EDIT, CREATE, LOG_OF_AUDIT},
    "admin": {SEE, READ, EDIT, CREATE, TASKS, LOGS, LOG_OF_AUDIT, XCOMS, VERSIONS},
}
OF_OTHER_TEAM = "other team"


class Rights(SimpleAuthManager):
    """Lets each user do what its name says; only one user may see the DAG of the other team."""

    def is_authorized_dag(
        self, *, method: Any, user: Any, access_entity: Any = None, details: DagDetails | None = None
    ) -> bool:
        name = user.get_name()
        if details is None or details.id is None:
            return False
        if details.id == OTHER_TEAM:
            return bool(name == OF_OTHER_TEAM)
        return (method, access_entity) in KINDS.get(name, ())


def acted_on(pipeline: Pipeline) -> None:
    """Let people and tasks do twice whatever a ledger keeps."""
    ledger = pipeline.ledger
    for run in ("r1", "r2"):
        pipeline.run(run)
    for _ in range(2):  # transaction 3 fails, a person replays it, and it commits
        fail(pipeline, pipeline.begin("r3"), ERROR)
        ledger.run(note_person, 3, AUDIT)
    pipeline.run("r3")
    for txid, run in ((1, "r1"), (2, "r2")):
        ledger.run(want, WishRequest(txid, run, run), AUDIT)
    for txid, run in ((4, "r4"), (5, "r5")):  # one skip is withdrawn by a re-admission, one is not
        fail(pipeline, pipeline.begin(run), ERROR)
        ledger.run(note_skip, txid, AUDIT)
        take_skip(ledger, txid, {}, log=logging.getLogger(__name__))
    ledger.run(note_readmission, 4, AUDIT)
    for txid, run in ((6, "r6"), (7, "r7")):  # they are blocked, and their rows are to be decided again
        fail(pipeline, pipeline.begin(run), ERROR)
        ledger.run(note_person, txid, AUDIT)
        begun = pipeline.begin(run)
        fail(pipeline, begun, ERROR)
        ledger.run(note_replay, ReplayRequest(begun.attempt, ERROR, counts=True, limit=0))
        ledger.run(note_changed, txid, {}, audit=AUDIT)
    for txid, run in ((8, "r8"), (9, "r9")):  # a check has failed, and a person has accepted it
        checked = pipeline.begin(run)
        found = {"positive": CheckNote(False, "1 of 2 rows", "of the rows")}
        epoch = pipeline.process(checked).epoch
        ledger.note_commit_failed(checked.attempt, epoch, reason="refused", remedy=REMEDY, for_good=True, checks=found)
        ledger.accept_checks(txid, {"positive": "of the rows"}, audit=AUDIT)
    begun = pipeline.begin("r10")  # a replay is noted, and not begun
    ledger.run(note_replay, ReplayRequest(begun.attempt, ERROR, counts=True, limit=3))
    ledger.run(note_alarm, "late", AlarmNote("10"))
    at = "2026-01-01T00:00:00+00:00"
    loss = Loss("", 1, 2, "row 1")
    repairs = [RepairRecord(number, "accept-loss", WHO, at, WHY, "done", 1, "op", losses=[loss]) for number in (1, 2)]
    paths = pipeline.paths
    made = [Create(paths.repair(number), encode(each)) for number, each in enumerate(repairs, 1)]
    pipeline.store.multi([], [Create(paths.repairs, b""), *made])


@pytest.fixture
def topology(store: KeptStore, tmp_path: Any) -> SimpleNamespace:  # noqa: F811
    """Two topologies of two teams; the fixtures of the board ask for the states of the first one."""
    for name, dag_id in (("trace", DAG_ID), (OTHER_TEAM, OTHER_TEAM)):
        pipeline = Pipeline(store, ROOT, topology=name, journals=True)
        pipeline.request = replace(pipeline.request, dag_id=dag_id)
        acted_on(pipeline)
    url = f"sqlite:///{tmp_path / 'state.db'}"
    state = SqlState.from_url(url, table="totals", keys=["key"], values={"n": Sum()}, types={"key": "text"})
    aside = SqlTable.from_url(url, table="aside")
    grants = Grants()
    grants.incarnation = ReadOnlyLedger(store, Paths(ROOT, "trace")).existing_topology().incarnation
    grants.commit_rows(3, aside, [dict.fromkeys(REJECTED_COLUMNS, ROW)])
    return SimpleNamespace(states=[state], rejected=aside)


@pytest.fixture
def planted(airflow: None) -> None:  # noqa: F811
    """What Airflow knows: what a `begin` has said, a version of the DAG, and a backfill."""
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)

    assert settings.Session is not None
    session = settings.Session()

    def insert(table: str, **values: Any) -> None:
        session.execute(Base.metadata.tables[table].insert().values(**values))

    version = uuid.uuid4()
    insert("dag_bundle", name="dags", active=True)
    insert("dag_version", id=version, version_number=1, dag_id=DAG_ID, bundle_name="dags", bundle_version=BUNDLE)
    insert(
        "backfill", id=1, dag_id=DAG_ID, from_date=now, to_date=now, max_active_runs=1, triggering_user_name=WHO,
        reprocess_behavior="none",
    )  # fmt: skip
    for number, (run_id, state) in enumerate(dict.fromkeys(("r4", "r6", "r9", "r11", "r12"), "failed").items()):
        insert(
            "dag_run", id=100 + number, dag_id=DAG_ID, run_id=run_id, state=state, run_type="backfill", run_after=now,
            clear_number=0, span_status="not_started", conf={}, backfill_id=1, triggering_user_name=WHO,
        )  # fmt: skip
        for name, operator in (("begin", "BeginTransactionOperator"), ("commit", "CommitOperator")):
            insert(
                "task_instance", id=uuid.uuid4(), task_id=name, dag_id=DAG_ID, run_id=run_id, map_index=-1,
                try_number=1, max_tries=0, pool="default_pool", pool_slots=1, span_status="not_started",
                operator=operator, state="failed", start_date=now, end_date=now, dag_version_id=version,
            )  # fmt: skip
    for number, run_id, said in ((103, "r11", {"problem": SAID, "advice": []}), (104, "r12", "no words of begin")):
        insert(
            "xcom", dag_run_id=number, task_id="begin", map_index=-1, key=WHY_NOT, dag_id=DAG_ID, run_id=run_id,
            timestamp=now, value=json.dumps(said),
        )  # fmt: skip
    session.commit()


@pytest.fixture
def client(here: None, planted: None, monkeypatch: pytest.MonkeyPatch) -> TestClient:  # noqa: F811
    manager = Rights()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(access, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(compat, "clear_run", lambda *args, noting=bool, **kwargs: noting() or True)
    monkeypatch.setattr(compat, "log_action", lambda *args, **kwargs: None)

    def user_of(request: Request) -> access.Access:
        return access.Access(SimpleAuthManagerUser(username=request.headers["user"], role="admin"))

    made = app.make_app()
    made.dependency_overrides[access.access_of] = user_of
    return TestClient(made, raise_server_exceptions=False)


def reads() -> list[str]:
    """Every address that reads, of each transaction and run."""
    found = dict.fromkeys(
        address(path, "trace", txid).replace("the_dag", DAG_ID).replace("runs/r1", f"runs/r{txid}")
        for method, path in routes()
        if method == "GET" and "/board" not in path
        for txid in range(1, 13)
    )
    return list(found)


def searches() -> list[str]:
    """Every address that looks for a text, with each text that was planted, and a word beside these."""
    words = ("ValueError", *(each for each in NEEDS if each.startswith("marked")))
    lists = ("topologies?text=", "topologies/trace/transactions?text=", "search?what=", "topologies/trace/search?what=")
    return [f"/api/v1/{each}{word}" for word in words for each in lists]


def secrets_in(text: str) -> set[str]:
    return {each for each in NEEDS if each in text}


def allowed(kind: str, found: set[str]) -> set[str]:
    """Of the secrets of an answer, those that this kind of user may read."""
    rights = KINDS[kind]
    return {each for each in found if {READ, SEE} | NEEDS[each] <= rights}


def test_each_secret_is_included_only_in_answers_to_users_who_may_read_it(client: TestClient) -> None:
    wrong = []
    seen = Counter[str]()
    for path in reads():
        # One after the other within a second, so that an answer that is shared too widely is found.
        answers = {kind: client.get(path, headers={"user": kind}) for kind in ("admin", *KINDS)}
        assert [kind for kind, answer in answers.items() if answer.status_code >= 500] == [], path
        texts = {kind: answer.text for kind, answer in answers.items()}
        every = secrets_in(texts["admin"])
        seen.update(every)
        for kind, text in texts.items():
            if secrets_in(text) != allowed(kind, every):
                wrong.append((kind, path, secrets_in(text) ^ allowed(kind, every)))
    assert wrong == []
    assert set(seen) == set(NEEDS)


def test_a_search_finds_no_text_that_the_user_may_not_read(client: TestClient) -> None:
    for path in searches():
        for kind in ("admin", *KINDS):
            found = secrets_in(client.get(path, headers={"user": kind}).text)
            assert found <= allowed(kind, set(NEEDS)), (kind, path)
    for text in (ROW, "ValueError"):
        for kind, rights in KINDS.items():
            found = client.get(f"/api/v1/search?what={text}", headers={"user": kind}).json()["found"]
            rows = client.get(f"/api/v1/topologies/trace/transactions?text={text}", headers={"user": kind}).json()
            lines = client.get(f"/api/v1/topologies?text={text}", headers={"user": kind}).json()["topologies"]
            may = {SEE, READ, TASKS, LOGS} <= rights
            assert (bool(found), bool(rows.get("transactions")), bool(lines)) == (may, may, may), kind


def test_users_of_another_team_can_see_and_find_only_their_own_topology(client: TestClient) -> None:
    for path in (*reads(), *searches()):
        assert OTHER_TEAM not in client.get(path, headers={"user": "admin"}).text, path
        assert DAG_ID not in client.get(path, headers={"user": OF_OTHER_TEAM}).text, path


def test_a_cached_answer_is_not_confirmed_as_unchanged_to_a_user_with_other_rights(client: TestClient) -> None:
    path = "/api/v1/topologies/trace/jobs"
    tag = client.get(path, headers={"user": "admin"}).headers["ETag"]
    assert client.get(path, headers={"user": "admin", "If-None-Match": tag}).status_code == 304
    other = client.get(path, headers={"user": "reads runs", "If-None-Match": tag})
    assert (other.status_code, WHO in other.text) == (200, False)


def test_previews_and_actions_show_each_user_only_the_texts_that_the_user_may_read(client: TestClient) -> None:
    at = "/api/v1/topologies/trace/actions"
    bodies: list[dict[str, Any]] = [{"txids": txids} for txids in ((), (2,), (3,), (4,), (5,), (6,), (8,), (1, 2))]
    wrong, seen = [], Counter[str]()
    kinds = ["reads the audit log", *(kind for kind, rights in KINDS.items() if EDIT in rights)]
    for action in ActionName:
        for body in bodies:
            texts = {
                kind: client.post(f"{at}/{action.value}/preview", json=body, headers={"user": kind, **SAME_ORIGIN}).text
                for kind in kinds
            }
            every = secrets_in(texts["admin"])
            seen.update(every)
            for kind, text in texts.items():
                may = allowed(kind, every) if EDIT in KINDS[kind] else set()
                if secrets_in(text) != may:
                    wrong.append((kind, action, body, text))
    assert wrong == []
    assert {WHO, WHY} <= set(seen)

    headers = {"user": "edits runs", **SAME_ORIGIN}
    statuses = Counter[int]()
    for action in ActionName:
        for body in bodies:
            to = f"{at}/{action.value}"
            version = client.post(f"{to}/preview", json=body, headers=headers).json().get("version", "")
            answer = client.post(to, json={"version": version, "why": "another", **body}, headers=headers)
            statuses[answer.status_code] += 1
            assert secrets_in(answer.text) == set(), (action, body)
    assert {200, 409} <= set(statuses)


def test_a_user_with_fewer_rights_sees_the_same_counts_of_restatement_jobs(client: TestClient) -> None:
    jobs = {
        kind: client.get("/api/v1/topologies/trace/jobs", headers={"user": kind}).json()
        for kind in ("admin", "reads runs")
    }
    assert jobs["admin"]["jobs"]
    for found in jobs.values():
        for each in found["jobs"]:
            each.update(who=None, why=None)
    assert jobs["admin"] == jobs["reads runs"]


def answered(kind: Any) -> Iterator[Any]:
    """Every dataclass that an answer of this type has."""
    if dataclasses.is_dataclass(kind):
        yield kind
        for each in get_type_hints(kind).values():
            yield from answered(each)
    for each in get_args(kind):
        yield from answered(each)


def test_every_field_that_names_a_person_is_hidden_from_users_who_may_not_read_the_audit_log() -> None:
    models = {getattr(route, "response_model", None) for route in routes_of(app.make_app())}
    found = {kind for model in models for kind in answered(model)}
    assert {each.__name__ for each in found} >= {"JobLine", "SkippedLine", "AuditLine", "PreviewAnswer"}
    for kind in found:
        hints = get_type_hints(kind, include_extras=True)
        persons = {name for name in hints if name in {"who", "why"} and "who" in hints}
        open_to_all = {name for name in persons if access.OnlyFor(access.SEE_AUDIT) not in get_args(hints[name])}
        assert open_to_all == set(), kind
