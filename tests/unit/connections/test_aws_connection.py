"""A connection to S3, as deltalake takes it; its credentials are in no message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_tx.base.connections.aws import checked_s3_options, options_of_connection, scrubbed
from airflow_tx.base.errors import ConfigError
from airflow_tx.state import DeltaTable
from airflow_tx.state.lake.delta import is_denied

KEY, SECRET = "AKIAEXAMPLE", "wJalrXUt/nFEMI"
ANSWER = (
    f'PUT http://me:pw@lake/orders {SECRET} - 403 Forbidden: <?xml version="1.0"?>\n<Error><Code>SignatureDoesNotMatch'
    f"</Code><AWSAccessKeyId>{KEY}</AWSAccessKeyId><StringToSign>AWS4-HMAC-SHA256</StringToSign></Error>"
)


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Any:
    def define(extra: dict[str, Any] | None = None, **parts: Any) -> dict[str, str]:
        told = {"conn_type": "aws", "extra": json.dumps(extra or {}), **parts}
        monkeypatch.setenv("AIRFLOW_CONN_AWS_LAKE", json.dumps(told))
        return options_of_connection("aws_lake", what="DeltaTable")

    return define


def test_the_key_and_the_token_and_the_region_and_the_endpoint_are_read_from_the_connection(connect: Any) -> None:
    extra = {"aws_session_token": "t", "region_name": "eu-1", "endpoint_url": "http://lake:9000"}
    assert connect(extra, login=KEY, password=SECRET) == {
        "aws_access_key_id": KEY,
        "aws_secret_access_key": SECRET,
        "aws_session_token": "t",
        "aws_region": "eu-1",
        "aws_endpoint_url": "http://lake:9000",
    }


def test_the_endpoint_for_s3_overrides_the_endpoint_for_all_services(connect: Any) -> None:
    extra = {"endpoint_url": "http://all", "service_config": {"s3": {"endpoint_url": "http://lake"}}}
    assert connect(extra)["aws_endpoint_url"] == "http://lake"


@pytest.mark.parametrize(
    ("extra", "parts", "match"),
    [
        ({"role_arn": "arn:r"}, {}, "Assign the role to the machine"),
        ({"profile_name": "p"}, {}, "Assign the role to the machine"),
        ({}, {"login": KEY}, "both login and password"),
        ({}, {"password": SECRET}, "both login and password"),
        ({}, {"conn_type": "redis"}, "of type aws"),
    ],
)
def test_an_unusable_aws_connection_is_refused(connect: Any, extra: Any, parts: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as refusal:
        connect(extra, **parts)
    assert SECRET not in str(refusal.value)
    assert KEY not in str(refusal.value)


def test_an_option_or_a_variable_that_lets_renames_overwrite_files_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="overwrite each other"):
        checked_s3_options({"aws_s3_allow_unsafe_rename": "true"})
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "1")
    with pytest.raises(ConfigError, match="overwrite each other"):
        checked_s3_options({})


def test_an_endpoint_without_tls_is_accepted_only_with_an_http_address() -> None:
    assert checked_s3_options({"AWS_ENDPOINT_URL": "http://lake"})["aws_allow_http"] == "true"
    assert "aws_allow_http" not in checked_s3_options({"AWS_ENDPOINT_URL": "https://lake"})


def test_an_s3_error_shows_its_code_and_no_addresses_and_no_credentials() -> None:
    told = scrubbed(ANSWER, {"aws_access_key_id": KEY, "AWS_SECRET_ACCESS_KEY": SECRET})
    assert told == "PUT http://***@lake/orders *** - 403 Forbidden: SignatureDoesNotMatch"


def test_credentials_from_the_environment_are_hidden_in_s3_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session-token")
    assert scrubbed("it is session-token", {}) == "it is ***"


def test_a_conflict_at_version_403_is_not_treated_as_a_permission_error() -> None:
    assert not is_denied(OSError("version 403 already exists in /lake/permissions"))
    assert is_denied(OSError(ANSWER))
    assert is_denied(OSError("Permission denied (os error 13)"))


@pytest.mark.parametrize(("uri", "conn_id"), [("/lake/orders", "aws_lake"), ("s3://aws_lake@lake/orders", None)])
def test_a_connection_is_refused_for_a_path_that_needs_none_and_inside_a_uri(uri: str, conn_id: str | None) -> None:
    with pytest.raises(ConfigError, match="DeltaTable"):
        DeltaTable(uri, conn_id=conn_id)
