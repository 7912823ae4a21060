"""The base classes of actions. Users preview an action on a topology, and then run it by command or on the page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, TypeAlias

from sqlalchemy.exc import DBAPIError

from airflow_tx.base import compat
from airflow_tx.base.errors import PreviewOutdated, Refused, TxError
from airflow_tx.ledger import (
    LIVE_RUN_STATES,
    Audit,
    Ledger,
    ReadOnlyLedger,
    TopologyRecord,
    TransactionRecord,
    Wish,
    Words,
)
from airflow_tx.sources import interval_of_key
from airflow_tx.state import FencedState
from airflow_tx.transaction import TransactionSpec, conf_of

# --- preview ------------------------------------------------------------------------------------------------------
# The plan of an action lists its effects. The deed is the function that performs an effect.


@dataclass(frozen=True)
class EffectLine:
    """The effect of an action on one transaction, on one run, or on the topology.

    :param txid: the transaction, or null if the effect concerns no transaction.
    :param run_id: the run, or null if the effect concerns no run.
    """

    txid: int | None
    run_id: str | None
    what: Words
    """The description of the effect, which a preview writes in the future tense."""


_Deed = Callable[[Audit], Iterable[EffectLine]]
"""A function that performs one effect and describes it."""


@dataclass(frozen=True)
class PlannedEffect:
    """One effect of an action.

    :param would: lines of the preview. Only a preview reads them, so a generator may run expensive queries.
    :param deed: function that performs the effect. For a refused effect, it raises or describes the refusal.
    :param is_refused: whether the effect is refused.
    """

    would: Iterable[EffectLine]
    deed: _Deed
    is_refused: bool = False


@dataclass(frozen=True)
class ActionPlan:
    """The effects of an action, in order. `preview` lists them, and `execute` runs their deeds.

    :param version: text that changes whenever the facts behind the plan change.
    :param sentence: summary of the action, for the user to confirm.
    :param claimed: transactions whose version the ledger compares before the action, or None if the action itself
        compares `version`.
    :param is_refusal: whether `sentence` is the reason for a refusal.
    """

    version: str
    sentence: str
    effects: Sequence[PlannedEffect]
    claimed: Sequence[int] | None = None
    is_refusal: bool = False


@dataclass(frozen=True)
class PreviewAnswer:
    """The preview of an action.

    :param version: version of the preview. The request for the action repeats it.
    :param sentence: summary of the action, for the user to confirm.
    :param effects: effects of the action, or an empty list if the action would be refused.
    :param refused: refused effects, each with the reason.
    :param needs_reason: whether the action requires `why`.
    :param is_refusal: whether `sentence` repeats a line of `refused`.
    """

    version: str
    sentence: Words
    effects: tuple[EffectLine, ...]
    refused: tuple[EffectLine, ...]
    needs_reason: bool
    is_refusal: bool = False


def transactions(txids: Iterable[int | None]) -> str:
    """Format txids as `transaction 1` or `transactions 1, 2`."""
    named = [str(txid) for txid in txids]
    return f"transaction{'s' if len(named) > 1 else ''} {', '.join(named)}"


def refusing(error: TxError) -> _Deed:
    """Return the deed of a refused effect, which raises this error."""

    def refuse(audit: Audit) -> NoReturn:
        raise error

    return refuse


def none_of(
    effects: Iterable[PlannedEffect], refused: Iterable[EffectLine], error: TxError, held_up: str
) -> list[PlannedEffect]:
    """Return the effects of an action that refuses all transactions because some of them are refused.

    :param effects: effects on the other transactions.
    :param refused: the refused transactions, each with the reason.
    :param error: error that each deed raises.
    :param held_up: text that explains that the other transactions wait.
    """
    told = [PlannedEffect([line], refusing(error), is_refused=True) for line in refused]
    for each in effects:
        left = (line if each.is_refused else replace(line, what=held_up) for line in each.would)
        told.append(PlannedEffect(list(left), refusing(error), is_refused=True))
    return told


# --- runs ---------------------------------------------------------------------------------------------------------
# The runs of a DAG that an action starts again.


def live_runs(ledger: ReadOnlyLedger, dag_id: str) -> str:
    """Return the names of open transactions' queued and running runs, or "" if there are none."""
    runs = [record.run_id for record in ledger.open_records().values()]
    found = sorted(compat.runs_of(dag_id, runs).items())
    live = [f"{run_id} ({state})" for run_id, state in found if state in LIVE_RUN_STATES]
    return f"runs of DAG {dag_id!r} work on its transactions: {', '.join(live)}" if live else ""


