"""Where task output lies between processing and commit."""

from airflow_tx.staging.area import StagingArea, TryDir, read_descriptor, write_descriptor
from airflow_tx.staging.descriptor import Descriptor
from airflow_tx.staging.manifest import (
    Manifest,
    read_batches,
    read_manifest,
    read_output,
    scan_output,
    write_manifest,
    write_rows,
)
from airflow_tx.staging.output import OutputRef

__all__ = [
    "Descriptor",
    "Manifest",
    "OutputRef",
    "StagingArea",
    "TryDir",
    "read_batches",
    "read_descriptor",
    "read_manifest",
    "read_output",
    "scan_output",
    "write_descriptor",
    "write_manifest",
    "write_rows",
]
