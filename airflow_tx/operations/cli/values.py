"""`airflow tx state get | diff | receipts | verify | find`: values, receipts and the ledger, read and not changed."""

from __future__ import annotations

import base64
import csv
import json
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow_tx.base.errors import (
    ConfigError,
    NotComparableNow,
    TxError,
    UnknownTransaction,
    UnreadableRecord,
    without_controls,
)
from airflow_tx.ledger.api import Store, SystemClock
from airflow_tx.ledger.attempt import (
    Receipt,
    RowsDigest,
    batch_in_words,
    counted,
    is_shortened,
    restated,
)
from airflow_tx.ledger.audit.chain import Chain, LedgerEvidence, StateEvidence, ledger_evidence
from airflow_tx.ledger.audit.verification import Verified, verified
from airflow_tx.ledger.json_text import dumps
from airflow_tx.ledger.records import Counter, Outcome
from airflow_tx.ledger.steps.step import Reader
from airflow_tx.ledger.view import final_txids, topology_record, topology_view
from airflow_tx.operations.actions.dag_server import MOST_LOOKED_THROUGH, contains
from airflow_tx.operations.actions.dags import LedgerPlace
from airflow_tx.operations.actions.text_search import (
    SearchedLedger,
    TextFound,
    TextMatch,
    WantedText,
)
from airflow_tx.operations.cli import render
from airflow_tx.operations.cli.commands import asked_ledgers
from airflow_tx.operations.cli.context import (
    command,
    comparison,
    dag_of,
    paths_of,
    print_table,
    staging_of,
    store_of,
    wrong_usage,
)
from airflow_tx.outputs.journal import JournalArea
from airflow_tx.state.api import Fence, FencedState, QueryableState
from airflow_tx.state.column_types import CONVERT, from_plain, json_text
from airflow_tx.state.comparison import KeyDifferences, StateComparison, compared

if TYPE_CHECKING:
    from airflow_tx.sources.api import Source
    from airflow_tx.transaction.spec import TransactionSpec


# --- values -------------------------------------------------------------------------------------------------------


_SECONDS_BETWEEN = 2.0
_AS_JSON = ("bigint", "double", "boolean")


@command
def get_values(args: Namespace) -> None:
    """`airflow tx state get TOPOLOGY STATE [KEY ...]`."""
    state = _state(args)
    fence = state.fence()
    rows: list[render.TableRow] = []
    missing: list[str] = []
    if isinstance(state, QueryableState):
        if args.keys:
            rows, missing = _of_keys(state, args.keys)
        else:
            rows = state.read(limit=args.limit)
    elif args.keys:
        raise ConfigError(
            option="KEY",
            value=args.keys[0],
            remedy=f"A {type(state).__name__} cannot be asked for keys: leave it out.",
        )
    # Beside the values, which may be piped into another program.
    print(_last(state.name, fence), file=sys.stderr)
    render.print_rows(
        [{name: _shown(value) for name, value in row.items()} for row in rows], args.output
    )
    if missing:
        told = without_controls(f"State {state.name} has no key {'; '.join(missing)}.")
        if len(missing) == len(args.keys):
            raise SystemExit(told)
        print(told, file=sys.stderr)


def _state(args: Namespace) -> FencedState:
    from airflow_tx.operations.actions.dags import transactional_dag

    dag_id = args.dag_id or _known_dag(args)
    spec, states = transactional_dag(dag_id)
    if spec.topology != args.topology:
        remedy = f"Its topology is {spec.topology!r}: airflow tx state get {spec.topology} ... --dag-id {dag_id}"
        raise ConfigError(option="--dag-id", value=dag_id, remedy=remedy)
    if args.state not in states:
        known = ", ".join(sorted(states)) or "none"
        raise ConfigError(
            option="STATE",
            value=args.state,
            remedy=f"Topology {args.topology!r} has {known}.",
        )
    return states[args.state]


def _known_dag(args: Namespace) -> str:
    with store_of(args) as store:
        return topology_record(store, paths_of(args)).dag_id


def _last(name: str, fence: Fence | None) -> str:
    if fence is None:
        return f"State {name}: no transaction noted"
    return f"State {name}: {'' if fence.applied else 'in the middle of '}transaction {fence.token.txid}"


# --- keys --------------------------------------------------------------------------------------------------------


