"""Spark applications that process a batch. An operator submits a function with the `batch_app` decorator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.spark.app import BatchApp as BatchApp, batch_app as batch_app
    from airflow_tx.spark.batch import Batch as Batch

# Names for other packages of airflow_tx, which users must not import.
if TYPE_CHECKING:
    from airflow_tx.spark.app import jvm_cause as jvm_cause
    from airflow_tx.spark.connect import (
        SERVER_PATIENCE as SERVER_PATIENCE,
        ConnectApplication as ConnectApplication,
        SessionTraces as SessionTraces,
        end as end,
        process as process,
        rehearse as rehearse,
        session as session,
    )
    from airflow_tx.spark.new_values import (
        NewValues as NewValues,
        NewValuesOutput as NewValuesOutput,
        are_new_values as are_new_values,
        joined as joined,
        newest_of as newest_of,
        newest_outputs as newest_outputs,
    )
    from airflow_tx.spark.submit import (
        AttemptStore as AttemptStore,
        KeyValues as KeyValues,
        application_args as application_args,
        driver_environment as driver_environment,
        explain as explain,
        find_application as find_application,
        request_digest as request_digest,
    )
    from airflow_tx.spark.writers import (
        WRITERS_PROGRAM as WRITERS_PROGRAM,
        WriteJob as WriteJob,
        WritersFailed as WritersFailed,
        portions_of as portions_of,
        read_by as read_by,
        run_writers as run_writers,
        seal as seal,
        sealed_pipe as sealed_pipe,
        staged_parts as staged_parts,
        total as total,
        write_job as write_job,
        written_by as written_by,
    )

    __all__: list[str]
else:
    # A DAG file only submits applications, so it need not load these modules.
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
