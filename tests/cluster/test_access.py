"""An ensemble that lets only its own in: TLS, SASL, ACLs; what refuses says what helps, and that helps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import NoAuthError  # type: ignore[import-untyped]
from kazoo.security import ACL, OPEN_ACL_UNSAFE, make_digest_acl_credential  # type: ignore[import-untyped]

from airflow_tx.base.errors import LoginRefused, NoConnection, StoreRefused, TxError
from airflow_tx.hooks.zookeeper import ZooKeeperHook
from airflow_tx.ledger.store.client import disconnect
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.cluster.certificates import Certificates
from tests.cluster.committer import Committer, expected
from tests.cluster.ensemble import LocalEnsemble, Security

MADE_IT = "use the login and password that made the record"
LOGIN = {"login": "ada", "password": "s3cret-of-ada"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Those of another authority."""
    return Certificates(tmp_path_factory.mktemp("strange"))


@pytest.fixture(scope="module")
def ensemble(certificates: Certificates) -> Iterator[LocalEnsemble]:
    logins = {"ada": LOGIN["password"], "eve": "s3cret-of-eve"}
    with LocalEnsemble(Security(certificates, client_certificates=True, logins=logins)) as ensemble:
        yield ensemble


@pytest.fixture
def connection(ensemble: LocalEnsemble, certificates: Certificates) -> dict[str, Any]:
    """The one that is let in."""
    files = {"ca_file": certificates.ca, "cert_file": certificates.client, "key_file": certificates.client_key}
    extra = {"use_tls": True, "auth_scheme": "sasl", "chroot": "/prod", **{name: str(at) for name, at in files.items()}}
    return {"host": ensemble.hosts, **LOGIN, "extra": extra}


@pytest.fixture
def hook(connection: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., ZooKeeperHook]:
    def make(*, extra: Mapping[str, Any] | None = None, **fields: Any) -> ZooKeeperHook:
        changed = {**connection, **fields, "extra": {**connection["extra"], **(extra or {})}}
        monkeypatch.setenv("AIRFLOW_CONN_ZK", json.dumps({"conn_type": "zookeeper", **changed}))
        return ZooKeeperHook("zk")

    return make


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    """Clients that are closed in the end."""
    clients = list[Any]()
    yield clients
    for client in clients:
        disconnect(client)


