"""A real S3 server on this machine, and Airflow's way to it."""

from __future__ import annotations

import itertools
import sys
import urllib.request
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from airflow_tx.base.errors import TxError
from airflow_tx.testing.servers.server import LocalServer

PACKAGES = Path(sys.prefix) / "s3"
CONN_ID = "aws_test"
_APP = Path(__file__).with_name("s3_app.py")


class LocalS3(LocalServer):
    """Moto on 127.0.0.1 at a free port; what it holds ends with it."""

    title = "S3"
    slug = "s3"

    def _command(self) -> list[str]:
        if not (PACKAGES / "moto").is_dir():
            raise TxError(message="No S3 server found. Install it: script/env servers")
        return [sys.executable, str(_APP), str(PACKAGES), str(self.port)]

    def _serves(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/moto-api/", timeout=1) as answer:
            return bool(answer.status == 200)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """What deltalake needs to reach it."""
        login = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
        return {**login, "aws_region": "us-east-1", "aws_endpoint_url": self.url}

    @cached_property
    def fs(self) -> Any:
        """A client, of which Airflow's own knows nothing; that one is found by the connection `aws_test`."""
        from airflow.sdk.io import attach

        # What Airflow's Amazon provider does with a connection, which is more than these tests need.
        attach("s3", conn_id=CONN_ID, fs=self._client())
        return self._client()

    def _client(self) -> Any:
        if str(PACKAGES) not in sys.path:
            sys.path.append(str(PACKAGES))
        import s3fs  # type: ignore[import-not-found, unused-ignore]

        return s3fs.S3FileSystem(key="k", secret="s", endpoint_url=self.url, skip_instance_cache=True)


class Bucket:
    """A bucket of its own.

    :param server: where it lies.
    :param like: the beginning of its name, which may ask for another kind of server, see `s3_app`.
    """

    _numbers = itertools.count(1)
    conn_id = CONN_ID

    def __init__(self, server: LocalS3, like: str = "bucket") -> None:
        self.name = f"{like}-{next(self._numbers)}"
        self.fs = server.fs
        self.fs.mkdir(self.name)

    @property
    def url(self) -> str:
        """As the beginning of a glob."""
        return f"s3://{self.name}"

    def put(self, name: str, content: str | bytes) -> None:
        """Write an object."""
        self.fs.pipe(f"{self.name}/{name}", content.encode() if isinstance(content, str) else content)

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects."""
        self.fs.rm([f"{self.name}/{name}" for name in names])
