"""The files in the folder of a table, reached with the storage options that the table itself is reached with."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from airflow_tx.state.lake.footer import read_footer
from airflow_tx.state.lake.manifest import TableFile
from airflow_tx.state.lake.partitions import values_of

# Footers that are read at once: each is one or two requests to an object store.
READERS = 16


def table_files(uri: str, options: Mapping[str, str]) -> Any:
    """Open the folder of a table as a file system of pyarrow; the table need not exist.

    :param options: of the storage. They may be secret.
    """
    import pyarrow.fs as pafs  # type: ignore[import-untyped]

    scheme, found, path = uri.partition("://")
    if not found or scheme == "file":
        folder = path if found else uri
        return pafs.SubTreeFileSystem(folder, pafs.LocalFileSystem())
    from deltalake.fs import DeltaStorageHandler

    return pafs.PyFileSystem(DeltaStorageHandler(uri, dict(options)))


def staged_files(
    files: Any, folder: str, partition_fields: Sequence[Mapping[str, Any]]
) -> list[TableFile]:
    """Describe the Parquet files with rows in the folder of a try; their footers are read, and no row.

    :param files: as `table_files` gives them.
    :raises Misfit: a file cannot be one of a Delta table.
    """
    import pyarrow.fs as pafs

    selector = pafs.FileSelector(folder, allow_not_found=True, recursive=True)
    found = [
        (each.path, each.size)
        for each in files.get_file_info(selector)
        if each.type == pafs.FileType.File and _is_data(each.path, folder)
    ]
    with ThreadPoolExecutor(READERS) as pool:
        described = list(
            pool.map(partial(_described, files, folder, partition_fields), sorted(found))
        )
    return [each for each in described if each.rows]


def _is_data(path: str, folder: str) -> bool:
    *folders, name = path.removeprefix(f"{folder}/").split("/")
    return (
        name.endswith(".parquet")
        and name[0] not in "_."
        and not any(each == "_temporary" for each in folders)
    )


def _described(
    files: Any, folder: str, fields: Sequence[Mapping[str, Any]], found: tuple[str, int]
) -> TableFile:
    path, size = found
    inner = posixpath.dirname(path.removeprefix(f"{folder}/"))
    with files.open_input_file(path) as opened:
        return read_footer(
            opened, path=path, size=size, partition=values_of(inner), partition_fields=fields
        )
