"""`airflow tx skip | readmit | replay`: what a person does to transactions. Each is an entry in Airflow's audit log."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_tx.cli import render
from airflow_tx.cli.context import action, audit_of, check_why, confirm, ledger_on, paths_of, store_of
from airflow_tx.cli.dags import dag_of
from airflow_tx.errors import ChangeRefused, LossRefused, SourceError, TxError
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.loss import shortened
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Skipped, TransactionRecord, digest, dumps
from airflow_tx.protocol.skip import note_readmission
from airflow_tx.protocol.view import topology_record, transaction_details

if TYPE_CHECKING:
    from airflow_tx.cli.runs import Restarts, RunOutcome
    from airflow_tx.protocol.batch import Loss
    from airflow_tx.sources.api import Source

_ROWS_SHOWN = 500


@action
def skip(args: Namespace) -> None:
    """`airflow tx skip TOPOLOGY TXID --why TEXT`."""
    from airflow_tx.cli.skips import Skips

    check_why(args, f"skip {args.topology} {args.txid}")
    with store_of(args) as store:
        restarts = _restarts(store, args)
        skips = Skips(restarts.ledger, restarts, lambda: dag_of(args, restarts.runs.dag_id)[1])
        record = restarts.ledger.status(args.txid)
        if record is not None:  # else the ledger says what became of it
            skips.check(args.txid, record)
            confirm(args, _question(store, args, record))
        _show(skips.note(args.txid, audit_of(args)), args)


@action
def readmit(args: Namespace) -> None:
    """`airflow tx readmit TOPOLOGY TXID --why TEXT`."""
    from airflow_tx.cli.runs import RunOutcome

    check_why(args, f"readmit {args.topology} {args.txid}")
    with store_of(args) as store:
        restarts = _restarts(store, args)
        skipped = Reader(store).peek_if_any(Skipped, paths_of(args).skipped(args.txid))
        if skipped is not None and skipped.readmitted_as is None:
            who = f"skipped by {skipped.skip['who']}: {skipped.skip['why']}"
            confirm(
                args,
                f"Process the rows of transaction {args.txid} of topology {args.topology} ({who}) as a new "
                f"transaction, in run {skipped.run_id}: {_shown(skipped.rows)}.",
            )
        restarts.ledger.run(note_readmission, args.txid, audit_of(args))
        assert skipped is not None, "else it is refused"
        how = restarts.runs.start(skipped.run_id, skipped.key)
        done = f"re-admitted: {how}, and takes the rows of the same place, as they are now, as a new transaction"
        _show([RunOutcome(args.txid, skipped.run_id, done)], args)


@action
def replay(args: Namespace) -> None:
    """`airflow tx replay TOPOLOGY (TXID [TXID ...] [--force] [--changed-rows --why TEXT] | --failed)`."""
    if bool(args.txids) == args.failed:
        raise SystemExit("Give either the txids to replay, or --failed.")
    if args.failed and args.force:
        raise SystemExit("--force is for transactions that are named; --failed leaves alone what is queued or runs.")
    if args.changed_rows and args.failed:
        raise SystemExit("--changed-rows is for transactions that are named.")
    if args.changed_rows:
        check_why(args, f"replay {args.topology} {' '.join(map(str, args.txids))} --changed-rows")
    with store_of(args) as store:
        restarts = _restarts(store, args)
        if args.failed:
            outcomes = restarts.failed()
        elif args.changed_rows:
            outcomes = restarts.changed(
                args.txids, _undoable(args, restarts.runs.dag_id), audit_of(args), force=args.force
            )
        else:
            outcomes = restarts.named(args.txids, force=args.force)
        _show(outcomes, args)


@action
def accept_loss(args: Namespace) -> None:
    """`airflow tx accept-loss TOPOLOGY --why TEXT`."""
    check_why(args, f"accept-loss {args.topology}")
    with store_of(args) as store:
        source = dag_of(args, topology_record(store, paths_of(args)).dag_id)[0].source
        ledger = ledger_on(store, args)
        losses = losses_of(source, ledger.deciding_from())
        if not losses:
            raise LossRefused(topology=args.topology)
        what = "; ".join(shortened([loss.description for loss in losses]))
        confirm(args, f"Let topology {args.topology} go on without these rows, in no transaction ever: {what}.")
        ledger.accept_loss(losses, audit_of(args))
    render.print_rows([render.loss(loss) for loss in losses], args.output)


def losses_of(source: Source, positions: Iterable[Any]) -> list[Loss]:
    """Collect what is lost behind any of these positions, each loss once.

    :raises SourceError: the source cannot be asked.
    """
    found: dict[str, Loss] = {}
    try:
        for position in positions:
            found |= {digest([loss.partition, loss.position]): loss for loss in source.losses(position)}
    except TxError:
        raise
    except Exception as error:
        problem = f"it cannot tell what it has lost: {type(error).__name__}: {error}"
        remedy = "Nothing was changed; let it be reached, and repeat."
        raise SourceError(source=repr(source), problem=problem, remedy=remedy) from error
    finally:
        source.close()
    return list(found.values())


def _undoable(args: Namespace, dag_id: str) -> Mapping[str, bool]:
    """The states of the DAG, and whether each can undo what was written to it, or holds nothing of these transactions.

    :raises ChangeRefused: its source never has other rows at the place of a batch.
    """
    from airflow_tx.commit.handoff import undoable

    spec, states = dag_of(args, dag_id)
    if not spec.source.rows_can_change:
        raise ChangeRefused(
            txid=args.txids[0],
            topology=args.topology,
            problem=f"{spec.source!r} reads a log, in which no row is ever another one",
            remedy=f"What cannot be processed is skipped: airflow tx skip {args.topology} {args.txids[0]} --why TEXT; "
            "what failed for another reason is replayed as it is",
        )
    return undoable(states, *args.txids)


def _restarts(store: Store, args: Namespace) -> Restarts:
    """:raises UnknownTransaction: there is no such topology."""
    from airflow_tx.cli.runs import Restarts

    return Restarts(ledger_on(store, args), topology_record(store, paths_of(args)).dag_id)


def _question(store: Store, args: Namespace, record: TransactionRecord) -> str:
    batch = transaction_details(store, paths_of(args), args.txid).batch
    rows = "unknown rows" if batch is None else _shown(batch.rows)
    return (
        f"Skip transaction {args.txid}.{record.attempt} of topology {args.topology} (run {record.run_id}, "
        f"{record.phase.value}), and count its rows nowhere: {rows}."
    )


def _shown(rows: object) -> str:
    text = dumps(rows)
    return text if len(text) <= _ROWS_SHOWN else f"{text[:_ROWS_SHOWN]} ..."


def _show(outcomes: Iterable[RunOutcome], args: Namespace) -> None:
    """Print what was done, also if what comes after it fails."""
    rows: list[render.TableRow] = []
    try:
        for each in outcomes:
            rows.append({"txid": each.txid, "run_id": each.run_id, "done": each.done})
    except BaseException:
        if rows:
            render.print_rows(rows, args.output)
        raise
    render.print_rows(rows, args.output)
