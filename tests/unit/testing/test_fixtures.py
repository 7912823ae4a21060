"""The pytest plugin: loaded by those who name it, and by nobody else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_tx.testing

ROOT = Path(__file__).resolve().parents[3]
TEST = "def test_a_path(zookeeper_root):\n    assert zookeeper_root.startswith('/test-')\n"


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_path.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(folder), *arguments]
    return subprocess.run([*command, "test_path.py"], cwd=folder, capture_output=True, text=True)


def test_a_pytest_run_that_names_the_plugin_has_its_fixtures(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "-p", "airflow_tx.testing")
    assert done.returncode == 0, done.stdout


def test_the_plugin_can_be_enabled_by_a_line_in_a_conftest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["airflow_tx.testing"]\n')
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout


def test_a_pytest_run_that_does_not_name_the_plugin_does_not_load_it(tmp_path: Path) -> None:
    assert "pytest11" not in (ROOT / "pyproject.toml").read_text()
    done = run_pytest(tmp_path)
    assert "fixture 'zookeeper_root' not found" in done.stdout


def test_the_plugin_lists_no_name_that_pytest_would_import() -> None:
    assert {"LocalAirflow", "SourceSuite"} <= set(airflow_tx.testing.__all__)
    assert not {"LocalAirflow", "SourceSuite"} & set(dir(airflow_tx.testing)) - set(vars(airflow_tx.testing))


PAGE = (ROOT / "docs/testing.md").read_text()


@pytest.mark.parametrize("name", airflow_tx.testing.__all__)
def test_the_testing_page_names_every_public_name(name: str) -> None:
    assert getattr(airflow_tx.testing, name) is not None
    assert re.search(rf"\b{name}\b", PAGE)


def test_the_testing_page_names_only_failpoints_that_exist() -> None:
    code = "".join(file.read_text() for file in (ROOT / "airflow_tx").rglob("*.py"))
    points = re.findall(r"`((?:begin|process|commit|spark|lane)\.\w+)`", PAGE)
    assert len(points) > 10
    assert [point for point in points if f'"{point}"' not in code] == []
