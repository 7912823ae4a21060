"""Failpoints that a test can arm while processes are running."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from airflow_tx.base.failpoints import VARIABLE, Rule


@dataclass(frozen=True)
class Armed:
    """An armed failpoint."""

    rule: Rule

    @property
    def reached(self) -> bool:
        return os.path.exists(self.rule.marker)

    def disarm(self) -> None:
        """Disarm the failpoint, so that all processes pass it."""
        Path(self.rule.marker).touch()

    def release(self) -> None:
        """Let the paused process continue."""
        Path(self.rule.until).touch()


class Failpoints:
    """Arms failpoints for the processes that are started with `environment`.

    :param folder: the folder for rules and markers. It is created if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._rules = folder / "rules"
        self._rules.touch()

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that the processes need."""
        return {VARIABLE: f"@{self._rules}"}

    def arm(self, name: str, action: str, **match: object) -> Armed:
        """Arm a failpoint. It acts on the first process that reaches it.

        :param name: the name of the failpoint.
        :param action: kill, raise or pause. `Armed.release` ends a pause.
        :param match: the values that the failpoint's context must have, such as `topology` or `txid`.
        """
        stem = self._folder / uuid.uuid4().hex
        rule = Rule(
            name=name,
            match=tuple((key, str(value)) for key, value in match.items()),
            action=action,
            marker=f"{stem}.reached",
            until=f"{stem}.release" if action == "pause" else "",
        )
        with self._rules.open(
            "a"
        ) as file:  # A short write is atomic, so a reader sees the line completely or not at all.
            file.write(f"{rule}\n")
        return Armed(rule)
