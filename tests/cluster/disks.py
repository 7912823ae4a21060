"""A disk that is as small as a test wants it: a tmpfs. Root, Linux."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A file system of a few megabytes, mounted at `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._junk = folder / "junk"

    def fill(self) -> None:
        """Leave no byte of it."""
        with self._junk.open("ab", buffering=0) as file:
            for size in (65536, 4096, 1):
                try:
                    while True:
                        file.write(b"." * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        """Take away what filled it."""
        self._junk.unlink(missing_ok=True)


@contextmanager
def small_disk(megabytes: int) -> Iterator[SmallDisk]:
    """Mount one as long as the block; the test is skipped, and says so, where that is not allowed."""
    folder = Path(tempfile.mkdtemp(prefix="airflow-tx-disk-"))  # below what pytest gives, only root can read
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0777", "tmpfs", str(folder)]
    folder.chmod(0o755)
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("FULL DISKS NOT TESTED: a small disk is a tmpfs, which only root can mount")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()