class RunForbidden(Refused):
    """Signals that the run was deleted, and that the user may not create it again."""

    template = (
        "Run {run_id!r} was deleted, and you may not create runs of DAG {dag_id!r}.",
        "Ask a person who may create runs to do this, or ask for that right",
    )


@dataclass(frozen=True)
class CommandRuns:
    """The runs of a DAG in Airflow's database.

    :param may_create: whether the user may create runs.
    """

    dag_id: str
    may_create: bool = True

    def checked(self, run_id: str) -> str | None:
        """Return the state of a run that the user may restart. Return None if the run was deleted.

        :raises RunForbidden: the run was deleted, and the user may not create it.
        """
        state = self.state(run_id)
        self.check_state(run_id, state)
        return state

    def check_state(self, run_id: str, state: str | None) -> None:
        """Raise an error if the user may not restart a run with this state. Raises the same errors as `checked`.

        :param state: state of the run, or None if the run was deleted.
        """
        if state is None and not self.may_create:
            raise RunForbidden(run_id=run_id, dag_id=self.dag_id)

    def states(self, run_ids: Iterable[str]) -> dict[str, str]:
        """Read the states of the runs that exist."""
        return compat.runs_of(self.dag_id, list(run_ids))

    def state(self, run_id: str) -> str | None:
        return self.states([run_id]).get(run_id)

    def restart(self, run_id: str) -> None:
        compat.clear_run(self.dag_id, run_id, past_limit=False)

    def start(
        self,
        run_id: str,
        key: str,
        *,
        past_limit: bool = False,
        latest: bool = False,
        noting: Callable[[], object] = bool,
    ) -> str:
        """Clear a run, or create it again if it was deleted.

        :param key: run key, which is needed to create a deleted run again.
        :param past_limit: whether the run may start even if the DAG has its maximum number of active runs.
        :param latest: whether the run gets the newest version of the DAG.
        :param noting: function that notes the start in the ledger. It is not called if Airflow's database refuses the
            change.
        :return: description of the start.
        :raises RunForbidden: the run was deleted, and the user may not create it.
        """
        if compat.clear_run(
            self.dag_id, run_id, past_limit=past_limit, latest=latest, noting=noting
        ):
            return "its run was cleared"
        self.check_state(run_id, None)
        compat.create_run(self.dag_id, run_id, conf_of(key), interval_of_key(key), noting=noting)
        if past_limit:
            compat.clear_run(self.dag_id, run_id, past_limit=True)
        return "its run did not exist, and was created again"


def started_again(txid: int | None, run_id: str, blocking: int) -> EffectLine:
    """Describe how a yielded run starts again."""
    return EffectLine(txid, run_id, f"cleared: it had yielded to transaction {blocking}")


# --- target -------------------------------------------------------------------------------------------------------


ParsedDag: TypeAlias = tuple[TransactionSpec, Mapping[str, FencedState]]


@dataclass(frozen=True)
class ActionTarget:
    """The topology of an action, and the user's rights.

    :param ledger: ledger of the topology.
    :param record: topology record.
    :param dag: function that parses the DAG of the topology. It is called only if an action needs the source or the
        states.
    :param may_create: whether the user may create runs of the DAG.
    :param sees_audit: whether the user may read who acted before, and why.
    :param coordinator: dag_id of the coordinator, or "" if it is unknown.
    :param check_runs: whether to refuse a repair of the entire ledger while runs of open transactions are queued or
        running. Such runs may still commit.
    """

    ledger: Ledger
    record: TopologyRecord
    dag: Callable[[], ParsedDag]
    may_create: bool = True
    sees_audit: bool = True
    coordinator: str = ""
    check_runs: bool = False

    @property
    def topology(self) -> str:
        return self.ledger.paths.topology

    @property
    def runs(self) -> CommandRuns:
        """Return the runs of the topology's DAG."""
        return CommandRuns(self.record.dag_id, self.may_create)

    def person(self, who: str, why: str) -> str:
        """Describe the user who acted before, and the reason. Return `a person` if the reader may not see them."""
        return f"{who}: {why}" if self.sees_audit else "a person"

    def version(self, txids: Sequence[int]) -> str:
        """Read the version of these transactions, after a sync with ZooKeeper."""
        self.ledger.store.sync()
        return self.ledger.version_of(txids)

    def take(self, txids: Sequence[int], version: str | None) -> None:
        """Record in the ledger that a user acts on these transactions.

        A second action from the same preview is then refused.

        :param version: version of the preview, or None for an action without a preview.
        :raises PreviewOutdated: another user acted on these transactions first, or they have changed.
        """
        if version is not None:
            self.ledger.note_action(txids, version)

    def wishes(self) -> tuple[Wish, ...]:
        """Read the requests for restatements, after a sync with ZooKeeper."""
        self.ledger.store.sync()
        return self.ledger.wishes()

    def opened(self, txids: Collection[int]) -> Mapping[int, TransactionRecord | Refused]:
        """Read the records of open transactions. Return a refusal for each transaction that is not open."""
        return self.ledger.find_open.preview(txids).result


