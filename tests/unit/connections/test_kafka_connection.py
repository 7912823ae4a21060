"""A Kafka connection, as librdkafka and as the Java client in Spark take it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base.connections.kafka import KafkaAddress
from airflow_tx.base.errors import ConfigError


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Any:
    def define(extra: dict[str, Any] | None = None, conn_type: str = "kafka", **parts: Any) -> KafkaAddress:
        told = {"conn_type": conn_type, "extra": json.dumps(extra or {}), **parts}
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(told))
        return KafkaAddress.of_connection("kafka_default", what="KafkaSource")

    return define


def test_settings_of_librdkafka_are_read_by_name_from_the_extra_of_the_connection(connect: Any) -> None:
    address = connect(
        {"bootstrap.servers": "a:9092", "error_cb": "a.hook", "group.id": "g", "socket.keepalive.enable": True}
    )
    assert address.client == {"bootstrap.servers": "a:9092", "socket.keepalive.enable": "true"}
    assert address.group == "g"
    assert address.spark_options() == {"kafka.bootstrap.servers": "a:9092"}


@pytest.mark.parametrize(
    ("parts", "servers"),
    [
        ({"host": "a"}, "a:9092"),
        ({"host": "a", "port": 1}, "a:1"),
        ({"host": "a:2,b", "port": 3}, "a:2,b:3"),
        ({"host": "::1,[::2]:3"}, "[::1]:9092,[::2]:3"),
    ],
)
def test_the_host_and_the_port_of_a_kafka_connection_name_the_brokers(connect: Any, parts: Any, servers: str) -> None:
    assert connect(**parts).client["bootstrap.servers"] == servers


def test_a_kafka_login_is_converted_to_a_jaas_configuration_and_is_never_shown(connect: Any) -> None:
    secret = 'pass"word\\'
    for extra, parts in (
        ({"sasl.username": "me", "sasl.password": secret, "sasl.mechanism": "PLAIN"}, {}),
        ({}, {"login": "me", "password": secret}),
    ):
        address = connect({"security.protocol": "sasl_ssl", **extra}, host="a", **parts)
        options = address.spark_options()
        assert options["kafka.security.protocol"] == "SASL_SSL"
        assert options["kafka.sasl.mechanism"] == "PLAIN"
        assert options["kafka.sasl.jaas.config"] == (
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="pass\\"word\\\\";'
        )
        assert secret not in repr(address)
        assert address.hide(f"a {secret} b") == "a *** b"


def test_kafka_certificates_are_passed_to_spark_as_text(connect: Any, tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(f"-- {name}")
    address = connect({
        "bootstrap.servers": "a:1",
        "security.protocol": "SSL",
        "ssl.ca.location": str(tmp_path / "ca"),
        "ssl.certificate.location": str(tmp_path / "cert"),
        "ssl.key.location": str(tmp_path / "key"),
        "ssl.key.password": "k",
        "ssl.endpoint.identification.algorithm": "none",
    })  # fmt: skip
    assert address.spark_options() == {
        "kafka.bootstrap.servers": "a:1",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "-- ca",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "-- cert",
        "kafka.ssl.keystore.key": "-- key",
        "kafka.ssl.key.password": "k",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }


def test_a_kafka_setting_without_a_java_equivalent_needs_the_java_setting_in_the_connection(connect: Any) -> None:
    extra: dict[str, Any] = {
        "bootstrap.servers": "a:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
    }
    with pytest.raises(ConfigError, match="sasl.mechanism = 'OAUTHBEARER'.*other settings"):
        connect(extra).spark_options()
    own = {"sasl.jaas.config": "a.Module required;", "sasl.login.callback.handler.class": "a.Handler"}
    options = connect({**extra, "spark": own}).spark_options()
    assert options["kafka.sasl.jaas.config"] == "a.Module required;"
    assert options["kafka.sasl.login.callback.handler.class"] == "a.Handler"


@pytest.mark.parametrize(
    ("extra", "parts", "told"),
    [
        ({}, {}, "extra bootstrap.servers = None cannot be used. Give the brokers"),
        ({}, {"host": "a", "conn_type": "redis"}, "needs a connection of type kafka"),
        (
            {},
            {"host": "a", "conn_type": "generic"},
            "no installed provider knows its --conn-type: add it by --conn-json",
        ),
        ({}, {"host": "a", "login": "me", "password": "hush"}, "SASL_SSL or SASL_PLAINTEXT"),
        ({"spark": "hush"}, {"host": "a"}, "extra spark"),
    ],
)
def test_an_incomplete_kafka_connection_is_refused_with_a_one_line_error(
    connect: Any, extra: Any, parts: Any, told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as refusal:
        connect(extra, **parts)
    assert "hush" not in str(refusal.value)


def test_the_error_for_a_missing_certificate_shows_its_path(connect: Any) -> None:
    address = connect({"bootstrap.servers": "a:1", "security.protocol": "SSL", "ssl.ca.location": "/no/such/file"})
    with pytest.raises(ConfigError, match="ssl.ca.location = '/no/such/file'.*No such file"):
        address.spark_options()
