"""What a connection of type zookeeper may say, and what is refused, each with one line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_tx.base.config import Settings
from airflow_tx.base.errors import ConfigError
from airflow_tx.hooks.zookeeper import ZooKeeperHook, client_config
from airflow_tx.ledger.store.client import ClientConfig, Tls
from airflow_tx.provider_info import get_provider_info

SETTINGS = Settings.read(lambda option: None)


def config(**fields: Any) -> ClientConfig:
    extra = fields.pop("extra", None)
    text = extra if extra is None or isinstance(extra, str) else json.dumps(extra)
    connection = Connection(conn_id="zk", conn_type="zookeeper", extra=text, **fields)
    return client_config(connection, conn_id="zk", settings=SETTINGS)


def test_the_hook_has_the_type_and_the_name_that_the_provider_declares() -> None:
    (declared,) = get_provider_info()["connection-types"]
    assert declared["connection-type"] == ZooKeeperHook.conn_type
    assert declared["hook-name"] == ZooKeeperHook.hook_name
    assert declared["hook-class-name"] == f"{ZooKeeperHook.__module__}.{ZooKeeperHook.__name__}"


@pytest.mark.parametrize(
    ("host", "port", "hosts"),
    [
        ("zoo", None, "zoo:2181"),
        ("zoo", 2182, "zoo:2182"),
        ("h1:2181, h2:2182 ,h3", 9, "h1:2181,h2:2182,h3:9"),
        ("[::1]:7,[::2]", 9, "[::1]:7,[::2]:9"),
        ("::1", None, "[::1]:2181"),  # as Airflow reads zookeeper://[::1]
        ("2001:db8::2 , fe80::1%eth0", 9, "[2001:db8::2]:9,[fe80::1%eth0]:9"),
    ],
)
def test_zookeeper_hosts_without_a_port_use_the_port_of_the_connection(host: str, port: int | None, hosts: str) -> None:
    assert config(host=host, port=port).hosts == hosts


def test_the_login_and_the_password_become_digest_authentication_and_are_never_shown() -> None:
    found = config(host="h", login="ada", password="s3cret", extra={"key_password": "hidden", "use_tls": True})
    assert (found.login, found.password, found.scheme) == ("ada", "s3cret", None)
    assert not {"s3cret", "hidden"} & set(repr(found).replace("'", " ").split())
    assert "s3cret" not in repr(found)
    assert "hidden" not in repr(found)


def test_the_acl_gives_all_rights_only_to_the_login_or_to_everyone_if_there_is_no_login() -> None:
    (own,) = config(host="h", login="ada", password="s3cret").acl
    (by_sasl,) = config(host="h", login="ada", password="s3cret", extra={"auth_scheme": "sasl"}).acl
    (like_kerberos,) = config(host="h", login="ada@HOME", password="s3cret", extra={"auth_scheme": "sasl"}).acl
    (anyone,) = config(host="h").acl
    assert own.id.scheme == "digest"
    assert own.id.id.startswith("ada:")
    assert (by_sasl.id.scheme, by_sasl.id.id) == ("sasl", "ada")
    assert (like_kerberos.id.scheme, anyone.id.scheme) == ("auth", "world")


@pytest.mark.parametrize(
    ("fields", "chroot"),
    [
        ({}, ""),
        ({"schema": "production"}, "/production"),
        ({"extra": {"chroot": "/a/b/"}}, "/a/b"),
        ({"schema": "a", "extra": {"chroot": "/a"}}, "/a"),
        ({"extra": {"chroot": "/"}}, ""),
    ],
)
def test_the_chroot_is_read_from_the_schema_or_the_extra_of_the_connection(fields: dict[str, Any], chroot: str) -> None:
    assert config(host="h", **fields).chroot == chroot


def test_tls_is_enabled_by_the_extra_of_the_connection() -> None:
    extra = {"use_tls": True, "ca_file": "ca", "cert_file": "c", "key_file": "k", "key_password": "p", "verify": False}
    assert config(host="h", extra=extra).tls == Tls("ca", "c", "k", "p", False)
    assert config(host="h").tls is None


def test_extras_in_a_uri_are_parsed_as_text_and_empty_extras_are_ignored() -> None:
    assert config(host="h", extra={"use_tls": "TRUE", "verify": "false"}).tls == Tls(verify=False)
    assert config(host="h", extra={"use_tls": None, "chroot": "", "ca_file": None}) == config(host="h")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "host of connection zk = None cannot be used. Name at least one server"),
        ({"host": " , "}, "host of connection zk"),
        ({"host": "h:x"}, "host of connection zk = 'h:x'"),
        ({"host": "h:70000"}, "host of connection zk"),
        ({"host": "[::1"}, "an IPv6 address in brackets"),
        ({"host": "[zoo]:2181"}, "an IPv6 address in brackets"),
        ({"host": "h1:1:2"}, "an IPv6 address in brackets"),
        ({"host": "h", "login": "a:b", "password": "s3cret"}, "use a login without a colon"),
        ({"host": "h", "login": "ada", "password": "s3cret\ud800"}, "type both again"),
        ({"host": "h/chroot"}, "a chroot goes into the extra"),
        ({"host": "h", "extra": {"chrot": "/a"}}, "extra of connection zk = 'chrot' cannot be used. Known extras are"),
        ({"host": "h", "extra": "[1]"}, "It must be a JSON object"),
        ({"host": "h", "extra": '{"key_password": "s3cret"'}, "It must be a JSON object"),
        ({"host": "h", "extra": {"use_tls": "maybe"}}, "use_tls of connection zk = 'maybe'"),
        ({"host": "h", "extra": {"ca_file": "ca"}}, "set use_tls to true"),
        ({"host": "h", "extra": {"use_tls": True, "cert_file": "c"}}, "Set both cert_file and key_file, or neither"),
        ({"host": "h", "extra": {"use_tls": True, "ca_file": 7}}, "ca_file of connection zk = 7"),
        (
            {"host": "h", "extra": {"use_tls": True, "key_password": 777}},
            "key_password of connection zk = '(not shown)'",
        ),
        ({"host": "h", "extra": {"auth_scheme": "x509"}}, "It must be digest or sasl"),
        ({"host": "h", "extra": {"auth_scheme": "sasl"}}, "It needs a login and a password"),
        ({"host": "h", "login": "ada"}, "login of connection zk = 'ada' cannot be used. It needs a password"),
        ({"host": "h", "schema": "a", "extra": {"chroot": "/b"}}, "Its schema says 'a'"),
        ({"host": "h", "extra": {"chroot": "/a//b"}}, "chroot of connection zk = '/a//b'"),
        ({"host": "h", "extra": {"chroot": "/a/../b"}}, "chroot of connection zk"),
    ],
)
def test_an_unusable_zookeeper_connection_is_refused_with_a_one_line_error(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(**fields)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert "s3cret" not in str(error.value)


def test_a_missing_connection_is_refused_with_the_command_that_creates_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("airflow_tx.hooks.zookeeper.connection_of_airflow", lambda conn_id: None)
    with pytest.raises(ConfigError, match="No such connection. Make it: airflow connections add nosuch --conn-json"):
        ZooKeeperHook("nosuch").config()


def test_a_connection_uri_that_airflow_cannot_read_is_refused_with_the_equivalent_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ZK", "zookeeper://ada:s3cret@zk1:2181,zk2:2181/prod")
    with pytest.raises(ConfigError, match="Airflow cannot read variable AIRFLOW_CONN_ZK. Write it as JSON") as refused:
        ZooKeeperHook("zk").config()
    assert "s3cret" not in str(refused.value)
    monkeypatch.setenv("AIRFLOW_CONN_ZK", str(refused.value).split("'")[3])
    assert ZooKeeperHook("zk").config().hosts == "h1:2181,h2:2181"
