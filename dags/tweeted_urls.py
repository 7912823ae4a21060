"""Count tweeted URLs, as in Storm's transactional topologies: the tweets that name each URL, and each domain.

The two counts are in two databases, and each transaction updates both.

    airflow connections add tx_urls --conn-json '{"conn_type": "postgres", "host": "...", "login": "...", ...}'
    airflow connections add tx_domains --conn-json '{"conn_type": "mysql", "host": "...", "login": "...", ...}'
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, FileSource, Transaction, current_batch, persistent_aggregate
from airflow_tx.state import Count, SqlState

urls = SqlState("tx_urls", table="tweeted_urls", keys=["url"], values={"tweets": Count()})
domains = SqlState("tx_domains", table="tweeted_domains", keys=["domain"], values={"tweets": Count()})


@task(multiple_outputs=True)
def count_urls() -> dict[str, Any]:
    """Count the tweets of the batch that contain each URL and each domain. Each tweet counts once per URL."""
    by_url, by_domain = Counter[str](), Counter[str]()
    for row in current_batch().read():
        found = set(re.findall(r"https?://\S+", row["text"]))
        by_url.update(found)
        by_domain.update({urlsplit(url).hostname or "" for url in found})
    return {
        "urls": [{"url": url, "tweets": tweets} for url, tweets in by_url.items()],
        "domains": [{"domain": domain, "tweets": tweets} for domain, tweets in by_domain.items()],
    }


with DAG("tweeted_urls", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    with Transaction(source=FileSource("tweets/*.csv", files_per_batch=1), max_pending=4):
        counted: Any = count_urls()
        updates = [
            persistent_aggregate(counted["urls"], state=urls),
            persistent_aggregate(counted["domains"], state=domains),
        ]
        CommitOperator(task_id="commit", updates=updates)
