"""Arming failpoints from a test, while the processes they hit are running."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from airflow_tx.failpoints import VARIABLE, Rule


@dataclass(frozen=True)
class Armed:
    """One armed point, to ask whether it was reached and to end its pause."""

    rule: Rule

    @property
    def reached(self) -> bool:
        return os.path.exists(self.rule.marker)

    def release(self) -> None:
        """Let the process that stands still here go on."""
        Path(self.rule.until).touch()


class Failpoints:
    """The rules that processes started with `environment` obey.

    :param folder: where rules and markers lie; it is made if missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._rules = folder / "rules"
        self._rules.touch()

    @property
    def environment(self) -> dict[str, str]:
        """What the processes need in their environment."""
        return {VARIABLE: f"@{self._rules}"}

    def arm(self, name: str, action: str, **match: object) -> Armed:
        """Make the first process that comes by the point `name` act.

        :param action: kill, raise or pause (until `Armed.release`).
        :param match: what the point's context has to say.
        """
        stem = self._folder / uuid.uuid4().hex
        rule = Rule(
            name=name,
            match=tuple((key, str(value)) for key, value in match.items()),
            action=action,
            marker=f"{stem}.reached",
            until=f"{stem}.release" if action == "pause" else "",
        )
        with self._rules.open("a") as file:  # one short write: a reader sees the whole line or none of it
            file.write(f"{rule}\n")
        return Armed(rule)