def is_behind(state: FencedState, topology: TopologyRecord) -> bool:
    """Return whether a state's fence shows that the state lacks a committed transaction."""
    last = topology.states.get(state.name)
    fence = state.fence()
    if last is None or (fence is not None and fence.token.txid > last):
        return False
    return fence is None or fence.token.txid < last or not fence.applied


# --- action -------------------------------------------------------------------------------------------------------


class PersonalAction(ABC):
    """The base class of an action on one topology. Only `plan` makes decisions.

    :cvar needs_reason: whether the user must give a reason, which the ledger keeps.
    :cvar asks_dag: whether the action needs the source or the states, which only the DAG file defines.
    :cvar subject: the object that the version describes, for the error `PreviewOutdated`. Unused if the plan has
        `claimed` transactions.
    :cvar starts_runs: whether the action needs DAG runs to start.
    """

    needs_reason = False
    asks_dag = False
    starts_runs = False
    subject = ""

    def __init__(self, target: ActionTarget) -> None:
        self.target = target
        self.ledger = target.ledger

    @abstractmethod
    def plan(self) -> ActionPlan:
        """Plan the action without changing anything.

        :raises TxError: the ledger, the DAG, its source or a state cannot be read.
        """

    def preview(self) -> PreviewAnswer:
        """Describe the effects without changing anything. Raises the same errors as `plan`."""
        plan = self.plan()
        # The key is whether the effects are refused.
        lines: dict[bool, list[EffectLine]] = {False: [], True: []}
        for effect in plan.effects:
            lines[effect.is_refused] += effect.would
        sentence = plan.sentence
        if lines[False] and (held_up := self._held_up()):
            lines[False].append(EffectLine(None, None, held_up))
            sentence += f" {held_up}."
        would, refused = map(tuple, lines.values())
        return PreviewAnswer(
            plan.version, sentence, would, refused, self.needs_reason, plan.is_refusal
        )

    def execute(self, audit: Audit, version: str | None = None) -> Iterator[EffectLine]:
        """Run the action, and yield each effect after it has happened. A later error does not undo yielded effects.

        :param version: version of the preview, or None for no comparison.
        :raises PreviewOutdated: the version has changed since the preview. Nothing was changed.
        :raises Refused: the action is refused.
        """
        plan = self.plan()
        if plan.claimed is not None:
            self.target.take(plan.claimed, version)
        elif version not in (None, plan.version):
            raise PreviewOutdated(what=self.subject, topology=self.target.topology)
        is_done = False
        for effect in plan.effects:
            for line in effect.deed(audit):
                is_done = is_done or not effect.is_refused
                yield line
        if is_done and (held_up := self._held_up()):
            yield EffectLine(None, None, held_up)

    def _held_up(self) -> str | None:
        """Explain why Airflow would not execute the runs that the action starts, or return None."""
        return compat.why_none_starts(self.target.record.dag_id) if self.starts_runs else None

    def refused(
        self, version: str, why: Refused, txid: int | None = None, run_id: str | None = None
    ) -> ActionPlan:
        """Return a plan that refuses the action, with the reason."""
        effect = PlannedEffect([EffectLine(txid, run_id, str(why))], refusing(why), is_refused=True)
        claimed = None if txid is None else [txid]
        return ActionPlan(version, str(why), [effect], claimed, is_refusal=True)

    def effects(self, audit: Audit, version: str) -> list[EffectLine]:
        """Run the action, and return all effects. An error after the first effect becomes the last effect.

        :raises TxError: nothing was changed. See `execute`.
        """
        done: list[EffectLine] = []
        try:
            for effect in self.execute(audit, version):
                done += [effect]
        except (TxError, DBAPIError) as error:
            if not done:
                raise
            reason = error if isinstance(error, TxError) else compat.one_line(error.orig)
            done.append(EffectLine(None, None, str(reason)))
        return done


class TransactionAction(PersonalAction):
    """The base class of an action on one transaction."""

    def __init__(self, target: ActionTarget, txid: int) -> None:
        super().__init__(target)
        self.txid = txid
