"""Who waits for which path: ZooKeeper cannot take a watch back, so one callback serves all, and this knows for whom."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class PathWatch:
    """A `Watch`: once woken it stays awake."""

    def __init__(self) -> None:
        self._changed = threading.Event()

    def wait(self, timeout: float) -> bool:
        """See `Watch.wait`."""
        return self._changed.wait(timeout)

    def wake(self) -> None:
        """End the wait."""
        self._changed.set()


class Watches:
    """All watches of one client. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, set[PathWatch]] = defaultdict(set)

    @contextmanager
    def on(self, paths: Sequence[str]) -> Iterator[PathWatch]:
        """A watch that `wake` finds within the block."""
        watch = PathWatch()
        with self._lock:
            for path in paths:
                self._waiting[path].add(watch)
        try:
            yield watch
        finally:
            with self._lock:
                for path in set(paths):
                    self._waiting[path].discard(watch)
                    if not self._waiting[path]:
                        del self._waiting[path]

    def wake(self, path: str | None) -> None:
        """Wake whoever waits for `path`; None: everybody."""
        with self._lock:
            if path is None:
                found = [watch for waiting in self._waiting.values() for watch in waiting]
            else:
                found = list(self._waiting.get(path, ()))
        for watch in found:
            watch.wake()
