"""Deeds of people on a ledger, of every kind that it keeps."""

from __future__ import annotations

import logging

from airflow_tx.ledger.api import Create, Put
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.receipt import CheckNote
from airflow_tx.ledger.records import Loss, RepairRecord, RollingNote, TopologyRecord, encode
from airflow_tx.ledger.steps.end import note_skip
from airflow_tx.ledger.steps.recovery import note_person
from airflow_tx.ledger.steps.replay import WishRequest, note_changed, want
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.transaction.commit.handoff import take_skip
from tests.integration.cli_runs import fail
from tests.integration.pipeline import Pipeline


def everything_done(pipeline: Pipeline, audit: Audit) -> None:
    """Let a person do everything that a ledger keeps: transactions 1 to 4, then the ledger itself."""
    ledger = pipeline.ledger
    for run in ("r1", "r2"):
        pipeline.run(run)
    ledger.run(want, WishRequest(2, "r2", "r2"), audit)
    skipped = pipeline.begin("r3")
    fail(pipeline, skipped)
    ledger.run(note_skip, 3, audit)
    take_skip(ledger, 3, {}, log=logging.getLogger(__name__))
    fail(pipeline, pipeline.begin("r4"))
    ledger.run(note_person, 4, audit)
    fail(pipeline, pipeline.begin("r4"))
    checked = pipeline.begin("r4")
    failed = {"positive": CheckNote(False, "1 of 2 rows", "of the rows")}
    epoch = pipeline.process(checked).epoch
    ledger.note_commit_failed(checked.attempt, epoch, reason="refused", for_good=True, checks=failed)
    ledger.accept_checks(4, {"positive": "of the rows"}, audit=audit)
    ledger.run(note_changed, 4, {}, audit=audit)
    ledger.run(note_skip, 4, audit)
    at = "2026-01-01T00:00:00+00:00"
    loss = Loss("", 1, 2, "row 1")
    repair = RepairRecord(1, "accept-loss", audit.who, at, audit.why, "done", 1, "op", losses=[loss])
    store = pipeline.store
    record = Reader(store).get(TopologyRecord, pipeline.paths.record)
    rolling = RollingNote(audit.who, at, audit.why, found={"one": 1}, nonces=[], generation=1)
    store.multi(
        [],
        [
            Create(pipeline.paths.repairs, b""),
            Create(pipeline.paths.repair(1), encode(repair)),
            Put(pipeline.paths.record, encode(replace(record, rolling=rolling))),
        ],
    )
