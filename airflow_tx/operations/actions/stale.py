"""Stale transactions are committed, but the current DAG would produce other output. A user restates or accepts them.

A transaction is stale if task code has changed since, or if the upstream topology has corrected rows that it read. A
data interval without a transaction is also reported as stale if earlier and later intervals have one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from functools import cached_property, partial
from itertools import count, groupby
from typing import Any

from airflow_tx.base import compat
from airflow_tx.base.errors import ConfigError, Refused
from airflow_tx.ledger import (
    Audit,
    Correction,
    Outcome,
    ReadOnlyLedger,
    Receipt,
    RepairRecord,
    Repairs,
    accepted_code,
    counted,
    digest,
)
from airflow_tx.operations.actions.action import (
    ActionPlan,
    ActionTarget,
    EffectLine,
    ParsedDag,
    PersonalAction,
    PlannedEffect,
)
from airflow_tx.operations.actions.evidence import TopologyEvidence
from airflow_tx.operations.actions.restatement import ChosenTransaction, TransactionRestatement
from airflow_tx.sources import interval_of_key, key_of_interval
from airflow_tx.transaction import TransactionSpec, code_of_dag

# --- what is stale ------------------------------------------------------------------------------------------------


class StaleReason(str, Enum):
    """The reason why a transaction is stale."""

    CODE = "code"
    CORRECTION = "correction"
    INTERVAL = "interval"


@dataclass(frozen=True)
class StaleLine:
    """A transaction that is stale, or a data interval without one.

    :param txid: txid of the transaction, or null if no transaction has the interval.
    :param run_id: run of the transaction, or null if it is unknown or there is no transaction.
    :param what: the reason in words.
    :param since: time when the transaction became stale, or null if it is unknown.
    :param tasks: names of the tasks whose code differs.
    :param restatement: open transaction that restates it, 0 if a restatement is requested, or null otherwise.
    """

    txid: int | None
    run_id: str | None
    reason: StaleReason
    what: str
    since: str | None
    tasks: tuple[str, ...] = ()
    restatement: int | None = None


@dataclass(frozen=True)
class StaleGroup:
    """Transactions that are stale for the same reason, or data intervals without a transaction.

    :param txids: txids in order. The list is empty for a group of intervals.
    """

    txids: tuple[int, ...]
    reason: StaleReason
    what: str
    since: str | None
    restatement: int | None

    @property
    def transactions(self) -> str:
        """Format the txids as a short text, such as `1-3, 5`."""
        counter = count()
        runs = (list(run) for _, run in groupby(self.txids, lambda txid: txid - next(counter)))
        return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


@dataclass(frozen=True)
class Stale:
    """The stale transactions of a topology at one moment.

    :param lines: stale transactions in txid order, and then the intervals without a transaction.
    :param compared: number of compared transactions, which are committed, have a receipt, and are not restated.
    :param unknown: number of transactions whose code cannot be compared, by reason.
    :param corrections: corrections that a transaction lacks, by its txid.
    """

    lines: tuple[StaleLine, ...]
    compared: int
    unknown: Mapping[str, int]
    corrections: Mapping[int, Correction] = field(default_factory=dict)

    def of(self, task: str) -> Stale:
        """Return the lines with other code of this task. If `task` is "", return all lines."""
        chosen = tuple(each for each in self.lines if not task or task in each.tasks)
        return replace(self, lines=chosen)

    @property
    def groups(self) -> list[StaleGroup]:
        """Group the lines by reason."""
        found = dict[tuple[Any, ...], list[int]]()
        for each in self.lines:
            key = (each.reason, each.what, each.since, each.restatement)
            found.setdefault(key, []).extend([] if each.txid is None else [each.txid])
        return [StaleGroup(tuple(txids), *key) for key, txids in found.items()]

    @property
    def txids(self) -> list[int]:
        """Return the txids of the stale transactions."""
        return [each.txid for each in self.lines if each.txid is not None]


@dataclass(frozen=True)
class CodeNow:
    """The current code of a DAG, to compare it with the code in receipts.

    :param tasks: code digest of each task that must ack, or "" if the code cannot be read here.
    :param mapped: mapped tasks, which have no instances if their list is empty.
    :param accepted: last txid for which a user has accepted the code, by task and code digest.
    """

    tasks: Mapping[str, str]
    mapped: Collection[str] = ()
    accepted: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @classmethod
    def of(cls, dag: Any, spec: TransactionSpec, repairs: Sequence[RepairRecord]) -> CodeNow:
        """Read a DAG's code, and the code that users have accepted.

        :param repairs: repairs of this incarnation of the ledger, which include accepted code.
        """
        return cls(code_of_dag(dag, spec), spec.mapped, accepted_code(repairs))

    def changes(self, receipt: Receipt) -> dict[str, str]:
        """Describe, by task, how the current code differs from a transaction's code."""
        if not receipt.tasks:
            return {}
        then = receipt.code.tasks
        gone = {task for task in receipt.tasks if task not in self.tasks}
        new = {task for task in self.tasks if task not in receipt.tasks and task not in self.mapped}
        for task in sorted(gone):
            renamed = next((each for each in sorted(new) if self._is(each, then.get(task))), None)
            if renamed is not None:
                gone.discard(task)
                new.discard(renamed)
        other = [task for task in self.tasks if then.get(task) and not self._is(task, then[task])]
        told = {task: f"task {task} has other code" for task in other if self.tasks[task]}
        told |= {task: f"task {task} is new" for task in new}
        told |= {task: f"task {task} is gone" for task in gone}
        return {task: told[task] for task in sorted(told) if not self._accepts(task, receipt.txid)}

    def unknown(self, receipt: Receipt) -> Iterator[str]:
        """Yield the reasons why some of a transaction's code cannot be compared."""
        if not receipt.tasks:
            yield "their receipts do not say which tasks processed them"
        for task in sorted(receipt.tasks.keys() & self.tasks.keys()):
            if not self.tasks[task]:
                yield f"the code of task {task} cannot be read here"
            elif task not in receipt.code.tasks:
                yield f"their receipts do not have the code of task {task}"

    def _is(self, task: str, code: str | None) -> bool:
        return bool(code) and self.tasks[task] == code

    def _accepts(self, task: str, txid: int) -> bool:
        return txid <= self.accepted.get((task, self.tasks.get(task, "")), 0)


