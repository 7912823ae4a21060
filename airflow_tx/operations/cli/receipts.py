"""`airflow tx verify | find | receipts`: list or check which rows were counted, when and by which run."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from itertools import chain
from typing import Any

from airflow_tx.base.errors import (
    ConfigError,
    TxError,
    UnknownTransaction,
    UnreadableRecord,
)
from airflow_tx.base.remedy import without_controls
from airflow_tx.ledger import (
    EndLine,
    LedgerView,
    Outcome,
    ReadOnlyLedger,
    Receipt,
    RowsDigest,
    Store,
    TransactionAttempt,
    Verified,
    columns,
    counted,
    dumps,
    is_shortened,
    topology_view,
    verified,
)
from airflow_tx.operations.actions.evidence import TopologyEvidence
from airflow_tx.operations.actions.ledger_places import LedgerPlace
from airflow_tx.operations.actions.search import (
    MOST_LOOKED_THROUGH,
    SearchedLedger,
    TextFound,
    TextMatch,
    WantedText,
    contains,
    key_names,
)
from airflow_tx.operations.cli import render
from airflow_tx.operations.cli.commands import asked_ledgers
from airflow_tx.operations.cli.context import (
    command,
    dag_of,
    paths_of,
    print_table,
    staging_of,
    store_of,
    wrong_usage,
)
from airflow_tx.operations.cli.stages import chain_verified, taken_by
from airflow_tx.outputs import JournalArea
from airflow_tx.sources import Source
from airflow_tx.transaction import RowsReading

# --- receipts -----------------------------------------------------------------------------------------------------
# `airflow tx verify | find | receipts`.


@command
def verify(args: Namespace) -> None:
    """`airflow tx verify TOPOLOGY`."""
    evidence = _evidence(args, values=args.values, partly=True)
    _check_span(args, evidence.ledger.current - 1)
    found = verified(evidence.ledger, evidence.states, first=args.first or 1, last=args.last)
    recounted = _recounted(evidence, args) if args.recount else Verified(None, 0, (), ())
    lost = found.given_up
    findings = (*found.findings, *_entries(evidence, args), *recounted.findings)
    findings += lost if args.strict else ()
    notes = (*found.notes, *_unknown_states(evidence), *recounted.notes)
    if args.chain:
        chained = chain_verified(args)
        findings += chained.findings
        notes += chained.notes
    result = _in_words(args.topology, found, len(findings))
    notes += () if args.strict else lost
    told = [*(("finding", text) for text in findings), *(("note", text) for text in notes)]
    if args.output == "table":
        for kind, text in told:
            print(without_controls(text if kind == "finding" else f"note: {text}"))
        print(result)
    else:
        rows = [{"kind": kind, "text": text} for kind, text in (*told, ("result", result))]
        render.print_rows(rows, args.output)
    if findings:
        raise SystemExit(1)


def _check_span(args: Namespace, last: int) -> None:
    """Refuse a txid span without a final transaction.

    :raises ConfigError: no final transaction is in the span.
    """
    ends = last if args.last is None else min(args.last, last)
    if args.first is not None and args.first > ends:
        remedy = f"Give a transaction up to {ends}, the last transaction to compare."
        raise ConfigError(option="--from", value=args.first, remedy=remedy)


@command
def receipts(args: Namespace) -> None:
    """`airflow tx receipts TOPOLOGY`."""
    evidence = _evidence(args)
    found = evidence.receipts(args.first, args.last).values()
    if args.output == "json":
        print(dumps([each.to_json() for each in found]))
    else:
        _print_lines([_line(each, args.output, evidence.restated) for each in found], args)


@command
def find(args: Namespace) -> None:
    """`airflow tx find [TOPOLOGY] WHAT`."""
    if args.topology is None:
        find_anywhere(args)
        return
    evidence = _evidence(args)
    found: list[render.TableRow] = []
    unknown: list[int] = []
    kept = evidence.receipts(None, None)
    source = evidence.source.in_zone(evidence.ledger.topology.zone)
    taken = taken_by(args)
    for receipt in kept.values():
        has = receipt.txid in taken if taken else contains(source, receipt.metadata, args.what)
        if has:
            found.append(_line(receipt, args.output, evidence.restated))
        elif has is None:
            unknown.append(receipt.txid)
    for line in _forgotten(evidence, kept):
        has = key_names(source, line.key, args.what)
        if has:
            found.append(_line_of_book(line, evidence.ledger.book))
        elif has is None:
            unknown.append(line.txid)
    if unknown:
        unknown.sort()
        span = f"{unknown[0]}" if len(unknown) == 1 else f"{unknown[0]} to {unknown[-1]}"
        why = (
            "the source cannot search them, or their receipts keep only the digest of the metadata"
        )
        print(
            f"Not searched: {counted(len(unknown), 'transactions')} ({span}): {why}.",
            file=sys.stderr,
        )
    if not found:
        raise SystemExit(
            f"No final transaction of {args.topology} has {args.what!r}; {_searched(evidence, args.what)}."
        )
    _print_lines(found, args)


def _searched(evidence: TopologyEvidence, what: str) -> str:
    """Describe how far back the search reached, and how to search for an upstream transaction."""
    kept = evidence.receipts(None, None)
    since = f"receipts go back to transaction {min(kept)}" if kept else "there is no receipt"
    begins = evidence.ledger.topology.book
    since += (
        f", and the book of ends goes back to transaction {begins}"
        if 0 < begins < min(kept, default=1)
        else ""
    )
    name = evidence.source.upstream
    if name and not what.startswith(f"{name}:"):
        since += f"; its source reads topology {name}: search for {name}:TXID"
    return since


def _forgotten(evidence: TopologyEvidence, kept: Mapping[int, Receipt]) -> Iterator[EndLine]:
    """Yield the lines of the book of ends for transactions without a receipt that were not taken back."""
    for txid, line in sorted(evidence.ledger.book.items()):
        if txid not in kept and line.outcome is not None:
            yield line


def _line_of_book(line: EndLine, book: Mapping[int, EndLine]) -> render.TableRow:
    """Return a row of `find` for a transaction that only the book of ends contains."""
    begins = book.get(line.first, line)
    row: render.TableRow = dict.fromkeys(render.RECEIPT_COLUMNS)
    written = (f"{name}: {rows} keys" for name, rows in sorted(line.rows.items()))
    return {
        **row,
        "txid": line.txid,
        "outcome": line.outcome and line.outcome.value,
        "run_id": line.key,
        "restates": line.first or None,
        "restated_by": begins.end if begins.end > line.txid else None,
        "written": ", ".join(written) or None,
    }


def _print_lines(lines: list[render.TableRow], args: Namespace) -> None:
    print_table(args, lines, render.RECEIPT_IN_SHORT, "restates", "restated_by", "replays")


# --- evidence -----------------------------------------------------------------------------------------------------


def _evidence(args: Namespace, *, values: bool = False, partly: bool = False) -> TopologyEvidence:
    with store_of(args) as store:
        ledger = ReadOnlyLedger(store, paths_of(args))
        return TopologyEvidence.read(ledger, partial(dag_of, args), values=values, partly=partly)


def _unknown_states(evidence: TopologyEvidence) -> Iterator[str]:
    if evidence.ledger.decisive is None:
        yield (
            "ledger: it changed during each read, so records for later transactions were not compared; repeat the "
            "command"
        )
    for name in sorted(
        evidence.ledger.topology.states.keys() - {state.name for state in evidence.states}
    ):
        yield f"state {name}: the DAG does not name it any more, so it was not compared"


def _in_words(topology: str, found: Verified, findings: int) -> str:
    if found.first is None:
        return f"Topology {topology}: no transaction up to {found.last} has a receipt."
    span = f"transactions {found.first} to {found.last}"
    if not findings:
        before = " Earlier transactions cannot be checked." if found.first > 1 else ""
        return f"Topology {topology}: {span} agree with their receipts.{before}"
    return f"Topology {topology}: {findings} finding(s) for {span}."


def _line(receipt: Receipt, output: str, restated: Mapping[int, int]) -> render.TableRow:
    """Return one row of `receipts` or `find`. In a table, it includes the name of the batch.

    :param restated: for each restated transaction, its last restatement, which counts now.
    """
    written = (f"{name}: {each.keys} keys" for name, each in sorted(receipt.written.items()))
    replays = (f"{each.attempt}: {each.why}" for each in receipt.replays)
    return columns(
        receipt,
        render.RECEIPT_COLUMNS,
        restates=receipt.replaces and receipt.replaces.txid,
        restated_by=restated.get(receipt.txid),
        metadata=render.named_batch(receipt.metadata, output),
        written=", ".join(written) or None,
        replays="; ".join(replays) or None,
    )


# --- the journal -------------------------------------------------------------------------------------------------


def _entries(evidence: TopologyEvidence, args: Namespace) -> Iterator[str]:
    """Compare the journal entries with the names in the bindings.

    Old entries are ignored, since they may have been removed.
    """
    decisive = evidence.ledger.decisive
    if decisive is None:
        return
    journal = JournalArea(staging_of(args), evidence.ledger.topology.incarnation)
    since = (datetime.now(timezone.utc) - evidence.spec.journal_time).date().isoformat()
    last = evidence.ledger.current - 1 if args.last is None else args.last
    for key, name in sorted(decisive.entries.items(), key=lambda each: decisive.bindings[each[0]]):
        txid = decisive.bindings[key]
        found = None
        if (args.first or 1) <= txid <= last and name >= since:
            found = journal.finding(name, txid, key)
        if found:
            yield found


# --- recount ------------------------------------------------------------------------------------------------------


def _recounted(evidence: TopologyEvidence, args: Namespace) -> Verified:
    """Reread the last batches from the source, and compare the number and digest of the rows."""
    committed = [
        each
        for each in evidence.receipts(args.first, args.last).values()
        if each.outcome == Outcome.COMMITTED.value and each.metadata is not None
    ]
    findings: list[str] = []
    notes: list[str] = []
    for receipt in committed[-args.recount :]:
        where = f"transaction {receipt.txid}:"
        counted = _counted(evidence, receipt)
        try:
            rows = _read_again(evidence.source, receipt)
        except Exception as error:  # noqa: BLE001  # a source may raise anything
            notes.append(f"{where} it could not be recounted: {error}")
            continue
        if counted is None:
            notes.append(
                f"{where} the source has {rows.rows} rows now, but the transaction did not count its rows"
            )
            continue
        digests = [RowsDigest.of(counted, text) for text in receipt.digest.split()]
        kept = next((each for each in digests if each.form == rows.form), RowsDigest(counted))
        if not rows.agrees(kept):
            found = f"{where} the source has {rows} now, and {kept} {'was' if kept.rows == 1 else 'were'} counted"
            again = evidence.restated.get(receipt.txid)
            if again is None:
                findings.append(found)
            else:
                notes.append(f"{found}; transaction {again} has restated it")
        elif kept.form != rows.form:
            notes.append(
                f"{where} the number of its rows is unchanged; its receipt has no digest of Python rows to compare"
            )
    return Verified(None, 0, tuple(findings), tuple(notes))


def _counted(evidence: TopologyEvidence, receipt: Receipt) -> int | None:
    """Return the number of rows that a transaction's tasks read, or that its source counted if this is unknown."""
    history = evidence.ledger.histories.get(receipt.txid)
    size: Mapping[str, Any] = (history.size if history is not None else None) or {}
    return receipt.rows if receipt.rows is not None else size.get("rows")


