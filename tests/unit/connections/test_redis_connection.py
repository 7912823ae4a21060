"""A connection to Redis as the parameters of a client, and as a URL."""

from __future__ import annotations

import json

import pytest

from airflow_tx.base.connections import parameters_of_url, redis_url


def test_a_redis_url_keeps_an_ipv6_host_separate_from_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"conn_type": "redis", "host": "2001:db8::1", "port": 7, "password": "a:b"}
    monkeypatch.setenv("AIRFLOW_CONN_R6", json.dumps(connection))
    found = parameters_of_url(redis_url("r6", what="RedisState"))
    assert (found["host"], found["port"], found["password"]) == ("2001:db8::1", 7, "a:b")
