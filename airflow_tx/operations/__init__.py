"""User actions on transactions, for the commands and the Transactions page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.operations.actions.action import (
        ActionTarget as ActionTarget,
        EffectLine as EffectLine,
        PersonalAction as PersonalAction,
        PreviewAnswer as PreviewAnswer,
    )
    from airflow_tx.operations.actions.ledger_places import (
        BEGIN as BEGIN,
        LedgerPlace as LedgerPlace,
        LedgerPlaces as LedgerPlaces,
        ledger_places as ledger_places,
    )
    from airflow_tx.operations.actions.request import (
        ActionName as ActionName,
        ActionRequest as ActionRequest,
    )
    from airflow_tx.operations.actions.run_ends import with_run_ends as with_run_ends
    from airflow_tx.operations.actions.search import (
        MOST_FOUND as MOST_FOUND,
        MatchedPart as MatchedPart,
        SearchedLedger as SearchedLedger,
        TextFound as TextFound,
        TextMatch as TextMatch,
        WantedText as WantedText,
    )

    __all__: list[str]
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
