"""What the wheel says of itself, and what is in it."""

from __future__ import annotations

import re
import subprocess
import sys
from email import message_from_string
from email.message import Message
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest

from airflow_tx import __version__
from hatch_build import addresses, described

ROOT = Path(__file__).parents[2]
HOME = "https://host/owner/name"
LINKED = "![A picture](docs/a.png)\n\n[A page](docs/b.md), [elsewhere](https://c.org/d)\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return ZipFile(built)


@pytest.fixture(scope="module")
def metadata(wheel: ZipFile) -> Message:
    (name,) = [each for each in wheel.namelist() if each.endswith(".dist-info/METADATA")]
    return message_from_string(wheel.read(name).decode())


def test_the_metadata_of_the_wheel_contains_a_description_authors_and_licenses(metadata: Message) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).strip().startswith("# airflow_tx")
    assert metadata["Author"] == "The airflow_tx authors"
    assert metadata["License-Expression"] == "Apache-2.0 AND MIT"
    assert metadata.get_all("License-File") == ["LICENSE", "NOTICE", "airflow_tx/plugin/board/LICENSES.txt"]


def test_the_wheel_contains_only_runtime_files(wheel: ZipFile) -> None:
    names = {name.partition("/")[0] for name in wheel.namelist()}
    assert {name for name in names if ".dist-info" not in name} == {"airflow_tx", "airflow_provider_tx.py"}
    foreign = [name for name in wheel.namelist() if re.search(r"\.(ts|tsx|toml|json|lock)$|node_modules", name)]
    assert foreign == []


def test_the_version_is_defined_in_only_one_file(metadata: Message) -> None:
    assert metadata["Version"] == __version__ == version("airflow-provider-tx")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    texts = [name for name in tracked if name.endswith((".py", ".md", ".toml", ".yml", "Dockerfile"))]
    setting = re.compile(rf"(?m)^_*version_* = .{re.escape(__version__)}")
    saying = [name for name in texts if setting.search((ROOT / name).read_text())]
    assert saying == ["airflow_tx/provider_info.py"]


def test_no_page_contains_the_file_name_of_a_wheel_with_a_version() -> None:
    for page in ROOT.glob("docs/**/*.md"):
        assert f"airflow_provider_tx-{__version__}" not in page.read_text(), page


def test_links_in_the_readme_lead_to_the_public_repository() -> None:
    assert described(LINKED, HOME) == (
        f"![A picture]({HOME}/raw/main/docs/a.png)\n"
        f"[A page]({HOME}/blob/main/docs/b.md), [elsewhere](https://c.org/d)\n"
    )
    assert set(addresses(HOME)) >= {"Homepage", "Documentation", "Changelog", "Issues"}


def test_links_into_the_repository_are_removed_if_there_is_no_public_repository(metadata: Message) -> None:
    assert described(LINKED, "") == "\nA page, [elsewhere](https://c.org/d)\n"
    assert addresses("") == {}


def test_the_license_file_lists_all_packages_of_the_javascript_bundle() -> None:
    board = ROOT / "airflow_tx" / "plugin" / "board"
    contained = re.findall(r"(?m)^(\S+) \d\S* \((.*)\)$", (board / "LICENSES.txt").read_text())
    assert {"@tanstack/react-query", "openapi-fetch", "uplot"} <= {name for name, _ in contained}
    # Other licenses than this may ask for more than their text.
    assert {name for _, name in contained} == {"MIT"}
