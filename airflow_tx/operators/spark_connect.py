"""`SparkConnectBatchOperator`: one transaction's batch is processed on a warm Spark Connect server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from airflow_tx.base.errors import ConfigError
from airflow_tx.operators.commit import LineageOperator, RetriedOperator
from airflow_tx.spark import find_application
from airflow_tx.transaction import RunsApplication

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import PlainXComArg

    from airflow_tx.outputs import Manifest
    from airflow_tx.spark import ConnectApplication
    from airflow_tx.transaction import Processing


class SparkConnectBatchOperator(RunsApplication, LineageOperator, RetriedOperator):
    """Process the batch with an application that is decorated with `batch_app`, in a session of its own.

    The same application as for SparkBatchOperator, without the ten seconds that a new driver takes: its code runs in
    the process of the task, its DataFrames on the server. Its outputs are XComs: ``operator.output["counts"]``.

    The server, its executors and the task must all reach the staging area; output that is not completely there
    is refused. A task killed with SIGKILL leaves its session to the server, which ends it when it has
    been idle for long; its output is not used. In a lane (`docs/lane.md`) it may use the session of earlier
    batches, if they have left nothing in it.

    :param application: absolute path, or path relative to the DAG file's folder or to the folder above.
    :param conn_id: connection of type spark_connect.
    :param application_args: as ``batch.args``.
    :param inputs: output of other tasks, as for SparkBatchOperator.
    :param reliable: whether the rows that it reads are checked at the commit, as for SparkBatchOperator.
    """

    stages_output = True
    template_fields: Sequence[str] = ("application", "conn_id", "application_args", "inputs")
    ui_color = "#FF9933"

    def __init__(
        self,
        *,
        application: str,
        conn_id: str = "spark_connect_default",
        application_args: Sequence[Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        reliable: bool = True,
        **kwargs: Any,
    ) -> None:
        """Take what to run. Further arguments go to `BaseOperator`, such as `task_id` and `retries`."""
        super().__init__(**kwargs)
        self.application = application
        self.conn_id = conn_id
        self.application_args = application_args
        self.inputs = dict(inputs or {})
        self.reliable = reliable
        self._session: Any = None

    @property
    def output(self) -> PlainXComArg:
        """Outputs of the application: ``operator.output["name"]``."""
        return cast("PlainXComArg", super().output)

    def execute(self, context: Context) -> None:
        from airflow_tx.transaction import Processing, acknowledge

        with Processing.running(context) as processing:
            self.note_lineage(processing.topology, processing.begun, source=processing.source)
            if processing.metadata is None:
                self.log.info(
                    "Transaction %s is an empty batch: there is nothing to run", processing.attempt
                )
                return
            acknowledge(
                context,
                processing,
                self._process_in_session(context, processing),
                reliable=self.reliable,
            )

    def on_kill(self) -> None:
        if self._session is not None:
            from airflow_tx.spark import end

            end(self._session)

    def found_from(
        self, dag_file: str, arguments: Sequence[Any] | None = None
    ) -> ConnectApplication:
        """Find the application.

        :param arguments: None: `application_args`.
        :raises ConfigError: there is no such file.
        """
        from airflow_tx.spark import ConnectApplication

        script = find_application(self.application, dag_file)
        if "://" in script:
            remedy = "It runs in the process of the task: give the path of a file."
            raise ConfigError(
                option="application of SparkConnectBatchOperator", value=script, remedy=remedy
            )
        given = (self.application_args if arguments is None else arguments) or ()
        return ConnectApplication(script, tuple(map(str, given)), dag_file)

    def _process_in_session(self, context: Context, processing: Processing) -> Manifest:
        from airflow_tx.base.connections import connect_url
        from airflow_tx.spark import process, session
        from airflow_tx.transaction import describe_batch

        descriptor = describe_batch(processing, self.inputs)
        application = self.found_from(context["dag"].fileloc)
        url = connect_url(self.conn_id)
        attempt = descriptor.attempt
        self.log.info(
            "Transaction %d, attempt %d: %s", attempt.txid, attempt.attempt, application.path
        )
        with session(
            url, tag=str(descriptor), server=f"connection {self.conn_id}"
        ) as self._session:
            with application.importable():
                return process(self._session, application, descriptor, application.load)
