"""Jars that the cluster's image lacks: an S3 server, and Spark's connector to S3."""

from __future__ import annotations

from pathlib import Path

from airflow_tx.testing.servers.server import pyspark_jars
from tests.servers.jars import fetch_jars

S3PROXY_VERSION = "4.1.0"
# The versions that hadoop-aws needs in the release that pyspark contains. Its dependency `bundle`
# has 686 MB, but S3 needs only 11 MB. So only these parts are downloaded.
_AWS_VERSION = "2.35.4"
_ACCELERATOR_VERSION = "1.3.1"


def s3_server_jar() -> Path:
    """Download S3Proxy, which serves a folder as S3. It is one jar with all its dependencies.

    Raise the errors of `fetch_jars`.
    """
    (jar,) = fetch_jars("org.gaul", "s3proxy", S3PROXY_VERSION, alone=True, classifier="jar-with-dependencies")
    return jar


def s3_connector_jars() -> list[Path]:
    """Download Hadoop's file system `s3a` for the Hadoop in pyspark. Raise the errors of `fetch_jars`."""
    hadoop = next(iter(pyspark_jars("hadoop-client-api-*.jar"))).stem.removeprefix("hadoop-client-api-")
    connector = fetch_jars("org.apache.hadoop", "hadoop-aws", hadoop, alone=True)
    # Spark contains newer versions of the other dependencies.
    client = fetch_jars("software.amazon.awssdk", "s3-transfer-manager", _AWS_VERSION)
    accelerator = fetch_jars(
        "software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", _ACCELERATOR_VERSION, alone=True
    )
    streams = fetch_jars("org.reactivestreams", "reactive-streams", "1.0.4", alone=True)
    events = fetch_jars("software.amazon.eventstream", "eventstream", "1.0.1", alone=True)
    own = [jar for jar in client if jar.stem.endswith(f"-{_AWS_VERSION}")]
    return [*connector, *own, *accelerator, *streams, *events]
