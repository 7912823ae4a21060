"""Broken variants of the real code, one per rule of the protocol: the explorer has to find each."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType

from airflow_tx.protocol import beginning, committing, ending, processing, replaying, step
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.reading import Reader
from airflow_tx.state import fence
from airflow_tx.state.backing.memory import MemoryState
from tests.model import programs
from tests.model.programs import Shape

ONE = Shape("transactional", 1, 1, 1)
ONE_OPAQUE = Shape("opaque", 2, 1, 1)
ONE_OPAQUE_KEYS = Shape("opaque", 1, 1, 1)
TWO = Shape("transactional", 1, 2, 1)
TWO_OPAQUE = Shape("opaque", 1, 2, 1)
TWO_OPAQUE_STATES = Shape("opaque", 2, 2, 1)


@dataclass(frozen=True)
class Mutant:
    """A rule taken out of the code.

    :param changes: (function, its text, what the text becomes).
    :param shape: the size of world that is enough to find it.
    """

    rule: str
    changes: tuple[tuple[Callable[..., object], str, str], ...]
    shape: Shape

    def __str__(self) -> str:
        return self.rule.replace(" ", "-")


MUTANTS = (
    Mutant(
        "no attempt check, nor the one of tries behind it",
        (
            (processing.newest, "record.attempt != attempt.attempt", "False"),
            (processing.start, "found.task_try > task.task_try", "False"),
        ),
        ONE_OPAQUE_KEYS,
    ),
    Mutant(
        "no fence at a write",
        (
            (
                fence.check_write,
                "stored is None or stored.incarnation != grant.incarnation or stored.token != grant.token",
                "False",
            ),
        ),
        TWO,
    ),
    Mutant(
        "no roll-back of keys that only the old attempt had",
        ((MemoryState._rolled_back, "stored.token != grant.token", "False"),),
        ONE_OPAQUE_KEYS,
    ),
    Mutant(
        "only the fences of states with something to write",
        ((programs._write, "range(shape.states)", "[i for i in range(2) if counts[i]]"),),
        ONE_OPAQUE,
    ),
    Mutant("commit before its turn", ((committing.acquire, "current.txid != attempt.txid", "False"),), TWO),
    Mutant("base not compared", ((committing.acquire, "digest(before) != record.base", "False"),), TWO_OPAQUE),
    Mutant(
        "phase not looked at",
        ((committing.acquire, "record.phase is Phase.PROCESSING or record.epoch != request.epoch", "False"),),
        ONE_OPAQUE_KEYS,
    ),
    Mutant(
        "epoch not raised by a grant",
        (
            (committing.acquire, "epoch = record.epoch + 1", "epoch = record.epoch"),
            (fence._check_rank, "found.rank == mine.rank and found.nonce != mine.nonce", "False"),
        ),
        ONE,
    ),
    Mutant(
        "token not compared at the mark",
        ((ending.check_token, "not holds(record, topology, token)", "False"),),
        ONE_OPAQUE_KEYS,
    ),
    Mutant("a refused write taken for done", ((Ledger._send, "return False", "return True"),), ONE),
    Mutant(
        "an unanswered write taken for done", ((Ledger._send, "return found is not None and", "return True or"),), ONE
    ),
    Mutant(
        "what was read is not required", ((Reader.requirements, "return tuple(found)", "return ()"),), ONE_OPAQUE_KEYS
    ),
    Mutant(
        "binding not looked at",
        (
            (beginning.begin, "if binding is None:", "if True:"),
            (
                beginning._allocate,
                "Put(paths.run(key), binding) if readmission is not None else Create(paths.run(key), binding),",
                "",
            ),
        ),
        ONE,
    ),
    Mutant("acks not waited for", ((processing.processed, "if missing or value:", "if False:"),), ONE),
    Mutant("a zombie's ack taken", ((processing._own, "found.task_try != task.task_try", "False"),), ONE_OPAQUE_KEYS),
    Mutant("committed transactions not recognised", ((step.is_committed, "txid < current.txid", "False"),), ONE),
    Mutant(
        "an old begin may ask", ((replaying.replay, "record.request > request.task_try", "False"),), ONE_OPAQUE_KEYS
    ),
    Mutant("a stale position is kept", ((replaying._next_attempt, "base=base,", ""),), TWO_OPAQUE),
)


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """The real code with the mutant's change, for as long as the block lasts.

    :raises AssertionError: the text to change is no longer in the code.
    """
    originals = []
    try:
        for function, old, new in mutant.changes:
            assert isinstance(function, FunctionType)
            originals.append((function, function.__code__))
            function.__code__ = _changed(function, old, new)
        yield
    finally:
        for function, code in originals:
            function.__code__ = code


def _changed(function: FunctionType, old: str, new: str) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) >= 1, f"{function.__qualname__} no longer says {old!r}"
    found: dict[str, object] = {}
    # Postponed annotations, as in the modules themselves: names that exist only for type checkers are not looked up.
    exec(
        compile(
            "from __future__ import annotations\n" + source.replace(old, new, 1), function.__code__.co_filename, "exec"
        ),
        dict(function.__globals__),
        found,
    )
    changed = found[function.__name__]
    assert isinstance(changed, FunctionType)
    return changed.__code__
