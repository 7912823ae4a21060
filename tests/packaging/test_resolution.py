"""What installers choose: the newest and the oldest that is allowed, and what Airflow's constraints file says.

Airflow's own file is tested if AIRFLOW_CONSTRAINTS names one, by its path or its address.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = str(Path(sys.executable).parent / "uv")
EXTRAS = ["pyspark", "testing"]
UNREACHED = r"error sending request|dns error|Network connectivity is disabled|Connection refused|timed out"


def resolve(extra: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Ask uv what it would install; without an index, the test is skipped in one line."""
    extras = ["--extra", extra] if extra else []
    command = [UV, "pip", "compile", "pyproject.toml", "--no-header", "--no-annotate", *extras, *options]
    command += ["--python", sys.executable, "--no-emit-index-url", "--no-emit-find-links"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode and re.search(UNREACHED, done.stderr):
        pytest.skip("NOT TESTED: what installers choose, since no package index can be reached")
    return done


def chosen(extra: str, *options: str) -> dict[str, str]:
    done = resolve(extra, *options)
    assert done.returncode == 0, done.stderr
    return dict(re.findall(r"(?m)^([a-z0-9-]+)(?:\[[a-z,]+\])?==(\S+)", done.stdout))


def locked() -> list[str]:
    """Give the versions of the lock, as a constraints file names them; without those of Spark."""
    lines = re.findall(r"(?m)^([a-z0-9-]+==[^\\\n]+?) *\\?$", (ROOT / "requirements.lock").read_text())
    return [line for line in lines if not line.startswith("pyspark")]


@pytest.mark.parametrize("name", ["celery", "readers", "s3"])
def test_the_lock_files_of_the_image_contain_the_same_version_of_each_shared_package(name: str) -> None:
    main, other = (
        {tuple(each.split("==")) for each in re.findall(r"(?m)^([a-z0-9-]+==\S+)", (ROOT / file).read_text())}
        for file in ("requirements.lock", f"requirements-{name}.lock")
    )
    shared = {package for package, _ in main} & {package for package, _ in other}
    assert {each for each in other if each[0] in shared} <= main


def constraints(folder: Path, *spark: str) -> Sequence[str]:
    file = folder / "constraints.txt"
    file.write_text("\n".join([*locked(), *spark]))
    return "--constraint", str(file)


@pytest.mark.parametrize("extra", ["", *(pytest.param(each, marks=pytest.mark.lead) for each in EXTRAS)])
@pytest.mark.parametrize("resolution", ["highest", "lowest-direct"])
def test_an_install_without_constraints_selects_packages_of_a_single_spark_release(extra: str, resolution: str) -> None:
    found = chosen(extra, "--resolution", resolution)
    assert found["apache-airflow"] >= "3.2"
    assert ("pyspark" in found) == bool(extra)
    releases = {found[name].rpartition(".")[0] for name in ("pyspark", "pyspark-client") if name in found}
    assert len(releases) == 1


@pytest.mark.parametrize(
    "release", ["4.0.1", *(pytest.param(each, marks=pytest.mark.lead) for each in ("4.1.1", "4.2.0"))]
)
def test_an_install_uses_the_spark_client_version_of_a_constraints_file(release: str, tmp_path: Path) -> None:
    found = chosen("", *constraints(tmp_path, f"pyspark-client=={release}"))
    assert found["pyspark-client"] == release
    assert "pyspark" not in found


@pytest.mark.lead
def test_an_install_uses_the_spark_release_of_a_constraints_file_for_the_jars(tmp_path: Path) -> None:
    found = chosen("pyspark", *constraints(tmp_path, "pyspark-client==4.1.1", "pyspark==4.1.1"))
    assert (found["pyspark"], found["pyspark-client"]) == ("4.1.1", "4.1.1")


def test_an_install_is_possible_with_the_constraints_file_of_airflow() -> None:
    given = os.environ.get("AIRFLOW_CONSTRAINTS")
    if not given:
        pytest.skip("NOT TESTED: Airflow's own constraints file, since AIRFLOW_CONSTRAINTS names none")
    assert resolve("", "--constraint", given).returncode == 0


@pytest.mark.parametrize("older", ["apache-airflow==3.1.8", "pyspark-client==3.5.7", "pyspark==3.5.8"])
def test_the_installer_refuses_a_version_that_is_too_old_and_shows_the_lower_bound(older: str, tmp_path: Path) -> None:
    file = tmp_path / "constraints.txt"
    file.write_text(older)
    done = resolve("pyspark", "--constraint", str(file))
    assert done.returncode != 0
    name, _, _ = older.partition("==")
    assert re.search(rf"{name}(\[\w+\])?>=", done.stderr), done.stderr


# --- pyarrow -----------------------------------------------------------------------------------------------------
# The oldest and the newest release that is allowed reads blocks of csv and JSON as the rule does, or proves nothing.


TESTS = ("tests/unit/rows/test_blocks.py", "tests/edges/test_json_blocks.py")


def allowed() -> tuple[str, str]:
    """Read the first release that is allowed, and the first that is not."""
    found = re.search(r'"pyarrow>=(\d+),<(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert found is not None
    return found[1], found[2]


@pytest.mark.long
@pytest.mark.parametrize("release", ["oldest", "newest"])
def test_every_allowed_pyarrow_version_reads_json_blocks_exactly_like_the_json_parser(
    release: str, tmp_path: Path
) -> None:
    first, beyond = allowed()
    wanted = f"pyarrow=={first}.0.0" if release == "oldest" else f"pyarrow>={first},<{beyond}"
    target = tmp_path / "site"
    command = [UV, "pip", "install", "-q", "--python", sys.executable, "--no-deps", "--target", str(target), wanted]
    installed = subprocess.run(command, capture_output=True, text=True)
    if installed.returncode and re.search(UNREACHED, installed.stderr):
        pytest.skip(f"NOT TESTED: {wanted}, since no package index can be reached")
    assert installed.returncode == 0, installed.stderr
    environment = {**os.environ, "PYTHONPATH": str(target), "AIRFLOW_HOME": str(tmp_path / "home")}
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long and not spark", *TESTS]
    done = subprocess.run(tests, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    assert any(each.name.startswith("pyarrow-") for each in target.iterdir())