@dataclass(frozen=True)
class StaleReading:
    """Finds the stale transactions of a topology.

    :param ledger: ledger of the topology.
    :param parsed: `Transaction` of its DAG, and the states of the DAG by name.
    """

    ledger: ReadOnlyLedger
    parsed: ParsedDag

    def read(self, task: str = "") -> Stale:
        """Compare every receipt with the current DAG.

        :param task: name of a task whose code has changed, or "" for all stale transactions.
        :raises ConfigError: this task is not in the DAG or in any stale transaction.
        :raises TxError: the ledger, a state, the source or the upstream topology cannot be read.
        """
        counting = self._counting
        code = self.code
        changed = {txid: code.changes(each) for txid, each in counting.items()}
        unknown = Counter(why for each in counting.values() for why in code.unknown(each))
        corrections = self._corrections()
        lines = [
            self._line(txid, changed.get(txid, {}), corrections.get(txid))
            for txid in sorted({*(txid for txid in changed if changed[txid]), *corrections})
        ]
        found = Stale((*lines, *self._intervals()), len(counting), unknown, corrections).of(task)
        if task and task not in code.tasks and not found.lines:
            known = ", ".join(sorted(code.tasks)) or "none"
            remedy = f"Name a task whose code processes batches: {known}"
            raise ConfigError(option="--code", value=task, remedy=remedy)
        return found

    @property
    def _spec(self) -> TransactionSpec:
        return self.parsed[0]

    @cached_property
    def evidence(self) -> TopologyEvidence:
        """Read the receipts of the ledger and of its states."""
        return TopologyEvidence.read(
            self.ledger, lambda dag_id: self.parsed, partly=True, receipts_alone=True
        )

    @cached_property
    def _receipts(self) -> Mapping[int, Receipt]:
        return self.evidence.receipts(None, None)

    @cached_property
    def _counting(self) -> dict[int, Receipt]:
        """Return the receipts of committed transactions that still count.

        Empty batches are omitted, since no code produced them.
        """
        replaced = self.evidence.restated
        back = self.evidence.ledger.taken_back
        return {
            txid: each
            for txid, each in self._receipts.items()
            if each.outcome == Outcome.COMMITTED.value
            and txid not in replaced
            and txid not in back
            and each.metadata is not None
        }

    @cached_property
    def code(self) -> CodeNow:
        """Read the current code of the DAG."""
        states: Any = self.parsed[1]
        return CodeNow.of(states.dag, self._spec, self.evidence.ledger.life)

    def _line(self, txid: int, changes: Mapping[str, str], lacks: Correction | None) -> StaleLine:
        told = [*changes.values(), *([lacks.reason] if lacks else [])]
        since = [*map(self._since, changes), lacks.since if lacks else None]
        known = sorted(each.isoformat(timespec="seconds") for each in since if each is not None)
        receipt = self._receipts.get(txid)
        return StaleLine(
            txid,
            None if receipt is None else receipt.run_id,
            StaleReason.CODE if changes else StaleReason.CORRECTION,
            "; ".join(told),
            known[0] if known else None,
            tuple(changes),
            self._restatements.get(txid),
        )

    def _since(self, task: str) -> datetime | None:
        """Return the time when a transaction first ran this code of a task.

        If none did, return the DAG file's last change.
        """
        return self._first_made.get(task, self._file_changed)

    @cached_property
    def _first_made(self) -> Mapping[str, datetime]:
        """Map each task to the time when a transaction first ran its current code."""
        found = dict[str, datetime]()
        for receipt in self._receipts.values():
            for task, code in receipt.code.tasks.items():
                if receipt.granted and code and code == self.code.tasks.get(task):
                    found.setdefault(task, datetime.fromisoformat(receipt.granted))
        return found

    @cached_property
    def _file_changed(self) -> datetime | None:
        return compat.code_since(self._spec.dag_id)

    @cached_property
    def _restatements(self) -> Mapping[int, int]:
        """Map each transaction to its open restatement, or to 0 if a requested one has not begun."""
        wanted = {wish.txid: 0 for wish in self.ledger.wishes()}
        opened = self.ledger.open_records().values()
        return wanted | {each.restates: each.txid for each in opened if each.restates is not None}

    def _corrections(self) -> dict[int, Correction]:
        """Read the missing corrections, by the txid that counts."""
        with closing(self._spec.named_source) as source:
            if not source.upstream:
                return {}
            found = source.corrections(self.ledger, datetime.now(timezone.utc))
        return {} if found is None else {each.counts: each for each in found.behind}

    def _intervals(self) -> Iterator[StaleLine]:
        """Yield the data intervals without a transaction between the first and the last interval that have one."""
        if self._spec.source.dated is None:
            return
        bound = self.ledger.bound_keys()
        known = sorted(each for each in map(interval_of_key, bound) if each is not None)
        if not known:
            return
        starts = {start for start, _ in known}
        for each in compat.scheduled_intervals(self._spec.dag_id, known[0][0], known[-1][1]):
            key = key_of_interval((each.start, each.end))
            if key not in bound and each.start not in starts and each.end <= known[-1][1]:
                since = each.end.isoformat(timespec="seconds")
                what = f"no transaction has {key.replace(':', ' ', 1)}"
                yield StaleLine(None, None, StaleReason.INTERVAL, what, since)


