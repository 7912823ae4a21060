"""The FastAPI application of the Transactions page. Only the api-server creates it, and Airflow mounts it at `/tx`."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, FastAPI, HTTPException, Request, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from sqlalchemy.exc import DBAPIError
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airflow_tx.base.errors import Refused, StoreError, TxError, UnreadableRecord
from airflow_tx.plugin.api import action_routes, routes, stale_routes
from airflow_tx.plugin.api.dag_process import NotAnsweredThere
from airflow_tx.plugin.api.questions import AGAIN_AFTER, Busy
from airflow_tx.plugin.api.redaction import redacted
from airflow_tx.plugin.api.snapshots import SILENT, LedgerAway

# --- bundle -------------------------------------------------------------------------------------------------------
# The page's JavaScript bundle is a single file, which a browser caches until its digest changes.


BUNDLE = Path(__file__).resolve().parents[1] / "board" / "main.umd.cjs"
_YEAR = 365 * 24 * 3600

bundle_router = APIRouter(prefix="/board")


@cache
def bundle_digest() -> str:
    """Return a digest of the bundle, which is part of its URL, or "" if there is no bundle."""
    return hashlib.sha256(BUNDLE.read_bytes()).hexdigest()[:16] if BUNDLE.is_file() else ""


@bundle_router.get("/main.umd.cjs", include_in_schema=False, response_class=FileResponse)
def get_bundle(user: GetUserDep) -> FileResponse:
    """Send the JavaScript bundle of the page."""
    if not BUNDLE.is_file():
        raise HTTPException(
            status.HTTP_404_NOT_FOUND,
            "The Transactions page was not built: see airflow_tx/plugin/ui.",
        )
    headers = {"Cache-Control": f"private, max-age={_YEAR}, immutable"}
    return FileResponse(BUNDLE, media_type="text/javascript", headers=headers)


# --- app ----------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

PREFIX = "/tx"
MOST_BODY = 65_536
"""The maximum size of a request body, in bytes. The longest valid action is shorter."""
MOST_ERRORS = 10
"""The maximum number of request errors that a response lists."""
_NOSNIFF = {"X-Content-Type-Options": "nosniff"}
"""The value of `X-Content-Type-Options`.

Responses may quote text of users and tasks, which browsers must not interpret as HTML.
"""


class NoSniff:
    """Adds the header `X-Content-Type-Options` to every response, including errors."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_NOSNIFF)
            await send(message)

        await self._app(scope, receive, send_with_header)


class BoundedBody:
    """Refuses a request with a long body before the whole body is read, since parsing it would block this process."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def receive_some() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MOST_BODY:
                raise HTTPException(
                    413, f"The body of a request can have at most {MOST_BODY} bytes."
                )
            return message

        await self._app(scope, receive_some, send)


def make_app() -> FastAPI:
    """Create the application without FastAPI's documentation pages, which require no login."""
    app = FastAPI(
        title="Transactions",
        description="The API of the Transactions page: it shows the transactions of topologies and acts on them.",
        version="1",
        openapi_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.include_router(stale_routes.stale_router)
    app.include_router(routes.topology_router)
    app.include_router(action_routes.action_router)
    app.include_router(bundle_router)
    for error, answer in _ANSWERS.items():
        app.add_exception_handler(error, answer)
    app.add_middleware(BoundedBody)
    app.add_middleware(NoSniff)
    return app


def _problem(status: int) -> Callable[[Request, Exception], JSONResponse]:
    def answer(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": redacted(str(error))}, status_code=status)

    return answer


def _unreadable(request: Request, error: Exception) -> JSONResponse:
    """Respond with the error, without the value of the unreadable record."""
    assert isinstance(error, UnreadableRecord)
    return _problem(503)(request, UnreadableRecord(path=error.path, reason=error.reason))


def _busy(request: Request, error: Exception) -> JSONResponse:
    """Respond with the number of seconds after which the page repeats the request."""
    headers = {"Retry-After": str(AGAIN_AFTER)}
    return JSONResponse({"detail": redacted(str(error))}, status_code=429, headers=headers)


def _away(request: Request, error: Exception) -> JSONResponse:
    """Respond with the error, without its host names."""
    log.warning("%s", error)
    return JSONResponse({"detail": str(LedgerAway(reason=SILENT))}, status_code=503)


def _database_away(request: Request, error: Exception) -> JSONResponse:
    """Respond with the error, without its SQL statement."""
    assert isinstance(error, DBAPIError)
    log.warning("%s %s: %s", request.method, request.url.path, error.orig)
    detail = f"Airflow's database cannot be used now: {error.orig}. Repeat the request once the database answers."
    return JSONResponse({"detail": redacted(detail)}, status_code=503)


def _malformed(request: Request, error: Exception) -> JSONResponse:
    """Describe the errors of a request without quoting it, since it may contain characters that JSON does not allow."""
    assert isinstance(error, RequestValidationError)
    found = [
        {"loc": _known_place(each), "msg": each["msg"], "type": each["type"]}
        for each in error.errors()[:MOST_ERRORS]
    ]
    return JSONResponse({"detail": found}, status_code=422)


def _known_place(error: Mapping[str, Any]) -> list[str | int]:
    """Return where in the request an error is.

    Omit a key that the API does not know, since it is text of the request.
    """
    place = list(error["loc"])
    return place[:-1] if error["type"] == "extra_forbidden" else place


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s: %s", request.method, request.url.path, error, exc_info=error)
    # Starlette sends this response without calling the middleware.
    return JSONResponse(
        {"detail": "The server could not answer this request; see the log of the api-server."},
        status_code=500,
        headers=_NOSNIFF,
    )


_ANSWERS = {
    RequestValidationError: _malformed,
    LedgerAway: _problem(503),
    UnreadableRecord: _unreadable,
    StoreError: _away,
    NotAnsweredThere: _problem(504),
    Busy: _busy,
    Refused: _problem(409),
    TxError: _problem(409),
    DBAPIError: _database_away,
    Exception: _unexpected,
}


# --- schema -------------------------------------------------------------------------------------------------------
# `python -m airflow_tx.plugin.api.app` writes the OpenAPI description. The page's client is
# generated from it.


OPENAPI = Path(__file__).resolve().parents[1] / "ui" / "openapi.json"


def openapi_text() -> str:
    """Return the OpenAPI description, which is stored in `ui/openapi.json`."""
    schema = {**make_app().openapi(), "servers": [{"url": PREFIX}]}
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    OPENAPI.write_text(openapi_text())
