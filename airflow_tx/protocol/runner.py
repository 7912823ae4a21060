"""Runs the steps on a store: a multi each, lost races planned anew, lost replies read back. Source: protocol.md §1."""

from __future__ import annotations

from functools import partial
from typing import Any

from airflow_tx.errors import (
    OutcomeUnknown,
    Refused,
    RequirementFailed,
    StoreUnavailable,
    TooMuchContention,
    TxError,
    UnreadableRecord,
)
from airflow_tx.protocol.api import Clock, Create, Ids, Node, Put, Store
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Memory, Reader
from airflow_tx.protocol.step import (
    Decision,
    Done,
    NeedBatch,
    NeedCurrent,
    NeedRows,
    NeedRunState,
    NeedTopology,
    Result,
    Stamp,
    Step,
)

PASSES = 100
QUESTIONS = (NeedBatch, NeedCurrent, NeedRows, NeedRunState, NeedTopology)


class StepRunner:
    """Runs steps for one process.

    It remembers the records that it wrote itself, so that its next step need not read them again; such a memory is only
    ever used for a multi that checks it.
    """

    def __init__(self, store: Store, paths: Paths, *, clock: Clock, ids: Ids) -> None:
        self.store = store
        self.paths = paths
        self.clock = clock
        self.ids = ids
        self._known = Memory()

    def remember(self, read: Reader) -> None:
        """What a caller has just read, so that the next step need not; its multi checks it."""
        self._known.nodes.update({path: node for path, node in read.seen.nodes.items() if node is not None})

    def run(self, step: Step | partial[Decision | Result]) -> Result:
        """One step: its result, once its multi is done, or its answer, once it is certain.

        :raises Refused, UnreadableRecord: what the step raises, decided on what everybody has written until now.
        :raises OutcomeUnknown, StoreUnavailable, TooMuchContention: see `Store.multi`.
        """
        synced = False
        for number in range(PASSES):
            read = Reader(self.store, self._known, hasty=number == 0)
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
