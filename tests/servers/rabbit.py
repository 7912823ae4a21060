"""A real RabbitMQ broker on this machine, from the system's package."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_tx.testing.servers.server import LocalServer, clean_environment, find_program, free_ports

if TYPE_CHECKING:
    import ssl

RABBIT_USER = "tx"
# A password with characters that a URL would trip over.
RABBIT_PASSWORD = "s3cret/@:pass"


class LocalRabbit(LocalServer):
    """One RabbitMQ broker on 127.0.0.1 at a free port: its node, cookie, folders and port mapper (epmd) are its own.

    :param certificates: a folder with ca.pem, cert.pem and key.pem: the broker speaks TLS then.
    """

    title = "RabbitMQ"
    slug = "rabbit"

    def __init__(self, *, certificates: Path | None = None, start_timeout: float = 120.0) -> None:
        super().__init__(start_timeout=start_timeout)
        self._certificates = certificates
        self._epmd_port, self._dist_port = free_ports(2)

    def airflow_connection(self) -> dict[str, Any]:
        """Describe the Airflow connection to it."""
        where = {"conn_type": "amqp", "host": self._host, "port": self.port}
        return {**where, "login": RABBIT_USER, "password": RABBIT_PASSWORD}

    @property
    def _host(self) -> str:
        # Certificates are made for a name.
        return "localhost" if self._certificates is not None else "127.0.0.1"

    def connect(self) -> Any:
        """Connect, as a publisher does; the caller closes it."""
        from pika import BlockingConnection, ConnectionParameters, PlainCredentials, SSLOptions  # type: ignore[import-untyped]

        logging.getLogger("pika").setLevel(logging.CRITICAL)
        login, options = PlainCredentials(RABBIT_USER, RABBIT_PASSWORD), None
        if (context := self._context()) is not None:
            options = SSLOptions(context, "localhost")
        # A publisher that a busy machine holds up sends no heartbeats, and its connection would be closed.
        asked = {"credentials": login, "ssl_options": options, "heartbeat": 0, "stack_timeout": 240}
        return BlockingConnection(ConnectionParameters(self._host, self.port, **asked))

    def _context(self) -> ssl.SSLContext | None:
        if self._certificates is None:
            return None
        from ssl import create_default_context

        return create_default_context(cafile=self._certificates / "ca.pem")

    def _command(self) -> list[str]:
        # Debian's program on PATH changes the user, and reads the system's settings.
        names = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")
        return [find_program(self.title, *names, package="rabbitmq-server")]

    def _environment(self) -> Mapping[str, str]:
        folder = str(self.data_dir)
        return {
            **clean_environment(),
            "HOME": folder,  # of the cookie
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/none.conf",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_FEATURE_FLAGS_FILE": f"{folder}/features",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{folder}/generated",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_NODENAME": f"tx{self.port}@localhost",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            # Without a shell in between, which would answer a signal by a command that takes seconds.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def _prepare(self) -> None:
        listens = "listeners.tcp.local"
        settings = {"default_user": RABBIT_USER, "default_pass": RABBIT_PASSWORD, "log.console.level": "warning"}
        if self._certificates is not None:
            listens, settings["listeners.tcp"] = "listeners.ssl.local", "none"
            for name, file in (("cacertfile", "ca"), ("certfile", "cert"), ("keyfile", "key")):
                settings[f"ssl_options.{name}"] = f"{self._certificates / file}.pem"
        settings[listens] = f"127.0.0.1:{self.port}"
        text = "".join(f"{name} = {value}\n" for name, value in settings.items())
        (self.data_dir / "rabbitmq.conf").write_text(text)
        (self.data_dir / "plugins").write_text("[].\n")
        epmd = find_program("epmd", "epmd", package="erlang-base")
        mapper = [epmd, "-port", str(self._epmd_port), "-address", "127.0.0.1"]
        self._family.spawn(mapper, env=self._environment(), log=self.log, cwd=self.data_dir)

    def _serves(self) -> bool:
        self.connect().close()
        return True
