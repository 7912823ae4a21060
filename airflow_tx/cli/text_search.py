"""`airflow tx find WHAT`: the transactions of all topologies that have a text, by the records of their ledgers."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from airflow_tx.actions.ledger_places import LedgerPlace
from airflow_tx.actions.search import MOST_LOOKED_THROUGH
from airflow_tx.actions.text_search import SearchedLedger, TextFound, TextMatch, WantedText
from airflow_tx.cli import render
from airflow_tx.cli.commands import asked_ledgers
from airflow_tx.cli.context import print_table, store_of, wrong_usage
from airflow_tx.errors import TxError, UnknownTransaction, UnreadableRecord, without_controls
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.batch_words import counted
from airflow_tx.protocol.view import final_txids, topology_view

FOUND_IN_SHORT = "topology txid status matched text".split()
_LONGEST = 90
_BEFORE = 20


@dataclass(frozen=True)
class SearchedTopology:
    """One topology.

    :param problem: why it could not be searched; None: it was.
    """

    name: str
    found: TextFound
    problem: str | None = None


def find_anywhere(args: Namespace) -> None:
    """Print the transactions of all topologies that have a text.

    :raises SystemExit: none has.
    """
    if args.dag_id:
        wrong_usage(
            "--dag-id names the DAG of one topology: airflow tx find TOPOLOGY WHAT --dag-id DAG_ID"
        )
    what = args.what.strip()
    if not what:
        wrong_usage("Say what to look for: airflow tx find WHAT")
    with store_of(args) as store:
        searched = list(chain.from_iterable(asked_ledgers(args, store, _Search(what), _away)))
    for told in _left_out(searched):
        print(without_controls(told), file=sys.stderr)
    rows = [_row(each, match, what, args) for each in searched for match in each.found.matches]
    if not rows:
        raise SystemExit(_nothing(searched, what))
    print_table(args, rows, FOUND_IN_SHORT)


@dataclass(frozen=True)
class _Search:
    """The question to each topology."""

    what: str

    def __call__(self, store: Store, place: LedgerPlace) -> SearchedTopology:
        try:
            view = topology_view(store, place.paths, recent=0)
            final = final_txids(store, place.paths)
            ledger = SearchedLedger(store, place.paths, view.record.zone, view.opened, final)
            wanted = WantedText(self.what)
            return SearchedTopology(place.name, ledger.look(wanted, most=MOST_LOOKED_THROUGH))
        except (UnreadableRecord, UnknownTransaction) as error:
            return _away(place, error)  # the others are well


def _away(place: LedgerPlace, error: TxError) -> SearchedTopology:
    return SearchedTopology(place.name, TextFound(), str(error))


def _left_out(searched: Iterable[SearchedTopology]) -> Iterator[str]:
    """Name topologies and batches that were not searched."""
    for each in searched:
        if each.problem is not None:
            yield f"Not looked at: topology {each.name}: {each.problem}"
        elif not each.found.complete:
            looked = (
                "transaction was"
                if each.found.looked == 1
                else f"{each.found.looked} transactions were"
            )
            yield f"Of topology {each.name}, only the newest {looked} looked at."
        if each.found.unknown:
            some = counted(each.found.unknown, "transactions")
            yield f"Of topology {each.name}, {some} keep the digest of their batch alone."


def _nothing(searched: list[SearchedTopology], what: str) -> str:
    topologies = sum(each.problem is None for each in searched)
    looked = counted(sum(each.found.looked for each in searched), "transactions")
    return (
        f"No transaction has {what!r} in its txid, run, batch or errors; looked at {looked} of {topologies} "
        "topologies. To ask the source of one, as for an offset or an id: airflow tx find TOPOLOGY WHAT"
    )


def _row(each: SearchedTopology, match: TextMatch, what: str, args: Namespace) -> render.TableRow:
    is_short = args.output == "table" and not args.wide
    view = match.view
    return {
        "topology": each.name,
        "txid": view.txid,
        "status": view.status,
        "matched": match.part.value,
        "text": _shortened(match.text, what) if is_short else match.text,
        "run_id": view.run_id,
        "batch": match.batch or None,
        "restates": view.restates,
        "restated_by": view.restated_by,
    }


def _shortened(text: str, what: str) -> str:
    """Shorten a long text to the place where the wanted one stands."""
    if len(text) <= _LONGEST:
        return text
    start = max(text.casefold().find(what.casefold()) - _BEFORE, 0)
    end = start + _LONGEST
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