def _read_again(source: Source, receipt: Receipt) -> RowsDigest:
    if is_shortened(receipt.metadata):
        raise ValueError("its receipt keeps only the digest of its metadata")
    attempt = TransactionAttempt(receipt.txid, receipt.attempt, receipt.birth)
    reading = RowsReading()
    with closing(source):
        rows: Any = source.emit_batch(attempt, receipt.metadata)
        for _ in reading.passing(rows):
            pass
        source.check_read(attempt)
    return reading.found


# --- text search --------------------------------------------------------------------------------------------------
# `airflow tx find WHAT`: search the records of all topologies for a text.


_LONGEST = 90
_BEFORE = 20


@dataclass(frozen=True)
class SearchedTopology:
    """The result of the search in one topology.

    :param problem: reason why the topology could not be searched, or None if it was searched.
    """

    name: str
    found: TextFound
    problem: str | None = None


def find_anywhere(args: Namespace) -> None:
    """Print the transactions of all topologies that contain a text.

    :raises SystemExit: no transaction contains the text.
    """
    if args.dag_id:
        wrong_usage(
            "--dag-id names the DAG of one topology: airflow tx find TOPOLOGY WHAT --dag-id DAG_ID"
        )
    what = args.what.strip()
    if not what:
        wrong_usage("Give the text to find: airflow tx find WHAT")
    with store_of(args) as store:
        searched = list(chain.from_iterable(asked_ledgers(args, store, _Search(what), _away)))
    for told in _left_out(searched):
        print(without_controls(told), file=sys.stderr)
    rows = [_row(each, match, what, args) for each in searched for match in each.found.matches]
    if not rows:
        raise SystemExit(_nothing(searched, what))
    print_table(args, rows, render.FOUND_COLUMNS[:5])


