"""What every answer has to keep, of commands and of the page, and which cells may be empty, each with its reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.integration.kinds.cells import Cells, Exempt, check_cells, fields_of, is_filled
from tests.integration.kinds.ledger import Got, Ledger, Told
from tests.integration.kinds.topologies import Kind

WHOLE_IN_JSON = ("receipts", "find")
"""Their JSON has every field of a receipt, as their help says."""
EXPECTED = (200, 404, 409, 503)
"""Answered; there is none; it is refused; a record of the ledger cannot be read."""
FINDINGS = 1
"""The exit code of a comparison that found something, which is no refusal."""

PER_RUN = "days|in_order|parts"
QUEUED = "rabbit_queue"
PARTITIONED = (
    "files_partitioned|memory_rows|memory_rows_opaque|own_partitions|own_partitions_opaque|redis_.*|sql_shards|kafka_.*"
)
FILES = "files|files_opaque|files_partitioned|in_phase|in_moment|rejecting"
COUNTED = "rows of files are counted: the batch has the digest of their content"
NO_REJECTED = "its transactions have no table of rejected rows"
FIRST = "fresh|with_messages|without_journal"
OF_COMMANDS = (
    Exempt(PER_RUN, "(list|receipts|show TXID): size", "the source counts no rows: a run has all of its own"),
    Exempt(PER_RUN, "show: (lag|pace)", "how many runs will come is not known, nor how many rows one has"),
    Exempt(f"(?!({PARTITIONED})$).*", "show TXID: partitions", "its source has no partitions"),
    Exempt(".*", "at: (line|why)", "a line reads the state, or it says why none does"),
    Exempt("snapshot_map", "state get: key", "the state has one value, and no key"),
    Exempt(FILES, "(list|receipts|show TXID): digest", COUNTED),
    Exempt("(?!((in|half)_moment|rejecting)$).*", "show TXID: rejected", NO_REJECTED),
)
OF_PAGE = (
    Exempt(PER_RUN, r"get_(figures: .*\blag.*|topology: lag.*)", "how many runs will come is not known"),
    Exempt(PER_RUN, r".*: comparison\[\]\.size", "no source counts its rows, and its task had not yet"),
    Exempt("in_lane", r".*: comparison\[\]\.tasks.*", "in the lane, no task of Airflow runs"),
    Exempt(PER_RUN, r"get_transaction: batch\.words", "the source counts no rows: a run has all of its own"),
    Exempt(FILES, r"get_transaction: (digest|work\[\]\.digests)", COUNTED),
    Exempt("half_committed", r"get_transaction: work\[\]\.digests", NO_REJECTED),
    Exempt("own_.*", r".*: batch_name", "a number of one's own is no name"),
    Exempt("own_.*", r"search_topologies: found.*", "a number of one's own is no text: its source alone finds it"),
    Exempt(f"(?!({PER_RUN})$).*", r"get_topology: lag\.why", "the reason stands in place of the lag"),
    Exempt(FIRST, r"get_transaction: (previous|batch\.position_before)", "it is the first transaction"),
    Exempt(".*", "get_transaction: following", "it is the last transaction"),
    Exempt(FIRST, "get_transaction: states.*", "no state was written yet"),
    Exempt("in_lane", r".*: (tasks.*|links\.tasks|receipt\.dag_version)", "in the lane, no task of Airflow runs"),
    Exempt(
        "delta_table|sql_table|table_read|.*_guard",
        r"get_transaction: states\[\]\.sums",
        "rows are taken as they are: nothing adds up",
    ),
    Exempt(".*", "search_transactions: restated_by", "it was not restated"),
    Exempt("without_dag", r"get_topology: source\.description", "only the DAG file knows the source"),
)


def check_told(told: Iterable[Told]) -> None:
    """Fail if a command ended in a traceback, or told more than a line of why it gave nothing."""
    for each in told:
        assert not each.tried.broken, f"{each}\n{each.tried.broken}"
        if each.tried.code not in (None, FINDINGS):
            assert len(each.tried.refusal.strip().splitlines()) == 1, (str(each), each.tried)


def check_same(told: Iterable[Told]) -> None:
    """Fail if YAML says something else than JSON."""
    answers = {(each.command, each.line, each.output): each.tried for each in told}
    for (command, line, output), tried in answers.items():
        if output == "yaml" and tried.output and command not in WHOLE_IN_JSON:
            assert yaml.load(tried.output, yaml.CSafeLoader) == json.loads(answers[command, line, "json"].output), (
                command,
                line,
            )


WORDS = {"run_id", "ack_val", "hash", "digest", "incarnation", "text", "content"}
"""Columns whose text may look like a number."""


NO_TEXT = re.compile(r"-?\d+(\.\d+)?|(?i:true|false|null|none)|[\[{].*[\]}]")


def check_data(value: Any, where: str = "") -> None:
    """Fail if a text of JSON is a number, a boolean, nothing, or JSON itself."""
    for name, each in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(each, (dict, list)):
            check_data(each, f"{where}.{name}")
        elif isinstance(each, str) and name not in WORDS:
            assert not NO_TEXT.fullmatch(each), f"{where}.{name}: {each}"


def check_got(got: Iterable[Got]) -> None:
    """Fail if an answer of the page is none that its route promises, or no line says why there is none."""
    for each in got:
        assert each.status in EXPECTED, (str(each), each.status, each.body)
        assert each.misfit == "", f"{each}: {each.misfit}"
        if each.status != 200:
            assert len(each.body["detail"].strip().splitlines()) == 1, str(each)


def check_filled_by_commands(ledger: Ledger, kinds: Iterable[Kind], *, all_reasons: bool = True) -> None:
    """Fail if a cell of a command is empty that other kinds fill."""
    cells = [cell for kind in kinds for told in ledger.told(kind) for cell in _cells_of_told(kind, told)]
    check_cells(cells, OF_COMMANDS, all_reasons=all_reasons)


def check_filled_by_page(ledger: Ledger, kinds: Iterable[Kind], *, all_reasons: bool = True) -> None:
    """Fail if a field of the page is empty that other kinds fill."""
    cells = [cell for kind in kinds for got in ledger.got(kind) for cell in _cells_of_got(kind, got)]
    check_cells(cells, OF_PAGE, all_reasons=all_reasons)


def rows_of(told: Told) -> list[dict[str, Any]]:
    """The rows that a command has printed as JSON."""
    if told.output != "json" or not told.tried.output or told.command in ("diff", "lint"):
        return []
    rows: list[dict[str, Any]] = json.loads(told.tried.output)
    return rows


def _cells_of_told(kind: Kind, told: Told) -> Iterator[Cells]:
    about = told.command + (" TXID" if told.command == "show" and len(told.line) > 1 else "")
    for row in rows_of(told):
        status = str(row.get("status") or row.get("outcome") or row.get("state") or "").partition(":")[0]
        filled = {name: is_filled(value) for name, value in row.items()}
        yield Cells(kind, about, str(row.get("txid", "")), status, filled)


def _cells_of_got(kind: Kind, got: Got) -> Iterator[Cells]:
    """The fields of an answer; of a list of transactions, the fields of each."""
    if got.status != 200 or not isinstance(got.body, dict):
        return
    listed = got.body.get("transactions") or got.body.get("found")
    for each in listed if isinstance(listed, list) and listed else [got.body]:
        if isinstance(each, dict):
            part = str(each.get("txid", "")) or got.told.get("run_id", "")
            status = str(each.get("phase") or (each.get("state") or {}).get("code", ""))
            # What a restatement writes is a difference.
            status += " again" if each.get("restates") else ""
            yield Cells(kind, got.route, part, status, dict(fields_of(each)))