def _of_keys(
    state: QueryableState, texts: Sequence[str]
) -> tuple[list[render.TableRow], list[str]]:
    """Read the values of keys; also name the keys that the state has not."""
    names = (*state.columns.values, *state.columns.composites)
    types = state.key_types()
    keys = [parse_key(text, state.columns.keys, types) for text in texts]
    values = state.multi_get(keys)
    rows = [
        {
            **dict(zip(state.columns.keys, key, strict=True)),
            **(found or dict.fromkeys(names)),
        }
        for key, found in zip(keys, values, strict=True)
    ]
    return rows, [text for text, found in zip(texts, values, strict=True) if not found]


def parse_key(text: str, names: Sequence[str], types: Any) -> tuple[Any, ...]:
    """Read a key as a person types it: a JSON list, or one value a column, between commas.

    :param types: type per column; None: not known yet, for there are no values.
    :raises ConfigError: it is no key of such columns.
    """
    if not names:
        raise ConfigError(
            option="KEY",
            value=text,
            remedy="The state has one row and no key columns: leave it out.",
        )
    parts: Any = None
    if text.startswith("["):
        try:
            parts = json.loads(text)
        except ValueError:
            parts = None  # a text that begins so
    if not isinstance(parts, list):
        parts = [text] if len(names) == 1 else next(csv.reader([text], skipinitialspace=True), [])
    if len(parts) != len(names):
        remedy = f"Give a value for each key column: {','.join(names)}"
        raise ConfigError(option="KEY", value=text, remedy=remedy)
    if types is None:
        return tuple(parts)
    return tuple(
        _value(text, name, types[name], part) for name, part in zip(names, parts, strict=True)
    )


def _value(text: str, name: str, kind: str, part: Any) -> Any:
    try:
        if isinstance(part, str):
            if kind in _AS_JSON or (kind == "text" and part.startswith('"')):
                part = json.loads(part)
            elif kind != "text":
                part = from_plain(kind, part)
        return None if part is None else CONVERT[kind](part)
    except (ValueError, TypeError, ArithmeticError):
        remedy = f"{name} is a {kind}."
        raise ConfigError(option="KEY", value=text, remedy=remedy) from None


