"""User restatement: process committed transactions again, each as a new transaction that replaces the old one.

The action writes all requests before it starts a run. After a crash, the same command or a coordinator continues with
the requests. Source: protocol.md §11.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import CodeType
from typing import Any

from msgspec import structs

from airflow_tx.base import compat
from airflow_tx.base.errors import Refused, RestateRefused, TxError
from airflow_tx.base.failpoints import failpoint
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger import (
    LIVE_RUN_STATES,
    NOTHING_WRITTEN,
    Audit,
    LedgerReader,
    Outcome,
    ReadOnlyLedger,
    RepairRecord,
    TopologyRecord,
    Wish,
    WishRequest,
    digest,
    most_restated,
    renamed_since,
    wishes_to_start,
)
from airflow_tx.operations.actions.action import (
    ActionPlan,
    ActionTarget,
    EffectLine,
    PersonalAction,
    PlannedEffect,
    is_behind,
    none_of,
    transactions,
)
from airflow_tx.outputs import Contribution, Entry, JournalArea
from airflow_tx.state import FencedState, QueryableState, can_invert
from airflow_tx.transaction import (
    INSTEAD,
    LOST,
    TransactionSpec,
    asked,
    contributions,
    is_asked,
    old_side,
    refused_by_dag,
    replaced_txids,
    shown_key,
)

# --- contribution words -------------------------------------------------------------------------------------------
# Describe the contribution that a restatement replaces, for the preview.


MOST_LOOKED_UP = 100_000
"""Maximum number of keys that a preview looks up, since a user is waiting."""
KEYS_SHOWN = 3
_READERS = frozenset({"state_query", "MapGet"})


def contribution_in_words(
    entry: Entry, renamed: Mapping[str, str], tables: Collection[str] = ()
) -> str:
    """Count the replaced keys of each state, and describe the precision that doubles lose.

    :param renamed: current name of each state, by its name in the entry.
    :param tables: names of the states that are tables, which have no keys.
    """
    named = contributions(entry, renamed)
    told = [
        f"its rows in {name}"
        if name in tables
        else f"{each.count:,} {'key' if each.count == 1 else 'keys'} of {name}{_digits_lost(each)}"
        for name, each in named.items()
    ]
    return ", ".join(told) or "nothing"


def not_taken_back(
    state: FencedState, old: Contribution, txids: Collection[int], own: int
) -> str | None:
    """Describe the keys whose earlier contribution the state may be unable to take back.

    Return None if there are none.

    :param old: contribution that is replaced.
    :param txids: txids of the restated transaction, and of the transactions that it replaced.
    :param own: txid of the restatement.
    """
    columns = state.columns
    chosen = [
        f"{each.name} of {name}"
        for name, each in (columns.values.items() if columns is not None else ())
        if name in old.values and not can_invert(each)
    ]
    if not chosen or not old.count or not isinstance(state, QueryableState):
        return None
    held = f"the new {', '.join(chosen)} must include the old one or equal it; otherwise the commit is refused"
    if not is_asked(state) or old.count > MOST_LOOKED_UP:
        return f"{state.name}: {held}"
    count = 0
    first = list[str]()
    for keys in old_side(state, old).keys():
        values = state.sole_values(keys, txids, own)
        shared = [key for key, each in zip(keys, values, strict=True) if each is None]
        count += len(shared)
        first += [str(shown_key(state.columns, key)) for key in shared[: KEYS_SHOWN - len(first)]]
    if not count:
        return None
    named = ", ".join(first)
    return (
        f"{state.name}: other transactions have contributed to {count:,} of these keys ({named}). "
        f"For these keys, {held}"
    )


def _digits_lost(contribution: Contribution) -> str:
    doubles = [
        name
        for name, each in contribution.values.items()
        if each == {"aggregator": "sum", "type": "double"}
    ]
    most = dict[str, float]()
    for row in contribution.rows() if doubles else ():
        for name in doubles:
            most[name] = max(most.get(name, 0.0), abs(row.get(name) or 0.0))
    told = [f"{name} below {LOST * value:.0e}" for name, value in most.items() if value]
    return f" (digits of {', '.join(told)} are lost)" if told else ""


def _reads_states(task: Any) -> bool:
    """Return whether a task's Python function seems to read values of a state, judging by the names in its code."""
    function: Any = getattr(task, "python_callable", None)
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and not _READERS.isdisjoint(_names(code))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


