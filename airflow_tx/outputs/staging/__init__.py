"""Task output between processing and commit."""

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.outputs.staging.area import Manifest as Manifest
    from airflow_tx.outputs.staging.area import OutputRef as OutputRef
    from airflow_tx.outputs.staging.area import StagingArea as StagingArea
    from airflow_tx.outputs.staging.area import TryDir as TryDir
    from airflow_tx.outputs.staging.area import read_batches as read_batches
    from airflow_tx.outputs.staging.area import read_descriptor as read_descriptor
    from airflow_tx.outputs.staging.area import read_manifest as read_manifest
    from airflow_tx.outputs.staging.area import read_output as read_output
    from airflow_tx.outputs.staging.area import scan_output as scan_output
    from airflow_tx.outputs.staging.area import with_content as with_content
    from airflow_tx.outputs.staging.area import write_descriptor as write_descriptor
    from airflow_tx.outputs.staging.area import write_manifest as write_manifest
    from airflow_tx.outputs.staging.area import write_rows as write_rows
    from airflow_tx.outputs.staging.descriptor import Ackers as Ackers
    from airflow_tx.outputs.staging.descriptor import AppendTo as AppendTo
    from airflow_tx.outputs.staging.descriptor import Descriptor as Descriptor

    __all__: list[str]
else:
    # A DAG file stages nothing.
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
