"""A connected ZooKeeper client, made from a configuration: hosts, chroot, authentication, TLS, ACL and time-outs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import (  # type: ignore[import-untyped]
    AuthFailedError,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NotReadOnlyCallError,
    QuotaExceededError,
    SessionClosedRequireSaslError,
    ThrottledOpError,
)
from kazoo.handlers.threading import SequentialThreadingHandler  # type: ignore[import-untyped]
from kazoo.protocol.serialization import Auth  # type: ignore[import-untyped]
from kazoo.protocol.states import KeeperState  # type: ignore[import-untyped]
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, make_acl, make_digest_acl  # type: ignore[import-untyped]

from airflow_tx.base.errors import (
    ConfigError,
    LoginRefused,
    NoConnection,
    StoreDeclined,
    StoreError,
    StoreRefused,
)

# --- handler ------------------------------------------------------------------------------------------------------
# Subclasses of kazoo's threads, connections and log, which record why a client does not connect.


if TYPE_CHECKING:
    Adapter = logging.LoggerAdapter[logging.Logger]
else:
    Adapter = logging.LoggerAdapter

_WHY = ("Connection dropped: ", "Connection time-out: ", "Cannot resolve ")


class ConnectionHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """The threads and connections of a kazoo client.

    If a thread ends with an error, the handler keeps this error. A single unreachable server does not delay the
    connection for long.

    :param patience: seconds within which one server must accept a connection. kazoo's default is the session time-out.
    :ivar error: error that permanently ended the connection.
    """

    def __init__(self, patience: float) -> None:
        super().__init__()
        self._patience = patience
        self.error: KazooException | None = None

    def create_connection(self, *args: Any, timeout: float, **kwargs: Any) -> Any:
        return super().create_connection(*args, timeout=min(timeout, self._patience), **kwargs)

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def noting_error() -> None:
            try:
                func(*args, **kwargs)
            except KazooException as error:  # The login was refused. kazoo would print a traceback.
                self.error = error

        return super().spawn(noting_error)


class ConnectionLog(Adapter):
    """The log of one client. It keeps the reason of the last failed connection, and never contains a password.

    :ivar reason: the reason as kazoo logs it; "" if there is none.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, {})
        self.reason = ""

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        # kazoo logs a line for each operation.
        if level <= logging.DEBUG and not self.isEnabledFor(level):
            return
        text = str(msg)
        if text.startswith(_WHY):
            self.reason = (text % args).removeprefix(_WHY[0])
        # kazoo's errors are reported by the code that needs a connection. The request `Auth` is
        # omitted, since it contains the credentials.
        if not isinstance(sys.exc_info()[1], KazooException) and not any(
            isinstance(arg, Auth) for arg in args
        ):
            super().log(level, msg, *args, **kwargs)


# --- client -------------------------------------------------------------------------------------------------------


DIGEST = "digest"
SASL = "sasl"
_BY_LOGIN = (AuthFailedError, SessionClosedRequireSaslError)
FORBIDDEN = (NoAuthError, InvalidACLError, *_BY_LOGIN)
# A client must reconnect soon even after a long outage.
_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}


