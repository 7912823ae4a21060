"""Named points in the code at which a test, or the demo, kills, fails or pauses a process.

Nothing happens unless the environment variable AIRFLOW_TX_FAILPOINTS is set. It contains rules, or `@FILE` for a file
with one rule per line. The file is read on every hit, so a test can arm a point while processes run. A rule is

    NAME[:KEY=VALUE...]:ACTION:once=MARKER

NAME is the name of the point. KEY=VALUE restricts the rule to hits whose context has this value, compared as text.
ACTION is `kill` (SIGKILL to this process), `raise`, or `pause=FILE` (wait until FILE exists). MARKER is a file that the
first hit creates; later hits pass. Rules are separated by `;` or a new line, and `#` begins a comment line.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "AIRFLOW_TX_FAILPOINTS"
_POLL = 0.05


class FailpointError(RuntimeError):
    """The error of the action `raise`."""


@dataclass(frozen=True)
class Rule:
    """One rule for a failpoint.

    :param name: name of the failpoint.
    :param match: required keys and values of the context, as text.
    :param action: ``kill``, ``raise`` or ``pause``.
    :param marker: path of the file that the first hit creates.
    :param until: path of the file that a pause waits for.
    """

    name: str
    match: tuple[tuple[str, str], ...]
    action: str
    marker: str
    until: str = ""

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Parse one rule.

        :raises ValueError: the rule is invalid. The error names the rule and the problem.
        """
        name, *parts = (part.strip() for part in text.split(":"))
        match: list[tuple[str, str]] = []
        action = marker = until = ""
        for part in parts:
            key, has_value, value = part.partition("=")
            if part in ("kill", "raise"):
                action = part
            elif key == "pause" and value:
                action, until = key, value
            elif key == "once" and value:
                marker = value
            elif has_value and key:
                match.append((key, value))
            else:
                raise ValueError(
                    f"failpoint rule {text!r}: {part!r} is not an action and not KEY=VALUE"
                )
        if not (name and action and marker):
            raise ValueError(
                f"failpoint rule {text!r}: it needs a name, an action (kill, raise, pause=FILE) and once=MARKER"
            )
        return cls(name=name, match=tuple(match), action=action, marker=marker, until=until)

    def __str__(self) -> str:
        action = f"pause={self.until}" if self.action == "pause" else self.action
        return ":".join(
            [
                self.name,
                *(f"{key}={value}" for key, value in self.match),
                action,
                f"once={self.marker}",
            ]
        )

    def applies(self, name: str, context: dict[str, object]) -> bool:
        """Whether this rule matches a hit on the failpoint `name` with this context."""
        return name == self.name and all(
            str(context.get(key)) == value for key, value in self.match
        )

    def claim(self) -> bool:
        """Create the marker file. Return False if an earlier hit in any process has created it."""
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def act(self) -> None:
        """Run the action of the rule.

        :raises FailpointError: the action is `raise`.
        """
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "raise":
            raise FailpointError(f"failpoint {self}")
        while not os.path.exists(self.until):
            time.sleep(_POLL)


def failpoint(name: str, **context: object) -> None:
    """Kill, fail or pause the process if a rule of AIRFLOW_TX_FAILPOINTS matches. Otherwise do nothing.

    :param name: name of the failpoint, such as `commit.before_mark`.
    :param context: values that rules can match, such as the topology, txid and attempt.
    """
    setting = os.environ.get(VARIABLE)
    if not setting:
        return
    for rule in _rules(setting):
        if rule.applies(name, context) and rule.claim():
            rule.act()


def _rules(setting: str) -> Iterator[Rule]:
    if setting.startswith("@"):
        file = Path(setting[1:])
        setting = file.read_text() if file.exists() else ""
    for line in setting.replace(";", "\n").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield Rule.parse(line)
