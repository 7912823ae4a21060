"""What a run tells when it finds something, or is ended: what is left to do, where processes stand, and the history."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection

from tests.chaos.ledger_watch import LedgerWatch
from tests.chaos.record import Record
from tests.chaos.stacks import say_where
from tests.chaos.world import World

# Seconds until all that were asked have written.
_WRITTEN = 1.0


class Story:
    """Tells of a world as it is now, and keeps the logs beside the record."""

    def __init__(self, world: World, watch: LedgerWatch, record: Record) -> None:
        self._world, self._watch, self._record = world, watch, record

    def dump_stacks(self, names: Collection[str]) -> list[str]:
        """Let all processes of topologies write where they stand; what lives of them."""
        found = [
            f"{run.dag_id}: lives: {run.program} {run.run_id}, {task}, process {pid}"
            for run, task, pid in self._world.scheduler.processes()
            if run.dag_id in names and say_where(pid)
        ]
        time.sleep(_WRITTEN if found else 0)
        return found

    def of(self, headline: str, names: Collection[str], found: Collection[str]) -> str:
        """Tell it all, of these topologies.

        :param found: what is wrong, or still to be done.
        """
        lines = [headline, *found, *self.dump_stacks(names)]
        for name in names:
            runs = [f"{run.run_id} {run.state}" for run in self._world.scheduler.of(name)[-12:]]
            lines += [f"--- {name}: {self._watch.states[name]}", f"runs {runs}", self._world.logs(name, 200)]
        kept = self._record.path.with_suffix(".logs")
        shutil.copytree(self._world.folder / "logs", kept, dirs_exist_ok=True)
        return "\n".join([*lines, "--- the last faults", self._record.last(60), f"All logs are in {kept}"])
