"""How a staged file is spelled for Spark."""

from __future__ import annotations

import pytest

from airflow_tx.outputs.staging.files import spark_uri


@pytest.mark.parametrize(
    ("uri", "spelled"),
    [
        ("/data/tx/part", "file:///data/tx/part"),
        ("/data/a@b/part", "file:///data/a@b/part"),
        ("s3://aws@bucket/tx/part", "s3a://bucket/tx/part"),
        ("s3://bucket/what?/a#1", "s3a://bucket/what?/a#1"),
        ("gcs://bucket/tx/part", "gs://bucket/tx/part"),
        ("abfs://box/tx/part", "abfss://box/tx/part"),
        ("local:///data/tx/part", "file:///data/tx/part"),
        ("hdfs://name:9000/tx/part", "hdfs://name:9000/tx/part"),
    ],
)
def test_a_file_has_a_uri_scheme_that_hadoop_supports_and_no_connection_id_in_its_uri(uri: str, spelled: str) -> None:
    assert spark_uri(uri) == spelled
