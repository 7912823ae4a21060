"""Leaves the servers of a finished program running, in a process that can be ended later."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.processes import marked, signal_process


def keep(pid_file: Path, mark: str) -> None:
    """Continue as a background process that holds the children of this one; the caller, the original, must leave by
    `os._exit`, so that no child is stopped.

    The servers' guards end them when the last process that holds their pipes is gone; a fork holds them as well.

    :param mark: the mark of the process family whose end `end_kept` waits for.
    """
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        pid_file.write_text(f"{pid} {mark}")
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    while True:
        signal.pause()


def end_kept(pid_file: Path, program: str) -> bool:
    """End what `keep` left running, and wait until it is gone.

    :param program: part of its command line, so that a pid which was given out again is left alone.
    :return: whether there was anything to end.
    """
    if not pid_file.exists():
        return False
    text, mark = pid_file.read_text().split()
    pid = int(text)
    command = Path(f"/proc/{pid}/cmdline")
    ours = command.exists() and program.encode() in command.read_bytes()
    if ours:
        signal_process(pid, signal.SIGTERM)
        eventually(lambda: not marked(mark), 30, "the servers have ended")
    pid_file.unlink()
    return ours
