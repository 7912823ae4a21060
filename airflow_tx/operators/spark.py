"""`SparkBatchOperator`, which processes the batch of a transaction with one Spark application."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_tx.base.errors import ConfigError, StagingError
from airflow_tx.operators.commit import LineageOperator
from airflow_tx.outputs import Ackers, Descriptor, Manifest, TryDir, read_manifest, write_descriptor
from airflow_tx.spark import (
    AttemptStore,
    KeyValues,
    application_args,
    driver_environment,
    explain,
    find_application,
    request_digest,
)
from airflow_tx.transaction import RunsApplication

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import PlainXComArg

    from airflow_tx.sources import Source
    from airflow_tx.transaction import Processing


_YARN_ADDRESS = "yarn_resourcemanager_webapp_address"
_YARN_WAITS = "spark.yarn.submit.waitAppCompletion"


class SparkBatchOperator(RunsApplication, LineageOperator, SparkSubmitOperator):
    """A SparkSubmitOperator that submits an application decorated with `batch_app`.

    The outputs that the application emits are XComs: ``operator.output["counts"]`` refers to
    ``batch.emit("counts", ...)``. A retry in the same attempt continues with a driver that still runs in a cluster. For
    this, rows, inputs, application, arguments and connection must be the same. Another attempt always submits again.

    If SIGKILL ends the task, its driver continues and writes to a folder that no task reads.

    :param application: absolute path, URI, or path relative to the DAG file's folder or its parent.
    :param conn_id: Spark connection. If the connection does not exist, the task fails; SparkSubmitOperator would use
        YARN instead.
    :param inputs: output of other tasks, by name. ``batch.read_input("counts")`` reads
        ``inputs={"counts": other.output["counts"]}``.
    :param reliable: whether the commit requires the application to read each row of its batch and inputs exactly once.
        If False, the application may skip rows or read rows twice.
    :param connections: ids of connections that the application itself uses, such as the connection of a state in
        `batch.look_up`. A driver on this machine can look them up as this task does.
    :param spark_binary: name or path of spark-submit. Default: spark-submit on PATH, or else the one installed with
        this Python.
    :param deploy_mode: client or cluster, or None for the mode of the connection.
    :param retries: how often Airflow tries the task again. The application must tolerate a kill at any line.
    :param retry_delay: the time between two tries.
    :param kwargs: other arguments of SparkSubmitOperator, such as `conf`, `jars` and `application_args`. The
        application reads `application_args` as ``batch.args``.
    """

    stages_output = True
    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "inputs")

    def __init__(
        self,
        *,
        application: str,
        conn_id: str = "spark_default",
        spark_binary: str | None = None,
        deploy_mode: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        reliable: bool = True,
        connections: Sequence[str] = (),
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=2),
        **kwargs: Any,
    ) -> None:
        """Store the arguments. Further arguments, such as `conf` and `jars`, go to `SparkSubmitOperator`."""
        super().__init__(
            application=application,
            conn_id=conn_id,
            spark_binary=spark_binary,
            deploy_mode=deploy_mode,
            retries=retries,
            retry_delay=retry_delay,
            **kwargs,
        )
        self.conn_id = conn_id
        self.spark_binary = spark_binary
        self.deploy_mode = deploy_mode
        self.inputs = dict(inputs or {})
        self.reliable = reliable
        if isinstance(connections, str):
            remedy = f"Give a list: connections=[{connections!r}]."
            raise ConfigError(
                option="SparkBatchOperator(connections=)", value=connections, remedy=remedy
            )
        self.connections = tuple(connections)
        self._own_try = self._task_try = ""

    @property
    def output(self) -> PlainXComArg:
        """Return a reference to an output of the application: ``operator.output["name"]``."""
        return cast("PlainXComArg", super().output)

    def execute(self, context: Context) -> None:
        from airflow_tx.transaction import Processing, acknowledge, describe_batch

        with Processing.running(context) as processing:
            self.note_lineage(processing.topology, processing.begun, source=processing.source)
            if processing.metadata is None:
                self.log.info(
                    "Transaction %s is an empty batch: nothing is submitted", processing.attempt
                )
                return
            descriptor = describe_batch(processing, self.inputs)
            store = self._store(context, descriptor)
            manifest = self._submit(
                cast("Context", {**context, "task_state_store": store}), processing, descriptor
            )
            acknowledge(context, processing, manifest, reliable=self.reliable)
            self._forget_driver(store)

    def _store(self, context: Context, descriptor: Descriptor) -> AttemptStore | None:
        """Return the store that keeps the driver for a retry of the same request, or None if Airflow has none."""
        kept = context.get("task_state_store")
        if kept is None:
            return None
        request = request_digest(descriptor, self.application, self.application_args, self.conn_id)
        return AttemptStore(kept, descriptor.attempt, request)

    def _submit(self, context: Context, processing: Processing, descriptor: Descriptor) -> Manifest:
        attempt = descriptor.attempt
        self.log.info(
            "Transaction %d, attempt %d: %s", attempt.txid, attempt.attempt, self.application
        )
        self._prepare(context["dag"].fileloc, processing.source, descriptor.ackers)
        self.name = str(descriptor)
        uri = write_descriptor(processing.staging, descriptor)
        self.application_args = application_args(uri, self.application_args)
        self._own_try = self._task_try = descriptor.task.task_try
        try:
            super().execute(context)
        except Exception as error:
            raise explain(self._where(processing), self.application, error) from error
        try:
            return read_manifest(self._where(processing))
        except StagingError as error:
            # The driver succeeded but left no output, so the next try must submit a new driver.
            self._forget_driver(context.get("task_state_store"))
            raise explain(self._where(processing), self.application, error) from error

    def _prepare(self, dag_file: str, source: Source, ackers: Ackers | None) -> None:
        """Check the settings and pass connections to the driver before the application is submitted.

        :raises ConfigError: a setting is invalid.
        """
        from airflow_tx.base.connections import airflow_connection, handed_over, spark_connection

        connection = spark_connection(self.conn_id)
        extra = connection.extra_dejson
        self.application = find_application(self.application, dag_file)
        self._check_yarn(extra)
        if (self.deploy_mode or extra.get("deploy-mode")) != "cluster":
            added = driver_environment(
                os.environ,
                dag_file=dag_file,
                binary=self.spark_binary or extra.get("spark-binary") or "spark-submit",
                local=(connection.host or connection.conn_type or "").startswith("local"),
            )
            for conn_id, kind in source.connections().items():
                added |= handed_over(
                    airflow_connection(conn_id, option=f"Connection of {source!r}", conn_type=kind)
                )
            if ackers is not None:
                added |= handed_over(
                    airflow_connection(ackers.conn_id, option="acker_store", conn_type="redis")
                )
            for conn_id in self.connections:
                option = "SparkBatchOperator(connections=)"
                added |= handed_over(
                    airflow_connection(conn_id, option=option, conn_type="generic")
                )
            # This process runs only this task, and spark-submit inherits its environment.
            os.environ.update(added)

    def _check_yarn(self, extra: Mapping[str, Any]) -> None:
        """Refuse settings of YARN cluster mode that `SparkSubmitOperator` would refuse later.

        In this mode, a retry looks up its driver in YARN.

        :param extra: the extra of the connection.
        :raises ConfigError: a setting is missing. The remedy names both settings.
        """
        # Older provider versions do not query YARN for the driver, and their hook lacks these
        # attributes.
        hook = vars(self._get_hook())
        tracks = hook.get("_yarn_track_via_rm_api")
        is_durable = vars(self).get("durable")
        if not hook.get("_is_yarn_cluster_mode") or not (tracks or is_durable):
            return
        if not tracks or not extra.get(_YARN_ADDRESS):
            option = f"yarn_track_via_rm_api of task {self.task_id!r}"
            if tracks:
                option = f"{_YARN_ADDRESS} in the extra of connection {self.conn_id!r}"
            remedy = (
                "In YARN's cluster mode, a retry queries YARN for its driver. Set SparkBatchOperator(..., "
                f'yarn_track_via_rm_api=True), and add "{_YARN_ADDRESS}": "http://HOST:8088" to the extra of '
                f"connection {self.conn_id!r}. Or set durable=False: a retry then submits the application again."
            )
            raise ConfigError(
                option=option, value=extra.get(_YARN_ADDRESS) if tracks else False, remedy=remedy
            )
        if str((self.conf or {}).get(_YARN_WAITS, "")).strip().lower() == "true":
            remedy = (
                "Leave this setting out, since the task waits for its driver. Or set durable=False."
            )
            raise ConfigError(
                option=f"{_YARN_WAITS} of task {self.task_id!r}", value="true", remedy=remedy
            )

    def _where(self, processing: Processing) -> TryDir:
        task = replace(processing.task, task_try=self._task_try)
        where: TryDir = processing.staging.try_dir(processing.topology, processing.attempt, task)
        return where

    def _forget_driver(self, store: KeyValues | None) -> None:
        if store is not None:
            store.delete(self.external_id_key)

    # A driver writes to the folder of the try that submitted it. So the store keeps the number of
    # that try. A later try that resumes the driver reads its output from that folder.

    def submit_job(self, context: Context) -> Any:
        """Submit the application.

        Return the driver and the number of this try, for Airflow's task state store.
        """
        # `_driver` may have set this number to the try of an earlier driver, which has failed.
        self._task_try = self._own_try
        return {"driver": super().submit_job(context), "try": self._task_try}

    def get_job_status(self, external_id: Any, context: Context) -> str:
        return super().get_job_status(self._driver(external_id), context)

    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        super().poll_until_complete(self._driver(external_id), context)

    def get_job_result(self, external_id: Any, context: Context) -> None:
        self._driver(external_id)

    def _driver(self, external_id: Mapping[str, Any]) -> Any:
        self._task_try = external_id["try"]
        return external_id["driver"]
