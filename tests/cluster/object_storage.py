"""A real S3 server that hosts reach, which keeps what it has been given when it dies: S3Proxy over a folder."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

from airflow_tx.testing.servers.server import JavaServer, find_java
from examples.s3_jars import s3_connector_jars, s3_server_jar
from tests.cluster.committer import REPOSITORY

_PACKAGES = Path(sys.prefix) / "s3"
_KEY, _SECRET = "airflow", "s3cret-of-airflow"
_CONFIG = """\
s3proxy.endpoint=http://{address}:{port}
s3proxy.authorization=aws-v4
s3proxy.identity={key}
s3proxy.credential={secret}
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={folder}
"""


class S3Server(JavaServer):
    """S3 with one bucket, `staging`.

    :param address: at which hosts reach it.
    """

    title = "S3"
    slug = "s3proxy"

    def __init__(self, address: str) -> None:
        super().__init__(start_timeout=240)
        self._jar = s3_server_jar()
        self._url = f"http://{address}:{self.port}"
        self._settings = _CONFIG.format(
            address=address, port=self.port, key=_KEY, secret=_SECRET, folder=self.bucket.parent
        )

    @property
    def bucket(self) -> Path:
        """The folder in which its objects lie."""
        return self.data_dir / "buckets" / "staging"

    @property
    def environment(self) -> dict[str, str]:
        """What a worker needs to stage there."""
        return {
            "AIRFLOW__TX__STAGING": "s3://staging/airflow_tx",
            "AWS_ENDPOINT_URL": self._url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(_PACKAGES)]),
        }

    @property
    def spark_settings(self) -> dict[str, str]:
        """What a Spark application needs to read and write there."""
        jars = os.pathsep.join(map(str, s3_connector_jars()))
        return {
            "spark.driver.extraClassPath": jars,
            "spark.executor.extraClassPath": jars,
            "spark.hadoop.fs.s3a.endpoint": self._url,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": _KEY,
            "spark.hadoop.fs.s3a.secret.key": _SECRET,
        }

    def _prepare(self) -> None:
        self.bucket.mkdir(parents=True, exist_ok=True)
        (self.data_dir / "s3proxy.conf").write_text(self._settings)

    def _command(self) -> list[str]:
        options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-DLOG_LEVEL=warn"]
        return [find_java(), *options, "-jar", str(self._jar), "--properties", str(self.data_dir / "s3proxy.conf")]

    def _serves(self) -> bool:
        try:
            urllib.request.urlopen(self._url, timeout=3)
        except urllib.error.HTTPError as refusal:  # nobody signed
            return refusal.code == 403
        return True
