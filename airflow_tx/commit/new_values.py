"""The new values that updates of a committer leave for later tasks: staged under its grant, kept after the commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_tx.spark.new_values import OutputFolder, joined, newest_outputs, stage_keys, stage_rows

if TYPE_CHECKING:
    from airflow_tx.commit.update import Update
    from airflow_tx.protocol.attempt import Grant
    from airflow_tx.staging import StagingArea
    from airflow_tx.staging.output import Output


class NewValuesOutput:
    """The new values of one update, part by part."""

    def __init__(self, place: OutputFolder) -> None:
        self.place = place
        self.parts: list[Output] = []

    def keys(self, state: Any, keys: Sequence[Sequence[Any]], *, chunk: int) -> None:
        """Look up and stage the values of keys that were written."""
        self.parts.append(stage_keys(self.place, state, keys, chunk=chunk))

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Stage what an updater emitted."""
        self.parts.append(stage_rows(self.place, rows))

    def staged(self, parts: Iterable[Output]) -> None:
        """Add those that other writers have staged."""
        self.parts.extend(parts)


class NewValues:
    """What one committer stages under one grant."""

    def __init__(self, area: StagingArea, grant: Grant, task_id: str) -> None:
        self._area, self._grant, self._task_id = area, grant, task_id
        self._outputs: dict[str, NewValuesOutput] = {}

    def of(self, update: Update) -> NewValuesOutput | None:
        """Return where the new values of an update go; None: it leaves none."""
        name = update.new_values
        if name is None:
            return None
        # A new one, since an update may be written again under the same grant.
        place = OutputFolder.of(self._area, self._grant.topology, self._grant.token, self._task_id, name)
        self._outputs[name] = NewValuesOutput(place)
        return self._outputs[name]

    @property
    def any(self) -> bool:
        return bool(self._outputs)

    def finish(self) -> dict[str, dict[str, Any]]:
        """Make all of them visible; returns references by name."""
        if not self._outputs:
            return {}
        from airflow_tx.staging import write_manifest

        outputs = {name: joined(output.parts) for name, output in self._outputs.items()}
        where = next(iter(self._outputs.values())).place.where
        return {name: ref.to_json() for name, ref in write_manifest(where, outputs).items()}


def found_again(
    area: StagingArea, topology: str, txid: int, task_id: str, birth: str, updates: Iterable[Update]
) -> dict[str, dict[str, Any]]:
    """Return what the committer of a final transaction had staged; nothing, if it is not kept any more."""
    wanted = {update.new_values for update in updates} - {None}
    if not wanted:
        return {}
    found = newest_outputs(area, topology, txid, task_id, birth)
    return {name: ref.to_json() for name, ref in found.items() if name in wanted}
