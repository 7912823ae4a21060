"""Access control. Every route queries Airflow's auth manager.

The response for an object that a user may not see is 404.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.batch_apis import IsAuthorizedDagRequest
from airflow.api_fastapi.auth.managers.models.resource_details import (
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Request, Response, status
from pydantic import AfterValidator, GetCoreSchemaHandler, SerializationInfo, TypeAdapter
from pydantic_core import PydanticSerializationError
from pydantic_core.core_schema import wrap_serializer_function_ser_schema

from airflow_tx.ledger import Person, RepairRecord, Words, columns
from airflow_tx.plugin.api.redaction import fit

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# --- access -------------------------------------------------------------------------------------------------------


FORGERY_HEADER = "X-Requested-With"
"""A header that the Transactions page sends. A page of another origin can send it only if this server allows it."""
FORGERY_MARK = "airflow_tx"


# Number of DAGs in one request, if the user has the right to only some of the DAGs.
_FEWER = 16


@dataclass(frozen=True)
class Right:
    """A right to a DAG, or to a part of a DAG."""

    method: ResourceMethod
    entity: DagAccessEntity | None


_READ = Right("GET", DagAccessEntity.RUN)
_EDIT = Right("PUT", DagAccessEntity.RUN)
CREATE_RUNS = Right("POST", DagAccessEntity.RUN)
PAUSE = Right("PUT", None)
SEE_TASKS = Right("GET", DagAccessEntity.TASK_INSTANCE)
SEE_XCOMS = Right("GET", DagAccessEntity.XCOM)
SEE_LOGS = Right("GET", DagAccessEntity.TASK_LOGS)
SEE_AUDIT = Right("GET", DagAccessEntity.AUDIT_LOG)
SEE_VERSIONS = Right("GET", DagAccessEntity.VERSION)
PARTS = (SEE_TASKS, SEE_LOGS, SEE_XCOMS, SEE_AUDIT, SEE_VERSIONS)
"""The rights that decide which parts of a response about a topology the viewer sees."""
Rights = frozenset[Right]
_A = TypeVar("_A", bound="DataclassInstance")


_ANYBODY = "anonymous"
"""The user name that Airflow's auth managers return for every user when there is no login."""


