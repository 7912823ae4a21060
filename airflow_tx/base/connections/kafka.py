"""Convert Airflow connections of type kafka to librdkafka and Spark Java client settings.

No message and no repr shows a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_tx.base.connections.lookup import (
    Endpoint,
    airflow_connection,
    refused_extra,
    server_addresses,
    wrong_type,
)
from airflow_tx.base.errors import ConfigError

# Use only known extras. Others, such as callbacks, belong to hooks.
PREFIXES = ("sasl.", "ssl.")
KAFKA_EXTRAS = (
    "bootstrap.servers security.protocol enable.ssl.certificate.verification enable.sasl.oauthbearer.unsecure.jwt "
    "https.ca.location client.id client.rack client.dns.lookup broker.address.family connections.max.idle.ms "
    "socket.connection.setup.timeout.ms socket.keepalive.enable socket.timeout.ms"
).split()
GROUP = "group.id"
SPARK = "spark"
"""The connection extra with additional Java client settings for Spark."""

_SECRET = ("password", "secret", ".pem", "key")
_SAME = (
    "bootstrap.servers client.id client.rack client.dns.lookup connections.max.idle.ms "
    "socket.connection.setup.timeout.ms sasl.kerberos.service.name ssl.key.password"
).split()
_LOGIN = "org.apache.kafka.common.security."
_MODULES = {
    "PLAIN": f"{_LOGIN}plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_LOGIN}scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_LOGIN}scram.ScramLoginModule",
}


@dataclass(frozen=True)
class KafkaAddress:
    """A Kafka cluster and its login. The repr shows only the connection id.

    :param client: settings of librdkafka.
    :param group: name of the consumer group. No offsets are stored in it.
    :param spark: Java client settings from the connection, which are passed to Spark unchanged.
    """

    conn_id: str
    client: Mapping[str, str] = field(repr=False, hash=False)
    group: str = field(default="airflow_tx", repr=False)
    spark: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    @classmethod
    def of_connection(cls, conn_id: str, *, what: str) -> KafkaAddress:
        """Read an Airflow connection. A ConfigError mentions `what`, the object that names the connection."""
        connection = airflow_connection(conn_id, option=f"{what}(conn_id)", conn_type="kafka")
        if connection.conn_type != "kafka":
            raise wrong_type(connection, what, "kafka")
        extra = connection.extra_dejson
        given = {
            name: _text(value)
            for name, value in extra.items()
            if _taken(name) and value not in (None, "")
        }
        spark = extra.get(SPARK) or {}
        if not isinstance(spark, Mapping):
            remedy = 'Give settings of the Java client, such as {"sasl.jaas.config": "..."}.'
            raise refused_extra(conn_id, SPARK, "(hidden)", remedy)
        client = {**_servers(connection), **_login(connection, given), **given}
        if "bootstrap.servers" not in client:
            remedy = 'Give the brokers: extra {"bootstrap.servers": "host:9092"}, or host and port.'
            raise refused_extra(conn_id, "bootstrap.servers", None, remedy)
        own = {name: _text(value) for name, value in spark.items()}
        return cls(conn_id, client, _text(extra.get(GROUP) or "airflow_tx"), own)

    @property
    def first_server(self) -> str:
        """The "host:port" of the first bootstrap server. OpenLineage uses it as the cluster name."""
        first = self.client["bootstrap.servers"].partition(",")[0]
        return server_addresses(first.rpartition("://")[2], 9092)[0]

    def spark_options(self) -> dict[str, str]:
        """Convert the settings to options of Spark's Kafka connector.

        An option's name is ``kafka.`` followed by the Java setting.
        """
        found = {name: self.client[name] for name in _SAME if name in self.client}
        if protocol := self.client.get("security.protocol"):
            found["security.protocol"] = protocol.upper()
            if "SASL" in protocol.upper():
                found |= self._sasl()
            if "SSL" in protocol.upper():
                found |= self._ssl()
        found |= self.spark
        return {f"kafka.{name}": value for name, value in found.items()}

    def hide(self, text: str) -> str:
        """Remove the secrets of the connection from a text."""
        secrets = [
            value
            for name, value in {**self.client, **self.spark}.items()
            if value and _is_secret(name)
        ]
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def _sasl(self) -> dict[str, str]:
        mechanism = (
            self.client.get("sasl.mechanism") or self.client.get("sasl.mechanisms") or "GSSAPI"
        ).upper()
        found = {"sasl.mechanism": mechanism}
        if "sasl.jaas.config" in self.spark:
            return found
        if mechanism in _MODULES:
            user, password = (
                _quoted(self.client.get(f"sasl.{name}", "")) for name in ("username", "password")
            )
            found["sasl.jaas.config"] = (
                f"{_MODULES[mechanism]} required username={user} password={password};"
            )
            return found
        if mechanism == "GSSAPI" and "sasl.kerberos.keytab" in self.client:
            names = ("sasl.kerberos.keytab", "sasl.kerberos.principal")
            keytab, principal = (_quoted(self.client.get(name, "")) for name in names)
            module = (
                "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true"
            )
            found["sasl.jaas.config"] = f"{module} keyTab={keytab} principal={principal};"
            return found
        raise self._untranslated("sasl.mechanism", mechanism, "sasl.jaas.config")

    def _ssl(self) -> dict[str, str]:
        if self.client.get("enable.ssl.certificate.verification", "true").lower() in ("false", "0"):
            raise self._untranslated(
                "enable.ssl.certificate.verification", "false", "ssl.truststore.location"
            )
        found = {}
        if "ssl.endpoint.identification.algorithm" in self.client:
            algorithm = self.client["ssl.endpoint.identification.algorithm"]
            found["ssl.endpoint.identification.algorithm"] = (
                "" if algorithm == "none" else algorithm
            )
        # Pass the content of the file and not its path, since executors may not have the file.
        if authorities := self._pem("ssl.ca"):
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authorities}
        if certificate := self._pem("ssl.certificate"):
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate}
            found["ssl.keystore.key"] = self._pem("ssl.key") or ""
        elif "ssl.keystore.location" in self.client:
            found |= {
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": self.client["ssl.keystore.location"],
            }
            found["ssl.keystore.password"] = self.client.get("ssl.keystore.password", "")
        return found

    def _pem(self, name: str) -> str | None:
        path = self.client.get(f"{name}.location")
        if path is None or path == "probe":
            return self.client.get(f"{name}.pem")
        try:
            return Path(path).read_text(encoding="ascii")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "no text"
            remedy = f"The file cannot be read where Spark's driver is ({reason}): give the path of a PEM file."
            raise refused_extra(self.conn_id, f"{name}.location", path, remedy) from None

    def _untranslated(self, name: str, value: str, java: str) -> ConfigError:
        example = f'{{"spark": {{"{java}": ...}}}}'
        remedy = (
            f"Spark reads with the Java client, which has other settings for it: extra {example}."
        )
        return refused_extra(self.conn_id, name, value, remedy)


def _servers(connection: Endpoint) -> dict[str, str]:
    if not connection.host:
        return {}
    try:
        servers = server_addresses(connection.host, connection.port or 9092)
    except ValueError:
        remedy = "Write it as b1:9092,b2:9092, an IPv6 address in brackets."
        option = f"Connection {connection.conn_id!r}, host"
        raise ConfigError(option=option, value=connection.host, remedy=remedy) from None
    return {"bootstrap.servers": ",".join(servers)}


def _login(connection: Endpoint, given: Mapping[str, str]) -> dict[str, str]:
    if not connection.login:
        return {}
    if "security.protocol" not in given:
        remedy = "It has a login: say how it is sent, SASL_SSL or SASL_PLAINTEXT."
        raise refused_extra(connection.conn_id, "security.protocol", None, remedy)
    login = {"sasl.username": connection.login, "sasl.password": connection.password or ""}
    return (
        login
        if {"sasl.mechanism", "sasl.mechanisms"} & set(given)
        else {**login, "sasl.mechanism": "PLAIN"}
    )


def _taken(name: str) -> bool:
    return name in KAFKA_EXTRAS or name.startswith(PREFIXES)


def _is_secret(name: str) -> bool:
    return (
        any(part in name for part in _SECRET) and not name.endswith((".location", ".keytab"))
    ) or "jaas" in name


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(value: str) -> str:
    """Quote a value of a JAAS configuration."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