# --- what a person can do -----------------------------------------------------------------------------------------


class NothingStale(Refused):
    """Signals that the code to accept is the same in all transactions."""

    template = ("{problem}.", "Nothing was changed. No acceptance is needed")


def nothing_stale(topology: str, found: Stale, task: str) -> str:
    """Return the sentence for the case that nothing is stale, without its full stop."""
    about = f" by the code of task {task}" if task else ""
    return (
        f"None of {counted(found.compared, 'transactions')} of topology {topology} is stale{about}"
    )


class StaleRestatement(TransactionRestatement):
    """Restates all stale transactions. If a transaction cannot be restated, the others are still restated.

    :param code: name of a task, to restate only transactions that ran other code of it, or "" for all stale
        transactions.
    :param in_flight: see `TransactionRestatement`.
    """

    needs_reason = False

    def __init__(
        self, target: ActionTarget, *, code: str = "", in_flight: int | None = None
    ) -> None:
        super().__init__(target, in_flight=in_flight)
        self._code = code
        self.subject = "The list of stale transactions"

    def plan(self) -> ActionPlan:
        """Plan the requests for the restatements, and the start of their runs."""
        self.txids = self.stale.txids
        if not self.txids:
            nothing = nothing_stale(self.target.topology, self.stale, self._code)
            line = EffectLine(None, None, f"nothing: {nothing}")
            effect = PlannedEffect((), lambda audit: [line])
            return ActionPlan(digest([]), f"{nothing}.", [effect])
        named, refused = self._choose(self.txids)
        # A transaction that was restated after the comparison is no longer stale.
        chosen = [each for each in named if each.run.named == each.run.txid]
        effects = [*map(self._refusal, refused), *self._effects(chosen)]
        version = digest([self._version(chosen), [each.what for each in self.stale.lines]])
        return ActionPlan(version, self._sentence([each.wanted.txid for each in chosen]), effects)

    @cached_property
    def stale(self) -> Stale:
        """Find the transactions to restate. Raises the same errors as `StaleReading.read`."""
        return StaleReading(self.ledger, self._parsed).read(self._code)

    @cached_property
    def _lines(self) -> Mapping[int | None, StaleLine]:
        return {each.txid: each for each in self.stale.lines}

    def _refusal(self, line: EffectLine) -> PlannedEffect:
        told = replace(line, what=f"not restated: {line.what}")
        return PlannedEffect([line], lambda audit: [told], is_refused=True)

    def _request(self, each: ChosenTransaction, audit: Audit) -> None:
        line = self._lines[each.run.txid]
        audit = replace(audit, why=audit.reason or line.what)
        correction = self.stale.corrections.get(each.run.txid)
        if correction is None:
            super()._request(each, audit)
        else:
            ends = correction.ends
            self.ledger.want_correction(each.wanted, txid=correction.txid, ends=ends, audit=audit)


