"""Runs the steps on a store: one multi each, lost races planned anew, lost replies read back. Source: PROTOCOL §1.

Nothing here waits: an answer such as `NotYet` goes back to the caller, who decides how to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from airflow_tx.errors import (
    OutcomeUnknown,
    Refused,
    RequirementFailed,
    StoreUnavailable,
    TooMuchContention,
    TxError,
    UnreadableRecord,
)
from airflow_tx.protocol import beginning, committing, processing
from airflow_tx.protocol.api import Clock, Ids, Node, Store
from airflow_tx.protocol.attempt import Token, TransactionAttempt
from airflow_tx.protocol.beginning import BeginRequest, Proposal
from airflow_tx.protocol.committing import AcquireRequest, CommitRequest
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.processing import Instance, TaskTry
from airflow_tx.protocol.reading import PRESENT, Memory, Reader
from airflow_tx.protocol.records import TopologyRecord, TransactionRecord
from airflow_tx.protocol.requirement import Create, Put
from airflow_tx.protocol.step import (
    AlreadyCommitted,
    Begun,
    Committed,
    Decision,
    Done,
    Granted,
    NeedBatch,
    NeedRunState,
    NeedTopology,
    NoData,
    NotYet,
    Processed,
    Restarted,
    Result,
    Stamp,
    Started,
    Step,
    WindowFull,
)

T = TypeVar("T")

PASSES = 100
QUESTIONS = (NeedBatch, NeedRunState, NeedTopology)

Decide = Callable[[TransactionAttempt, Any], tuple[Any, Any] | None]
"""Asks the source: (attempt, position before) → (rows, position after), or None without data."""
RunState = Callable[[str], str | None]
"""Asks Airflow: run_id → state of that run, or None if it was deleted."""


@dataclass(frozen=True)
class LedgerOptions:
    """:param history: how many final transactions are remembered."""

    history: int = 1000


class Ledger:
    """The transactions of one topology, as one process sees them.

    It remembers the records that it wrote itself, so that its next step need not read them again; such a memory is only
    ever used for a multi that checks it.
    """

    def __init__(
        self,
        store: Store,
        paths: Paths,
        *,
        clock: Clock,
        ids: Ids,
        options: LedgerOptions | None = None,
    ) -> None:
        self.store = store
        self.paths = paths
        self.clock = clock
        self.ids = ids
        self.options = options or LedgerOptions()
        self._known = Memory()

    def begin(
        self, request: BeginRequest, *, decide: Decide, run_state: RunState
    ) -> Begun | NoData | WindowFull | AlreadyCommitted:
        """Step `begin`, asking the source and Airflow where it must, and making the ledger on first use.

        :raises Refused: see `beginning.begin`.
        """
        proposal: Proposal | None = None
        states: dict[str, str | None] = {}
        for _ in range(PASSES):
            step = partial(
                beginning.begin,
                paths=self.paths,
                request=request,
                proposal=proposal,
                run_states=states,
            )
            result = self._run(step)
            if isinstance(result, NeedTopology):
                self.open(request.topology)
            elif isinstance(result, NeedBatch):
                proposal = Proposal(result.attempt.txid, result.base, decide(result.attempt, result.position))
            elif isinstance(result, NeedRunState):
                states[result.run_id] = run_state(result.run_id)
            else:
                return cast("Begun | NoData | WindowFull | AlreadyCommitted", result)
        raise TooMuchContention(step="begin", subject=request.run_id, times=PASSES)

    def open(self, request: beginning.TopologyRequest) -> None:
        """Make the ledger of this topology, or bring it up to date with the DAG.

        :raises Refused: see `beginning.open_topology`.
        """
        self.store.ensure(self.paths.root)
        self._run(
            partial(
                beginning.open_topology,
                paths=self.paths,
                request=request,
                incarnation=self.ids.nonce(),
            )
        )

    def start(self, attempt: TransactionAttempt, task: TaskTry) -> Started | AlreadyCommitted:
        """Step `start`; see `processing.start`."""
        # A first try has no entry yet: assume so, and read only if the multi says otherwise.
        self._known.nodes.setdefault(self.paths.ack(attempt.txid, task.task, task.map_index), None)
        step = partial(
            processing.start,
            paths=self.paths,
            attempt=attempt,
            task=task,
            emitted=self.ids.message_id(),
        )
        return cast("Started | AlreadyCommitted", self._run(step))

    def ack(
        self,
        attempt: TransactionAttempt,
        task: TaskTry,
        *,
        rows: int | None = None,
        outputs: Collection[Any] = (),
    ) -> Done:
        """Step `ack`; see `processing.ack`."""
        step = partial(
            processing.ack,
            paths=self.paths,
            attempt=attempt,
            task=task,
            rows=rows,
            outputs=list(outputs),
        )
        return cast(Done, self._run(step))

    def fail(self, attempt: TransactionAttempt, task: TaskTry, reason: str) -> Done:
        """Step `fail`; see `processing.fail`."""
        return cast(
            Done,
            self._run(
                partial(
                    processing.fail,
                    paths=self.paths,
                    attempt=attempt,
                    task=task,
                    reason=reason,
                )
            ),
        )

    def processed(
        self,
        attempt: TransactionAttempt,
        *,
        rows_digest: str,
        expected: Collection[Instance] | None = None,
    ) -> Processed | AlreadyCommitted:
        """Step `processed`; see `processing.processed`."""
        step = partial(
            processing.processed,
            paths=self.paths,
            attempt=attempt,
            rows_digest=rows_digest,
            expected=expected,
        )
        return cast("Processed | AlreadyCommitted", self._run(step))

    def acquire(self, request: AcquireRequest) -> Granted | NotYet | Restarted | AlreadyCommitted:
        """Step `acquire`; see `committing.acquire`."""
        step = partial(
            committing.acquire,
            paths=self.paths,
            request=request,
            nonce=self.ids.nonce(),
        )
        return cast("Granted | NotYet | Restarted | AlreadyCommitted", self._run(step))

    def commit(
        self,
        token: Token,
        *,
        states: Collection[str],
        rows: int | None = None,
        ack_val: int = 0,
    ) -> Committed:
        """Step `commit`; see `committing.commit`."""
        request = CommitRequest(token, tuple(states), rows, ack_val, self.options.history)
        # The history of so many commits ago is there: assume so, and read only if the multi says otherwise.
        if token.txid > self.options.history:
            self._known.nodes.setdefault(self.paths.history(token.txid - self.options.history), PRESENT)
        return cast(
            Committed,
            self._run(partial(committing.commit, paths=self.paths, request=request)),
        )

    def holds(self, token: Token) -> bool:
        """Whether `token` is still the grant that the ledger knows: an outranked committer, or a broken ledger?"""
        self.store.sync()
        read = Reader(self.store)
        record = read.peek_if_any(TransactionRecord, self.paths.transaction(token.txid))
        return committing.holds(record, read.peek(TopologyRecord, self.paths.record), token)

    def remember(self, read: Reader) -> None:
        """What a caller has just read, so that the next step need not; its multi checks it."""
        self._known.nodes.update({path: node for path, node in read.seen.nodes.items() if node is not None})

    def run(self, step: Step | partial[Decision | Result]) -> Result:
        """A step that has no method here, such as a repair."""
        return self._run(step)

    def _run(self, step: Step | partial[Decision | Result]) -> Result:
        synced = False
        for _ in range(PASSES):
            read = Reader(self.store, self._known)
            stamp = Stamp(self.clock.now().isoformat(timespec="milliseconds"), self.ids.nonce())
            refusal: TxError | None = None
            try:
                outcome = step(read, stamp)
            except (Refused, UnreadableRecord) as error:
                refusal, outcome = error, Done()
            if isinstance(outcome, Decision):
                if self._send(read, outcome, stamp):
                    return outcome.result
            elif isinstance(outcome, QUESTIONS):
                # The multi that follows the answer checks what led to the question.
                self._known = read.seen
                return outcome
            elif synced and not read.guessed and self._confirmed(read):
                if refusal is not None:
                    raise refusal
                return outcome
            else:
                # What writes nothing is decided on what everybody has written until now, never on a memory.
                self.store.sync()
                synced = True
            self._known.clear()
        raise TooMuchContention(step=_name(step), subject=self.paths.topology, times=PASSES)

    def _confirmed(self, read: Reader) -> bool:
        """Whether all that was read held at one moment: an answer must not come from records of different times."""
        requirements = read.requirements(frozenset())
        try:
            if requirements:
                self.store.multi(requirements, ())
        except (RequirementFailed, OutcomeUnknown):
            return False
        return True

    def _send(self, read: Reader, decision: Decision, stamp: Stamp) -> bool:
        created = frozenset(write.path for write in decision.writes if isinstance(write, Create))
        try:
            self.store.multi(read.requirements(created), decision.writes)
        except RequirementFailed:
            return False
        except OutcomeUnknown as unknown:
            self._known.clear()
            try:
                self.store.sync()
                found = self.store.get(decision.proof)
            except StoreUnavailable:
                # Not that one: it says that nothing was written.
                raise unknown from None
            return found is not None and f'"op":"{stamp.op}"'.encode() in found.data
        self._known = _after(self._known, read, decision)
        return True


def _after(before: Memory, read: Reader, decision: Decision) -> Memory:
    """What the process knows once its multi is done: what it read, with its own writes applied."""
    seen = {path: node for path, node in read.seen.nodes.items() if node is not None}
    known = Memory({**before.nodes, **seen}, {**before.children, **read.seen.children})
    for write in decision.writes:
        node = known.nodes.pop(write.path, None)
        known.children.pop(write.path, None)
        known.children.pop(write.path.rpartition("/")[0], None)
        if isinstance(write, Create):
            known.nodes[write.path] = Node(write.data, 0)
        elif isinstance(write, Put) and node is not None:
            known.nodes[write.path] = Node(write.data, node.version + 1)
    return known


def _name(step: Any) -> str:
    return str(getattr(getattr(step, "func", step), "__name__", "step"))