@dataclass(frozen=True)
class Tls:
    """The TLS settings of the connection.

    :param ca: PEM file of the trusted certificate authorities; None means the system's authorities.
    :param cert: PEM file of the client's certificate. `key` and `key_password` are its private key and the key's
        password.
    :param verify: whether to check the server's certificate and host name.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True


@dataclass(frozen=True)
class ClientConfig:
    """The configuration of a client. Its repr contains no password.

    :param hosts: addresses of the servers, such as `h1:2181,h2:2181`.
    :param conn_id: id of the Airflow connection, for messages.
    :param chroot: znode above all paths. It is created if missing. Empty or "/" means no chroot.
    :param scheme: `digest` or `sasl` (DIGEST-MD5); None means `digest` if a login is set, otherwise no authentication.
    :param session_timeout: seconds without a heartbeat until the server ends the session.
    :param connect_timeout: seconds after which an unreachable server causes an error.
    """

    hosts: str
    conn_id: str = "none"
    chroot: str = ""
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    scheme: str | None = None
    tls: Tls | None = None
    session_timeout: float = 10.0
    connect_timeout: float = 10.0

    @property
    def authenticated(self) -> bool:
        """Whether the client logs in. If so, only this login may read and write the znodes that the client creates."""
        return self.login is not None

    @property
    def acl(self) -> Sequence[Any]:
        """The ACL of every new znode, which grants access only to the login.

        The scheme `auth` would also give access to other identities of the client, such as a certificate that all
        clients share.
        """
        if self.login is None:
            return list(OPEN_ACL_UNSAFE)
        if self.scheme != SASL:
            return [make_digest_acl(self.login, self.password or "", all=True)]
        # Servers rewrite logins that look like Kerberos names.
        return (
            list(CREATOR_ALL_ACL)
            if {"@", "/"} & {*self.login}
            else [make_acl(SASL, self.login, all=True)]
        )


def connect(config: ClientConfig) -> KazooClient:
    """Return a connected client. The caller must close it with `disconnect`.

    :raises NoConnection: no server responded within the connect time-out, or the TLS handshake failed.
    :raises LoginRefused: the servers refused this login.
    :raises StoreRefused: the chroot belongs to another login.
    :raises ConfigError: a file or a library that the connection needs is missing.
    """
    _check_files(config)
    log = ConnectionLog(_LOGGER)
    client = KazooClient(**_options(config), logger=log)
    try:
        client.start(timeout=config.connect_timeout)
        if config.scheme == SASL:
            # The session exists before SASL completes. Only a response proves that the server
            # accepts the login.
            client.exists_async("/").get(timeout=config.connect_timeout)
        _enter_chroot(client, config)
    except (KazooException, client.handler.timeout_exception) as error:
        refused = _explained(client, error, config, log)
        disconnect(client)
        raise refused from None
    except StoreError:
        disconnect(client)
        raise
    return client


def disconnect(client: KazooClient) -> None:
    """End the session and all threads of a client."""
    client.stop()
    client.close()


def _options(config: ClientConfig) -> dict[str, Any]:
    options: dict[str, Any] = {
        "hosts": config.hosts,
        "timeout": config.session_timeout,
        "default_acl": config.acl,
        "connection_retry": dict(_RECONNECT),
        "command_retry": dict(_RECONNECT),
        # An unreachable server must not use up the time-out of the other servers.
        "handler": ConnectionHandler(
            min(config.session_timeout, config.connect_timeout) / (config.hosts.count(",") + 1)
        ),
        **_auth(config),
    }
    if config.tls is not None:
        options.update(
            use_ssl=True,
            ca=config.tls.ca,
            certfile=config.tls.cert,
            keyfile=config.tls.key,
            keyfile_password=config.tls.key_password,
            verify_certs=config.tls.verify,
            check_hostname=config.tls.verify,
        )
    return options


def _auth(config: ClientConfig) -> dict[str, Any]:
    if not config.authenticated:
        return {}
    password = config.password or ""
    if config.scheme == SASL:
        return {
            "sasl_options": {
                "mechanism": "DIGEST-MD5",
                "username": config.login,
                "password": password,
            }
        }
    return {"auth_data": [(DIGEST, f"{config.login}:{password}")]}


def _check_files(config: ClientConfig) -> None:
    where = f"connection {config.conn_id}"
    if config.scheme == SASL and find_spec("puresasl") is None:
        remedy = "Install its library: pip install pure-sasl"
        raise ConfigError(option=f"auth_scheme of {where}", value=SASL, remedy=remedy)
    tls = config.tls or Tls()
    for option, path in (("ca_file", tls.ca), ("cert_file", tls.cert), ("key_file", tls.key)):
        if path and not os.access(path, os.R_OK):
            remedy = "Name a PEM file that this process can read."
            raise ConfigError(option=f"{option} of {where}", value=path, remedy=remedy)


def _enter_chroot(client: KazooClient, config: ClientConfig) -> None:
    chroot = config.chroot.rstrip("/")
    if not chroot:
        return
    if client.exists(chroot) is None:
        for path in with_parents(chroot):
            results = send_proven(client, path).get()
            check_proven(results, hosts=config.hosts, connection=config.conn_id, path=path)
    client.chroot = chroot


def with_parents(path: str) -> list[str]:
    """Return a path and all its parent paths, topmost first."""
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def send_proven(client: KazooClient, path: str) -> Any:
    """Send a request that creates an empty znode if this login can read it. Check the response with `check_proven`.

    The servers decode a login in the charset of their JVM. If this charset is not UTF-8, the stored ACL may lock out
    every login.
    """
    transaction = client.transaction()
    transaction.create(path)
    transaction.check(path, 0)  # This succeeds only if the login may read the new znode.
    return transaction.commit_async()


def check_proven(results: Sequence[Any], *, hosts: str, connection: str, path: str) -> None:
    """Check the response to `send_proven`.

    The znode may exist, since the response to an earlier try may have been lost.

    :raises LoginRefused: the servers decode this login differently.
    :raises StoreRefused, StoreDeclined: the servers refused the request for another reason.
    """
    made, proof = results
    if isinstance(proof, NoAuthError) or isinstance(made, InvalidACLError):
        raise LoginRefused(hosts=hosts, connection=connection, reason=_READ_OTHERWISE)
    if isinstance(made, KazooException) and not isinstance(made, NodeExistsError):
        raise request_refused(made, hosts=hosts, connection=connection, path=path)


_READ_OTHERWISE = (
    "the server decodes this login or password as a different text, so no login could open "
    "the nodes that it creates. Use ASCII alone, without a colon in the "
    "login, or start the servers' Java with -Dfile.encoding=UTF-8"
)
# Parts of kazoo's messages, each with a remedy. The first match is used.
_REMEDIES = (
    ("mismatch", "name the hosts as the servers' certificate names them"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "let the extra ca_file name the authority that signed the servers' certificate",
    ),
    ("ALERT", "let the extras cert_file and key_file name a certificate that the servers trust"),
    (
        "WRONG_VERSION_NUMBER",
        "set the extra use_tls to false, or name the servers' secureClientPort",
    ),
    (
        "connection broken",
        "let the ensemble elect a leader, or take more connections of one host (maxClientCnxns); if this is its "
        "secureClientPort, set the extra use_tls",
    ),
    ("", "start the server or correct the hosts of the connection"),
)


def _explained(
    client: KazooClient, error: Exception, config: ClientConfig, log: ConnectionLog
) -> StoreError:
    server = {"hosts": config.hosts, "connection": config.conn_id}
    if client.client_state == KeeperState.AUTH_FAILED or isinstance(
        client.handler.error, _BY_LOGIN
    ):
        return LoginRefused(**server, reason=f"login {config.login!r} was refused")
    if isinstance(error, (*FORBIDDEN, *_DECLINED)):
        return request_refused(error, **server, path=config.chroot or "/")
    waited = isinstance(error, client.handler.timeout_exception)
    reason = (
        f"no answer within {config.connect_timeout:g} s"
        if waited
        else f"{type(error).__name__} {error}".strip()
    )
    reason += f" ({log.reason})" if log.reason else ""
    remedy = next(remedy for sign, remedy in _REMEDIES if sign in reason)
    return NoConnection(**server, reason=reason, remedy=remedy)


_DECLINED: Mapping[type[KazooException], tuple[str, str]] = {
    QuotaExceededError: (
        "the quota of a path is used up",
        "raise the quota (listquota and setquota of zkCli.sh), or delete topologies that are not used",
    ),
    ThrottledOpError: ("it is overloaded", "wait until its load is lower"),
    NotReadOnlyCallError: (
        "this server lost contact with the others and is read-only",
        "start the other servers",
    ),
}


def request_refused(
    error: BaseException, *, hosts: str, connection: str, path: str
) -> StoreRefused | StoreDeclined:
    """Return the error for a request refused by the servers."""
    if isinstance(error, _BY_LOGIN):
        return LoginRefused(hosts=hosts, connection=connection, reason="they require a SASL login")
    name = type(error).__name__
    if isinstance(error, FORBIDDEN):
        return StoreRefused(hosts=hosts, connection=connection, path=path, reason=name)
    reason, remedy = _DECLINED.get(type(error), (name, "read the logs of its servers"))
    return StoreDeclined(
        hosts=hosts, connection=connection, path=path, reason=reason, remedy=remedy
    )


def _logger() -> logging.Logger:
    logger = logging.getLogger("airflow_tx.zookeeper")
    if logger.level == logging.NOTSET:
        # kazoo logs ten lines for each connection, and two lines a second during an outage. The
        # errors of this package report the outage once.
        logger.setLevel(logging.ERROR)
    return logger


_LOGGER = _logger()
