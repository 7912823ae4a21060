"""A family of processes that ends when the parent process dies.

All processes of the family, and their descendants, have a mark in their environment. To end the family, all processes
with the mark are killed. Process groups would not be sufficient, since every task of Airflow has its own group.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from airflow_tx.testing.eventually import eventually

MARK = "AIRFLOW_TX_FAMILY"


def marked(mark: str) -> list[int]:
    """Return the pids of all processes with this mark, except this process."""
    others = [pid for pid in psutil.pids() if pid != os.getpid()]
    return [pid for pid in others if mark in _environment(pid).get(MARK, "").split(":")]


def end_marked(mark: str, *, timeout: float = 15) -> None:
    """Kill all processes with this mark, until none is left.

    :param timeout: the longest time to wait, in seconds.
    :raises NotInTime: some processes cannot be killed.
    """

    def none_left() -> bool:
        left = marked(mark)
        for pid in left:
            signal_process(pid, signal.SIGKILL)
        return not left

    what = "every process of the family has ended"
    eventually(none_left, timeout, what, explain=lambda: _described(marked(mark)))


def signal_process(pid: int, number: int) -> bool:
    """Send a signal to a process. Return False if the process does not exist."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _described(pids: Sequence[int]) -> str:
    return "\n".join(f"{pid} {' '.join(_command(pid))[:200]}" for pid in pids)


def _environment(pid: int) -> dict[str, str]:
    try:
        return dict(psutil.Process(pid).environ())
    except (psutil.Error, OSError):  # The process does not exist, or belongs to another user.
        return {}


def _command(pid: int) -> list[str]:
    try:
        return list(psutil.Process(pid).cmdline())
    except (psutil.Error, OSError):
        return []


class ProcessFamily:
    """Starts processes, and ends them together with all their descendants.

    When this process dies, even by SIGKILL, a guard process ends the family. The guard cannot end descendants that have
    cleared their environment, and has no effect once it was killed itself.
    """

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self._guard: subprocess.Popen[bytes] | None = None
        self._members: list[subprocess.Popen[bytes]] = []

    def spawn(
        self, command: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process of the family in a new session.

        :param command: the command line of the process.
        :param env: the complete environment of the process, without the mark.
        :param log: the file that the output of the process is appended to.
        :param cwd: the working directory, or None for the current one.
        """
        if self._guard is None:
            self._guard = self._start_guard()
            atexit.register(self.end)
        # Airflow uses setproctitle, which overwrites the environment with titles unless SPT_NOENV
        # is set. A family inside another family has the marks of both, so it also ends when the
        # outer family ends.
        outer = env.get(MARK, os.environ.get(MARK, ""))
        marked_env = {**env, MARK: f"{outer}:{self.mark}", "SPT_NOENV": "1"}
        with log.open("ab") as output:
            member = subprocess.Popen(
                list(command),
                env=marked_env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._members.append(member)
        return member

    def members(self) -> list[int]:
        return marked(self.mark)

    def end(self) -> None:
        """End all processes of the family. This method can be called twice.

        :raises NotInTime: a process is still running.
        """
        atexit.unregister(self.end)
        end_marked(self.mark)
        for member in self._members:
            member.wait()
        self._members.clear()
        if self._guard is not None:
            self._guard.communicate()
            self._guard = None

    def _start_guard(self) -> subprocess.Popen[bytes]:
        # The stdin of the guard is closed when this process ends.
        return subprocess.Popen(
            [sys.executable, "-m", __name__, self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_marked(sys.argv[1])
