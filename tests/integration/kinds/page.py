"""Asks the page of the transactions for every GET. It runs in the process of the commands, without an api-server."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from typing import Any
from urllib.parse import quote

PASSWORDS = "kinds_passwords.json"


@cache
def _client() -> Any:
    """A browser of an admin."""
    os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"] = f"{os.environ['AIRFLOW_HOME']}/{PASSWORDS}"
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi.testclient import TestClient

    from airflow_tx.plugin.api.app import make_app

    create_auth_manager()
    app = make_app()
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="ada", role="admin")
    return TestClient(app, raise_server_exceptions=False)


def _routes() -> dict[str, Any]:
    from fastapi.routing import APIRoute

    found: dict[str, Any] = {}
    for each in _client().app.routes:
        if isinstance(each, APIRoute) and "GET" in (each.methods or ()):
            found[each.name] = each
    return found


def end_dag_process() -> None:
    """Let the next question about a DAG file go to a process that knows the connections of now."""
    from airflow_tx.plugin.api.dag_process import dag_process

    dag_process().end()


def routes() -> None:
    """Print the routes that read, by name, with all that they have to be told."""
    told = {}
    for name, route in _routes().items():
        required = [each.name for each in route.dependant.query_params if each.field_info.is_required()]
        told[name] = [*re.findall(r"{(\w+)", route.path), *required]
    print(json.dumps(told))


def get(*questions: str) -> None:
    """Print the answers to questions: each is JSON, of a route and what it is told."""
    print(json.dumps([_answered(**json.loads(each)) for each in questions]))


def _answered(route: str, told: dict[str, str]) -> dict[str, Any]:
    own = _routes()[route]
    left = dict(told)
    path = re.sub(r"{(\w+)(:\w+)?}", lambda found: quote(left.pop(found[1]), safe=""), own.path)
    answer = _client().get(path, params=left)
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    return {
        "status": answer.status_code,
        "body": answer.json() if is_json else len(answer.content),
        "misfit": _misfit(own, answer) if answer.status_code == 200 else "",
    }


def _misfit(route: Any, answer: Any) -> str:
    """Why an answer is not what the route promises."""
    from pydantic import TypeAdapter, ValidationError

    if route.response_model is None:
        return ""
    try:
        TypeAdapter(route.response_model).validate_json(answer.content)
    except ValidationError as error:
        return str(error)
    return ""