@dataclass(frozen=True)
class _Search:
    """The search for a text in one topology."""

    what: str

    def __call__(self, store: Store, place: LedgerPlace) -> SearchedTopology:
        try:
            view = topology_view(store, place.paths, recent=0)
            final = LedgerView(store, place.paths).final_txids(book=view.record.book)
            ledger = SearchedLedger(store, place.paths, view.record.zone, view.opened, final)
            wanted = WantedText(self.what)
            found = ledger.look(wanted, most=MOST_LOOKED_THROUGH)
            if not found.matches and not found.complete:
                found = replace(found, matches=ledger.named(wanted))
            return SearchedTopology(place.name, found)
        except (UnreadableRecord, UnknownTransaction) as error:
            return _away(place, error)  # search the other topologies even if this one fails


def _away(place: LedgerPlace, error: TxError) -> SearchedTopology:
    return SearchedTopology(place.name, TextFound(), str(error))


def _left_out(searched: Iterable[SearchedTopology]) -> Iterator[str]:
    """Describe the topologies and batches that were not searched."""
    for each in searched:
        if each.problem is not None:
            yield f"Topology {each.name} was not searched: {each.problem}"
        elif not each.found.complete:
            looked = (
                "transaction was"
                if each.found.looked == 1
                else f"{each.found.looked} transactions were"
            )
            yield f"Topology {each.name}: only the newest {looked} searched."
        if each.found.unknown:
            some = counted(each.found.unknown, "transactions")
            yield f"Topology {each.name}: for {some}, the ledger keeps only the digest of the batch."


def _nothing(searched: list[SearchedTopology], what: str) -> str:
    topologies = sum(each.problem is None for each in searched)
    looked = counted(sum(each.found.looked for each in searched), "transactions")
    return (
        f"No transaction has {what!r} in its txid, run, batch or errors. Searched: {looked} of {topologies} "
        "topologies. To search with the source of a topology, such as for an offset or an id: airflow tx find "
        "TOPOLOGY WHAT"
    )


def _row(each: SearchedTopology, match: TextMatch, what: str, args: Namespace) -> render.TableRow:
    is_short = args.output == "table" and not args.wide
    return columns(
        match.view,
        render.FOUND_COLUMNS,
        topology=each.name,
        matched=match.part.value,
        text=_shortened(match.text, what) if is_short else match.text,
        batch=match.batch or None,
    )


def _shortened(text: str, what: str) -> str:
    """Shorten a long text to the part around the search text."""
    if len(text) <= _LONGEST:
        return text
    start = max(text.casefold().find(what.casefold()) - _BEFORE, 0)
    end = start + _LONGEST
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
