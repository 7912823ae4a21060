"""A worker of dags/queued_words.py: a plain process that needs Redis, but not Airflow.

Usage: QUEUES=redis://:password@host:port/0 python examples/word_workers.py BOLT [HOLD]

`split` splits sentences into words, and `count` counts the words of each attempt; both are like Storm's BasicBolts.
`split_by_hand` and `add_by_hand` anchor and ack manually. `add_by_hand` adds up equal words, sends each sum to
`count_sums` as a message anchored to all these words, and only then acks them. With HOLD a worker takes this number of
messages, and then waits to be killed, before it has sent an ack to any acker.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from redis import Redis

from airflow_tx.acks import Collector, Message, MessageError

KEPT = 86_400
"""The seconds for which the counts of an attempt are kept."""
ONCE = "a worker has to fail once"
"""A key that a test sets to make the next count fail once."""

Taken: TypeAlias = list[tuple[str, Any]]
"""The references and the values of messages."""
Bolt: TypeAlias = Callable[[Any, Collector, Taken], None]


# --- BasicBolts: a message is acked when the function returns, and failed if it raises an error


def basic(function: Callable[[Any, Message, Any], None]) -> Bolt:
    """Create a BasicBolt from a function."""

    def bolt(queues: Any, collector: Collector, taken: Taken) -> None:
        for reference, value in taken:
            with collector.process(reference) as message:
                function(queues, message, value)

    return bolt


def split(queues: Any, message: Message, sentence: str) -> None:
    """Send a message for each word, anchored to the sentence's message, as in Storm's SplitSentence."""
    for word in sentence.split():
        queues.rpush("words", json.dumps([message.emit(), word]))


def count(queues: Any, message: Message, word: str, times: int = 1) -> None:
    """Increase the count of a word, like Storm's WordCount."""
    if queues.delete(ONCE):
        raise ValueError(f"no count for {word!r} this time")
    key = f"counts:{message.txid}.{message.attempt}"
    queues.hincrby(key, word, times)
    queues.expire(key, KEPT)


def count_sum(queues: Any, message: Message, found: tuple[str, int]) -> None:
    """Add a sum of words that `add_by_hand` has sent to the counts."""
    count(queues, message, *found)


# --- acked by hand


def split_by_hand(queues: Any, collector: Collector, taken: Taken) -> None:
    """Split sentences into words, like `split`, but ack the messages manually."""
    for reference, sentence in taken:
        message = collector.process(reference)
        for word in sentence.split():
            queues.rpush("words", json.dumps([message.emit(), word]))
        message.ack()


def add_by_hand(queues: Any, collector: Collector, taken: Taken) -> None:
    """Add up equal words of the same attempt, send each sum as a message anchored to its words, then ack the words."""
    words = defaultdict[tuple[int, int, str], list[Message]](list)
    for reference, word in taken:
        with suppress(MessageError):  # Ignore a message of a replayed attempt.
            message = collector.process(reference)
            words[message.txid, message.attempt, word].append(message)
    for (_, _, word), (first, *others) in words.items():
        with suppress(MessageError):
            queues.rpush("sums", json.dumps([first.emit(*others), (word, 1 + len(others))]))
            for message in (first, *others):
                message.ack()


BOLTS: dict[str, tuple[str, int, Bolt]] = {
    "split": ("sentences", 1, basic(split)),
    "count": ("words", 1, basic(count)),
    "split_by_hand": ("sentences", 1, split_by_hand),
    "add_by_hand": ("words", 20, add_by_hand),
    "count_sums": ("sums", 1, basic(count_sum)),
}
"""The queue, the maximum number of messages to take at once, and the function of each bolt, by name."""


def main() -> None:
    """Process messages until the process is killed."""
    queue, most, bolt = BOLTS[sys.argv[1]]
    hold = int(sys.argv[2]) if len(sys.argv) > 2 else None
    url = os.environ["QUEUES"]
    queues: Any = Redis.from_url(url, decode_responses=True)
    taken = 0
    with Collector(url, topology="queued_words", interval=3600 if hold else 0.05) as collector:
        while hold is None or taken < hold:
            first = queues.blpop(queue, timeout=1)
            if first is None:
                continue
            found = [json.loads(text) for text in (first[1], *(queues.lpop(queue, most - 1) or ()))]
            try:
                bolt(queues, collector, found)
            except (MessageError, ValueError) as error:  # The attempt was replayed, or has just failed.
                print(error, file=sys.stderr)
            taken += len(found)
        queues.set("held", taken)
        time.sleep(3600)


if __name__ == "__main__":
    main()
