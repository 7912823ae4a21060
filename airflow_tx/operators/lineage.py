"""What OpenLineage learns of a run, if its provider is installed: the transaction, as a facet of the run."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_tx.protocol.answers import Begun

FACET = "airflow_tx"
"""Under which name the facet is in the run."""
_FIELDS = ("topology", "txid", "attempt", "position", "rows", "restates")


class LineageOperator:
    """An operator that keeps the transaction it worked on until OpenLineage asks for it, in the same process."""

    _transaction_facet: dict[str, Any] | None = None

    def note_lineage(self, topology: str, begun: Begun, rows: int | None = None) -> None:
        """Keep the transaction that the task works on.

        :param rows: of its batch, if they are counted.
        """
        from airflow_tx.protocol.receipt import POSITION_KEPT, as_kept

        position = as_kept(begun.position, POSITION_KEPT)
        restates = None if begun.replaces is None else begun.replaces.txid
        values = (topology, begun.txid, begun.attempt.attempt, position, rows, restates)
        self._transaction_facet = dict(zip(_FIELDS, values, strict=True))

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Give the facet; called by the provider of OpenLineage when the task has ended."""
        from airflow.providers.openlineage.extractors import OperatorLineage  # type: ignore[import-not-found]

        if self._transaction_facet is None:
            return OperatorLineage()
        return OperatorLineage(run_facets={FACET: _facet_class()(**self._transaction_facet)})


@cache
def _facet_class() -> Any:
    from attr import ib, make_class
    from openlineage.client.generated.base import RunFacet  # type: ignore[import-not-found]

    return make_class(
        "TransactionRunFacet", {name: ib(default=None) for name in _FIELDS}, bases=(RunFacet,)
    )
