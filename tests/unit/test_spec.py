"""What a transaction's spec says of the places its tasks use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.bench import MemorySpec, Numbers


def test_topologies_with_the_same_name_in_two_ledgers_have_separate_staging_areas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TX__STAGING", tmp_path.as_uri())

    def staged(root: str, conn_id: str) -> str:
        return MemorySpec("numbers", "numbers", Numbers(), root=root, zookeeper_conn_id=conn_id).staging().root

    places = [staged("/one", "a"), staged("/other", "a"), staged("/one", "b")]
    assert len(set(places)) == 3
    assert {Path(place).parent for place in places} == {tmp_path}
    assert staged("/one", "a") == staged("/one/", "a") == places[0]
