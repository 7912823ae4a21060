"""Three ZooKeepers that are one ensemble, on this machine or on hosts of its own: TLS, logins, elections."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.server import JavaServer, find_java, free_ports
from airflow_tx.testing.servers.zookeeper import _find_jars
from tests.cluster.certificates import Certificates
from tests.cluster.hosts import Host

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_CONFIG = """\
tickTime=500
initLimit=20
syncLimit=8
minSessionTimeout=1000
maxSessionTimeout=120000
admin.enableServer=false
maxClientCnxns=0
standaloneEnabled=false
4lw.commands.whitelist=srvr
"""
_LOG4J = """\
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %-5p %c{1} %m%n%ex{short}
"""


@dataclass(frozen=True)
class Security:
    """What an ensemble asks of its clients.

    :param certificates: with them, clients and servers speak TLS, among each other, too.
    :param client_certificates: whether a client has to show one.
    :param logins: passwords of SASL by name; none: it asks for no SASL.
    """

    certificates: Certificates | None = None
    client_certificates: bool = False
    logins: Mapping[str, str] = field(default_factory=dict)


class ZooKeeperNode(JavaServer):
    """One server of an ensemble. It answers before there is a leader; `LocalEnsemble` waits for that."""

    title = "ZooKeeper"
    slug = "zookeeper"

    def __init__(
        self, number: int, address: str, ports: Sequence[int], *, host: Host | None, data_dir: Path | None
    ) -> None:
        super().__init__(data_dir, port=ports[0], start_timeout=240)
        self.number = number
        self.address = address
        self.host = host
        self.between = ports[1:]
        self.settings: Callable[[ZooKeeperNode], str] = lambda node: ""
        self.security = Security()

    @property
    def hosts(self) -> str:
        """The connection string of this one alone."""
        return f"{self.address}:{self.port}"

    @property
    def mode(self) -> str:
        """`leader` or `follower`; "": it is neither now."""
        try:
            lines = self._ask().splitlines()
        except OSError:
            return ""
        return next((line.partition(": ")[2] for line in lines if line.startswith("Mode: ")), "")

    def _serves(self) -> bool:
        return bool(self._ask())

    def _ask(self) -> str:
        with socket.create_connection((self.address, self.port), timeout=3) as plain:
            certificates = self.security.certificates
            connection = certificates.context().wrap_socket(plain) if certificates else plain
            with connection:
                connection.sendall(b"srvr")
                with connection.makefile("rb") as stream:
                    return stream.read().decode()

    def _command(self) -> list[str]:
        options = [
            "-Xmx96m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dzookeeper.preAllocSize=64",
            "-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"-Dlog4j2.configurationFile={self.data_dir / 'log4j2.properties'}",
        ]
        if self.security.logins:
            options.append(f"-Djava.security.auth.login.config={self.data_dir / 'jaas.conf'}")
        java = [find_java(), *options, "-cp", f"{_find_jars()}/*", _MAIN, str(self.data_dir / "zoo.cfg")]
        return java if self.host is None else self.host.command(*java)

    def _prepare(self) -> None:
        (self.data_dir / "myid").write_text(str(self.number))
        (self.data_dir / "zoo.cfg").write_text(_CONFIG + self.settings(self))
        (self.data_dir / "log4j2.properties").write_text(_LOG4J)
        users = "\n".join(f'  user_{name}="{password}"' for name, password in self.security.logins.items())
        module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
        (self.data_dir / "jaas.conf").write_text(f"Server {{\n{module}\n{users};\n}};\n")


class LocalEnsemble:
    """Three servers with one leader; a context manager.

    :param on: the hosts of its servers; default: this machine, three ports.
    :param folders: of their data; default: temporary ones.
    """

    def __init__(
        self,
        security: Security | None = None,
        *,
        on: Sequence[Host] | None = None,
        folders: Sequence[Path] | None = None,
    ) -> None:
        self.security = security or Security()
        ports = free_ports(9)
        self.nodes: list[ZooKeeperNode] = []
        for index in range(3):
            host = on[index] if on else None
            address = host.address if host else "127.0.0.1"
            node = ZooKeeperNode(
                index + 1, address, ports[index::3], host=host, data_dir=folders[index] if folders else None
            )
            node.security, node.settings = self.security, self._settings
            self.nodes.append(node)

    @property
    def hosts(self) -> str:
        """The connection string for clients."""
        return ",".join(node.hosts for node in self.nodes)

    @property
    def leader(self) -> ZooKeeperNode:
        """The one that leads, once one does."""
        return eventually(lambda: self._in_mode("leader"), 240, "the ensemble has a leader")[0]

    @property
    def followers(self) -> list[ZooKeeperNode]:
        return self._in_mode("follower")

    def start(self) -> Self:
        """Start all that do not run, and wait until they are one ensemble."""
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(ZooKeeperNode.start, self.nodes))
        self.whole()
        return self

    def whole(self) -> None:
        """Wait until one of the servers leads and the others follow."""
        eventually(
            lambda: len(self._in_mode("leader")) == 1 and len(self.followers) == 2,
            240,
            "one leads, two follow",
            explain=lambda: "\n".join(node.log.read_text()[-800:] for node in self.nodes),
        )

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _in_mode(self, mode: str) -> list[ZooKeeperNode]:
        return [node for node in self.nodes if node.running and node.mode == mode]

    def _settings(self, node: ZooKeeperNode) -> str:
        port = "secureClientPort" if self.security.certificates else "clientPort"
        lines = [f"dataDir={node.data_dir}", f"{port}={node.port}", f"{port}Address={node.address}"]
        for each in self.nodes:
            lines.append(f"server.{each.number}={each.address}:{each.between[0]}:{each.between[1]}")
        if self.security.certificates:
            lines += _tls(self.security.certificates, node.data_dir, self.security.client_certificates)
        if self.security.logins:
            lines.append("authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider")
            lines += ["enforce.auth.enabled=true", "enforce.auth.schemes=sasl"]
        return "".join(f"{line}\n" for line in lines)


def _tls(certificates: Certificates, folder: Path, client_certificates: bool) -> list[str]:
    # ZooKeeper wants the key and its certificate in one file.
    own = folder / "server.pem"
    own.write_text(certificates.server_key.read_text() + certificates.server.read_text())
    lines = ["sslQuorum=true", f"ssl.clientAuth={'need' if client_certificates else 'none'}"]
    for name in ("ssl", "ssl.quorum"):
        lines += [f"{name}.keyStore.location={own}", f"{name}.keyStore.type=PEM"]
        lines += [f"{name}.trustStore.location={certificates.ca}", f"{name}.trustStore.type=PEM"]
    return lines
