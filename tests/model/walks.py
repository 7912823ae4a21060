"""Random walks over real parts: two states and a table in SQLite, the ledger, and a person who types what is advised.

A walk is a list of plain steps, so that it can be cut. Each step does something in any world: a number that a step has
is taken modulo what there is to choose from. A process may die at any statement or commit of a database, and before or
after any write of the ledger. Each store goes back to any moment that was kept, also while states are written again.

The oracle counts again: what each transaction that the ledger calls committed gave to its states, without what a person
has accepted as lost. It is asked after each step, and at the end `verify --values` is.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_tx.base.errors import JournalError, Refused, StateError, TxError
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.audit.chain import ledger_evidence
from airflow_tx.ledger.audit.rebuild import rename_state
from airflow_tx.ledger.audit.verification import verified
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import Binding, Skipped
from airflow_tx.ledger.steps.replay import WishRequest
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.views.view import LedgerView
from airflow_tx.operations.actions.evidence import evidence_of
from airflow_tx.state import Count, Max, SqlState, SqlTable, Sum
from airflow_tx.state.api import Fence
from airflow_tx.transaction.commit import roll_forward as rolling
from airflow_tx.transaction.commit.handoff import take_skip
from airflow_tx.transaction.commit.restatement import check_entry
from airflow_tx.transaction.commit.turn import commit_in_turn
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.processing.outputs import returned
from tests.model.deaths import Died, KilledStore, Kills
from tests.model.person import NAME, Person, WalkFailed, is_advice
from tests.model.steps import Log, Rows, Setting, Step, outputs
from tests.stage import begin_run, update
from tests.unit.bench import FakeTi, MemorySpec
from tests.unit.commit.run import Run

ADA = Audit("ada", "a walk")
BY_HAND = 7
"""How much a person adds to a value."""


@dataclass(frozen=True)
class Known:
    """What is known of the values of a state, beside what its fence says.

    :param lost: transactions that were accepted as lost; `hands`: changes by hand that are there.
    :param unsure: the ones of these of which no one knows whether they were there when a person accepted that.
    :param more: what else was there when a person accepted it; None: nothing.
    :param apart: whether the values are of another moment than the fence.
    """

    lost: frozenset[int] = frozenset()
    unsure: frozenset[int] = frozenset()
    hands: frozenset[int] = frozenset()
    more: Any = None
    apart: bool = False

    @property
    def emptied(self) -> Known:
        """What is known once everything is gone: a roll forward leaves out only what is sure to be given up."""
        return Known() if self.unsure else Known(lost=self.lost)


class Final(NamedTuple):
    """A final transaction: it is committed by the grant of this nonce, or skipped."""

    nonce: str
    counts: bool
    replaces: int | None


# --- the walk ---------------------------------------------------------------------------------------------------------


@dataclass
class Walk:
    """A world, in which steps are taken.

    :ivar versions: with which the first attempt of a transaction was processed, by its birth.
    :ivar runs: by id; `made`: what they gave, by the nonce of their grant; `late`: committers that stand still.
    :ivar finals: the transactions that are final; `left`: which of them have passed over a state.
    :ivar known: of each state; `kept`: copies of databases, by their number; `hands`: state of each change by hand.
    :ivar accepted: of each state what was known when a person last accepted what it held.
    """

    setting: Setting
    folder: Path
    ledger_store: Any
    kills: Kills = field(default_factory=Kills)
    trail: list[str] = field(default_factory=list)
    runs: dict[str, Run] = field(default_factory=dict)
    made: dict[str, dict[str, Rows]] = field(default_factory=dict)
    late: list[Callable[[], Any]] = field(default_factory=list)
    finals: dict[int, Final] = field(default_factory=dict)
    left: dict[str, set[int]] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)
    kept: list[list[tuple[Path | None, dict[str, Known]]]] = field(default_factory=lambda: [[], [], []])
    hands: dict[int, str] = field(default_factory=dict)
    accepted: dict[str, Known] = field(default_factory=dict)
    life: str = ""
    label: str = "one"
    counts: Counter[str] = field(default_factory=Counter)
    version: int = 1
    versions: dict[str, int] = field(default_factory=dict)
    exact: bool = True

    def __post_init__(self) -> None:
        self.store: Any = KilledStore(self.ledger_store, self.kills)
        self.person = Person(self)
        self.states = self.opened()
        self.known = {each.name: Known() for each in self.states}
        self.left = {each.name: set() for each in self.states}
        self.spec = MemorySpec(
            NAME,
            NAME,
            Log(self.setting.source),
            memory=self.store,
            root=None,
            zookeeper_conn_id=None,
            max_pending=4,
            tasks=("count",),
            inside=("count", "commit"),
        )

    # --- parts

    def file(self, place: int) -> Path:
        return self.folder / f"place{place}.db"

    @property
    def places(self) -> tuple[int, int, int]:
        return 0, 0 if self.setting.shared else 1, 2

    def opened(self) -> list[Any]:
        """The states, as another process makes them."""
        urls = [f"sqlite:///{self.file(place)}" for place in self.places]
        sums = {"n": Sum(), "c": Count()}
        tops = self.setting.second == "max"
        return [
            SqlState.from_url(
                urls[0], label=self.label, table="t", keys=["word"], values=sums, kind=self.setting.state
            ),
            SqlState.from_url(
                urls[1], label="two", table="u", keys=["word"], values={"m": Max()} if tops else {"n": Sum()}
            ),
            SqlTable.from_url(urls[2], label="three", table="r", types={"t": "text"}),
        ]

    def output(self, state: Any) -> str:
        table: str = state.table
        return {"t": "sums", "u": "tops" if self.setting.second == "max" else "others", "r": "rows"}[table]

    @property
    def updates(self) -> list[Update]:
        """Those of the DAG, in its order."""
        found = [update(each, name=self.output(each)) for each in self.states]
        return found[::-1] if self.setting.table_first else found

    @property
    def by_name(self) -> dict[str, Any]:
        return {each.name: each for each in self.states}

    @property
    def ledger(self) -> Any:
        return self.spec.ledger(self.store)

    @property
    def reader(self) -> Reader:
        return Reader(self.store)

    def told(self, *what: Any) -> None:
        self.trail.append(" ".join(map(str, what)))

    def turn(self) -> int:
        return int(self.ledger.current()) if self.store.get(self.spec.paths.current) is not None else 1

    def opens(self) -> list[int]:
        children = self.store.children(self.spec.paths.transactions)
        return sorted(map(int, children.names if children else ()))

    def run_of(self, number: int) -> Run | None:
        return [*self.runs.values()][number % len(self.runs)] if self.runs else None

    def behind(self) -> list[str]:
        """The states whose fence says less than the ledger."""
        last = self.turn() - 1
        fences = {name: state.fence() for name, state in self.by_name.items()}
        return [name for name, fence in fences.items() if fence is None or fence.txid < last or fence.token.is_look]

    # --- runs

    def begin(self, run_id: str) -> Any:
        run = self.runs.get(run_id)
        if run is None:
            run = self.runs[run_id] = Run(self.spec, run_id, [], None)
        run.updates = self.updates
        dag = SimpleNamespace(tasks=[SimpleNamespace(task_id="commit", updates=run.updates)])
        try:
            answer = begin_run(self.spec, run_id, check_entry=lambda *found: check_entry(self.spec, dag, *found))
        except (Refused, StateError, JournalError) as error:
            self.told("begin", run_id, error)
            return error
        if isinstance(answer, Begun):
            run.begun = Begun.from_json(answer.to_json())
        self.told("begin", run_id, answer)
        return answer

    def process(self, run: Run) -> None:
        record = None if run.begun is None else self.ledger.status(run.begun.txid)
        if record is None or record.birth != run.begun.attempt.birth:
            return
        try:
            processing = run.processing(FakeTi("count", run.run_id))
            processing.start()
            numbers = range(*run.begun.metadata) if run.begun.metadata else ()
            version = self.version
            if self.setting.state == "transactional":
                # What such a state has cannot be undone: a replay has the code of then.
                version = self.versions.setdefault(run.begun.attempt.birth, version)
            given = outputs(numbers, version)
            processing.ack(returned(given, multiple=True))
        except (TxError, AirflowFailException, AirflowSkipException) as error:
            self.told("process", run.run_id, error)
            return
        for name, rows in given.items():
            run.committer.xcoms["count", name, -1] = rows
        run.committer.states["count"] = "success"
        vars(run)["given"] = given
        self.told("process", run.run_id, run.begun.attempt, "version", version)

    def commit(self, run: Run, left: int | None = None, *, stands: bool = False) -> str:
        """Commit; why it is refused, or waits for a repair.

        :param stands: it stands still before its first write, and goes on late.
        """
        if run.begun is None or "given" not in vars(run):
            return ""
        said: list[str] = []
        run.log = SimpleNamespace(info=lambda text, *of: said.append(text % of), warning=lambda *_: None)
        run.updates = self.updates
        commit = run.commit()
        real, given = commit.use, vars(run)["given"]

        def use() -> None:
            assert commit.granted is not None
            self.made[commit.granted.grant.token.nonce] = given
            if stands:
                self.late.append(real)
                raise Died
            real()

        commit.use = use  # type: ignore[method-assign]
        try:
            with self.kills.armed(left):
                waits = commit_in_turn(commit, self.store, patience=0.0)
        except Died:
            self.told("commit", run.run_id, run.begun.attempt, "died")
        except TxError as error:
            self.told("commit", run.run_id, run.begun.attempt, type(error).__name__, error)
            return str(error)
        else:
            self.told("commit", run.run_id, run.begun.attempt, "done" if waits is None else "waits")
            return "" if waits is None else next(filter(is_advice, said), "")
        return ""

    def skips(self, txid: int, left: int | None = None) -> str:
        """As `airflow tx skip`; why it is refused."""
        try:
            with self.kills.armed(left):
                self.ledger.note_skip(txid, ADA)
                done = take_skip(self.ledger, txid, self.by_name, log=Run(self.spec, "skips", [], None).log)
        except Died:
            self.told("skip", txid, "died")
        except (Refused, StateError) as error:
            self.told("skip", txid, error)
            return str(error)
        else:
            self.told("skip", txid, type(done).__name__)
        return ""

    # --- the oracle

    def note(self) -> None:
        """Note which transactions are final."""
        if self.store.get(self.spec.paths.current) is None:
            return
        topology = self.ledger.topology()
        self.life = self.life or topology.incarnation
        if topology.incarnation != self.life:
            return
        for txid in range(1, self.turn()):
            if txid in self.finals:
                continue
            history = self.ledger.outcome(txid)
            receipt = None if history is None else history.receipt
            if receipt is not None:
                replaced = receipt.replaces
                final = Final(receipt.nonce, receipt.outcome == "COMMITTED", replaced and replaced.txid)
            else:
                # A rebuilt ledger: all states were given it whole.
                fences = [fence for each in self.states if (fence := each.fence()) and fence.txid == txid]
                if not fences:
                    raise WalkFailed("unknown", f"transaction {txid} is final, and nothing says what it was")
                batch = fences[0].kept
                assert batch is not None
                replaced = batch.replaces
                final = Final(fences[0].token.nonce, batch.skip is None, replaced and replaced.txid)
            self.finals[txid] = final
            for name, known in [*self.known.items()]:
                # What is committed vouches for the values that it was added to.
                self.known[name] = replace(known, apart=False)
                gone = final.replaces in known.lost or final.replaces in self.left[name]
                if final.replaces is not None and gone and name != "three.r":
                    self.left[name].add(txid)

    def says(self, state: Any) -> Fence | None:
        fence: Fence | None = state.fence()
        return fence.covered if fence is not None and fence.token.is_look else fence

    def whole(self, state: Any) -> bool:
        """Whether nothing of an open transaction is in it, and its fence says what it has."""
        fence = state.fence()
        if self.known[state.name].apart:
            return False
        if fence is None:
            return True
        final = self.finals.get(fence.txid)
        return final is not None and fence.applied and fence.token.nonce == final.nonce and not fence.token.is_look

    def has(self, state: Any) -> set[int]:
        """The transactions that it has."""
        fence = self.says(state)
        if fence is None:
            return set()
        known = self.known[state.name]
        given = {
            txid
            for txid, final in self.finals.items()
            if final.counts
            if txid < fence.txid or (txid == fence.txid and fence.applied and fence.token.nonce == final.nonce)
        }
        return given - known.lost - self.left[state.name]

    def newest(self, state: Any) -> list[int]:
        """Of each transaction and its restatements the one that counts in a state."""
        has = self.has(state)
        counted: dict[int, int] = {}
        for txid, final in sorted(self.finals.items()):
            if not final.counts:
                continue
            first = txid
            while (before := self.finals[first].replaces) is not None:
                first = before
            if txid in has:
                counted[first] = txid
        return sorted(counted.values())

    def expected(self, state: Any) -> Any:
        given = {txid: self.made[self.finals[txid].nonce][self.output(state)] for txid in self.newest(state)}
        known = self.known[state.name]
        if state.takes_back_by_txid:
            of_table = {txid: [tuple(row.values()) for row in rows] for txid, rows in given.items() if rows}
            return {**(known.more or {}), **of_table}
        found: dict[str, Counter[str]] = {}
        is_max = self.output(state) == "tops"
        for row in (row for rows in given.values() for row in rows):
            at = found.setdefault(row["word"], Counter())
            for column in state.columns.values:
                at[column] = max(at[column], row[column]) if is_max else at[column] + row[column]
        for number in known.hands:
            found.setdefault("all", Counter())["n"] += BY_HAND if number in self.hands else 0
        for word, more in (known.more or {}).items():
            at = found.setdefault(word, Counter())
            for column, value in more.items():
                at[column] = max(at[column], value) if is_max else at[column] + value
        return {word: value for word, at in found.items() if (value := {k: v for k, v in at.items() if v})}

    def actual(self, state: Any) -> Any:
        if state.takes_back_by_txid:
            rows: dict[int, list[Any]] = {}
            for row in state.read():
                rows.setdefault(row["tx_txid"], []).append((row["i"], row["v"], row["t"]))
            return rows
        read = {row["word"]: {k: v for k in state.columns.values if (v := row[k])} for row in state.read()}
        return {word: value for word, value in read.items() if value}

    def check(self) -> None:
        """Compare every state of which its fence says what it has.

        :raises WalkFailed: it has something else.
        """
        self.note()
        for state in self.states:
            if not self.whole(state):
                continue
            actual, expected = self.actual(state), self.expected(state)
            if actual != expected:
                differs = {
                    key: (actual.get(key), expected.get(key))
                    for key in {*actual, *expected}
                    if actual.get(key) != expected.get(key)
                }
                raise WalkFailed("wrong", f"{state.name} has, and should have: {differs}; {self.known[state.name]}")
            self.counts["recounts"] += 1

    # --- the person

    def has_accepted(self, name: str) -> None:
        """A person has accepted what a state has."""
        state = self.by_name[name]
        self.note()
        fence = self.says(state)
        known = self.known[name]
        counted = {txid for txid, final in self.finals.items() if final.counts}
        clean = self.whole(state) or fence is None or fence.txid >= self.turn()
        if clean and not known.apart and not known.more:
            lost = known.lost | (counted - self.has(state) - self.left[name])
            reached = 0 if fence is None else fence.txid
            unsure = frozenset(txid for txid in known.unsure if txid <= reached)
            self.known[name] = replace(known, lost=frozenset(lost), unsure=unsure)
        else:
            # Nothing is known of what is there, so that it counts as it is.
            more = self.settled(state)
            self.known[name] = Known(lost=frozenset(counted), unsure=frozenset(self.finals), more=more)
        self.accepted[name] = self.known[name]
        self.counts["accepted losses"] += 1
        self.exact = False

    def settled(self, state: Any) -> Any:
        """What a state has, without the transaction that is open."""
        turn = self.turn()
        if state.takes_back_by_txid:
            return {txid: rows for txid, rows in self.actual(state).items() if txid < turn}
        place = self.places[self.states.index(state)]
        columns = [*state.columns.values]
        named = [f"{name}, tx_prev_{name}" for name in columns]
        query = f"select word, tx_txid, tx_created, {', '.join(named)} from {state.table}"
        found: dict[str, dict[str, int]] = {}
        with closing(sqlite3.connect(self.file(place))) as connection, suppress(sqlite3.OperationalError):
            for word, txid, created, *numbers in connection.execute(query):
                undone = txid == turn
                if not (undone and created):
                    found[word] = dict(zip(columns, (each or 0 for each in numbers[undone::2]), strict=True))
        return found

    def makes_again(self, number: int) -> None:
        """Make a change by hand that is not there."""
        name = self.hands.get(number)
        if name is None:
            raise WalkFailed("unknown", f"no change was accepted as repair {number}")
        if number in self.known[name].hands:
            return
        self._adds()
        self.known[name] = replace(self.known[name], hands=self.known[name].hands | {number})

    def _adds(self, by: int = BY_HAND) -> bool:
        with closing(sqlite3.connect(self.file(0))) as connection:
            done = connection.execute("update t set n = n + ? where word = 'all'", (by,))
            connection.commit()
        return done.rowcount == 1

    def advised(self, refusal: str) -> None:
        """Follow what a refusal advises, if that is a repair."""
        if is_advice(refusal):
            self.person.follows(refusal)
            self.check()

    def rolled(self, names: Sequence[str]) -> None:
        """States are written again: their values are what their fences say."""
        for name in names or self.by_name:
            self.known[name] = replace(self.known[name], apart=False)

    # --- steps

    def take(self, step: Step) -> None:
        self.told("---", step)
        taken: dict[str, Callable[[int, int], None]] = {
            "begin": self._begin,
            "process": self._process,
            "commit": self._commit,
            "turn": self._turn,
            "cut": self._cut,
            "skip": self._skip,
            "readmit": self._readmit,
            "restate": self._restate,
            "late": self._late,
            "keep": self._keep,
            "put back": self._put_back,
            "values back": self._values_back,
            "rows lost": self._rows_lost,
            "lose": self._lose,
            "roll": self._roll,
            "accept": self._accept,
            "rename": self._rename,
            "edit": self._edit,
            "ledger lost": self._ledger_lost,
            "entry lost": self._entry_lost,
        }
        taken[step.name](step.a, step.b)
        self.check()

    def _begin(self, a: int, b: int) -> None:
        self.begin(f"r{b % 6}" if a % 2 else f"n{len(self.runs)}")

    def _process(self, a: int, b: int) -> None:
        run = self.run_of(a)
        if run is not None:
            self.version = b % 9 + 1 if b % 3 == 0 else self.version
            self.process(run)

    def _commit(self, a: int, b: int) -> None:
        begun = [each for each in self.runs.values() if each.begun is not None]
        if not begun:
            return
        turn = self.turn()
        mine = [each for each in begun if each.begun.txid == turn]
        run = mine[0] if mine and a % 4 else begun[a % len(begun)]
        error = self.commit(run, b % 70 + 1 if b % 5 < 2 else None, stands=b % 5 == 4 and b % 2 == 0)
        if a % 5:
            self.advised(error)

    def _turn(self, a: int, b: int) -> None:
        """Whoever has the turn goes through."""
        self.advised(self.goes_through())

    def _cut(self, a: int, b: int) -> None:
        """Whoever has the turn dies before it writes to a state, or before it says that it has."""
        self.kills.place = [*self.by_name, "commit.before_mark"][b % 4]
        self.goes_through()
        self.kills.place = ""

    def goes_through(self) -> str:
        """Process and commit the transaction that has the turn; why it is refused."""
        opened = self.opens()
        record = self.ledger.status(opened[0]) if opened else None
        run_id = f"n{len(self.runs)}" if record is None else record.run_id
        self.begin(run_id)
        self.process(self.runs[run_id])
        return self.commit(self.runs[run_id])

    def _skip(self, a: int, b: int) -> None:
        opened = self.opens()
        if opened:
            self.skips(opened[0] if a % 3 else opened[b % len(opened)], b % 30 + 1 if b % 3 == 0 else None)

    def _readmit(self, a: int, b: int) -> None:
        children = self.store.children(self.spec.paths.all_skipped)
        for name in children.names if children else ():
            with suppress(Refused):
                self.ledger.note_readmission(int(name), ADA)
                skipped = self.reader.peek_if_any(Skipped, self.spec.paths.skipped(int(name)))
                assert skipped is not None
                self.begin(skipped.run_id)
                return

    def _restate(self, a: int, b: int) -> None:
        run = self.run_of(a)
        if run is None or run.begun is None:
            return
        binding = self.reader.peek_if_any(Binding, self.spec.paths.run(run.run_id))
        if binding is None:
            return
        try:
            self.ledger.want_restated(
                WishRequest(binding.txid, run.run_id, run.run_id, states=tuple(self.by_name)), ADA
            )
        except TxError as error:
            self.told("restate", binding.txid, error)
            return
        self.version = b % 9 + 1
        self.begin(run.run_id)
        self.process(run)

    def _late(self, a: int, b: int) -> None:
        if not self.late:
            return
        writes = self.late.pop(a % len(self.late))
        try:
            with self.kills.armed(b % 40 + 1 if b % 2 else None):
                writes()
            self.told("a late committer has written")
        except Died:
            self.told("a late committer has died")
        except TxError as error:
            self.told("late", error)

    def _keep(self, a: int, b: int) -> None:
        place = self.places[a % 3]
        kept = self.kept[place]
        copy: Path | None = None
        if self.file(place).exists():
            copy = self.folder / f"place{place}.copy{len(kept)}"
            shutil.copy(self.file(place), copy)
        names = [state.name for state, own in zip(self.states, self.places, strict=True) if own == place]
        kept.append((copy, {name: self.known[name] for name in names}))
        self.told("kept", place, "as", len(kept) - 1)

    def _put_back(self, a: int, b: int) -> None:
        place = self.places[a % 3]
        if not self.kept[place]:
            return
        number = b % len(self.kept[place])
        self.put(place, *self.kept[place][number], what=f"as {number}")

    def put(self, place: int, copy: Path | None, known: dict[str, Known], *, what: str) -> None:
        self.file(place).unlink(missing_ok=True)
        if copy is not None:
            shutil.copy(copy, self.file(place))
        self.states = self.opened()
        for name, then in known.items():
            # Only a fence says that the values are from before a loss.
            fence = self.by_name[name].fence()
            if fence is None:
                self.known[name] = self.known[name].emptied
            else:
                self.known[name] = self.accepted_with(name, fence) or then
        self.counts["stores set back"] += 1
        fences = {
            name: fence and (str(fence.token), fence.applied)
            for name in known
            for fence in [self.by_name[name].fence()]
        }
        self.told("place", place, what, fences)

    def _values_back(self, a: int, b: int) -> None:
        """Put back the values, and not the fences with their receipts."""
        place = self.places[a % 3]
        found = [(copy, known) for copy, known in self.kept[place] if copy is not None]
        file = self.file(place)
        if not found or not file.exists() or self.setting.state != "opaque":
            return
        copy, known = found[b % len(found)]
        now = file.with_suffix(".now")
        shutil.copy(file, now)
        shutil.copy(copy, file)
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("attach ? as now", (str(now),))
            listed = "select name from {}.sqlite_master where type = 'table'"
            there, here = ({name for (name,) in connection.execute(listed.format(each))} for each in ("now", "main"))
            tables = {self.by_name[name].table for name in known if self.accepted_since(name, known[name])}
            if (
                "airflow_tx_fence" not in there & here
                or not tables <= there & here
                or any(not looks_older(connection, table) for table in tables)
            ):
                # Of values of before an accepted loss only a count tells that they are not those of after it.
                shutil.copy(now, file)
                return
            for table in {"airflow_tx_fence", "airflow_tx_receipts", "airflow_tx_portions"} & there & here:
                connection.execute(f"delete from {table}")
                connection.execute(f"insert into {table} select * from now.{table}")
            connection.commit()
        self.states = self.opened()
        self.known |= {name: replace(then, apart=True) for name, then in known.items()}
        self.counts["values set back"] += 1

    def accepted_with(self, name: str, fence: Fence) -> Known | None:
        """Say what is known of values beside a fence that a person has accepted; None: it was another fence."""
        if self.store.get(self.spec.paths.record) is None:
            return None
        noted = self.ledger.topology().accepted.get(name, {})
        if name not in self.accepted or noted.get("fence") != fence.token.to_json():
            return None
        then = self.accepted[name]
        return then if then.more is None else replace(then, more=self.settled(self.by_name[name]))

    def accepted_since(self, name: str, then: Known) -> bool:
        """Whether a person has accepted a loss of a state since then."""
        return (then.lost, then.more) != (self.known[name].lost, self.known[name].more)

    def _rows_lost(self, a: int, b: int) -> None:
        """Lose the rows that the last final transaction has written to a state, and nothing else."""
        state = self.states[a % 2]
        fence = state.fence()
        known = self.known[state.name]
        # A change by hand may be in such a row.
        if self.setting.state != "opaque" or fence is None or fence.token.is_look or known.apart or known.hands:
            return
        lost = 0
        with closing(sqlite3.connect(self.file(self.places[a % 2]))) as connection, suppress(sqlite3.OperationalError):
            lost = connection.execute(f"delete from {state.table} where tx_txid = ?", (self.turn() - 1,)).rowcount
            connection.commit()
        if lost:
            self.known[state.name] = replace(self.known[state.name], apart=True)
            self.counts["rows lost"] += 1

    def _lose(self, a: int, b: int) -> None:
        place = self.places[a % 3]
        names = [state.name for state, own in zip(self.states, self.places, strict=True) if own == place]
        self.put(place, None, {name: self.known[name] for name in names}, what="lost whole")

    def _roll(self, a: int, b: int) -> None:
        """Roll forward, and die, and meanwhile others do something."""
        line = f"airflow tx repair {NAME} --roll-forward"
        rnd = random.Random(f"{a} {b}")
        busy = False

        def meanwhile(name: str, **context: Any) -> None:
            nonlocal busy
            chance = rnd.random()
            if busy:
                return
            busy = True
            with self.kills.armed(None):
                run = self.run_of(rnd.randrange(100))
                if chance < 0.25:
                    self._late(a, 0)
                elif chance < 0.4 and run is not None:
                    self.commit(run)
                elif chance < 0.5:
                    self.person.types(line)
                elif chance < 0.6:
                    self._put_back(rnd.randrange(100), rnd.randrange(100))
                elif chance < 0.65:
                    self._keep(rnd.randrange(100), 0)
            busy = False

        with pytest.MonkeyPatch.context() as patch, self.kills.armed(b % 120 + 1 if b % 2 else None):
            if a % 2:
                patch.setattr(rolling, "failpoint", meanwhile)
            try:
                self.person.types(line)
            except Died:
                self.told("roll forward died")

    def _accept(self, a: int, b: int) -> None:
        """A person accepts what a state has lost, though it may be written again."""
        behind = self.behind()
        if behind and not self.person.types(f"airflow tx repair {NAME} --state-lost {behind[a % len(behind)]}"):
            self.has_accepted(behind[a % len(behind)])

    def _rename(self, a: int, b: int) -> None:
        """Give the first state another name, as a connection with another id does."""
        old = self.states[0].name
        if old in self.behind():
            return
        label = "other" if self.label == "one" else "one"
        new = f"{label}.t"
        try:
            self.ledger.run(rename_state, old, new, audit=ADA)
        except TxError as error:
            self.told("rename", error)
            return
        self.label = label
        self.states = self.opened()
        named: list[dict[str, Any]] = [
            self.known,
            self.left,
            self.accepted,
            *(known for kept in self.kept for _, known in kept),
        ]
        for each in named:
            if old in each:
                each[new] = each.pop(old)
        self.hands = {number: new if name == old else name for number, name in self.hands.items()}
        self.counts["renamed"] += 1

    def _edit(self, a: int, b: int) -> None:
        """Add something by hand where nothing is open, and accept it."""
        state = self.states[0]
        last = self.turn() - 1
        fence = state.fence()
        records = [self.ledger.status(txid) for txid in self.opens()]
        granted = any(each is not None and each.epoch for each in records)
        if granted or fence is None or fence.txid != last or not self.whole(state) or not self._adds():
            return
        self.states = self.opened()
        line = f"airflow tx accept-change {NAME} --state {state.name} --why TEXT"
        try:
            with self.kills.armed(b % 20 + 1 if b % 2 else None):
                refused = self.person.types(line)
        except Died:
            self.told("accept-change died")
            refused = self.person.types(line)
        numbers = [each.number for each in LedgerView(self.store, self.spec.paths).repairs()]
        if refused:
            self._adds(-BY_HAND)
            return
        self.hands[numbers[-1]] = state.name
        known = self.known[state.name]
        self.known[state.name] = replace(known, hands=known.hands | {numbers[-1]})

    def _ledger_lost(self, a: int, b: int) -> None:
        if not self.setting.ledger_lost or any(each.fence() is None for each in self.states):
            return
        self.ledger_store.erase(self.spec.paths.root)
        self.exact = False
        self.counts["ledgers lost"] += 1

    def _entry_lost(self, a: int, b: int) -> None:
        if a % 4 or not self.life:
            return
        area = self.spec.staging().of_topology(self.life)
        found = sorted(each for each in Path(area.root).rglob("*") if each.is_file() and "journal" in str(each))
        if found:
            found[b % len(found)].unlink()
            self.exact = False
            self.told("entry lost", found[b % len(found)].name)

    # --- the end

    def goes_on(self) -> None:
        """Bring every open transaction to its end, and one more.

        :raises WalkFailed: no way leads there.
        """
        while self.late:
            self._late(0, 0)
        refused: list[str] = []
        for number in range(80):
            opened = self.opens()
            if not opened and number and self.turn() > 1 and not refused:
                return
            record = self.ledger.status(opened[0]) if opened else None
            before = self.turn() if record is not None else 0
            if record is not None and record.skip is not None and not self.skips(opened[0]):
                continue
            run_id = f"d{number}" if record is None else record.run_id
            answer = self.begin(run_id)
            self.version = number % 9 + 1
            self.process(self.runs[run_id])
            error = self.commit(self.runs[run_id])
            if isinstance(answer, TxError):
                error = error or str(answer)
            self.advised(error)
            self.check()
            if not error and (not opened or self.turn() > before):
                refused = []
                continue
            refused.append(error)
            if len(refused) > 4:
                raise WalkFailed("stuck", refused[-1])
        raise WalkFailed("endless", refused[-3:])

    def ends(self) -> None:
        self.goes_on()
        refused = self.person.types(f"airflow tx repair {NAME} --roll-forward")
        if refused:
            raise WalkFailed("dead-end", f"at the end: {refused}")
        self.check()
        for state in self.states:
            if not self.whole(state):
                raise WalkFailed("unfinished", f"{state.name}: {state.fence()}")
        if self.exact:
            ledger = ledger_evidence(self.store, self.spec.paths)
            findings = verified(ledger, evidence_of(self.by_name, values=True)).findings
            if findings:
                raise WalkFailed("verify", findings)


def looks_older(connection: sqlite3.Connection, table: str) -> bool:
    """Whether a count of rows and their txids says that a table went back, behind the one attached as `now`."""
    counted = "select count(*), coalesce(sum(tx_txid), 0), coalesce(max(tx_txid), 0) from {}.{}"
    before, now = (connection.execute(counted.format(each, table)).fetchone() for each in ("main", "now"))
    return any(one < other for one, other in zip(before, now, strict=True))


def walked(walk: Walk, steps: Sequence[Step]) -> WalkFailed | None:
    """Take steps, and what is open to its end; what is found wrong."""
    with walk.kills.installed():
        try:
            for step in steps:
                walk.take(step)
            walk.ends()
        except WalkFailed as failed:
            return failed
    return None


def shortened(steps: Sequence[Step], fails: Callable[[Sequence[Step]], bool], tries: int = 200) -> list[Step]:
    """Leave out steps for as long as the walk fails in the same way."""
    steps = list(steps)
    size = len(steps) // 2
    while size and tries:
        at = 0
        while at < len(steps) and tries:
            shorter = [*steps[:at], *steps[at + size :]]
            tries -= 1
            if fails(shorter):
                steps = shorter
            else:
                at += size
        size //= 2
    return steps
