"""What a connection says of its encryption reaches the driver, or is refused: never passed over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_tx.base.connections.rabbit import RabbitBroker
from airflow_tx.base.connections.redis import parameters_of_connection
from airflow_tx.base.connections.sql import url_of_connection
from airflow_tx.base.errors import ConfigError

CA = "/etc/ca.pem"


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Any:
    def made(kind: str, **extra: Any) -> str:
        given = {"conn_type": kind, "host": "db", "login": "u", "password": "p", "schema": "0", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(given))
        return "store"

    return made


@pytest.mark.parametrize(
    ("extra", "query"),
    [
        ({"ssl_mode": "REQUIRED"}, {"ssl_check_hostname": "false"}),
        ({"ssl_mode": "verify_ca", "ssl_ca": CA}, {"ssl_ca": CA, "ssl_check_hostname": "false"}),
        ({"ssl_mode": "VERIFY_IDENTITY", "ssl": {"ca": CA}}, {"ssl_ca": CA, "ssl_check_hostname": "true"}),
        ({"ssl": json.dumps({"ca": CA, "key": "k"})}, {"ssl_ca": CA, "ssl_key": "k"}),
        ({"ssl": {"ca": CA, "check_hostname": False}}, {"ssl_ca": CA, "ssl_check_hostname": "False"}),
        ({"ssl_mode": "PREFERRED", "charset": "utf8mb4"}, {}),
    ],
)
def test_a_mysql_connection_accepts_the_encryption_extras_of_the_airflow_mysql_hook(
    connect: Any, extra: dict[str, Any], query: dict[str, str]
) -> None:
    assert dict(url_of_connection(connect("mysql", **extra)).query) == query


def test_a_postgresql_connection_accepts_driver_settings_and_ignores_airflow_hook_settings(connect: Any) -> None:
    ours = {"channel_binding": "require", "require_auth": "scram-sha-256", "gssencmode": "disable", "sslcrl": CA}
    of_hook = {"cursor": "dictcursor", "own": "is not passed on", "options": ""}
    of_alchemy = {"sqlalchemy_query": {"sslmode": "require"}}
    found = dict(url_of_connection(connect("postgres", **ours, keepalives=True, **of_hook, **of_alchemy)).query)
    assert found == {**ours, "keepalives": "1", "sslmode": "require"}


@pytest.mark.parametrize(
    ("kind", "extra", "problem"),
    [
        ("mysql", {"ssl_mode": "VERIFY_CA"}, r"extra ssl_mode .*'VERIFY_CA'.* Name a trusted certificate: extra"),
        ("mysql", {"ssl_mode": "ON"}, "extra ssl_mode .*'ON'.* Use DISABLED, PREFERRED, REQUIRED"),
        ("mysql", {"ssl": {"cipher": "x"}}, "extra ssl .* Use a JSON object with ca, cert, key, check_hostname"),
        ("mysql", {"ssl": "yes"}, "extra ssl .*'yes'"),
        ("mysql", {"tls_version": "TLSv1.3"}, "extra tls_version .* Remove it, or use ssl"),
        ("postgres", {"ssl_mode": "require"}, "extra ssl_mode .* Remove it, or use .*sslmode"),
        ("postgres", {"channel-binding": "require"}, "extra channel-binding .* Write it as channel_binding"),
        ("postgres", {"RequireAuth": "scram-sha-256"}, "extra RequireAuth .* Write it as require_auth"),
        ("postgres", {"min_protocol_version": "3.2"}, "extra min_protocol_version .* libpq of psycopg2 is too old"),
        ("postgres", {"password": "s3cret"}, "extra password .*not shown.* Set the password of the connection"),
    ],
)
def test_an_encryption_setting_that_the_driver_cannot_apply_is_refused(
    connect: Any, kind: str, extra: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        url_of_connection(connect(kind, **extra))
    assert "\n" not in str(refused.value)


def test_a_redis_flag_may_be_a_string_in_the_connection(connect: Any) -> None:
    assert parameters_of_connection(connect("redis", ssl="true"), what="x")["ssl"] is True
    assert parameters_of_connection(connect("redis", ssl="false"), what="x")["ssl"] is False
    with pytest.raises(ConfigError, match="extra ssl .*'yes'.* Use true or false"):
        parameters_of_connection(connect("redis", ssl="yes"), what="x")
    with pytest.raises(ConfigError, match="extra use_tls .* Remove it, or use ssl"):
        parameters_of_connection(connect("redis", use_tls=True), what="x")


def test_a_rabbitmq_connection_uses_plain_text_only_if_it_does_not_request_tls(connect: Any) -> None:
    assert RabbitBroker.of_connection(connect("amqp", ssl="True"), what="x").tls
    assert not RabbitBroker.of_connection(connect("amqp"), what="x").tls
    with pytest.raises(ConfigError, match="extra ssl .*'on'"):
        RabbitBroker.of_connection(connect("amqp", ssl="on"), what="x")
