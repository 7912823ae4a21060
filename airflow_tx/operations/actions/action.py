"""The base of actions: a person asks for an action on a topology, previews it, and does it, by command or page."""

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
# The plan of an action: its effects, each with the deed that brings it about, and the preview that lists them.


@dataclass(frozen=True)
class EffectLine:
    """The effect on one transaction, or on one run; null: on the topology."""

    txid: int | None
    run_id: str | None
    what: Words
    """In words; in a preview, what would be done."""


_Deed = Callable[[Audit], Iterable[EffectLine]]
"""Does one thing, and says what it did."""


@dataclass(frozen=True)
class PlannedEffect:
    """One effect of an action: the lines of its preview, and the deed that brings it about.

    :param would: what a preview says. Only a preview reads it, so a generator may look things up for it.
    :param deed: if the effect is refused, it raises the refusal, or says why it changes nothing.
    """

    would: Iterable[EffectLine]
    deed: _Deed
    is_refused: bool = False


@dataclass(frozen=True)
class ActionPlan:
    """The effects of an action, in order: `preview` lists them, and `execute` does their deeds.

    :param version: changes with everything that the plan depends on.
    :param sentence: what is about to happen, as a question for a person.
    :param claimed: transactions whose version the ledger compares and notes as acted on; None: the ledger has no such
        version.
    :param is_refusal: whether `sentence` is why it is refused.
    """

    version: str
    sentence: str
    effects: Sequence[PlannedEffect]
    claimed: Sequence[int] | None = None
    is_refusal: bool = False


@dataclass(frozen=True)
class PreviewAnswer:
    """What would happen.

    :param version: give it back with the action.
    :param sentence: what is about to happen, as a question for a person.
    :param refused: what cannot be done, and why; if nothing is left in `effects`, the action would be refused.
    :param needs_reason: whether `why` is required.
    :param is_refusal: whether `sentence` is a line of `refused`.
    """

    version: str
    sentence: Words
    effects: tuple[EffectLine, ...]
    refused: tuple[EffectLine, ...]
    needs_reason: bool
    is_refusal: bool = False


def transactions(txids: Iterable[int | None]) -> str:
    """Name transactions: `transaction 1`, or `transactions 1, 2`."""
    named = [str(txid) for txid in txids]
    return f"transaction{'s' if len(named) > 1 else ''} {', '.join(named)}"


def refusing(error: TxError) -> _Deed:
    """Make the deed of an effect that is refused."""

    def refuse(audit: Audit) -> NoReturn:
        raise error

    return refuse


def none_of(
    effects: Iterable[PlannedEffect], refused: Iterable[EffectLine], error: TxError, held_up: str
) -> list[PlannedEffect]:
    """Refuse all effects, since some transactions are refused.

    :param refused: why, of each of these; `held_up`: why the others are not done.
    """
    told = [PlannedEffect([line], refusing(error), is_refused=True) for line in refused]
    for each in effects:
        left = (line if each.is_refused else replace(line, what=held_up) for line in each.would)
        told.append(PlannedEffect(list(left), refusing(error), is_refused=True))
    return told


# --- runs ---------------------------------------------------------------------------------------------------------
# The runs of a DAG, for a person who starts them again.


def live_runs(ledger: ReadOnlyLedger, dag_id: str) -> str:
    """Name the runs of open transactions that are alive; "": none is."""
    runs = [record.run_id for record in ledger.open_records().values()]
    found = sorted(compat.runs_of(dag_id, runs).items())
    live = [f"{run_id} ({state})" for run_id, state in found if state in LIVE_RUN_STATES]
    return f"runs of DAG {dag_id!r} work on its transactions: {', '.join(live)}" if live else ""


