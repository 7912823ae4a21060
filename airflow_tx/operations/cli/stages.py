"""`airflow tx verify --chain`: compare each topology of a chain with the topology that it reads.

`airflow tx find` uses the same functions.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing

from airflow_tx.base.errors import TxError
from airflow_tx.ledger import ChainStages, ReadOnlyLedger, StageAudit, Store, Verified
from airflow_tx.operations.actions.dags import checked_dag
from airflow_tx.operations.cli.context import conn_id_of, dag_of, paths_of, store_of
from airflow_tx.sources import Source


def chain_verified(args: Namespace) -> Verified:
    """Compare each topology of a chain with its upstream topology, starting with the command's topology.

    :raises UnreadableRecord: a record cannot be read; the error names it.
    """
    findings = list[str]()
    notes = list[str]()
    with store_of(args) as store:
        seen = [args.topology]
        for name, upstream in _stages(args, store):
            found = _compared(args, store, name)
            findings += [f"{name}: {each}" for each in found.findings]
            notes += [f"{name}: {each}" for each in found.notes]
            seen.append(upstream)
    way = ", which reads ".join(seen)
    if len(seen) == 1:
        notes.append(f"chain: {way} reads no other topology")
    elif len(set(seen)) < len(seen):
        findings.append(f"chain: topologies read each other: {way}")
    else:
        notes.append(f"chain: {way}".replace(", which", "", 1))
    return Verified(None, 0, tuple(findings), tuple(notes))


def _stages(args: Namespace, store: Store) -> Iterator[tuple[str, str]]:
    """Yield each topology that reads another topology, with its upstream topology. Stop at a cycle."""
    name = args.topology
    seen = set[str]()
    while name not in seen:
        seen.add(name)
        record = ReadOnlyLedger(store, paths_of(args, name)).topology_if_any()
        if record is None or not record.upstream:
            return
        yield name, record.upstream
        name = record.upstream


def _compared(args: Namespace, store: Store, name: str) -> StageAudit:
    ledger = ReadOnlyLedger(store, paths_of(args, name))
    found = StageAudit(ledger)
    problem = f"its DAG does not read {found.name!r} any more"
    try:
        with closing(_source(args, ledger, name)) as source:
            if source.upstream == found.name:
                whole = StageAudit(ledger, source.upstream_table, source.rows_upstream)
                whole.compare()
                return whole
    except TxError as error:
        problem = str(error)
    # Without the source, compare only the ledgers: the ranges and the transactions that count.
    found.compare()
    found.notes.append(f"rows of its upstream table were not compared: {problem}")
    return found


def _source(args: Namespace, ledger: ReadOnlyLedger, name: str) -> Source:
    dag_id = ledger.topology().dag_id
    if name == args.topology:
        return dag_of(args, dag_id)[0].named_source
    return checked_dag(dag_id, ledger.paths, conn_id_of(args))[0].named_source


def taken_by(args: Namespace) -> frozenset[int]:
    """Return the transactions in the range of TOPOLOGY:TXID, if TOPOLOGY reads the topology of the command."""
    name, _, txid = args.what.rpartition(":")
    if not name or not txid.isdecimal():
        return frozenset()
    with store_of(args) as store:
        ledger = ReadOnlyLedger(store, paths_of(args, name))
        record = ledger.topology_if_any()
        if record is None or record.upstream != args.topology:
            return frozenset()
        taken = ChainStages.of(ledger, int(txid)).taken
    if taken is None:
        return frozenset()
    return frozenset({*range(taken.first, taken.last + 1), *taken.ends.values()})
