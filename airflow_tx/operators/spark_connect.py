"""`SparkConnectBatchOperator`, which processes the batch of a transaction on a running Spark Connect server."""

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
    """An operator that processes the batch in a Spark Connect session, using an application decorated with `batch_app`.

    It runs the same applications as SparkBatchOperator, and saves the ten seconds it takes to start a driver. The
    application's code runs in the process of the task, and its DataFrames are computed on the server. Its outputs are
    XComs: ``operator.output["counts"]``.

    The server, its executors and the task must all reach the staging area. The operator refuses incomplete output. If
    SIGKILL ends the task, the server ends the idle session later, and no task reads its output. In a lane
    (`docs/lane.md`), the operator may reuse the session of earlier batches if it is clean.

    :param application: absolute path, or path relative to the DAG file's folder or its parent.
    :param conn_id: connection of type spark_connect.
    :param application_args: arguments that the application reads as ``batch.args``.
    :param inputs: output of other tasks, by name, as for SparkBatchOperator.
    :param reliable: whether the commit checks the rows that the application reads, as for SparkBatchOperator.
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
        """Store the arguments. Further arguments, such as `task_id` and `retries`, go to `BaseOperator`."""
        super().__init__(**kwargs)
        self.application = application
        self.conn_id = conn_id
        self.application_args = application_args
        self.inputs = dict(inputs or {})
        self.reliable = reliable
        self._session: Any = None

    @property
    def output(self) -> PlainXComArg:
        """Return a reference to an output of the application: ``operator.output["name"]``."""
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
        """Find the application's file.

        :param dag_file: path of the DAG file.
        :param arguments: arguments of the application; default: `application_args`.
        :raises ConfigError: the file does not exist, or the application is a URI.
        """
        from airflow_tx.spark import ConnectApplication

        script = find_application(self.application, dag_file)
        if "://" in script:
            remedy = "The application runs in the process of the task: give the path of a file, not a URI."
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
