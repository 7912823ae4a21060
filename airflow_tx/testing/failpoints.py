"""Failpoints that a test arms while processes run."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from airflow_tx.base.failpoints import VARIABLE, Rule


@dataclass(frozen=True)
class Armed:
    """One armed failpoint."""

    rule: Rule

    @property
    def reached(self) -> bool:
        return os.path.exists(self.rule.marker)

    def disarm(self) -> None:
        """Let all processes pass the point from now on."""
        Path(self.rule.marker).touch()

    def release(self) -> None:
        """Let the paused process continue."""
        Path(self.rule.until).touch()


class Failpoints:
    """Arms failpoints for the processes that were started with `environment`.

    :param folder: folder of rules and markers, created if it is missing.
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
        """Arm a failpoint for the first process that reaches it.

        :param name: name of the failpoint.
        :param action: kill, raise or pause (until `Armed.release`).
        :param match: values that the context of the failpoint must have, such as `topology` or `txid`.
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
        ) as file:  # one short write, so that a reader sees the whole line or nothing
            file.write(f"{rule}\n")
        return Armed(rule)
