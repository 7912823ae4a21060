"""Failpoints that a test arms while the processes run."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from airflow_tx.base.failpoints import VARIABLE, Rule


@dataclass(frozen=True)
class Armed:
    """One armed point: ask whether a process reached it, and end its pause."""

    rule: Rule

    @property
    def reached(self) -> bool:
        return os.path.exists(self.rule.marker)

    def disarm(self) -> None:
        """Let processes pass the point from now on."""
        Path(self.rule.marker).touch()

    def release(self) -> None:
        """Let the paused process continue."""
        Path(self.rule.until).touch()


class Failpoints:
    """Arms points for the processes that were started with `environment`.

    :param folder: where rules and markers are kept; it is created if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._rules = folder / "rules"
        self._rules.touch()

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that the processes need in their environment."""
        return {VARIABLE: f"@{self._rules}"}

    def arm(self, name: str, action: str, **match: object) -> Armed:
        """Make the first process that reaches the point `name` act.

        :param action: kill, raise or pause (until `Armed.release`).
        :param match: values of the point's context, such as `topology` or `txid`, that must be equal.
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
        ) as file:  # one short write: a reader sees the whole line or no part of it
            file.write(f"{rule}\n")
        return Armed(rule)
