"""Convert an Airflow connection to S3 storage options of deltalake. No message shows the credentials."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from airflow_tx.base.connections.lookup import Endpoint, airflow_connection, wrong_type
from airflow_tx.base.errors import ConfigError

S3_SCHEMES = ("s3", "s3a")
_UNSAFE = "s3_allow_unsafe_rename"
_ALIASES = {"endpoint": "endpoint_url", "token": "session_token"}
_ROLES = ("role_arn", "profile_name")
_SECRET = re.compile(r"key|secret|token|password|sas|credential", re.IGNORECASE)
_SHORTEST = 4
"""The minimum length of a hidden value. Shorter values are not secret, and messages without them would be unreadable.
"""
_LOGIN_IN_URL = re.compile(r"//[^/@\s]+@")
_ANSWER = re.compile(r"<(\?xml|Error\b).*", re.DOTALL)
_ARROW = re.compile(r"\s*\x1b\[\d+m\u21b3\x1b\[0m\s*")
"""The marker that the client prints before each cause of an error."""
_LONGEST = 300
_CODE = re.compile(r"<Code>(\w+)</Code>")


def options_of_connection(conn_id: str, *, what: str) -> dict[str, str]:
    """Convert an Airflow connection to storage options of deltalake.

    A ConfigError mentions `what`, the object that names the connection.
    """
    option = f"{what}(conn_id=)"
    connection = airflow_connection(conn_id, option=option, conn_type="aws", host="")
    if connection.conn_type != "aws":
        raise wrong_type(connection, what, "aws")
    extra = connection.extra_dejson
    if found := next((name for name in _ROLES if extra.get(name)), None):
        remedy = (
            f"A {what} needs a key, or the role of its machine. Assign the role to the machine, and leave out "
            "conn_id."
        )
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
        remedy = "Give both login and password, or neither."
        raise ConfigError(option=f"Connection {conn_id!r}, login", value="***", remedy=remedy)
    return options


def _endpoint(connection: Endpoint) -> str | None:
    """Find the endpoint of the S3 server. Amazon's provider has two settings for it."""
    extra = connection.extra_dejson
    of_services = extra.get("service_config") or {}
    return (of_services.get("s3") or {}).get("endpoint_url") or extra.get("endpoint_url")


def checked_s3_options(options: Mapping[str, str]) -> dict[str, str]:
    """Add missing deltalake S3 options, so that environment variables cannot change them.

    :raises ConfigError: two committers could overwrite each other, or a key would be used with another key's token.
    """
    own = _by_name(options)
    around = _by_name({n: v for n, v in os.environ.items() if n.startswith("AWS_")})
    if ({**around, **own}.get(_UNSAFE) or "").lower() not in ("", "0", "false"):
        remedy = "Remove this option: with it, two committers could overwrite each other."
        raise ConfigError(option=f"AWS_{_UNSAFE.upper()}", value="true", remedy=remedy)
    key = own.get("access_key_id", around.get("access_key_id"))
    if (
        around.get("session_token")
        and "session_token" not in own
        and key != around.get("access_key_id")
    ):
        remedy = "It belongs to another key. Unset it, or give aws_session_token with the key."
        raise ConfigError(option="AWS_SESSION_TOKEN", value="***", remedy=remedy)
    found = dict(options)
    if endpoint := own.get("endpoint_url_s3") or own.get("endpoint_url"):
        # deltalake would prefer the environment variable AWS_ENDPOINT_URL_S3 to an option with the
        # other name.
        found |= {"aws_endpoint_url": endpoint, "aws_endpoint_url_s3": endpoint}
    if endpoint_of(found).startswith("http://"):
        found.setdefault("aws_allow_http", "true")
    return found


def endpoint_of(options: Mapping[str, str]) -> str:
    """Return the address of the S3 server, or "" for Amazon S3."""
    around = _by_name({n: v for n, v in os.environ.items() if n.startswith("AWS_")})
    found = {**around, **_by_name(options)}
    return found.get("endpoint_url_s3") or found.get("endpoint_url") or ""


def scrubbed(text: str, options: Mapping[str, str]) -> str:
    """Remove credentials from a message of the client, and shorten the message to one line.

    For a wrong key, the S3 response contains the key id and the signed request. Only its error code is kept.
    """
    given = [*options.items(), *((n, v) for n, v in os.environ.items() if n.startswith("AWS_"))]
    hidden = {value for name, value in given if _SECRET.search(name) and len(value) >= _SHORTEST}
    for each in sorted(hidden, key=len, reverse=True):
        text = text.replace(each, "***")
    code = _CODE.search(text)
    text = _ANSWER.sub(code[1] if code else "", text)
    text = _ARROW.sub(": ", _LOGIN_IN_URL.sub("//***@", text))
    line = " ".join(text.split())
    return (
        line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
    )


def _by_name(options: Mapping[str, str]) -> dict[str, str]:
    """Convert the alternative names of deltalake options to one name for each option."""
    plain = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    return {_ALIASES.get(name, name): value for name, value in plain.items()}