class RunForbidden(Refused):
    """A run that was deleted, and that the person may not create again."""

    template = (
        "Run {run_id!r} was deleted, and you may not create runs of DAG {dag_id!r}.",
        "Ask a person who may to do this, or ask for the right to create them",
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
        self,
        run_id: str,
        key: str,
        *,
        past_limit: bool = False,
        latest: bool = False,
        noting: Callable[[], object] = bool,
    ) -> str:
        """Clear a run, or create it; says in words which of these.

        :param past_limit: let it start although the DAG has as many running runs as it may.
        :param latest: by the newest version of the DAG, also if the run was of another one.
        :param noting: notes in the ledger that it starts; not called if Airflow's database does not take the change.
        :raises RunForbidden: it was deleted, and the person may not create it.
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
    """Say that a run that had yielded is started again."""
    return EffectLine(txid, run_id, f"cleared: it had yielded to transaction {blocking}")


# --- target -------------------------------------------------------------------------------------------------------


ParsedDag: TypeAlias = tuple[TransactionSpec, Mapping[str, FencedState]]


@dataclass(frozen=True)
class ActionTarget:
    """The topology that an action is about.

    :param dag: parses the DAG of the topology, for its source and its states; called only where they are needed.
    :param may_create: whether the person may create runs of the DAG; `sees_audit`: may read who acted before, and why.
    :param coordinator: the DAG that coordinates it; "": it was not looked up.
    :param check_runs: whether a repair of the whole ledger is refused while runs of open transactions are alive, which
        may still commit.
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
        """Give the runs of its DAG."""
        return CommandRuns(self.record.dag_id, self.may_create)

    def person(self, who: str, why: str) -> str:
        """Name who acted before and why, to people who may read that."""
        return f"{who}: {why}" if self.sees_audit else "a person"

    def version(self, txids: Sequence[int]) -> str:
        """Read the version of these transactions, with every write until now."""
        self.ledger.store.sync()
        return self.ledger.version_of(txids)

    def take(self, txids: Sequence[int], version: str | None) -> None:
        """Refuse other people who act on the same preview of these transactions.

        :param version: None: they were not previewed.
        :raises PreviewOutdated: another person acted on them first, or they have changed.
        """
        if version is not None:
            self.ledger.note_action(txids, version)

    def wishes(self) -> tuple[Wish, ...]:
        """Read the requests for restatements, with every write until now."""
        self.ledger.store.sync()
        return self.ledger.wishes()

    def opened(self, txids: Collection[int]) -> Mapping[int, TransactionRecord | Refused]:
        """Read the records of open transactions, or say what became of them."""
        return self.ledger.find_open.preview(txids).result


def is_behind(state: FencedState, topology: TopologyRecord) -> bool:
    """Ask whether the fence of a state says that it lacks what the ledger committed to it."""
    last = topology.states.get(state.name)
    fence = state.fence()
    if last is None or (fence is not None and fence.token.txid > last):
        return False
    return fence is None or fence.token.txid < last or not fence.applied


# --- action -------------------------------------------------------------------------------------------------------


class PersonalAction(ABC):
    """One action on one topology: `plan` decides, and nothing else does.

    :cvar needs_reason: whether a person has to say why; the ledger keeps it.
    :cvar asks_dag: whether it asks the source or the states, which only the DAG file names.
    :cvar subject: what has changed if the version has, of an action that claims no transactions.
    :cvar starts_runs: whether its effects are of use only once runs of the DAG start.
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
        """Plan what it does now, and change nothing.

        :raises TxError: that cannot be said: the ledger, the DAG, its source or a state cannot be read.
        """

    def preview(self) -> PreviewAnswer:
        """Say what it would do, and change nothing. Raises as `plan`."""
        plan = self.plan()
        lines: dict[bool, list[EffectLine]] = {False: [], True: []}  # by whether they are refused
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
        """Do it, and say what was done; what was said holds, also if what comes after it fails.

        :param version: of the preview; None: without a check.
        :raises PreviewOutdated: there is another version by now; nothing was done.
        :raises Refused: it cannot be done.
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
        """Say why the runs that it starts would only wait; None: they start."""
        return compat.why_none_starts(self.target.record.dag_id) if self.starts_runs else None

    def refused(
        self, version: str, why: Refused, txid: int | None = None, run_id: str | None = None
    ) -> ActionPlan:
        """Plan nothing, and say why it cannot be done."""
        effect = PlannedEffect([EffectLine(txid, run_id, str(why))], refusing(why), is_refused=True)
        claimed = None if txid is None else [txid]
        return ActionPlan(version, str(why), [effect], claimed, is_refusal=True)

    def effects(self, audit: Audit, version: str) -> list[EffectLine]:
        """Do it to its end; an error after something was done is the last of the effects.

        :raises TxError: as `execute`, if nothing was done.
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
    """One action on one transaction."""

    def __init__(self, target: ActionTarget, txid: int) -> None:
        super().__init__(target)
        self.txid = txid
