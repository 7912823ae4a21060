"""A worker of dags/queued_words.py: a plain process that knows Redis, and nothing of Airflow.

Usage: QUEUES=redis://:password@host:port/0 python examples/word_workers.py split | count [HOLD]

`split` makes words of sentences, `count` counts them, per attempt. With HOLD it takes so many messages, and then stands
still before any acker knows: to be killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from redis import Redis

from airflow_tx.acks import Collector, Message, MessageError

KEPT = 86_400
"""Seconds for which the counts of an attempt are kept."""
ONCE = "a worker has to fail once"
"""A key that a test sets."""


def split(queues: Any, message: Message, sentence: str) -> None:
    """Storm's SplitSentence: a message for each word, anchored to that of the sentence."""
    for word in sentence.split():
        queues.rpush("words", json.dumps([message.emit(), word]))


def count(queues: Any, message: Message, word: str) -> None:
    """Storm's WordCount."""
    if queues.delete(ONCE):
        raise ValueError(f"no count for {word!r} this time")
    key = f"counts:{message.txid}.{message.attempt}"
    queues.hincrby(key, word, 1)
    queues.expire(key, KEPT)


BOLTS = {"split": ("sentences", split), "count": ("words", count)}


def main() -> None:
    """Work until the process is killed."""
    queue, bolt = BOLTS[sys.argv[1]]
    hold = int(sys.argv[2]) if len(sys.argv) > 2 else None
    url = os.environ["QUEUES"]
    queues: Any = Redis.from_url(url, decode_responses=True)
    taken = 0
    with Collector(url, topology="queued_words", interval=3600 if hold else 0.05) as collector:
        while taken != hold:
            found = queues.blpop(queue, timeout=1)
            if found is None:
                continue
            reference, value = json.loads(found[1])
            try:
                with collector.process(reference) as message:
                    bolt(queues, message, value)
            except (MessageError, ValueError) as error:  # of an attempt that was replayed; or it has failed the attempt
                print(error, file=sys.stderr)
            taken += 1
        queues.set("held", taken)
        time.sleep(3600)


if __name__ == "__main__":
    main()
