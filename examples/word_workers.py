"""A worker of dags/queued_words.py: a plain process with Redis, without Airflow.

Usage: QUEUES=redis://:password@host:port/0 python examples/word_workers.py BOLT [HOLD]

`split` makes words of sentences, `count` counts them, per attempt: Storm's BasicBolts. `split_by_hand` and
`add_by_hand` anchor and ack by hand: the latter adds up the words that it has, sends each sum to `count_sums` as a
message made of all of them, and only then acks them. With HOLD a worker takes so many messages, and then stands still
before any acker knows: to be killed.
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
"""Seconds for which the counts of an attempt are kept."""
ONCE = "a worker has to fail once"
"""A key that a test sets."""

Taken: TypeAlias = list[tuple[str, Any]]
"""References and values of messages."""
Bolt: TypeAlias = Callable[[Any, Collector, Taken], None]


# --- BasicBolts: a message is acked when its function returns, and failed if that raises an error


def basic(function: Callable[[Any, Message, Any], None]) -> Bolt:
    """Make a BasicBolt of a function."""

    def bolt(queues: Any, collector: Collector, taken: Taken) -> None:
        for reference, value in taken:
            with collector.process(reference) as message:
                function(queues, message, value)

    return bolt


def split(queues: Any, message: Message, sentence: str) -> None:
    """Storm's SplitSentence: a message for each word, anchored to the message of the sentence."""
    for word in sentence.split():
        queues.rpush("words", json.dumps([message.emit(), word]))


def count(queues: Any, message: Message, word: str, times: int = 1) -> None:
    """Storm's WordCount."""
    if queues.delete(ONCE):
        raise ValueError(f"no count for {word!r} this time")
    key = f"counts:{message.txid}.{message.attempt}"
    queues.hincrby(key, word, times)
    queues.expire(key, KEPT)


def count_sum(queues: Any, message: Message, found: tuple[str, int]) -> None:
    """The same of a word that came several times."""
    count(queues, message, *found)


# --- by hand


def split_by_hand(queues: Any, collector: Collector, taken: Taken) -> None:
    """SplitSentence without BasicBolt."""
    for reference, sentence in taken:
        message = collector.process(reference)
        for word in sentence.split():
            queues.rpush("words", json.dumps([message.emit(), word]))
        message.ack()


def add_by_hand(queues: Any, collector: Collector, taken: Taken) -> None:
    """An aggregation: acks are delayed, and what it emits has several anchors, all of one attempt."""
    words = defaultdict[tuple[int, int, str], list[Message]](list)
    for reference, word in taken:
        with suppress(MessageError):  # of an attempt that was replayed; the others count
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
"""By name: its queue, how many messages it takes at once at most, and what it does with them."""


def main() -> None:
    """Work until the process is killed."""
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
            except (MessageError, ValueError) as error:  # of an attempt that was replayed; or it has failed the attempt
                print(error, file=sys.stderr)
            taken += len(found)
        queues.set("held", taken)
        time.sleep(3600)


if __name__ == "__main__":
    main()
