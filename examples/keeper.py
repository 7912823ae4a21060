"""Keeps the servers of a finished program running, in a process that can be stopped later."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.processes import marked, signal_process


def keep(pid_file: Path, mark: str) -> None:
    """Fork a background process that keeps the servers of this process running.

    The caller must then end with `os._exit`, which stops no server. A guard ends the servers when the last process with
    its pipe has ended. The forked process also has this pipe.

    :param pid_file: the file for `mark` and the pid of the background process.
    :param mark: the mark of the process family. `end_kept` waits until the family has ended.
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
    """End the process that `keep` has forked, and wait until its servers have ended.

    :param program: a part of the command line of the process. A later process with the same pid is not ended.
    :return: whether there was such a process.
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
