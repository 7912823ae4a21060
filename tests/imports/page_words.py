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
    "acks.md": 603,
    "alarms.md": 639,
    "architecture.md": 995,
    "board.md": 665,
    "checking.md": 599,
    "concepts/attempt.md": 151,
    "concepts/batch.md": 172,
    "concepts/chain.md": 241,
    "concepts/fence.md": 167,
    "concepts/how-it-works.md": 451,
    "concepts/state-kinds.md": 161,
    "concepts/transaction.md": 155,
    "concepts/turn.md": 173,
    "deploy.md": 1098,
    "diff.md": 428,
    "explanation/comparison.md": 382,
    "explanation/performance.md": 798,
    "explanation/promises.md": 648,
    "explanation/security.md": 429,
    "explanation/why-zookeeper.md": 220,
    "fence.md": 895,
    "glossary.md": 1143,
    "howto/append-rows-to-a-sql-table.md": 357,
    "howto/back-up.md": 676,
    "howto/backfill-a-month.md": 559,
    "howto/build-a-table-from-another-one.md": 419,
    "howto/change-columns.md": 664,
    "howto/check-before-you-publish.md": 457,
    "howto/choose-a-source.md": 463,
    "howto/examples.md": 264,
    "howto/install.md": 440,
    "howto/keep-bad-rows-aside.md": 521,
    "howto/move-a-plain-dag.md": 548,
    "howto/move-from-spark-submit.md": 741,
    "howto/move-from-storm.md": 681,
    "howto/my-run-waits.md": 549,
    "howto/operate.md": 699,
    "howto/read-a-database-under-spark.md": 519,
    "howto/read-several-stores.md": 337,
    "howto/run-a-zookeeper.md": 480,
    "howto/send-each-message-once.md": 425,
    "howto/stop-using-it.md": 328,
    "howto/use-polars-or-duckdb.md": 503,
    "howto/write-a-source.md": 1049,
    "index.md": 455,
    "journal.md": 342,
    "kafka.md": 620,
    "lane.md": 793,
    "lint.md": 707,
    "metrics.md": 460,
    "options.md": 638,
    "protocol.md": 4096,
    "questions.md": 465,
    "rabbit_source.md": 553,
    "receipts.md": 731,
    "redis_source.md": 542,
    "replay.md": 854,
    "restate.md": 1045,
    "rows.md": 540,
    "sources.md": 1559,
    "spark.md": 778,
    "sql_source.md": 969,
    "start.md": 533,
    "state.md": 1208,
    "stores.md": 1200,
    "testing.md": 900,
    "trial.md": 384,
    "versions.md": 440,
    "waiting.md": 702,
}
"""Words of each page at most; a bound only falls, unless another page falls by as much."""


def words() -> dict[str, int]:
    """Count the words of every page, with its code and tables."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return {page.relative_to(ROOT / "docs").as_posix(): len(page.read_text().split()) for page in pages}


if __name__ == "__main__":
    print("\n".join(f'    "{page}": {count},' for page, count in words().items()))
