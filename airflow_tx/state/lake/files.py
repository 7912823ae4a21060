"""The files that one try has written into the folder of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from airflow_tx.state.lake.folder import Folder
from airflow_tx.state.lake.footer import read_footer
from airflow_tx.state.lake.manifest import TableFile
from airflow_tx.state.lake.partitions import values_in

# Footers that are read at once: each is one or two requests to an object store.
READERS = 16


def staged_files(
    table: Folder, folder: str, partition_fields: Sequence[Mapping[str, Any]]
) -> list[TableFile]:
    """Describe the Parquet files with rows in the folder of a try; their footers are read, and no row.

    :param folder: relative to the table.
    :raises Misfit: a file cannot be one of a Delta table.
    """
    found = [(path, size) for path, size in table.listed(folder).items() if _is_data(path, folder)]
    with ThreadPoolExecutor(READERS) as pool:
        described = list(
            pool.map(partial(_described, table, folder, partition_fields), sorted(found))
        )
    return [each for each in described if each.rows]


def _is_data(path: str, folder: str) -> bool:
    *folders, name = path.removeprefix(f"{folder}/").split("/")
    # A column name may begin with _ as well; Spark's own folder has no "=".
    unfinished = any(each.startswith("_") and "=" not in each for each in folders)
    return name.endswith(".parquet") and name[0] not in "_." and not unfinished


def _described(
    table: Folder, folder: str, fields: Sequence[Mapping[str, Any]], found: tuple[str, int]
) -> TableFile:
    path, size = found
    inner = path.removeprefix(f"{folder}/").rpartition("/")[0]
    with table.open(path) as opened:
        return read_footer(
            opened, path=path, size=size, partition=values_in(inner), partition_fields=fields
        )
