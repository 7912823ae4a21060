"""The cluster's description says what script/cluster relies on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docker" / "compose.yaml").read_text()
SCRIPT = (ROOT / "script" / "cluster").read_text()
ONCE = {"certificates", "prepare", "demo"}
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]


def test_the_cluster_script_sets_every_variable_of_the_compose_file() -> None:
    wanted = set(re.findall(r"\$\{(\w+)\}", TEXT))
    written = set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*\b", SCRIPT))
    assert wanted
    assert wanted <= written


def test_the_compose_file_contains_no_password() -> None:
    values = re.findall(r"(?:PASSWORD|SECRET|SECRET_ACCESS_KEY|FERNET_KEY|password)\"?: *\"?([^\",}\s]+)", TEXT)
    assert values
    assert [value for value in values if not value.startswith("${")] == []


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_each_service_runs_once_or_has_a_memory_limit_and_a_health_check(name: str) -> None:
    service = SERVICES[name]
    assert service["image"] == "${IMAGE}"
    if name in ONCE:
        assert service["restart"] == "no"
    else:
        assert service["mem_limit"]
        assert service["hostname"] == name
        assert service["healthcheck"]["test"][:3] == ["CMD", "run", "healthy"]


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - ONCE))
def test_the_cluster_script_starts_each_service_and_waits_for_it(name: str) -> None:
    (data,) = re.findall(r"^data=\((.*)\)$", SCRIPT, re.MULTILINE)
    (work,) = re.findall(r"^work=\((.*)\)$", SCRIPT, re.MULTILINE)
    assert f" {name} " in f" {data} {work} "


def test_every_image_is_built_from_an_argument_with_a_public_default_value() -> None:
    lines = (ROOT / "docker" / "Dockerfile").read_text().splitlines()
    own = {line.split(" AS ")[1] for line in lines if line.startswith("FROM ")}
    sources = {line.split()[1] for line in lines if line.startswith("FROM ")}
    assert sources - own == {"${BASE_IMAGE}"}
    assert "ARG BASE_IMAGE=debian:bookworm-slim" in lines


def test_no_docker_file_contains_the_name_of_a_machine_or_runs_as_root() -> None:
    files = [path for path in (ROOT / "docker").iterdir() if path.is_file()]
    texts = "".join(path.read_text() for path in files) + SCRIPT
    assert re.findall(r"https?://(?!127\.0\.0\.1|0\.0\.0\.0|api-server|s3:)[\w.-]+", texts) == []
    assert [line for line in texts.splitlines() if line.startswith("USER ")] == ["USER airflow"]


def test_the_demo_container_mounts_every_folder_of_the_project_that_it_imports() -> None:
    code = "import sys, examples.cluster; print(*(getattr(each, '__file__', None) for each in sys.modules.values()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    folders = {Path(file).parent for file in done.stdout.split() if Path(file).is_relative_to(ROOT)}
    own = {str(each.relative_to(ROOT)) for each in folders}
    mounted = {each.split(":")[0].removeprefix("../") for each in SERVICES["demo"]["volumes"]}
    assert {each for each in own if each.split("/")[0] in ("examples", "tests", "benchmarks")} - mounted == set()
    assert "examples" in own