def _shown(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


# --- two states --------------------------------------------------------------------------------------------------


@comparison
def diff(args: Namespace) -> None:
    """`airflow tx diff DAG:STATE DAG:STATE`."""
    if not 0 <= args.tolerance < 1:
        raise ConfigError(
            option="--tolerance", value=args.tolerance, remedy="Give a part of 1, such as 1e-9."
        )
    if args.limit < 0:
        raise ConfigError(option="--limit", value=args.limit, remedy="Give a number from 0.")
    first, second = map(_state_of_dag, args.states)
    found = _compared_in_time(args, first, second)
    _print_comparison(found, (first.name, second.name), args.output)
    if not found.is_equal:
        raise SystemExit(1)


def _state_of_dag(text: str) -> FencedState:
    """Find a state as `airflow tx diff` names it: DAG:STATE, or the DAG of one state."""
    from airflow_tx.operations.actions.dags import transactional_dag

    dag_id, _, name = text.partition(":")
    _, states = transactional_dag(dag_id, option="DAG:STATE")
    known = ", ".join(f"{dag_id}:{each}" for each in sorted(states))
    if not name and len(states) == 1:
        return next(iter(states.values()))
    if name not in states:
        remedy = f"Use {'one of ' if len(states) > 1 else ''}{known}." if known else "It has none."
        raise ConfigError(option="DAG:STATE", value=text, remedy=remedy)
    return states[name]


def _compared_in_time(args: Namespace, first: FencedState, second: FencedState) -> StateComparison:
    told = ""
    while True:
        try:
            return compared(first, second, tolerance=args.tolerance, limit=args.limit)
        except NotComparableNow as refusal:
            if not args.wait:
                raise
            if (reason := without_controls(f"Waiting: {refusal.problem}.")) != told:
                print(reason, file=sys.stderr)
            told = reason
        time.sleep(_SECONDS_BETWEEN)


def _print_comparison(found: StateComparison, names: tuple[str, str], output: str) -> None:
    first, second = names
    kinds = {
        f"only in {first}": found.only_first,
        f"only in {second}": found.only_second,
        "different": found.different,
    }
    if output != "table":
        render.print_rows([_as_data(found, names)], output)
        return
    rows = [row for kind, keys in kinds.items() for row in _shown_keys(kind, keys)]
    if rows:
        render.print_rows(rows, output)
    counts = ", ".join(f"{keys.count:,} {kind}" for kind, keys in kinds.items())
    told = [
        f"{first} (transaction {found.txids[0]}) and {second} (transaction {found.txids[1]}) are at the same position.",
        f"Keys: {found.equal:,} equal, {counts}.",
    ]
    if found.left_out:
        told.append(f"Not compared, since only one of them has it: {', '.join(found.left_out)}.")
    print(without_controls("\n".join(told)))


def _shown_keys(kind: str, keys: KeyDifferences) -> list[render.TableRow]:
    return [
        {
            "keys": kind,
            "key": json_text(list(map(_plain, each.key.values()))),
            "first": _pairs(each.first),
            "second": _pairs(each.second),
        }
        for each in keys.keys
    ]


def _pairs(values: Mapping[str, Any] | None) -> str | None:
    if values is None:
        return None
    return ", ".join(f"{name}={_plain(value)}" for name, value in values.items())


def _as_data(found: StateComparison, names: tuple[str, str]) -> render.TableRow:
    def listed(keys: KeyDifferences) -> dict[str, Any]:
        return {"count": keys.count, "keys": [_with_plain_values(vars(each)) for each in keys.keys]}

    return {
        "first": names[0],
        "second": names[1],
        "transactions": list(found.txids),
        "compared": list(found.columns),
        "left_out": list(found.left_out),
        "equal": found.equal,
        "only_first": listed(found.only_first),
        "only_second": listed(found.only_second),
        "different": listed(found.different),
    }


def _with_plain_values(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if values is None else {column: _plain(each) for column, each in values.items()}
        for name, values in found.items()
    }


def _plain(value: Any) -> Any:
    """Give a value as JSON has it; what JSON has not, as text."""
    value = _shown(value)
    return (
        value if value is None or isinstance(value, (bool, int, float, list, dict)) else str(value)
    )


# --- receipts -----------------------------------------------------------------------------------------------------
# `airflow tx verify | find | receipts`: what was counted, when, by which run, and whether that still holds.


@dataclass(frozen=True)
class _Evidence:
    """The evidence of the ledger, the states and the source of a topology."""

    ledger: LedgerEvidence
    states: tuple[StateEvidence, ...]
    spec: TransactionSpec

    @property
    def source(self) -> Source:
        return self.spec.source

    def receipts(self, first: int | None, last: int | None) -> dict[int, Receipt]:
        """The receipts from `first` to `last`, also receipts that only the states keep."""
        end = self.ledger.current - 1 if last is None else last
        found = Chain(self.ledger, self.states, first or 1, end).receipts
        return {txid: found[txid] for txid in sorted(found) if (first or 1) <= txid <= end}

    @cached_property
    def restated(self) -> Mapping[int, int]:
        """Name, by transaction that was restated, the one that counts now."""
        return restated(self.receipts(None, None))


@command
def verify(args: Namespace) -> None:
    """`airflow tx verify TOPOLOGY`."""
    evidence = _evidence(args, values=args.values)
    found = verified(evidence.ledger, evidence.states, first=args.first or 1, last=args.last)
    recounted = _recounted(evidence, args) if args.recount else Verified(None, 0, (), ())
    findings = (*found.findings, *_entries(evidence, args), *recounted.findings)
    notes = (*found.notes, *_unknown_states(evidence), *recounted.notes)
    result = _in_words(args.topology, found, len(findings))
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
    for receipt in kept.values():
        has = contains(source, receipt.metadata, args.what)
        if has:
            found.append(_line(receipt, args.output, evidence.restated))
        elif has is None:
            unknown.append(receipt.txid)
    if unknown:
        why = "the source cannot tell, or they keep the digest of their metadata alone"
        print(
            f"Not looked through: {counted(len(unknown), 'transactions')} ({_ranges(unknown)}): {why}.",
            file=sys.stderr,
        )
    if not found:
        since = f"receipts go back to transaction {min(kept)}" if kept else "there is no receipt"
        raise SystemExit(f"No final transaction of {args.topology} has {args.what!r}; {since}.")
    _print_lines(found, args)


def _print_lines(lines: list[render.TableRow], args: Namespace) -> None:
    print_table(args, lines, render.RECEIPT_IN_SHORT, "restates", "restated_by", "replays")


# --- what there is ------------------------------------------------------------------------------------------------


def _evidence(args: Namespace, *, values: bool = False) -> _Evidence:
    from airflow_tx.operations.actions.request import evidence_of

    with store_of(args) as store:
        paths = paths_of(args)
        ledger = ledger_evidence(store, paths)
        spec, states = dag_of(args, ledger.topology.dag_id)
        found = evidence_of(states, values=values)
        # The states were read later: one that is further than the ledger was then has not gone ahead of it.
        ledger = replace(ledger, latest=Reader(store).get(Counter, paths.current).txid)
    return _Evidence(ledger, found, spec)


def _unknown_states(evidence: _Evidence) -> Iterator[str]:
    if evidence.ledger.decisive is None:
        yield "ledger: it never stood still, so what decides later transactions was not compared; repeat it"
    for name in sorted(
        evidence.ledger.topology.states.keys() - {state.name for state in evidence.states}
    ):
        yield f"state {name}: the DAG does not name it any more, so it was not compared"


def _in_words(topology: str, found: Verified, findings: int) -> str:
    if found.first is None:
        return f"Topology {topology}: no transaction up to {found.last} has a receipt."
    span = f"transactions {found.first} to {found.last}"
    if not findings:
        return f"Topology {topology}: {span} are as their receipts say. What came before them cannot be checked."
    return f"Topology {topology}: {findings} finding(s); receipts of {span}."


def _line(receipt: Receipt, output: str, restated: Mapping[int, int]) -> render.TableRow:
    """One line of `receipts` and of `find`; a table names the batch in words.

    :param restated: by transaction that was restated, the one that counts now.
    """
    return {
        "txid": receipt.txid,
        "attempt": receipt.attempt,
        "outcome": receipt.outcome,
        "run_id": receipt.run_id,
        "restates": receipt.replaces and receipt.replaces["txid"],
        "restated_by": restated.get(receipt.txid),
        "granted": receipt.granted,
        "rows": receipt.rows,
        "metadata": (output != "json" and batch_in_words(receipt.metadata))
        or dumps(receipt.metadata),
        "written": ", ".join(
            f"{name}: {each['keys']} keys" for name, each in sorted(receipt.written.items())
        )
        or None,
        "replays": "; ".join(f"{each['attempt']}: {each['why']}" for each in receipt.replays)
        or None,
        "journal": receipt.journal,
        "hash": receipt.hash,
    }


def _ranges(txids: list[int]) -> str:
    return f"{txids[0]}" if len(txids) == 1 else f"{txids[0]} to {txids[-1]}"


# --- the journal -------------------------------------------------------------------------------------------------


def _entries(evidence: _Evidence, args: Namespace) -> Iterator[str]:
    """Compare the journal entries that bindings name with their names; older ones may have been removed."""
    decisive = evidence.ledger.decisive
    if decisive is None:
        return
    journal = JournalArea(staging_of(args), evidence.ledger.topology.incarnation)
    since = (SystemClock().now() - evidence.spec.journal_time).date().isoformat()
    last = evidence.ledger.current - 1 if args.last is None else args.last
    for key, name in sorted(decisive.entries.items(), key=lambda each: decisive.bindings[each[0]]):
        txid = decisive.bindings[key]
        found = None
        if (args.first or 1) <= txid <= last and name >= since:
            found = journal.finding(name, txid, key)
        if found:
            yield found


# --- counting again -----------------------------------------------------------------------------------------------


def _recounted(evidence: _Evidence, args: Namespace) -> Verified:
    """Read the rows of the last batches from the source again, and compare number and digest."""
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
                f"{where} {rows.rows} rows in the source now; the transaction did not count its rows"
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
                f"{where} the number of its rows is unchanged; no digest of Python rows was kept"
            )
    return Verified(None, 0, tuple(findings), tuple(notes))


def _counted(evidence: _Evidence, receipt: Receipt) -> int | None:
    """How many rows the tasks of a transaction read, or else its source counted."""
    history = evidence.ledger.histories.get(receipt.txid)
    size: Mapping[str, Any] = (history.size if history is not None else None) or {}
    return receipt.rows if receipt.rows is not None else size.get("rows")


def _read_again(source: Source, receipt: Receipt) -> RowsDigest:
    from airflow_tx.ledger.attempt import TransactionAttempt
    from airflow_tx.transaction.processing.outputs import RowsReading

    if is_shortened(receipt.metadata):
        raise ValueError("its receipt keeps the digest of its metadata alone")
    attempt = TransactionAttempt(receipt.txid, receipt.attempt, receipt.birth)
    reading = RowsReading()
    with closing(source):
        rows: Any = source.emit_batch(attempt, receipt.metadata)
        for _ in reading.passing(rows):
            pass
        source.check_read(attempt)
    return reading.found


# --- text search --------------------------------------------------------------------------------------------------
# `airflow tx find WHAT`: the transactions of all topologies that have a text, by the records of their ledgers.


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
