"""Convert Airflow connections of type amqp to pika connections. No message and no repr shows a password."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_tx.base.connections.lookup import (
    airflow_connection,
    check_encryption,
    flag_of,
    refused_extra,
    wrong_type,
)
from airflow_tx.base.errors import ConfigError

if TYPE_CHECKING:
    from pika import SSLOptions  # type: ignore[import-untyped]

_PORT = 5672
_TLS_PORT = 5671
# A broker that does not respond within this time counts as unreachable.
_PATIENCE = {"socket_timeout": 10, "stack_timeout": 15, "blocked_connection_timeout": 60}


def require_pika(*, needed_by: str) -> None:
    """Raise an error if pika is not installed.

    :param needed_by: name of the object that needs pika, for the message.
    :raises ConfigError: pika is not installed.
    """
    try:
        import pika  # noqa: F401
    except ImportError:
        remedy = "It needs pika: pip install 'airflow-provider-tx[rabbitmq]'."
        raise ConfigError(option="RabbitMQ of", value=needed_by, remedy=remedy) from None


@dataclass(frozen=True)
class RabbitBroker:
    """A broker, a virtual host and a login. The repr shows only the connection id.

    :param authorities: file with trusted certificates, or None for the system's certificates.
    """

    conn_id: str
    host: str = field(repr=False)
    port: int = field(repr=False)
    login: str = field(repr=False)
    password: str = field(repr=False)
    virtual_host: str = field(default="/", repr=False)
    tls: bool = field(default=False, repr=False)
    authorities: str | None = field(default=None, repr=False)

    @classmethod
    def of_connection(cls, conn_id: str, *, what: str) -> RabbitBroker:
        """Read an Airflow connection. A ConfigError mentions `what`, the object that names the connection."""
        connection = airflow_connection(conn_id, option=f"{what}(conn_id)", conn_type="amqp")
        if connection.conn_type != "amqp":
            raise wrong_type(connection, what, "amqp")
        if not connection.host:
            remedy = "Give the host of the broker; and port, login, password, schema (the virtual host) where needed."
            raise ConfigError(
                option=f"Connection {conn_id!r}, host", value=connection.host, remedy=remedy
            )
        check_encryption(connection, ("ssl", "ssl_ca_certs"))
        tls = flag_of(connection, "ssl")
        return cls(
            conn_id,
            connection.host,
            connection.port or (_TLS_PORT if tls else _PORT),
            connection.login or "guest",
            connection.password or ("" if connection.login else "guest"),
            connection.schema or "/",
            tls,
            connection.extra_dejson.get("ssl_ca_certs") or None,
        )

    def connect(self) -> Any:
        """Open a `pika.BlockingConnection`. Other pika errors are raised unchanged.

        :raises ConfigError: the certificates cannot be read, or the broker refuses the login or the virtual host.
        """
        from pika import BlockingConnection, ConnectionParameters, PlainCredentials, exceptions

        # pika logs about ten lines for each connection. It also logs each failure that this package
        # reports.
        if (chatty := logging.getLogger("pika")).level == logging.NOTSET:
            chatty.setLevel(logging.CRITICAL)
        parameters = ConnectionParameters(
            self.host,
            self.port,
            self.virtual_host,
            PlainCredentials(self.login, self.password),
            ssl_options=self._tls_options(),
            **_PATIENCE,
        )
        try:
            return BlockingConnection(parameters)
        except (exceptions.AuthenticationError, exceptions.ProbableAuthenticationError):
            remedy = "The broker refuses it: correct login and password of the connection."
            raise ConfigError(
                option=f"Connection {self.conn_id!r}, login", value=self.login, remedy=remedy
            ) from None
        except exceptions.ProbableAccessDeniedError:
            remedy = "The broker has no such virtual host, or not for this login: correct schema, or the user's rights."
            option = f"Connection {self.conn_id!r}, schema"
            raise ConfigError(option=option, value=self.virtual_host, remedy=remedy) from None

    def _tls_options(self) -> SSLOptions | None:
        if not self.tls:
            return None
        from ssl import create_default_context

        from pika import SSLOptions

        try:
            return SSLOptions(create_default_context(cafile=self.authorities), self.host)
        except OSError as error:
            remedy = (
                f"Give a PEM file with the certificates to be trusted ({error.strerror or error})."
            )
            raise refused_extra(self.conn_id, "ssl_ca_certs", self.authorities, remedy) from None
