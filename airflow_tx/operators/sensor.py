"""A sensor that waits for a commit of another DAG."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk.bases.sensor import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_tx.base.config import Settings
from airflow_tx.base.errors import ConfigError
from airflow_tx.base.remedy import Command
from airflow_tx.ledger import Paths

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_tx.sources import Source

_EXAMPLES = "txid=, run_id=, data_interval= and up_to="


class TransactionCommittedSensor(BaseSensorOperator):
    """A deferrable sensor that waits until another DAG commits a transaction. Its XCom is the txid.

        TransactionCommittedSensor(task_id="loaded", topology="flights", up_to="2013-05-04.csv", source=flights)

    Pass exactly one of `txid`, `run_id`, `data_interval` and `up_to`. All four are template fields. The sensor fails if
    the transaction is skipped. If the rows of the transaction are re-admitted, the sensor waits for the commit of these
    rows.

    :param topology: name of the topology.
    :param txid: the transaction to wait for.
    :param run_id: the run whose transaction the sensor waits for. The source must not use the interval or partition of
        a run.
    :param data_interval: start and end of the data interval of the transaction. The source must be a
        `DataIntervalSource`.
    :param up_to: the file, `PARTITION:OFFSET` or date up to which all data must be committed or skipped. The source
        defines the format. A date without a time means the whole day in the time zone of the topology's schedule.
    :param source: the source of the topology; required with `up_to`.
    :param zookeeper_conn_id: connection of the ledger; default: `[tx] zookeeper_conn_id`.
    :param root: znode that holds the topology; default: `[tx] root`.
    :param poke_interval: seconds between checks in the triggerer.
    :param retries: how often Airflow tries the task again, for example after a kill.
    :param retry_delay: the time between two tries.
    """

    template_fields: Sequence[str] = ("topology", "txid", "run_id", "data_interval", "up_to")
    ui_color = "#cfe2ff"

    def __init__(
        self,
        *,
        topology: str,
        txid: int | str | None = None,
        run_id: str | None = None,
        data_interval: tuple[datetime | str, datetime | str] | None = None,
        up_to: str | None = None,
        source: Source | None = None,
        zookeeper_conn_id: str | None = None,
        root: str | None = None,
        poke_interval: timedelta | float = 1,
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=2),
        **kwargs: Any,
    ) -> None:
        """Store the arguments. Further arguments, such as `timeout`, go to `BaseSensorOperator`."""
        super().__init__(
            poke_interval=poke_interval, retries=retries, retry_delay=retry_delay, **kwargs
        )
        given = [each for each in (txid, run_id, data_interval, up_to) if each is not None]
        if len(given) != 1:
            raise self._unusable(
                "arguments", given, f"Give exactly one of these arguments: {_EXAMPLES}."
            )
        if (up_to is None) != (source is None):
            raise self._unusable(
                "source", source, "Pass source= together with up_to=, and only then."
            )
        self.topology = topology
        self.txid = txid
        self.run_id = run_id
        self.data_interval = data_interval
        self.up_to = up_to
        self.source = source
        self.zookeeper_conn_id = zookeeper_conn_id
        self.root = root

    def execute(self, context: Context) -> int:
        """Return the txid if the transaction is committed, or defer.

        :raises AirflowFailException: the transaction is skipped, or the source cannot compare positions.
        :raises AirflowSkipException: the sensor would fail, but `soft_fail` or `never_fail` is set.
        """
        from airflow_tx.hooks import ZooKeeperHook
        from airflow_tx.triggers import commit_of, missing_topology

        wanted = self._wanted()
        with ZooKeeperHook(self.zookeeper_conn_id).store() as store:
            found = commit_of(store, self._paths, wanted)
            missing = missing_topology(store, self._paths) if found is None else None
        if missing is not None:
            self.log.warning("%s", missing)
        if found is None:
            self._defer(wanted)
        if "unknown" in found:
            told = f"{self.source!r} cannot tell whether it has reached {self.up_to!r}."
            self._fail(f"{told} docs/waiting.md lists the values of up_to= for each source.")
        if "skipped" in found:
            # Another team may read this log, so the user's name is omitted.
            show = Command.of("show", self.topology, found["txid"])
            skipped = f"Transaction {found['txid']} of {self.topology} was skipped. To read who did it: {show}"
            self._fail(skipped)
        self.log.info("Transaction %s of %s is committed", found["txid"], self.topology)
        return int(found["txid"])

    def execute_again(self, context: Context, event: dict[str, Any] | None = None) -> int:
        """Resume after the deferral, because the transaction has ended or the triggerer cannot read the ledger."""
        return self.execute(context)

    def _fail(self, reason: str) -> NoReturn:
        # Airflow applies `soft_fail` only to deferred tasks.
        if self.soft_fail or self.never_fail:
            raise AirflowSkipException(reason)
        raise AirflowFailException(reason)

    @property
    def _paths(self) -> Paths:
        return Paths(self.root or Settings.load().root, self.topology)

    def _wanted(self) -> dict[str, Any]:
        if self.txid is not None:
            text = str(self.txid)
            if not text.isdigit():
                raise self._unusable("txid", self.txid, "Give a whole number.")
            return {"txid": int(text)}
        if self.run_id is not None:
            return {"key": self.run_id}
        if self.data_interval is not None:
            start, end = map(self._moment, self.data_interval)
            return {"key": f"interval:{start}/{end}"}
        assert self.source is not None
        return {"up_to": self.up_to, "source": list(self.source.serialize())}

    def _moment(self, value: datetime | str) -> str:
        try:
            moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        except ValueError:
            raise self._unusable(
                "data_interval", value, "Give two dates, such as data_interval_start."
            ) from None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
        return moment.astimezone(timezone.utc).isoformat()

    def _unusable(self, argument: str, value: Any, remedy: str) -> ConfigError:
        return ConfigError(
            option=f"{argument} of TransactionCommittedSensor {self.task_id}",
            value=value,
            remedy=remedy,
        )

    def _defer(self, wanted: dict[str, Any]) -> NoReturn:
        from airflow_tx.triggers import CommittedTrigger

        settings = Settings.load()
        trigger = CommittedTrigger(
            zookeeper_conn_id=self.zookeeper_conn_id or settings.zookeeper_conn_id,
            root=self._paths.root,
            topology=self.topology,
            hold=settings.min_deferral,
            poll=self.poke_interval,
            wanted=wanted,
        )
        self.log.info("Waiting in the triggerer for %s of %s", wanted, self.topology)
        self.defer(
            trigger=trigger, method_name="execute_again", timeout=timedelta(seconds=self.timeout)
        )
