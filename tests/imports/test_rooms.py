"""Who may import whom: the contract in pyproject.toml, and the rooms that live on the standard library alone."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.imports.rulers import all_files, given, homes_of, listed, measured_files, module_name

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "airflow_tx"
LEDGER = ["ledger", "ledger/steps", "ledger/audit", "ledger/views"]
HEAVY = ("airflow", "kazoo", "pandas", "pyarrow", "pyspark", "sqlalchemy")

# Imports what is named, while every module named first is refused, wherever the import stands; names what cannot be.
IMPORT_WITHOUT = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ImportError(f"{name} is blocked")

blocked = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Blocked())
failed = {}
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed[name] = str(error)
assert not failed, failed
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & blocked, loaded & blocked
"""


ROOMS = "coordinator hooks ledger lint operations operators outputs plugin sources spark state transaction triggers"
GROUND = "compat config connections dataset described errors failpoints inquiry lazy_names remedy rows"
DOORS = [
    "airflow_tx.provider_info",
    *(f"airflow_tx.{room}" for room in ROOMS.split()),
    *(f"airflow_tx.base.{name}" for name in GROUND.split()),
]
"""What a file of another room may import. The base is the ground of all rooms: each of its files is a door."""
STORED = ROOT / "tests/golden/kept/stored_names.json"
"""Names that ledgers and Airflow's database have: they lead through doors, too."""
NO_BACKEND = "No room names a backend"
NAMED_BACKENDS = {
    # The driver of an application has no state to ask: it gets the folder of the table, and writes files for Delta.
    ("airflow_tx.spark.batch", "airflow_tx.state.lake.schema"),
}


def _modules(*folders: str) -> list[str]:
    files = [file for folder in folders for file in sorted((PACKAGE / folder).glob("*.py"))]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names]


def _import_without(blocked: tuple[str, ...], modules: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT, ",".join(blocked), *modules], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_imports_between_packages_follow_the_configured_layers() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([linter, "--no-logo", "--no-cache"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("folders", [LEDGER, ["state"], ["outputs/messages"]])
def test_the_ledger_the_states_and_the_ackers_import_only_the_standard_library(folders: list[str]) -> None:
    _import_without(HEAVY, _modules(*folders))


def test_shared_modules_need_only_the_standard_library() -> None:
    free = ["base.compat", "base.config", "base.errors", "base.failpoints", "ledger.store.memory", "testing"]
    _import_without(HEAVY, ["airflow_tx", *(f"airflow_tx.{name}" for name in free)])


def test_sources_and_staging_load_no_heavy_library_before_they_read_or_write() -> None:
    kinds = [f"sources/{kind}" for kind in ("files", "run", "kafka", "redis")]
    _import_without(HEAVY, [*_modules("sources", *kinds, "outputs/staging"), "airflow_tx.sources.sql.source"])


@pytest.mark.parametrize("room", ["sources", "state"])
def test_a_dag_file_that_imports_all_sources_or_states_loads_no_heavy_library(room: str) -> None:
    code = f"import sys; from airflow_tx.{room} import *; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not set(done.stdout.split()) & set(HEAVY)


def test_an_application_on_a_spark_cluster_imports_no_airflow_and_no_zookeeper_module() -> None:
    _import_without(("airflow", "kazoo"), _modules("spark"))


def test_the_pytest_plugin_loads_no_heavy_library() -> None:
    _import_without(HEAVY, ["pytest", "airflow_tx.testing", "airflow_tx.testing.fixtures"])


# --- doors -------------------------------------------------------------------------------------------------------


def test_other_packages_import_from_a_package_only_through_its_public_module() -> None:
    assert given().keys() - {"airflow_tx", *DOORS} == set()


@pytest.mark.parametrize("door", DOORS)
def test_a_public_module_exports_only_names_that_other_packages_import(door: str) -> None:
    _, internal = listed(door)
    stored = {name.removeprefix(f"{door}.") for names in json.loads(STORED.read_text()).values() for name in names}
    assert sorted(internal.keys() - given().get(door, set()) - stored) == []


def test_only_listed_modules_import_a_backend_through_a_public_module() -> None:
    rooms = _listed_in(NO_BACKEND, "source_modules")
    backends = _listed_in(NO_BACKEND, "forbidden_modules")
    files = [file for file in measured_files() if module_name(file).startswith(rooms)]
    taken = {(module_name(file), home) for file in files for home in homes_of(file) if home.startswith(backends)}
    assert taken == NAMED_BACKENDS


def _listed_in(contract: str, key: str) -> tuple[str, ...]:
    """Read a list of an import contract in pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text().partition(contract)[2].partition(f"\n{key} = ")[2]
    return tuple(ast.literal_eval(text.partition("\n]")[0] + "]"))


# --- reads of Spark ----------------------------------------------------------------------------------------------

ONE_READER = "airflow_tx.base.rows.spark"
READS = {"read", "readStream", "table", "sql"}


def _reads(tree: ast.AST) -> Iterator[str]:
    """Find where a session of Spark is asked to open something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in READS:
            owner = ast.unparse(node.value)
            if re.search(r"(spark|session|sparkSession)$", owner.lower()):
                yield f"{owner}.{node.attr}"


def test_only_one_module_calls_spark_read() -> None:
    applications = [*(ROOT / "spark_apps").glob("*.py")]
    files = {module_name(file): file for file in all_files()} | {file.stem: file for file in applications}
    found = {name: [*_reads(ast.parse(file.read_text()))] for name, file in files.items()}
    assert {name: reads for name, reads in found.items() if reads} == {ONE_READER: ["spark.read"]}
