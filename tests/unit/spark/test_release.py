"""The folder `pyspark/` belongs to two packages: it is one release, or the refusal says how to make it one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_tx.base.errors import ConfigError
from airflow_tx.spark.connect import session
from airflow_tx.spark.submit import check_release, driver_environment
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect

OTHER = {"pyspark": "4.1.4", "pyspark_client": "4.2.0"}
Install = Callable[[dict[str, str]], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Let Python find these versions of packages before its own."""

    def add(versions: dict[str, str]) -> None:
        for name, version in versions.items():
            folder = tmp_path / f"{name}-{version}.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return add


def test_pyspark_packages_of_two_releases_are_refused_with_the_install_command(install: Install) -> None:
    install(OTHER)
    with pytest.raises(ConfigError) as caught:
        check_release()
    assert str(caught.value) == (
        "pyspark = '4.1.4' cannot be used. pyspark-client is 4.2.0, and both packages install the folder "
        "pyspark/, so they must have the same release. Install both again: "
        "pip install --force-reinstall --no-deps 'pyspark==4.2.*' 'pyspark-client==4.2.*'"
    )


def test_two_patch_versions_of_the_same_release_are_accepted(install: Install) -> None:
    install({"pyspark": "4.2.1", "pyspark_client": "4.2.0"})
    check_release()


def test_no_driver_starts_if_the_pyspark_packages_are_of_two_releases(install: Install, tmp_path: Path) -> None:
    install(OTHER)
    own = str(Path(sys.executable).parent / "spark-submit")
    with pytest.raises(ConfigError, match=r"pyspark = '4.1.4' cannot be used"):
        driver_environment({}, dag_file="/dags/a.py", binary=own, local=True)


def test_a_separate_spark_installation_may_start_although_the_packages_are_of_two_releases(
    install: Install, tmp_path: Path
) -> None:
    install(OTHER)
    own = tmp_path / "spark-submit"
    own.touch(mode=0o755)
    driver_environment({}, dag_file="/dags/a.py", binary=str(own), local=True)


def test_no_session_starts_if_the_pyspark_packages_are_of_two_releases(install: Install) -> None:
    install(OTHER)
    with (
        pytest.raises(ConfigError, match=r"pyspark = '4.1.4' cannot be used"),
        session("sc://127.0.0.1:1", tag="t", server="s"),
    ):
        pass


def test_no_connect_server_starts_if_the_pyspark_packages_are_of_two_releases(install: Install, tmp_path: Path) -> None:
    install(OTHER)
    with pytest.raises(ConfigError, match=r"pyspark = '4.1.4' cannot be used"):
        LocalSparkConnect(tmp_path / "server").start()


def test_the_spark_client_is_imported_without_the_jars_in_a_process_without_a_main_file() -> None:
    code = (
        "import sys; from airflow_tx.spark.connect import import_client; import_client(); "
        "assert 'pyspark.sql.connect.session' in sys.modules; "
        "assert 'pyspark.testing.sqlutils' not in sys.modules, 'it looks for the jars'; "
        "assert '__file__' not in globals()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
