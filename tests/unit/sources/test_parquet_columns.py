"""The columns that a Parquet file says it has, compared with its schema and with the other files of a batch."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from airflow_tx.sources.files.batch import check_declared, check_footer, footer_columns

IN_MEMORY = (pa.string(), pa.large_string(), pa.string_view())
"""Types of Arrow for one type of Parquet: polars and deltalake write the last one."""


def test_arrow_string_types_in_any_memory_layout_count_as_strings(tmp_path: Path) -> None:
    paths = []
    for kind in IN_MEMORY:
        paths.append(tmp_path / f"{kind}.parquet")
        columns = {"word": pa.array(["a"], kind), "many": pa.array([["a"]], pa.list_(kind))}
        pq.write_table(pa.table(columns), paths[-1])
    for path in paths:
        check_declared(path, "word STRING")
        check_footer(path, paths[0], footer_columns(paths[0]))
