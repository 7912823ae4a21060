"""What a source of files in an object storage says of itself; nothing here reaches one."""

from __future__ import annotations

import os
from typing import Any

import pytest

from airflow_tx.base.connections.lookup import Endpoint, for_airflow, handed_over
from airflow_tx.base.errors import ConfigError
from airflow_tx.sources.api import rebuild
from airflow_tx.sources.files.source import FileSource, PartitionedFileSource
from airflow_tx.sources.files.storage import Objects


@pytest.mark.parametrize(
    ("url", "spark_folder", "expected"),
    [
        ("s3://bucket/in/*.csv", None, "s3a://bucket/in/x=1/a[1].csv"),
        ("s3a://bucket/in/*.csv", None, "s3a://bucket/in/x=1/a[1].csv"),
        ("gs://bucket/in/*.csv", None, "gs://bucket/in/x=1/a[1].csv"),
        ("s3://bucket/in/*.csv", "s3://bucket/in", "s3://bucket/in/x=1/a[1].csv"),
        ("abfs://box/in/*.csv", "abfss://box@acc.dfs.core.windows.net/in/", "abfss://box@acc.dfs.core.windows.net/in/x=1/a[1].csv"),
        ("s3://bucket/*/*.csv", None, "s3a://bucket/in/x=1/a[1].csv"),
    ],
)  # fmt: skip
def test_a_file_in_object_storage_gets_the_name_that_spark_uses(
    url: str, spark_folder: str | None, expected: str
) -> None:
    storage = Objects(url, None, spark_folder)
    folder = "/".join(url.split("/")[:3]) + "/in/x=1"
    assert storage.for_spark(folder, "a[1].csv") == expected.replace("[1]", r"\[1\]")


@pytest.mark.parametrize(
    ("url", "conn_id", "expected"),
    [
        ("s3://bucket/*.csv", "aws_sales", {"aws_sales": "aws"}),
        ("gs://bucket/*.csv", "google", {"google": "google_cloud_platform"}),
        ("abfs://bucket/*.csv", "azure", {"azure": "wasb"}),
        ("s3://bucket/*.csv", None, {}),
        ("/data/*.csv", None, {}),
    ],
)
def test_a_file_source_names_its_connection(url: str, conn_id: str | None, expected: Any) -> None:
    assert FileSource(url, conn_id=conn_id).connections() == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"path_glob": "s3://key:secret@bucket/*.csv"}, r"path_glob of FileSource = '\.\.\.@\.\.\.' cannot be used\."),
        ({"path_glob": "s3://*/*.csv"}, "Write the name of the bucket without wildcards"),
        ({"path_glob": "s3://bucket/*.csv", "base": "/data"}, "base of FileSource = '/data' cannot be used. Leave it"),
        ({"path_glob": "/data/*.csv", "conn_id": "aws"}, "conn_id of FileSource = 'aws' cannot be used"),
        ({"path_glob": "/data/*.csv", "spark_folder": "s3a://b"}, "spark_folder of FileSource = 's3a://b' cannot"),
        (
            {"path_glob": "/data/*.csv", "max_bytes_per_batch": 0},
            "max_bytes_per_batch of FileSource = 0 cannot be used",
        ),
        ({"path_glob": "/data/*.csv", "files_per_batch": 0}, "files_per_batch of FileSource = 0 cannot be used"),
    ],
)
def test_invalid_arguments_for_object_storage_are_refused_while_the_dag_is_parsed(
    arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        FileSource(**arguments)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("source", [FileSource, PartitionedFileSource])
def test_a_file_source_can_be_created_again_with_the_same_arguments(
    source: type[FileSource | PartitionedFileSource],
) -> None:
    made = source(
        "s3://bucket/in/*/*.csv",
        max_bytes_per_batch=10,
        conn_id="aws_sales",
        spark_folder="s3://bucket/in",
        kind="opaque",
    )
    again = rebuild(*made.serialize())
    assert (repr(again), again.serialize()) == (repr(made), made.serialize())
    assert repr(made) == f"{source.__name__}('s3://bucket/in/*/*.csv', kind='opaque', max_bytes_per_batch=10)"


def test_a_batch_has_one_file_by_default_unless_its_bytes_are_limited() -> None:
    assert FileSource("/data/*.csv").files_per_batch == 1
    assert FileSource("/data/*.csv", max_bytes_per_batch=10).files_per_batch is None
    assert FileSource("/data/*.csv", 3, max_bytes_per_batch=10).files_per_batch == 3


def test_airflow_finds_a_connection_that_was_passed_in_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk import Connection

    monkeypatch.delenv("AIRFLOW_CONN_AWS_SALES", raising=False)
    # A variable that is set within the test is taken away after it.
    monkeypatch.setenv("AIRFLOW_CONN_AWS_SALES", "")
    monkeypatch.delenv("AIRFLOW_CONN_AWS_SALES")
    given = Endpoint("aws_sales", "aws", login="key", password="secret", extra='{"endpoint_url": "http://s3"}')
    for name, value in handed_over(given).items():
        monkeypatch.setenv(name, value)
    for_airflow("aws_sales")
    found = Connection.from_json(os.environ["AIRFLOW_CONN_AWS_SALES"], "aws_sales")
    assert (found.conn_type, found.login, found.password) == ("aws", "key", "secret")
    assert found.extra_dejson == {"endpoint_url": "http://s3"}
    monkeypatch.setenv("AIRFLOW_CONN_AWS_SALES", "aws://own@")
    for_airflow("aws_sales")
    assert os.environ["AIRFLOW_CONN_AWS_SALES"] == "aws://own@"
    for_airflow("another")
