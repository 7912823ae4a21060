"""The cluster of docker/, started once by script/cluster and stopped at the end if it was not there before."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.cluster import HOME, ROOT, Cluster, find_engine

_OWN = Path(__file__).parent
_NO_ENGINE = "no container engine"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _OWN in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster with the DAGs of these tests; nothing is left of an earlier session's transactions in it."""
    there = (HOME / ".env").exists()
    if (HOME / "dags" / "cluster_counts.py").exists():
        _script("down", "--keep")  # it has their transactions
    _script("up")
    for folder in ("dags", "spark_apps"):
        for file in (_OWN / folder).glob("*.py"):
            shutil.copy(file, HOME / folder / file.name)
    yield Cluster(find_engine())
    if not there:
        _script("down", "--keep")


def _script(*arguments: str) -> None:
    done = subprocess.run(
        [str(ROOT / "script" / "cluster"), *arguments], stderr=subprocess.PIPE, text=True, check=False
    )
    if _NO_ENGINE in done.stderr:
        pytest.skip(f"THE TESTS ON A CLUSTER DO NOT RUN: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
