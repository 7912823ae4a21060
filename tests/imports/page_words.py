"""How many words each page of the documentation may have.

`python -m tests.imports.page_words` prints the bounds that hold now.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SITE = 45_000
"""Words of all pages together; it never rises."""
SLACK = 25
"""Words that a page may have less than its bound, before the bound must fall, too."""
MADE_SHORTER: Mapping[str, str] = {}
"""By page that was added since: the page that it made shorter."""
BOUNDS: Mapping[str, int] = {
    "acks.md": 590,
    "alarms.md": 635,
    "architecture.md": 984,
    "board.md": 676,
    "checking.md": 577,
    "concepts/attempt.md": 149,
    "concepts/batch.md": 176,
    "concepts/chain.md": 249,
    "concepts/fence.md": 170,
    "concepts/how-it-works.md": 452,
    "concepts/state-kinds.md": 163,
    "concepts/transaction.md": 158,
    "concepts/turn.md": 157,
    "deploy.md": 1117,
    "diff.md": 422,
    "explanation/comparison.md": 381,
    "explanation/performance.md": 770,
    "explanation/promises.md": 647,
    "explanation/security.md": 432,
    "explanation/why-zookeeper.md": 220,
    "fence.md": 880,
    "glossary.md": 1143,
    "howto/append-rows-to-a-sql-table.md": 359,
    "howto/back-up.md": 687,
    "howto/backfill-a-month.md": 564,
    "howto/build-a-table-from-another-one.md": 420,
    "howto/change-columns.md": 675,
    "howto/check-before-you-publish.md": 461,
    "howto/choose-a-source.md": 468,
    "howto/examples.md": 268,
    "howto/install.md": 447,
    "howto/keep-bad-rows-aside.md": 529,
    "howto/move-a-plain-dag.md": 549,
    "howto/move-from-spark-submit.md": 746,
    "howto/move-from-storm.md": 680,
    "howto/my-run-waits.md": 556,
    "howto/operate.md": 704,
    "howto/read-a-database-under-spark.md": 519,
    "howto/read-several-stores.md": 339,
    "howto/run-a-zookeeper.md": 492,
    "howto/send-each-message-once.md": 424,
    "howto/stop-using-it.md": 328,
    "howto/use-polars-or-duckdb.md": 506,
    "howto/write-a-source.md": 1049,
    "index.md": 455,
    "journal.md": 335,
    "kafka.md": 643,
    "lane.md": 807,
    "lint.md": 705,
    "metrics.md": 463,
    "options.md": 639,
    "protocol.md": 4420,
    "questions.md": 468,
    "rabbit_source.md": 556,
    "receipts.md": 741,
    "redis_source.md": 545,
    "replay.md": 875,
    "restate.md": 1051,
    "rows.md": 558,
    "sources.md": 1587,
    "spark.md": 778,
    "sql_source.md": 975,
    "start.md": 550,
    "state.md": 1250,
    "stores.md": 1237,
    "testing.md": 900,
    "trial.md": 376,
    "versions.md": 439,
    "waiting.md": 704,
}
"""Words of each page at most; a bound only falls, unless another page falls by as much."""


def words() -> dict[str, int]:
    """Count the words of every page, with its code and tables."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return {page.relative_to(ROOT / "docs").as_posix(): len(page.read_text().split()) for page in pages}


if __name__ == "__main__":
    print("\n".join(f'    "{page}": {count},' for page, count in words().items()))
