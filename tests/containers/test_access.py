"""Who has no right to the cluster's ledger, or to its staging area, is refused, and leaves nothing in either."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.containers.cluster import Cluster
from tests.containers.runs import begin, end

STRANGER = Path(__file__).with_name("stranger.py").read_text()
HOST = "scheduler"
UNSIGNED = """
import os, urllib.error, urllib.request
import fsspec
fsspec.filesystem("s3").pipe_file("staging/guarded", b"1")
for request in ("GET staging/guarded", "GET staging", "PUT staging/guarded", "DELETE staging/guarded"):
    method, path = request.split()
    try:
        url = f"{os.environ['AWS_ENDPOINT_URL']}/{path}"
        urllib.request.urlopen(urllib.request.Request(url, method=method))
        print(request)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


@pytest.fixture(scope="module", autouse=True)
def ledger(cluster: Cluster) -> None:
    """Transactions that a stranger could find."""
    begin(cluster, "guarded")
    end(cluster, "guarded")


@pytest.mark.parametrize(
    "login",
    [{"login": None, "password": None}, {"password": "not-the-one"}, {"login": "mallory"}],
    ids=["no login", "wrong password", "another login"],
)
def test_a_client_without_a_valid_login_cannot_read_or_write_the_ledger(
    cluster: Cluster, login: Mapping[str, Any]
) -> None:
    found = try_to_enter(cluster, **login)
    assert "refused" not in found
    assert found["done"] == []


@pytest.mark.parametrize(
    ("extra", "reason"),
    [({"use_tls": False, "ca_file": None}, "set the extra use_tls"), ({"ca_file": None}, "certificate verify failed")],
    ids=["no TLS", "another authority"],
)
def test_a_connection_to_an_untrusted_server_is_refused(
    cluster: Cluster, extra: Mapping[str, Any], reason: str
) -> None:
    assert reason in try_to_enter(cluster, extra=extra)["refused"]


def test_a_request_without_a_signature_cannot_read_or_write_an_object(cluster: Cluster) -> None:
    assert cluster.inside(HOST, "python", "-c", UNSIGNED).split() == ["403"] * 4


def try_to_enter(cluster: Cluster, **changes: Any) -> Mapping[str, Any]:
    """Try with a connection that differs from the owner's by so much."""
    printed = cluster.inside(HOST, "python", "-c", STRANGER, json.dumps(changes))
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    assert found["nodes"] > 10
    return found
