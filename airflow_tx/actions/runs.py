"""The runs of a DAG, for a person who starts them again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_tx import compat
from airflow_tx.actions.preview import EffectLine
from airflow_tx.errors import Refused
from airflow_tx.processing.begin import conf_of
from airflow_tx.sources.dates import interval_of_key


class RunForbidden(Refused):
    """A run that was deleted, and that the person may not create again."""

    template = (
        "Run {run_id!r} was deleted, and you may not create runs of DAG {dag_id!r}. Ask a person who may to do this, "
        "or ask for the right to create them"
    )


@dataclass(frozen=True)
class CommandRuns:
    """The runs of a DAG, reached through Airflow's database.

    :param may_create: whether the person may create runs.
    """

    dag_id: str
    may_create: bool = True

    def checked(self, run_id: str) -> str | None:
        """Return the state of a run that the person may start again; None: it was deleted.

        :raises RunForbidden: it was deleted, and the person may not create it.
        """
        state = self.state(run_id)
        self.check_state(run_id, state)
        return state

    def check_state(self, run_id: str, state: str | None) -> None:
        """Find out whether the person may start a run of this state again. Raises as `checked`.

        :param state: None: it was deleted.
        """
        if state is None and not self.may_create:
            raise RunForbidden(run_id=run_id, dag_id=self.dag_id)

    def states(self, run_ids: Iterable[str]) -> dict[str, str]:
        """Read the states of the runs that were not deleted."""
        return compat.runs_of(self.dag_id, list(run_ids))

    def state(self, run_id: str) -> str | None:
        return self.states([run_id]).get(run_id)

    def restart(self, run_id: str) -> None:
        compat.clear_run(self.dag_id, run_id, past_limit=False)

    def start(
        self, run_id: str, key: str, *, past_limit: bool = False, latest: bool = False
    ) -> str:
        """Clear a run, or create it; says in words which of these.

        :param past_limit: let it start although the DAG has as many running runs as it may.
        :param latest: by the newest version of the DAG, also if the run was of another one.
        :raises RunForbidden: it was deleted, and the person may not create it.
        """
        if compat.clear_run(self.dag_id, run_id, past_limit=past_limit, latest=latest):
            return "its run was cleared"
        self.check_state(run_id, None)
        compat.create_run(self.dag_id, run_id, conf_of(key), interval_of_key(key))
        if past_limit:
            compat.clear_run(self.dag_id, run_id, past_limit=True)
        return "its run did not exist, and was created again"


def started_again(txid: int | None, run_id: str, blocking: int) -> EffectLine:
    """Say that a run that had yielded is started again."""
    return EffectLine(txid, run_id, f"cleared: it had yielded to transaction {blocking}")