def refusal(hook: ZooKeeperHook, kind: type[Exception], says: str) -> str:
    """Why it is not let in: one line that says this, without a secret."""
    told = ""
    # A busy machine may not be refused in the shorter times.
    for seconds in ("4", "30", "240"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AIRFLOW__TX__CONNECT_TIMEOUT", seconds)
            with pytest.raises(TxError) as error, hook.store() as store:
                store.get("/")
        told = str(error.value)
        if says in told:
            break
    assert isinstance(error.value, kind), error.value
    assert says in told
    assert "\n" not in told
    assert "s3cret" not in told
    return told


def test_a_client_with_a_certificate_and_a_login_can_read_and_write(
    hook: Callable[..., ZooKeeperHook], ensemble: LocalEnsemble, caplog: pytest.LogCaptureFixture
) -> None:
    assert hook().test_connection() == (True, f"ZooKeeper answers at {ensemble.hosts}")
    with hook().store() as store:
        store.ensure("/here")
        assert store.get("/here") is not None


def test_a_wrong_certificate_authority_causes_a_one_line_error_whose_remedy_works(
    hook: Callable[..., ZooKeeperHook], strange: Certificates, certificates: Certificates
) -> None:
    told = refusal(hook(extra={"ca_file": str(strange.ca)}), NoConnection, "certificate verify failed")
    assert "let the extra ca_file name the authority that signed the servers' certificate" in told
    with hook(extra={"ca_file": str(certificates.ca)}).store() as store:
        assert store.get("/") is not None


def test_a_missing_or_untrusted_client_certificate_causes_a_one_line_error_whose_remedy_works(
    hook: Callable[..., ZooKeeperHook], strange: Certificates
) -> None:
    wrong = {"cert_file": str(strange.client), "key_file": str(strange.client_key)}
    for extra in ({"cert_file": None, "key_file": None}, wrong):
        remedy = "let the extras cert_file and key_file name a certificate that the servers trust"
        refusal(hook(extra=extra), NoConnection, remedy)
    with hook().store() as store:
        assert store.get("/") is not None


def test_a_host_name_that_is_not_in_the_certificate_causes_a_one_line_error(
    hook: Callable[..., ZooKeeperHook], ensemble: LocalEnsemble
) -> None:
    wrong = hook(host=ensemble.hosts.replace("127.0.0.1", "localhost"))
    refusal(wrong, NoConnection, "name the hosts as the servers' certificate names them")


def test_tls_on_only_one_side_of_a_connection_causes_a_one_line_error(
    hook: Callable[..., ZooKeeperHook], zookeeper: LocalZooKeeper
) -> None:
    plain = dict.fromkeys(["ca_file", "cert_file", "key_file"])
    refusal(hook(extra={"use_tls": False, **plain}), NoConnection, "set the extra use_tls")
    refusal(hook(host=zookeeper.hosts), NoConnection, "ZooKeeper 127.0.0.1")


@pytest.mark.parametrize("login", [{"password": "s3cret-but-wrong"}, {"login": "mallory"}])
def test_a_wrong_login_fails_at_once_with_a_one_line_error(
    hook: Callable[..., ZooKeeperHook], login: Mapping[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    told = refusal(hook(**login), LoginRefused, f"login {login.get('login', 'ada')!r} was refused")
    assert "correct the login, the password and the extra auth_scheme" in told
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_missing_login_or_a_login_of_another_scheme_causes_a_one_line_error(
    hook: Callable[..., ZooKeeperHook],
) -> None:
    for fields in ({"login": None, "password": None, "extra": {"auth_scheme": None}}, {"extra": {"auth_scheme": None}}):
        refusal(hook(**fields), LoginRefused, "they require a SASL login")


def test_another_login_cannot_read_or_write_the_records_of_a_topology_even_over_tls(
    hook: Callable[..., ZooKeeperHook], connection: dict[str, Any], tmp_path: Path, opened: list[Any]
) -> None:
    transactions(tmp_path, connection)
    refusal(hook(login="eve", password="s3cret-of-eve"), StoreRefused, MADE_IT)
    opened.append(hook(extra={"chroot": None}).get_conn())
    opened.append(hook(login="eve", password="s3cret-of-eve", extra={"chroot": None}).get_conn())
    owner, eve = opened
    closed(owner, eve, {"sasl:ada"})


def test_a_client_without_a_valid_login_cannot_read_or_write_the_records_of_a_topology(
    zookeeper: LocalZooKeeper, hook: Callable[..., ZooKeeperHook], tmp_path: Path, opened: list[Any]
) -> None:
    connection = {"host": zookeeper.hosts, **LOGIN, "extra": {"chroot": "/prod"}}
    transactions(tmp_path, connection)
    for auth in ([("digest", f"ada:{LOGIN['password']}")], None, [("digest", "eve:x")]):
        opened.append(KazooClient(zookeeper.hosts, auth_data=auth))
        opened[-1].start()
    digest = make_digest_acl_credential("ada", LOGIN["password"])
    owner, *strangers = opened
    for stranger in strangers:
        closed(owner, stranger, {f"digest:{digest}"})
    none = dict.fromkeys(["use_tls", "ca_file", "cert_file", "key_file", "auth_scheme"])
    wrong = hook(host=zookeeper.hosts, password="s3cret-but-wrong", extra=none)
    refusal(wrong, StoreRefused, MADE_IT)


def transactions(folder: Path, connection: Mapping[str, Any]) -> None:
    """Two of one topology."""
    committer = Committer(folder, connection, f"sqlite:///{folder}/state.db")
    try:
        assert committer("many", "r1,r2") == []
        assert expected(2).items() <= committer("totals").items()
    finally:
        committer.close()


def closed(owner: Any, stranger: Any, ids: set[str]) -> None:
    """Whatever lies below /prod belongs to one id alone, and a stranger is refused whatever can be done to it."""
    paths = ["/prod"]
    for path in paths:
        paths += [f"{path}/{child}" for child in owner.get_children(path)]
    assert len(paths) > 15
    for path in paths:
        acls: list[ACL] = owner.get_acls(path)[0]
        assert {f"{each.id.scheme}:{each.id.id}" for each in acls} == ids, path
        tries: list[Callable[[str], object]] = [
            stranger.get,
            stranger.get_children,
            lambda path: stranger.set(path, b""),
        ]
        tries += [lambda path: stranger.create(f"{path}/new"), lambda path: stranger.set_acls(path, OPEN_ACL_UNSAFE)]
        for attempt in tries:
            with pytest.raises(NoAuthError):
                attempt(path)
