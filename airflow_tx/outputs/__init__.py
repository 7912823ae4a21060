"""The data that tasks hand over: staged output, messages, and the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.outputs.journal import (
        Contribution as Contribution,
        Entry as Entry,
        JournalArea as JournalArea,
        StagedFiles as StagedFiles,
        forgotten_details as forgotten_details,
    )
    from airflow_tx.outputs.messages.messages import (
        Collector as Collector,
        Message as Message,
        TaskEmitter as TaskEmitter,
    )
    from airflow_tx.outputs.messages.stores import (
        AckerLoad as AckerLoad,
        AckerStore as AckerStore,
        AckerWatch as AckerWatch,
        ackers_of as ackers_of,
        open_ackers as open_ackers,
        shared_ackers as shared_ackers,
    )
    from airflow_tx.outputs.messages.tree import (
        Origin as Origin,
        Reference as Reference,
        TreeReport as TreeReport,
        origin_of as origin_of,
    )
    from airflow_tx.outputs.rejected import (
        check_own_name as check_own_name,
        check_rejects as check_rejects,
        content_of_row as content_of_row,
        rejected_rows as rejected_rows,
        row_aside as row_aside,
        stage_rejected as stage_rejected,
    )
    from airflow_tx.outputs.staging.area import (
        TAKEN as TAKEN,
        Manifest as Manifest,
        Output as Output,
        OutputRef as OutputRef,
        RowsInTable as RowsInTable,
        StagedFile as StagedFile,
        StagingArea as StagingArea,
        TryDir as TryDir,
        batches_in as batches_in,
        batches_of as batches_of,
        check_emitted as check_emitted,
        check_name as check_name,
        check_readable as check_readable,
        dir_of as dir_of,
        make_ref as make_ref,
        open_output as open_output,
        quoted as quoted,
        read_batches as read_batches,
        read_descriptor as read_descriptor,
        read_manifest as read_manifest,
        read_schema as read_schema,
        refuse as refuse,
        rows_from_json as rows_from_json,
        scan_output as scan_output,
        with_content as with_content,
        write_descriptor as write_descriptor,
        write_digested as write_digested,
        write_manifest as write_manifest,
        write_rows as write_rows,
    )
    from airflow_tx.outputs.staging.descriptor import (
        Ackers as Ackers,
        AppendTo as AppendTo,
        Descriptor as Descriptor,
        Input as Input,
    )
    from airflow_tx.outputs.staging.files import (
        Files as Files,
        Listed as Listed,
        LocalFiles as LocalFiles,
        RemoteFiles as RemoteFiles,
        literal as literal,
        open_files as open_files,
        spark_uri as spark_uri,
    )
    from airflow_tx.outputs.staging.row_hash import digest_of_batch as digest_of_batch

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
