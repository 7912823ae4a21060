"""How a staged file is spelled for Spark."""

from __future__ import annotations

import pytest

from airflow_tx.staging import files
from airflow_tx.staging.files import RemoteFiles


@pytest.mark.parametrize(
    ("root", "spelled"),
    [
        ("s3://aws@bucket/tx", "s3a://bucket/tx/part"),
        ("gcs://bucket/tx", "gs://bucket/tx/part"),
        ("gs://bucket/tx/", "gs://bucket/tx/part"),
        ("local:///data/tx", "file:///data/tx/part"),
        ("hdfs://name:9000/tx", "hdfs://name:9000/tx/part"),
    ],
)
def test_a_file_of_a_store_has_the_scheme_that_hadoop_knows(
    root: str, spelled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_filesystem", lambda root: (None, root))
    assert RemoteFiles(root).spark_uri("part") == spelled