class Access:
    """The rights of one user.

    :param user: the user, as the auth manager returns it.
    :param browser: the browser's address and name. Without a login, each browser counts as a user.
    """

    def __init__(self, user: BaseUser, browser: str = "") -> None:
        self.user = user
        self._browser = browser
        self._teams: dict[str, str | None] = {}
        self._found: dict[tuple[Right, str], bool] = {}

    @property
    def name(self) -> str:
        """Return the name of the user for the audit log."""
        return self.user.get_name()

    @property
    def person(self) -> str:
        """Return an identity that no other user has."""
        name = str(self.user.get_id())
        return f"{name} {self._browser}" if self.name.casefold() == _ANYBODY else name

    def readable(self, dag_ids: Iterable[str]) -> set[str]:
        """Return the DAGs whose runs the user may read. The number of requests is small for any number of DAGs."""
        wanted = sorted(set(dag_ids))
        self._know(wanted)
        new = [dag_id for dag_id in wanted if (_READ, dag_id) not in self._found]
        seen = self._seen(new)
        self._found.update({(_READ, dag_id): False for dag_id in new if dag_id not in seen})
        self._ask(_READ, wanted)
        return {dag_id for dag_id in wanted if self._found[_READ, dag_id]}

    def editable(self, dag_ids: Iterable[str]) -> set[str]:
        """Return the DAGs whose runs the user may read and edit. Few requests are sent."""
        return self.having(_EDIT, dag_ids)

    def having(self, right: Right, dag_ids: Iterable[str]) -> set[str]:
        """Return the DAGs whose runs the user may read and to which the user has this right. Few requests are sent."""
        wanted = sorted(self.readable(dag_ids))
        self._ask(right, wanted)
        return {dag_id for dag_id in wanted if self._found[right, dag_id]}

    def may_read(self, dag_id: str) -> bool:
        """Return whether the user may read the runs of a DAG."""
        return dag_id in self.readable([dag_id])

    def may_act(self, dag_id: str) -> bool:
        """Return whether the user may edit the runs of a DAG."""
        return dag_id in self.editable([dag_id])

    def may(self, right: Right, dag_id: str) -> bool:
        """Return whether the user may read the runs of a DAG and also has this right to the DAG."""
        return dag_id in self.having(right, [dag_id])

    def parts(self, dag_id: str) -> Rights:
        """Return the parts of responses about a DAG that the user may read.

        If these are all parts, one request is enough.
        """
        if not self.may_read(dag_id):
            return frozenset()
        new = [(right, dag_id) for right in PARTS if (right, dag_id) not in self._found]
        if new and self._may_all(new):
            self._found.update(dict.fromkeys(new, True))
        return frozenset(right for right in PARTS if self.may(right, dag_id))

    def with_logs(self, dag_ids: Iterable[str]) -> set[str]:
        """Return the DAGs whose task logs the user may read. This also requires the right to the task instances."""
        return self.having(SEE_LOGS, self.having(SEE_TASKS, dag_ids))

    def _know(self, dag_ids: Sequence[str]) -> None:
        """Read the teams of these DAGs in one query."""
        wanted = [dag_id for dag_id in dag_ids if dag_id not in self._teams]
        if wanted:
            found = DagModel.get_dag_id_to_team_name_mapping(wanted)
            self._teams.update({dag_id: found.get(dag_id) for dag_id in wanted})

    def _seen(self, dag_ids: Sequence[str]) -> set[str]:
        """Return the DAGs that the user may see. Like Airflow's own lists, send one request for each team."""
        by_team: dict[str | None, set[str]] = defaultdict(set)
        for dag_id in dag_ids:
            by_team[self._teams[dag_id]].add(dag_id)
        manager = get_auth_manager()
        seen: set[str] = set()
        for team, ids in by_team.items():
            seen |= manager.filter_authorized_dag_ids(
                dag_ids=ids, user=self.user, method="GET", team_name=team
            )
        return seen

    def _ask(self, right: Right, dag_ids: Sequence[str]) -> None:
        """Ask whether the user has a right to these DAGs: first for all of them, then by group, then one by one."""
        new = [dag_id for dag_id in dag_ids if (right, dag_id) not in self._found]
        for at_once in (len(new), _FEWER, 1):
            for some in _parts(new, at_once):
                if self._may_all([(right, dag_id) for dag_id in some]):
                    self._found.update({(right, dag_id): True for dag_id in some})
                elif len(some) == 1:
                    self._found[right, some[0]] = False
            new = [dag_id for dag_id in new if (right, dag_id) not in self._found]

    def _may_all(self, wanted: Sequence[tuple[Right, str]]) -> bool:
        requests: list[IsAuthorizedDagRequest] = [
            {
                "method": right.method,
                "access_entity": right.entity,
                "details": DagDetails(id=dag_id, team_name=self._teams[dag_id]),
            }
            for right, dag_id in wanted
        ]
        return get_auth_manager().batch_is_authorized_dag(requests, user=self.user)


def _parts(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), max(size, 1)):
        yield names[start : start + size]


def access_of(user: GetUserDep, request: Request) -> Access:
    """Return the access of the user who is logged in.

    :raises HTTPException: 401 if no user is logged in.
    """
    host = "" if request.client is None else request.client.host
    return Access(user, f"{host} {request.headers.get('user-agent', '')}")


AccessDep = Annotated[Access, Depends(access_of)]


class Visit:
    """A request whose browser may disconnect before the response is sent. Thread-safe."""

    def __init__(self) -> None:
        self.name = uuid4().hex
        self._lock = threading.Lock()
        self._has_left = False
        self._calls: list[Callable[[], None]] = []

    def has_left(self) -> bool:
        """Return whether the browser has disconnected."""
        return self._has_left

    def on_leave(self, call: Callable[[], None]) -> None:
        """Register a function to call when the browser disconnects. If it has already disconnected, call it now."""
        with self._lock:
            self._calls.append(call)
            has_left = self._has_left
        if has_left:
            call()

    def leave(self) -> None:
        """Record that the browser has disconnected, and call the registered functions."""
        with self._lock:
            self._has_left = True
            calls = [*self._calls]
        for call in calls:
            call()


async def visit_of(request: Request) -> AsyncIterator[Visit]:
    """Wait until the browser disconnects, which the thread of the route cannot detect."""
    visit = Visit()

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        await asyncio.to_thread(visit.leave)

    watching = asyncio.create_task(watch())
    try:
        yield visit
    finally:
        watching.cancel()


VisitDep = Annotated[Visit, Depends(visit_of)]


def plain_name(segment: str) -> str:
    """Decode a name that the page wrote into a URL.

    The page writes `~2F` for a slash. A server or a proxy would decode `%2F` to a slash, and split the name.
    """
    escaped = _ESCAPED.sub(lambda found: f"%{found[1]}", segment.replace("%", "%25"))
    name = unquote(escaped)
    if "\0" in name:
        raise ValueError("a name cannot contain a null character")  # databases refuse it, too
    return name


