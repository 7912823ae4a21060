"""Where the servers of a Memcached state are."""

from __future__ import annotations

import pytest

from airflow_tx.state.memcached import parsed_server


@pytest.mark.parametrize(
    ("server", "found"),
    [
        ("cache", ("cache", 11211)),
        ("cache:7", ("cache", 7)),
        ("::1", ("::1", 11211)),
        ("[::1]:7", ("::1", 7)),
        ("cache:x", ("cache:x", 0)),
    ],
)
def test_a_memcached_server_is_a_host_with_or_without_a_port(server: str, found: tuple[str, int]) -> None:
    assert parsed_server(server) == found
