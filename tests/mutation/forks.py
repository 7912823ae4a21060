"""Tries mutants, each in a fork of this process, which has imported all that a test needs."""

from __future__ import annotations

import gc
import os
import resource
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from pathlib import Path
from types import FunctionType
from typing import Any

from tests.model.explorer import explore
from tests.model.shapes import Shape
from tests.mutation.mutants import Mutant
from tests.mutation.selection import Selection, passes

LAST = Shape("opaque", 1, 1, 1)


@dataclass
class _Child:
    mutant: Mutant
    tests: int
    answer: int
    end: float


class Forks:
    """The children that are at work.

    :param jobs: how many at a time.
    :param limit: seconds for one mutant; of processor time it gets much less.
    """

    def __init__(self, selection: Selection, root: Path, jobs: int, limit: float) -> None:
        self._selection, self._root, self._jobs, self._limit = selection, root, jobs, limit
        gc.unfreeze()  # the tests have frozen what was there when they began: it would be in no list
        self._functions = _functions(selection.files)
        self._pools: list[Any] = [each for each in gc.get_objects() if type(each) is ThreadPoolExecutor]
        wrappers: list[Any] = [each for each in gc.get_objects() if type(each) is _lru_cache_wrapper]
        self._caches = [each for each in wrappers if each.__wrapped__.__code__.co_filename in selection.files]
        began = time.process_time()
        explore(LAST)
        self._exploring = time.process_time() - began
        print(f"a small exploration takes {self._exploring:.1f} s", flush=True)
        gc.freeze()  # so that no fork copies what it only looks at

    def run(self, wanted: Iterable[Mutant]) -> Iterator[tuple[Mutant, str]]:
        """Try each; gives the outcomes as they come."""
        waiting, working = deque(wanted), dict[int, _Child]()
        while waiting or working:
            while waiting and len(working) < self._jobs:
                mutant = waiting.popleft()
                chosen = self._selection.of(mutant, str(self._root / mutant.path))
                if chosen:
                    pid, child = self._forked(mutant, chosen)
                    working[pid] = child
                else:
                    yield mutant, "survives: no test executes it"
            for pid, child in list(working.items()):
                outcome = self._ended(pid, child)
                if outcome is not None:
                    del working[pid]
                    yield child.mutant, outcome
            time.sleep(0.002)

    def _forked(self, mutant: Mutant, chosen: Sequence[int]) -> tuple[int, _Child]:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            os.setsid()
            self._try(mutant, chosen, writing)
        os.close(writing)
        return child, _Child(mutant, len(chosen), reading, time.monotonic() + self._limit)

    def _ended(self, pid: int, child: _Child) -> str | None:
        late = time.monotonic() > child.end
        if late:
            os.killpg(pid, signal.SIGKILL)
        if os.waitpid(pid, 0 if late else os.WNOHANG) == (0, 0):
            return None
        with os.fdopen(child.answer) as answer:
            found = answer.read()
        if late:
            return "killed: it takes too long"
        if found.isdigit():
            self._selection.note_killed(child.mutant, int(found))
            return f"killed: {self._selection.items[int(found)].nodeid}"
        return found.format(tests=child.tests) or "killed: the process ended"

    def _try(self, mutant: Mutant, chosen: Sequence[int], writing: int) -> None:
        """In the child: never returns."""
        outcome = "survives {tests} tests"
        for pool in self._pools:  # a fork takes no thread along
            pool._threads.clear()
            pool._idle_semaphore = threading.Semaphore(0)
        for cache in self._caches:  # of what the function has answered unchanged
            cache.cache_clear()
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        expected = sum(self._selection.seconds[number] for number in chosen) + self._exploring
        seconds = int(5 + 2 * expected)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        try:
            if not mutant.apply(self._functions[str(self._root / mutant.path)]):
                outcome = "survives: its function is not found"
            else:
                for test in chosen:
                    if not passes(self._selection.items[test]):
                        outcome = str(test)
                        break
                else:
                    explore(LAST)
        except BaseException as error:  # noqa: BLE001 - whatever a mutant does
            outcome = f"killed: {type(error).__name__}"
        os.write(writing, outcome.encode())
        os._exit(0)


def _functions(files: frozenset[str]) -> dict[str, list[FunctionType]]:
    """Per file the functions that were made of its code, wherever they are now."""
    found: dict[str, list[FunctionType]] = {path: [] for path in files}
    for each in gc.get_objects():
        # Not isinstance: it wakes proxies, which import what is not there.
        if type(each) is FunctionType and each.__code__.co_filename in files:
            found[each.__code__.co_filename].append(each)
    return found
