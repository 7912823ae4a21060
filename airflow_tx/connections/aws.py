"""Where a bucket of S3 is, and the credentials for it, as deltalake and s3fs take them; no message shows them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from airflow_tx.connections.lookup import Endpoint, airflow_connection, wrong_type
from airflow_tx.errors import ConfigError

S3_SCHEMES = ("s3", "s3a")
_UNSAFE = "aws_s3_allow_unsafe_rename"
_ALIASES = {"endpoint": "endpoint_url", "token": "session_token", "default_region": "region"}
_ROLES = ("role_arn", "profile_name")
_SECRET = re.compile(r"key|secret|token|password|sas|credential", re.IGNORECASE)
_SHORTEST = 4
"""A shorter value is no secret, and hiding it would make a message unreadable."""
_LOGIN_IN_URL = re.compile(r"//[^/@\s]+@")
_ANSWER = re.compile(r"<(\?xml|Error\b).*", re.DOTALL)
_CODE = re.compile(r"<Code>(\w+)</Code>")


def options_of_connection(conn_id: str, *, what: str) -> dict[str, str]:
    """Read the storage options of deltalake from an Airflow connection; ConfigError names `what`."""
    option = f"{what}(conn_id=)"
    connection = airflow_connection(conn_id, option=option, conn_type="aws", host="")
    if connection.conn_type != "aws":
        raise wrong_type(connection, what, "aws")
    extra = connection.extra_dejson
    if found := next((name for name in _ROLES if extra.get(name)), None):
        remedy = f"A {what} takes a key, or the role of its machine. Give the machine the role, and leave out conn_id."
        raise ConfigError(
            option=f"Connection {conn_id!r}, {found}", value=extra[found], remedy=remedy
        )
    given = {
        "aws_access_key_id": connection.login or extra.get("aws_access_key_id"),
        "aws_secret_access_key": connection.password or extra.get("aws_secret_access_key"),
        "aws_session_token": extra.get("aws_session_token"),
        "aws_region": extra.get("region_name"),
        "aws_endpoint_url": _endpoint(connection),
    }
    options = {name: str(value) for name, value in given.items() if value}
    if ("aws_access_key_id" in options) != ("aws_secret_access_key" in options):
        remedy = "Give both login and password, or none of them."
        raise ConfigError(option=f"Connection {conn_id!r}, login", value="***", remedy=remedy)
    return options


def _endpoint(connection: Endpoint) -> str | None:
    """Find the address, which Amazon's provider reads from one of two places."""
    extra = connection.extra_dejson
    of_services = extra.get("service_config") or {}
    return (of_services.get("s3") or {}).get("endpoint_url") or extra.get("endpoint_url")


def checked_s3_options(options: Mapping[str, str]) -> dict[str, str]:
    """Refuse options under which two committers overwrite each other, and allow the HTTP that an endpoint asks for."""
    found = dict(options)
    for name, value in [*os.environ.items(), *found.items()]:
        if name.lower() == _UNSAFE and value.lower() not in ("", "0", "false"):
            remedy = "Remove it: with it two committers overwrite each other."
            raise ConfigError(option=name, value=value, remedy=remedy)
    if (_value(found, "endpoint_url") or "").startswith("http://"):
        found.setdefault("aws_allow_http", "true")
    return found


def s3_client(options: Mapping[str, str]) -> Any:
    """Make a client of s3fs for the bucket that deltalake reaches with these options."""
    try:
        from s3fs import S3FileSystem  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        remedy = "Install s3fs beside it: pip install 'apache-airflow-providers-amazon[s3fs]'."
        raise ConfigError(option="DeltaTable(uri)", value="s3://...", remedy=remedy) from None
    client = {
        "endpoint_url": _value(options, "endpoint_url"),
        "region_name": _value(options, "region"),
    }
    own = _by_name(options)
    return S3FileSystem(
        key=own.get("access_key_id"),
        secret=own.get("secret_access_key"),
        token=own.get("session_token"),
        client_kwargs={name: value for name, value in client.items() if value},
        skip_instance_cache=True,
    )


def scrubbed(text: str, options: Mapping[str, str]) -> str:
    """Take credentials out of what a client says, in one line.

    An answer of S3 to a wrong key has the id of the key and the signed request in it: its code alone stays.
    """
    given = [*options.items(), *((n, v) for n, v in os.environ.items() if n.startswith("AWS_"))]
    hidden = {value for name, value in given if _SECRET.search(name) and len(value) >= _SHORTEST}
    for each in sorted(hidden, key=len, reverse=True):
        text = text.replace(each, "***")
    code = _CODE.search(text)
    text = _ANSWER.sub(code[1] if code else "", text)
    return " ".join(_LOGIN_IN_URL.sub("//***@", text).split())[:300]


def _by_name(options: Mapping[str, str]) -> dict[str, str]:
    """Name options in one way: deltalake takes several names for each."""
    plain = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    return {_ALIASES.get(name, name): value for name, value in plain.items()}


def _value(options: Mapping[str, str], name: str) -> str | None:
    """Find an option that is no secret, or the variable of the environment that stands for it."""
    of_environment = {n: v for n, v in os.environ.items() if n.startswith("AWS_")}
    return _by_name(options).get(name) or _by_name(of_environment).get(name)
