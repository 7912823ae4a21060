"""Where processes stand: each writes the stacks of its threads when it gets SIGUSR1."""

from __future__ import annotations

import faulthandler
import signal
from pathlib import Path
from typing import TextIO

from airflow_tx.testing.processes import signal_process


def tell_stacks(file: TextIO) -> None:
    """Let this process write where it stands when it is asked to."""
    faulthandler.register(signal.SIGUSR1, file=file)


def say_where(pid: int) -> bool:
    """Let a process write where it stands; False: it is gone, or would die of the question."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (signal.SIGUSR1 - 1) & 1) and signal_process(pid, signal.SIGUSR1)
