"""The crash kit says in one line why a DAG cannot be tested."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.base.errors import TxError
from airflow_tx.testing import crash_kit
from airflow_tx.testing.crash_kit import CrashKit
from airflow_tx.testing.servers.server import find_java

ZOOKEEPER: Any = SimpleNamespace(hosts="127.0.0.1:1")


class KnownAirflow:
    """An Airflow that knows some DAGs, whose runs succeed at once."""

    def __init__(self, dags: dict[str, bool], errors: dict[str, str] | None = None) -> None:
        self.paused = dags
        self._errors = errors or {}

    def listed(self, path: str, key: str) -> list[dict[str, Any]]:
        if key == "dags":
            return [{"dag_id": name, "is_paused": paused} for name, paused in self.paused.items()]
        return [{"task_id": "count"}]

    def import_errors(self) -> dict[str, str]:
        return self._errors

    def pause(self, dag_id: str, paused: bool) -> None:
        self.paused[dag_id] = paused

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        return []

    def trigger(self, dag_id: str, run_id: str, **_: Any) -> None:
        pass

    def wait_run(self, dag_id: str, run_id: str) -> None:
        pass


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CrashKit:
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "words.py").touch()
    monkeypatch.setattr(crash_kit, "_PARSED", 0)
    return CrashKit(tmp_path, tmp_path / "dags", ZOOKEEPER)


def refusal(kit: CrashKit, airflow: KnownAirflow) -> str:
    kit.airflow = airflow  # type: ignore[assignment]
    with pytest.raises(AssertionError) as refused:
        kit.check("words", dict)
    (line,) = str(refused.value).splitlines()
    return line


def test_the_error_for_an_unknown_dag_lists_the_known_dags(kit: CrashKit) -> None:
    line = refusal(kit, KnownAirflow({"words_2": False, "lines": False}))
    assert line == ("DAG words: no DAG file defines it. The folder defines: lines, words_2. Check the dag_id")


def test_the_message_about_an_import_error_shows_the_last_line_of_the_error(kit: CrashKit) -> None:
    trace = "Traceback (most recent call last):\n  File ...\nModuleNotFoundError: No module named 'shop'\n"
    line = refusal(kit, KnownAirflow({}, {"dags/words.py": trace}))
    assert "dags/words.py cannot be imported: ModuleNotFoundError: No module named 'shop'" in line


def test_a_dag_without_a_transaction_is_refused_and_a_paused_dag_is_unpaused(kit: CrashKit) -> None:
    airflow = KnownAirflow({"words": True})
    line = refusal(kit, airflow)
    assert line.startswith(
        "words: its run reached no failpoint of topology words. Put the tasks into `with Transaction(...)`"
    )
    assert airflow.paused == {"words": False}


def test_a_folder_without_dag_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="holds no DAG file"):
        CrashKit(tmp_path, tmp_path / "absent", ZOOKEEPER)


def test_the_error_for_a_machine_without_java_names_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TxError, match="No Java found in PATH. Install Java 17 or newer"):
        find_java()
