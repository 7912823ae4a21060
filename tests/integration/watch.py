"""A look-out for a secret in processes and files."""

from __future__ import annotations

import threading
from pathlib import Path


class Watch:
    """Looks for a secret in what others see of all processes, and in all files below folders, as long as the block.

    How often it looks by itself, the machine decides: `look` looks at a moment that matters.
    """

    def __init__(self, secret: str, *folders: Path) -> None:
        self.secret, self.folders = secret.encode(), folders
        self.seen: list[str] = []
        self._over = threading.Event()

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            self.look()

    def look(self) -> None:
        """Look at all processes and files once."""
        for told in ("cmdline", "environ"):
            for line in Path("/proc").glob(f"[0-9]*/{told}"):
                self._look(line)
        self.files()

    def _look(self, path: Path) -> None:
        try:
            if self.secret in path.read_bytes():
                self.seen.append(str(path))
        except OSError:
            pass

    def files(self) -> list[str]:
        """Files of the folders that hold the secret."""
        for folder in self.folders:
            for path in folder.rglob("*"):
                if path.is_file():  # not a pipe, which would be read empty
                    self._look(path)
        return self.seen