class StaleAcceptance(PersonalAction):
    """Records in the ledger that a code change needs no restatement. Transactions up to now are then no longer stale.

    :param code: name of the task, or "" for all tasks whose code differs.
    """

    needs_reason = asks_dag = True
    subject = "The list of stale transactions"

    def __init__(self, target: ActionTarget, code: str = "") -> None:
        super().__init__(target)
        self._code = code

    def plan(self) -> ActionPlan:
        reading = StaleReading(self.ledger, self.target.dag())
        found = reading.read(self._code)
        by_task = dict[str, list[int]]()
        for line in found.lines:
            for task in line.tasks:
                if line.txid is not None and self._code in ("", task):
                    by_task.setdefault(task, []).append(line.txid)
        if not by_task:
            nothing = nothing_stale(self.target.topology, found, self._code)
            return self.refused("", NothingStale(problem=nothing))
        code = {task: reading.code.tasks.get(task, "") for task in by_task}
        last = reading.evidence.ledger.current - 1
        lines = [_accepted(task, txids) for task, txids in sorted(by_task.items())]
        effect = PlannedEffect(lines, partial(self._accept, code, last, lines))
        named = ", ".join(sorted(by_task))
        sentence = f"Accept that other code of {named} made transactions up to {last} of topology "
        sentence += f"{self.target.topology}. These transactions count unchanged."
        return ActionPlan(digest([code, last, by_task]), sentence, [effect])

    def _accept(
        self, code: Mapping[str, str], last: int, lines: Iterable[EffectLine], audit: Audit
    ) -> Iterator[EffectLine]:
        Repairs(self.ledger).note_code(code, last=last, audit=audit)
        for each in lines:
            yield replace(each, what=f"accepted: {each.what}")


def _accepted(task: str, txids: Sequence[int]) -> EffectLine:
    many = counted(len(txids), "transactions")
    return EffectLine(
        None, None, f"task {task}: {many} made by other code, {min(txids)} to {max(txids)}"
    )