_ESCAPED = re.compile(r"~([0-9A-F]{2})")
Name = Annotated[str, AfterValidator(plain_name)]
"""A name that is part of a URL."""


def _own_hosts(request: Request) -> set[str]:
    """Return the hosts under which a browser may address this server. A proxy may have rewritten the Host header."""
    proxied = request.headers.get("x-forwarded-host", "").split(",")
    base = urlsplit(conf.get("api", "base_url", fallback="") or "").netloc
    return {request.headers.get("host", ""), base, *(each.strip() for each in proxied)} - {""}


def check_same_origin(request: Request) -> None:
    """Refuse a request that a page of another origin may have sent with the user's cookie.

    :raises HTTPException: 415 if the request is not JSON, and 403 if the Transactions page has not sent it.
    """
    if (
        request.headers.get("content-type", "").partition(";")[0].strip().lower()
        != "application/json"
    ):
        raise HTTPException(status.HTTP_415_UNSUPPORTED_MEDIA_TYPE, "Send application/json.")
    if request.headers.get(FORGERY_HEADER) != FORGERY_MARK:
        raise HTTPException(
            status.HTTP_403_FORBIDDEN, f"Send the header {FORGERY_HEADER}: {FORGERY_MARK}."
        )
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        same = site == "same-origin"
    else:
        same = origin is None or urlsplit(origin).netloc in _own_hosts(request)
    if not same:
        raise HTTPException(status.HTTP_403_FORBIDDEN, "This request comes from another site.")


# --- parts --------------------------------------------------------------------------------------------------------
# Some response fields require a right, which the type of the field names and the serializer checks.


@dataclass(frozen=True)
class OnlyFor:
    """Marks a response field that requires a right. Without the right, its value is null or an empty list.

    Send a response with such fields through `body` and `sent`. Otherwise, the value is null for every viewer.
    """

    right: Right

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        schema = handler(source)

        def shown(value: Any, write: Callable[[Any], Any], info: SerializationInfo) -> Any:
            if self.right in (info.context or ()):
                return write(value)
            return [] if isinstance(value, list) else None

        write = wrap_serializer_function_ser_schema(shown, info_arg=True, schema=schema)
        return {**schema, "serialization": write}


Who = Annotated[str | None, OnlyFor(SEE_AUDIT)]
"""The user who did the action."""
Why = Annotated[Words | None, OnlyFor(SEE_AUDIT)]
"""The reason that the user gave."""


def answer_of(kind: type[_A], facts: object, **spelled: Any) -> _A:
    """Create a response, or a part of it, from the attributes of an object with the same names.

    :param kind: the dataclass of the response.
    :param facts: the object with the attributes, such as a `TransactionView` or a record.
    :param spelled: the values of fields that differ from the object's attributes.
    """
    return kind(**columns(facts, kind.__dataclass_fields__, **spelled))


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def body(answer: Any, rights: Rights) -> bytes:
    """Return a response as JSON for the viewers who have these rights."""
    kind = type(answer)
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    try:
        return _ADAPTERS[kind].dump_json(answer, context=rights, warnings=False)
    except PydanticSerializationError:
        return _ADAPTERS[kind].dump_json(fit(answer), context=rights, warnings=False)


def sent(body: bytes) -> Response:
    """Send the body of a response."""
    return Response(body, media_type="application/json")


# --- audit --------------------------------------------------------------------------------------------------------
# User actions, in the form that the page shows.


@dataclass(frozen=True, kw_only=True)
class DeedLine:
    """A user action on a transaction or a ledger.

    :param who: the user. Like `why`, it is null if the viewer may not read the audit log.
    """

    who: Who
    when: datetime
    why: Why


@dataclass(frozen=True, kw_only=True)
class ChangedLine(DeedLine):
    """A user's decision that an attempt reads the current rows of the source.

    :param attempt: the attempt that was replayed.
    """

    attempt: int


@dataclass(frozen=True, kw_only=True)
class LossLine(DeedLine):
    """Rows that the source has lost, and whose loss a user has accepted."""

    partition: str | None
    description: Words


@dataclass(frozen=True, kw_only=True)
class RepairLine(DeedLine):
    """A user action on the ledger."""

    number: int
    what: str
    done: Words


def deed_line(done: Person | None) -> DeedLine | None:
    """Convert the record of an action to the form that the page reads, or return None if there is no record."""
    return None if done is None else DeedLine(**vars(done))


def repair_line(record: RepairRecord) -> RepairLine:
    """Convert the record of a user action on the ledger to the form that the page reads."""
    return answer_of(RepairLine, record, when=datetime.fromisoformat(record.when), done=record.told)