# --- restatement --------------------------------------------------------------------------------------------------


_STARTED = (
    "its rows are processed again as a new transaction, which replaces it once it is committed"
)
_READ = "task {} reads states: later transactions that read the old values are not corrected"


class SeveralRefused(Refused):
    """Signals that some transactions cannot be restated. Nothing was changed."""

    template = "{lines}"


@dataclass(frozen=True)
class RestatedRun:
    """The run of a transaction that the user names.

    :param named: txid that the user named, or the txid for the given date.
    :param txid: txid that counts, from the run key's binding.
    :param key: run key.
    :param run_id: id of the run.
    :param begun: open transaction that restates it, or None if there is none.
    """

    named: int
    txid: int
    key: str
    run_id: str
    begun: int | None = None


@dataclass(frozen=True)
class ChosenTransaction:
    """A transaction that can be restated.

    :param run: run of the transaction.
    :param wanted: request to write.
    :param entry: journal entry of the transaction, or None if a request exists or a restatement has begun.
    :param wish: earlier request, or None if there is none.
    """

    run: RestatedRun
    wanted: WishRequest
    entry: Entry | None
    wish: Wish | None = None


class TransactionRestatement(PersonalAction):
    """Processes the batches of committed transactions again, as new transactions that replace them.

    :param txids: transactions to restate, or transactions that these have replaced. An empty list means all requested
        transactions.
    :param changed_rows: whether to read the current rows of the source.
    :param in_flight: maximum number of parallel restatements, or None for a limit that leaves room for one other batch.
    :param dated: whether the user specified dates. Transactions that were already restated for the same reason are then
        omitted.
    :ivar chosen: transactions to restate, which `execute` sets.
    """

    needs_reason = asks_dag = starts_runs = True

    def __init__(
        self,
        target: ActionTarget,
        txids: Sequence[int] = (),
        *,
        changed_rows: bool = False,
        in_flight: int | None = None,
        dated: bool = False,
    ) -> None:
        super().__init__(target)
        self.txids = sorted(set(txids))
        self.changed_rows = changed_rows
        self._in_flight = in_flight
        self._dated = dated
        self.chosen: list[RestatedRun] = []
        named = f"Transaction {', '.join(map(str, self.txids))}"
        self.subject = named if self.txids else "The list of requests"

    def plan(self) -> ActionPlan:
        """Create a plan that writes all requests in one step, and then starts as many runs as the limit allows.

        If two users act on the same preview, the ledger refuses the second one's requests.
        """
        chosen, refused = self._choose(self.txids)
        effects = self._effects(chosen)
        if refused:
            error = SeveralRefused(lines="\n".join(each.what for each in refused))
            held_up = "not restated, because other transactions are refused"
            effects = none_of(effects[:-1], refused, error, held_up)
        sentence = self._sentence([each.wanted.txid for each in chosen])
        return ActionPlan(self._version(chosen), sentence, effects)

    def _effects(self, chosen: Sequence[ChosenTransaction]) -> list[PlannedEffect]:
        """Create a plan that first writes all requests, and then starts their runs."""
        wanted = [PlannedEffect(self._outlook(each), partial(self._want, each)) for each in chosen]
        return [*wanted, PlannedEffect(self._remarks(chosen), lambda audit: self.start())]

    def _remarks(self, chosen: Sequence[ChosenTransaction]) -> Iterator[EffectLine]:
        """Yield the warnings for a preview, and a note about requests for other transactions."""
        for each in chosen:
            yield from self._not_taken_back(each)
        yield from self._coming_back(chosen)
        readers = filter(_reads_states, self._dag.tasks if chosen else ())
        for task_id in sorted(task.task_id for task in readers):
            yield EffectLine(None, None, _READ.format(task_id))
        txids = {each.wanted.txid for each in chosen}
        for wish in self.target.wishes():
            if wish.txid not in txids:
                by = f"requested by {self.target.person(wish.who, wish.why)}"
                yield EffectLine(wish.txid, wish.run_id, by)

    def requests(self, txids: Collection[int]) -> list[WishRequest]:
        """Return the requests for these transactions that are not in the ledger yet.

        :raises RestateRefused: a transaction cannot be restated; the error names the first one.
        """
        wished = {wish.txid: wish for wish in self.target.wishes()}
        found = list[WishRequest]()
        for txid in txids:
            try:
                each = self._checked(txid, wished)
            except TxError as error:
                raise self._refused(txid, error.fields.get("problem", str(error)), "") from error
            found += [each.wanted] if each.wish is None and each.run.begun is None else []
        return found

    def _want(self, each: ChosenTransaction, audit: Audit) -> Iterator[EffectLine]:
        if self._is_done(each, audit):
            what = (
                f"not restated: transaction {each.run.txid} has restated it for this reason. "
                "To repeat it, change --why"
            )
            yield EffectLine(each.run.named, each.run.run_id, what)
            return
        self.chosen.append(each.run)
        if each.run.begun is not None:
            what = f"transaction {each.run.begun} restates it already"
            yield EffectLine(each.run.txid, each.run.run_id, what)
        elif each.wish is None:
            self._request(each, audit)
            failpoint("restate.after_wish", topology=self.target.topology, txid=each.wanted.txid)

    def _request(self, each: ChosenTransaction, audit: Audit) -> None:
        self.ledger.want_restated(each.wanted, audit)

    def start(self) -> Iterator[EffectLine]:
        """Start the runs of requests, up to the limit of parallel restatements."""
        found = self.target.wishes()
        started = self.startable(found)
        for wish in started:
            self.target.runs.check_state(wish.run_id, self._states([wish])[wish.run_id])
            how = self.target.runs.start(wish.run_id, wish.key, past_limit=True, latest=True)
            failpoint("restate.after_start", topology=self.target.topology, txid=wish.txid)
            yield EffectLine(wish.txid, wish.run_id, f"{how}: {_STARTED}")
        for wish in found:
            if wish not in started:
                yield EffectLine(wish.txid, wish.run_id, self._why_not_now(wish))

    def startable(self, found: Sequence[Wish]) -> tuple[Wish, ...]:
        """Return the requests whose runs can start now."""
        limit = self._in_flight or most_restated(self.ledger.topology().max_pending)
        opened = LedgerReader(self.ledger.store, self.ledger.paths).settled().opened
        return wishes_to_start(found, opened, self._states(found), limit=limit)

    def _why_not_now(self, wish: Wish) -> str:
        state = self._states([wish])[wish.run_id]
        if state in LIVE_RUN_STATES:
            return f"its run is {state}, and processes its rows again"
        again = Command.of("restate", self.target.topology, "--why", "TEXT")
        later = (
            "the coordinator starts its run once fewer restatements are in progress; "
            f"without a coordinator: {again}"
        )
        coordinator = self.target.coordinator
        held_up = compat.why_none_starts(coordinator) if coordinator else None
        return later if held_up is None else f"{later} ({held_up})"

    def _states(self, found: Sequence[Wish]) -> dict[str, str | None]:
        run_ids = [wish.run_id for wish in found]
        return {**dict.fromkeys(run_ids), **self.target.runs.states(run_ids)}

    # --- checks

    def _choose(self, txids: Collection[int]) -> tuple[list[ChosenTransaction], list[EffectLine]]:
        """Check each transaction. Return the transactions that can be restated, and the errors for the others."""
        wished = {wish.txid: wish for wish in self.target.wishes()}
        chosen: dict[int, ChosenTransaction] = {}
        refused = []
        for txid in txids:
            try:
                each = self._checked(txid, wished)
                if each.entry is not None:
                    self._check_behind(txid)
            except TxError as error:
                refused.append(EffectLine(txid, None, str(error)))
            else:
                chosen.setdefault(each.wanted.txid, each)
        return list(chosen.values()), refused

    def _version(self, chosen: Sequence[ChosenTransaction]) -> str:
        """Return the version of a preview. It changes with the transactions that count, or with their requests."""
        waiting = () if self.txids else self.target.wishes()
        return digest(
            [
                self.changed_rows,
                [
                    [each.run.named, each.run.txid, each.run.begun, each.wish and each.wish.op]
                    for each in chosen
                ],
                [[each.txid, each.op] for each in waiting],
            ]
        )

    def _checked(self, txid: int, wished: Mapping[int, Wish]) -> ChosenTransaction:
        """Check whether one transaction can be restated.

        :raises TxError: the transaction cannot be restated.
        """
        run = find_run(self.ledger, self._journal, txid)
        first_day = (self.ledger.clock.now() - self._spec.journal_time).date().isoformat()
        request = WishRequest(
            run.txid, run.key, run.run_id, changed_rows=self.changed_rows, first_day=first_day
        )
        if run.txid in wished or run.begun is not None:
            return ChosenTransaction(run, request, None, wished.get(run.txid))
        if not run.key and self.ledger.is_committed(txid):
            raise self._refused(
                txid, "its run is not in the history and not in the journal", INSTEAD
            )
        nobody = Audit("", "")
        # This call raises the ledger's refusals.
        self.ledger.want_restated.preview(request, nobody)
        entry = self._journal.read(self.ledger.bound(run.key).entry)
        self._check_states(run.txid, entry)
        self._check_source(run.txid, entry)
        self.target.runs.checked(run.run_id)
        names = contributions(entry, self._renamed(entry))
        states = self._parsed[1]
        taken = tuple(name for name in names if not states[name].takes_back_by_txid)
        request = replace(request, states=taken)
        self.ledger.want_restated.preview(request, nobody)
        return ChosenTransaction(run, request, entry)

    def _check_states(self, txid: int, entry: Entry) -> None:
        topology = structs.replace(self._topology, renamed=self._renamed(entry))
        problem = refused_by_dag(self._spec, self._dag, entry, topology)
        if problem is not None:
            raise self._refused(txid, problem, INSTEAD)

    def _check_behind(self, txid: int) -> None:
        """Refuse a user's request while a state lacks transactions. A roll forward does not call this method."""
        for state in self._parsed[1].values():
            if state.has_fence and is_behind(state, self._topology):
                problem = f"state {state.name} lacks transactions that the ledger committed to it"
                raise self._refused(txid, problem, state.remedy_behind(self.target.topology))

    def _check_source(self, txid: int, entry: Entry) -> None:
        topology = self.target.topology
        rows = entry.metadata
        if rows is None:
            return
        gone = None
        remedy: Remedy | str = ""
        with closing(self._spec.named_source) as source:
            if self.changed_rows and not source.rows_can_change:
                gone = f"{source!r} reads a log, whose rows never change"
                remedy = "Without --changed-rows: " + Command.of(
                    "restate", topology, txid, "--why", "TEXT"
                )
            elif not self.changed_rows:
                gone = _asked_again(source, txid, rows)
                remedy = "The transaction still counts, unchanged."
        if gone is not None:
            raise self._refused(txid, gone, remedy)

    def _refused(self, txid: int, problem: str, remedy: Remedy | str) -> RestateRefused:
        return RestateRefused(
            txid=txid, topology=self.target.topology, problem=problem, remedy=remedy
        )

    def _is_done(self, each: ChosenTransaction, audit: Audit) -> bool:
        """Return whether the same user has already restated the transaction for the same reason."""
        if each.entry is None or (not self._dated and each.run.named == each.run.txid):
            return False
        history = self.ledger.outcome(each.run.txid)
        receipt = None if history is None else history.receipt
        wish = None if receipt is None else receipt.wish
        return wish is not None and (wish.who, wish.why) == (audit.who, audit.reason)

    # --- texts

    def _outlook(self, each: ChosenTransaction) -> Iterator[EffectLine]:
        run = each.run
        if run.begun is not None:
            what = f"transaction {run.begun} restates it already"
        elif each.wish is not None:
            what = f"requested by {self.target.person(each.wish.who, each.wish.why)}"
        else:
            assert each.entry is not None
            rows = "with its current rows" if self.changed_rows else "with its rows"
            tables = {name for name, state in self._parsed[1].items() if state.takes_back_by_txid}
            taken = contribution_in_words(each.entry, self._renamed(each.entry), tables)
            what = f"restated {rows}. It replaces {taken}"
        if run.named != run.txid:
            what = f"it restated transaction {run.named}; {what}"
        yield EffectLine(run.txid, run.run_id, what)

    def _not_taken_back(self, each: ChosenTransaction) -> Iterator[EffectLine]:
        """Warn about values that a state may be unable to take back. A refused commit blocks all later commits."""
        if each.entry is None:
            return
        states = self._parsed[1]
        txids = replaced_txids(self._journal, each.entry)
        own = LedgerReader(self.ledger.store, self.ledger.paths).settled().allocated + 1
        for name, old in contributions(each.entry, self._renamed(each.entry)).items():
            problem = not_taken_back(states[name], old, txids, own) if name in states else None
            if problem is not None:
                yield EffectLine(each.run.txid, each.run.run_id, problem)

    def _coming_back(self, chosen: Sequence[ChosenTransaction]) -> Iterator[EffectLine]:
        """Warn about rows that were deleted from a table by hand. A restatement writes such rows again."""
        for name, state in self._parsed[1].items():
            rows = state.rows_by_txid() if state.takes_back_by_txid and chosen else None
            for each in chosen if rows is not None else ():
                txid = each.run.txid
                history = self.ledger.outcome(txid)
                receipt = None if history is None else history.receipt
                written = {} if receipt is None else receipt.written
                count = written.get(name, NOTHING_WRITTEN).keys
                if rows is not None and rows.get(txid, 0) < count:
                    there = f"{rows.get(txid, 0)} of its {count} rows are in the table"
                    back = f"{name}: {there}. Deleted rows come back if the source still has them"
                    yield EffectLine(txid, each.run.run_id, back)

    def _sentence(self, txids: Sequence[int]) -> str:
        if not txids:
            return (
                f"Start the runs of the requested restatements of topology {self.target.topology}."
            )
        it = "it" if len(txids) == 1 else "they"
        named = f"{transactions(txids)} of topology {self.target.topology}"
        return f"Process {named} again, and replace what {it} contributed."

    # --- the DAG, the ledger, the journal

    @cached_property
    def _parsed(self) -> tuple[TransactionSpec, Any]:
        return self.target.dag()

    @property
    def _spec(self) -> TransactionSpec:
        return self._parsed[0]

    @property
    def _dag(self) -> Any:
        return self._parsed[1].dag

    @cached_property
    def _repairs(self) -> Sequence[RepairRecord]:
        return self.ledger.repairs()

    def _renamed(self, entry: Entry) -> dict[str, str]:
        return renamed_since(self._repairs, entry.contributions, entry.txid)

    @cached_property
    def _topology(self) -> TopologyRecord:
        return self.ledger.topology()

    @cached_property
    def _journal(self) -> JournalArea:
        return JournalArea(self._spec.staging(), self._topology.incarnation)


def find_run(ledger: ReadOnlyLedger, journal: JournalArea, txid: int) -> RestatedRun:
    """Find the run of a transaction in the history or the journal, and the transaction that counts for this run.

    The transaction is not checked here. The ledger refuses to restate an open or skipped transaction.
    """
    history = ledger.outcome(txid)
    receipt = None if history is None else history.receipt
    key = "" if receipt is None else receipt.key
    run_id = "" if receipt is None else receipt.run_id
    if not key:
        for name in journal.names(txid):
            entry = journal.read(name)
            key = entry.key
            run_id = entry.run_id
    binding = ledger.binding(key) if key else None
    if binding is None or (history is not None and history.final.outcome is not Outcome.COMMITTED):
        return RestatedRun(txid, txid, key, run_id)
    begun = ledger.restating(binding)
    return RestatedRun(txid, binding.txid, key, run_id, begun)


def _asked_again(source: Any, txid: int, rows: Any) -> str | None:
    remedy = "Nothing was changed; correct the source, then repeat."
    with asked(source, f"transaction {txid}", remedy):
        gone = source.refuses_again(rows)
    return None if gone is None else f"its rows cannot be read again: {gone}"
