"""A Delta table on real S3 servers: what they refuse, lose and deny, and committers that race or die there."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from airflow_tx.base.errors import ConfigError, StateError, StateOutcomeUnknown
from airflow_tx.state import DeltaTable
from airflow_tx.state.lake.delta import DeltaStore
from airflow_tx.testing.suites.state_tools import Grants, about_to_restate
from tests.cluster.object_storage import S3Server
from tests.lake import read_back, staged
from tests.servers.s3 import PACKAGES, Bucket, LocalS3
from tests.servers.spark_session import skipped_without_jars

ROOT = Path(__file__).parents[2]
Options = Mapping[str, str]


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


def commit(table: DeltaTable, grants: Grants, txid: int, rows: pa.Table, attempt: int = 1) -> None:
    grant = grants(txid, attempt)
    table.raise_and_write(grant, staged(table, grant.attempt, rows))
    grants.final(grant, table)


def held(uri: str, options: Options) -> list[tuple[int, int]]:
    rows = read_back(uri, {"aws_allow_http": "true", **options})
    return sorted((row["tx_txid"], row["n"]) for row in rows)


# --- what a commit leaves -------------------------------------------------------------------------------------------


@pytest.mark.lead
def test_commits_replays_and_restatements_are_exact_on_s3(s3: LocalS3) -> None:
    grants = Grants()
    table = DeltaTable(f"{Bucket(s3).url}/orders", storage_options=s3.options)
    commit(table, grants, 1, numbers(10))
    commit(table, grants, 2, numbers(20, 21))
    commit(table, grants, 2, numbers(22), attempt=2)
    deltalake.DeltaTable(table.uri, storage_options=table.options()).optimize.compact()
    grant = about_to_restate(grants(3), 1)
    table.raise_and_write(grant, staged(table, grant.attempt, numbers(11)))
    assert held(table.uri, s3.options) == [(2, 22), (3, 11)]
    assert table.rows_by_txid() == {2: 1, 3: 1}


@pytest.mark.lead
def test_a_response_of_s3_that_is_lost_after_the_put_does_not_cause_a_second_commit(s3: LocalS3) -> None:
    grants = Grants()
    table = DeltaTable(f"{Bucket(s3, 'lossy').url}/orders", storage_options=s3.options)
    commit(table, grants, 1, numbers(10))
    commit(table, grants, 2, numbers(20))
    assert held(table.uri, s3.options) == [(1, 10), (2, 20)]


def test_a_server_that_ignores_conditional_writes_is_refused_and_nothing_is_stored(s3: LocalS3) -> None:
    bucket = Bucket(s3, "unconditional")
    table = DeltaTable(f"{bucket.url}/orders", storage_options=s3.options)
    with pytest.raises(ConfigError, match="ignores If-None-Match") as refusal:
        table.raise_fence(Grants()(1))
    assert "\n" not in str(refusal.value)
    assert bucket.fs.find(bucket.name) == []


def test_support_for_conditional_writes_is_tested_once_for_each_server(s3: LocalS3) -> None:
    grants = Grants()
    bucket = Bucket(s3)
    for txid in (1, 2):
        commit(DeltaTable(f"{bucket.url}/orders", storage_options=s3.options), grants, txid, numbers(txid))
    names = [name.partition("/orders/")[2] for name in bucket.fs.find(bucket.name)]
    assert len([name for name in names if "_conditional_puts" in name]) == 1
    assert not [name for name in names if "_probe" in name]


# --- keys and rights ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[Mapping[str, Options]]:
    """A server that checks keys and policies: the options of a `writer`, and of a `reader` who may write nothing."""
    if str(PACKAGES) not in sys.path:
        sys.path.append(str(PACKAGES))
    import boto3  # type: ignore[import-not-found, import-untyped, unused-ignore]

    with LocalS3() as server:
        login = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=server.url, **login).create_bucket(Bucket="lake")
        iam = boto3.client("iam", endpoint_url=server.url, **login)
        users = {"writer": ["s3:*"], "reader": ["s3:GetObject", "s3:ListBucket"]}
        found = {name: {**server.options, **_key(iam, name, actions)} for name, actions in users.items()}
        checks = urllib.request.Request(
            f"{server.url}/moto-api/reset-auth", data=b"0", headers={"Content-Type": "text/plain"}
        )
        urllib.request.urlopen(checks).close()
        yield found


def _key(iam: Any, user: str, actions: list[str]) -> dict[str, str]:
    iam.create_user(UserName=user)
    allowed = {"Effect": "Allow", "Action": actions, "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    iam.put_user_policy(UserName=user, PolicyName="lake", PolicyDocument=policy)
    key = iam.create_access_key(UserName=user)["AccessKey"]
    return {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}


def _is_one_line_without(secrets: Options, text: str) -> bool:
    hidden = [secrets["aws_access_key_id"], secrets["aws_secret_access_key"], "StringToSign", "\n", "\x1b"]
    return not [each for each in hidden if each in text]


@pytest.mark.long
def test_a_denied_commit_fails_with_one_line_and_keeps_the_staged_files(guarded: Mapping[str, Options]) -> None:
    grants = Grants()
    uri = "s3://lake/denied"
    writing = DeltaTable(uri, storage_options=guarded["writer"])
    reading = DeltaTable(uri, storage_options=guarded["reader"])
    commit(writing, grants, 1, numbers(10))
    grant = grants(2)
    files = staged(writing, grant.attempt, numbers(20))
    with pytest.raises(StateError, match="may not read or write.*AccessDenied.*Staged files are kept") as refusal:
        reading.raise_and_write(grant, files)
    assert type(refusal.value) is StateError
    assert _is_one_line_without(guarded["reader"], str(refusal.value))
    writing.raise_and_write(grant, files)
    assert held(uri, guarded["writer"]) == [(1, 10), (2, 20)]


@pytest.mark.long
def test_a_wrong_access_key_appears_in_no_message_and_no_log(
    guarded: Mapping[str, Options], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = {**guarded["writer"], "aws_secret_access_key": "not-the-secret"}
    table = DeltaTable("s3://lake/wrong", storage_options=wrong)
    for use in (table.fence, table.read, lambda: table.raise_fence(Grants()(1))):
        with pytest.raises(StateError, match="may not read or write.*SignatureDoesNotMatch") as refusal:
            use()
        assert _is_one_line_without(wrong, str(refusal.value))
    assert table.sweep(1) == 0
    shown = [*(record.getMessage() for record in caplog.records), repr(table), json.dumps(table.serialize())]
    assert [each for each in shown if not _is_one_line_without(wrong, each)] == []


@pytest.mark.long
def test_the_next_commit_uses_the_renewed_access_key_of_the_connection(
    guarded: Mapping[str, Options], monkeypatch: pytest.MonkeyPatch
) -> None:
    def renew(secret: str) -> None:
        writer = guarded["writer"]
        extra = {"endpoint_url": writer["aws_endpoint_url"], "region_name": "us-east-1"}
        told = {"conn_type": "aws", "login": writer["aws_access_key_id"], "password": secret, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_AWS_LAKE", json.dumps(told))

    table = DeltaTable("s3://lake/renewed", conn_id="aws_lake")
    grant = Grants()(1)
    renew("expired")
    with pytest.raises(StateError, match="SignatureDoesNotMatch"):
        table.raise_fence(grant)
    renew(guarded["writer"]["aws_secret_access_key"])
    table.raise_and_write(grant, staged(table, grant.attempt, numbers(10)))
    assert held(table.uri, guarded["writer"]) == [(1, 10)]


# --- committers that race, and a server that dies -------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3proxy() -> Iterator[S3Server]:
    """The S3 server of the cluster, which keeps what it has been given when it dies."""
    with skipped_without_jars(), S3Server("127.0.0.1") as server:
        yield server


def _options(server: S3Server) -> dict[str, str]:
    return {name.lower(): value for name, value in server.environment.items() if name.startswith("AWS_")}


@pytest.mark.long
def test_the_last_of_two_racing_committers_to_raise_the_fence_wins_on_s3(
    s3proxy: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = "s3://staging/race"
    options = _options(s3proxy)
    for name, value in options.items():
        monkeypatch.setenv(name.upper(), value)
    grants = Grants()
    attempts = [grants(1, attempt) for attempt in range(1, 41)]
    (tmp_path / "grants").write_bytes(pickle.dumps(attempts))
    script = [sys.executable, "-m", "tests.integration.table_race", uri, str(tmp_path / "grants")]
    both = [subprocess.Popen([*script, str(n)], cwd=ROOT, stdout=subprocess.PIPE, text=True) for n in (0, 1)]
    told = [each.communicate()[0] for each in both]
    assert [each.returncode for each in both] == [0, 0], told
    assert [n for _, n in held(uri, options)] == [40, 40, 40]


@pytest.mark.long
def test_the_next_grant_finishes_a_killed_commit_on_s3(s3proxy: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _options(s3proxy).items():
        monkeypatch.setenv(name.upper(), value)
    script = [sys.executable, "-m", "tests.integration.table_kills", "s3://staging/kills", "23"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


@pytest.mark.long
def test_a_commit_has_an_unknown_outcome_if_its_server_is_killed_and_is_completed_later(
    s3proxy: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**_options(s3proxy), "max_retries": "1"}
    table = DeltaTable("s3://staging/dying", storage_options=options)
    grants = Grants()
    commit(table, grants, 1, numbers(10))
    grant, later = grants(2), grants(2)
    files = staged(table, grant.attempt, numbers(20))
    publish = DeltaStore.publish

    def without_server(*given: Any, **named: Any) -> None:
        s3proxy.stop()
        publish(*given, **named)

    monkeypatch.setattr(DeltaStore, "publish", without_server)
    try:
        with pytest.raises(StateOutcomeUnknown, match="may have been written"):
            table.raise_and_write(grant, files)
    finally:
        monkeypatch.undo()
        s3proxy.start()
    table.raise_and_write(later, files)
    assert held(table.uri, options) == [(1, 10), (2, 20)]
