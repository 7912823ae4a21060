"""Tweets in Redis, in the format of the Storm book, written while they are read, and their expected counts."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from tests.servers.redis import LocalRedis

Counts: TypeAlias = dict[str, Counter[str]]
"""Counts, by hash and field."""

USERS = [f"@{name}" for name in ("ann", "bob", "cem", "dora", "eli", "fay", "gus")]
HASHTAGS = [f"#{name}" for name in ("storm", "redis", "spark", "airflow", "zookeeper")]
WORDS = ["counted", "once", "a", "bolt", "said", "hello", "to", ""]


class TweetWriter:
    """Writes tweets to the databases of a server, one after the other, and remembers every tweet.

    A killed server may have stored tweets without responding, so the same write is repeated.

    :param databases: the numbers of the databases.
    """

    def __init__(self, server: LocalRedis, databases: Sequence[int], *, seed: int = 8) -> None:
        self.written: dict[int, list[str]] = {database: [] for database in databases}
        self._server = server
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        for database in databases:
            server.client(database).set("NEXT_WRITE", 1)

    def write(self, count: int) -> None:
        """Write `count` tweets into each database."""
        for database, tweets in self.written.items():
            new = [self._tweet() for _ in range(count)]
            first = len(tweets) + 1
            # No other client writes these keys, so repeating a write is safe.
            messages = {str(first + index): tweet for index, tweet in enumerate(new)}
            self._persist(database, {**messages, "NEXT_WRITE": str(first + count)})
            tweets.extend(new)

    def go_on(self, count: int, every: float) -> None:
        """Write `count` tweets into each database every `every` seconds, until `stop`."""
        self._thread = threading.Thread(target=self._work, args=(count, every), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop writing."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def counts(self) -> Counts:
        """Return the expected counts of all written tweets."""
        return counted(tweet for tweets in self.written.values() for tweet in list(tweets))

    def _work(self, count: int, every: float) -> None:
        while not self._stop.wait(every):
            self.write(count)

    def _persist(self, database: int, values: dict[str, str]) -> None:
        from redis.exceptions import RedisError

        while True:
            try:
                self._server.client(database).mset(values)
                return
            except (RedisError, OSError):
                self._stop.wait(0.2)

    def _tweet(self) -> str:
        some = self._random.choices(USERS, k=self._random.randint(0, 3))
        some += self._random.choices(HASHTAGS, k=self._random.randint(0, 3))
        some += self._random.choices(WORDS, k=self._random.randint(1, 5))
        self._random.shuffle(some)
        return " ".join(some)


def counted(tweets: Iterable[str]) -> Counts:
    """Compute the book's three counts directly, without Spark, Airflow or transactions."""
    users, hashtags, both = Counter[str](), Counter[str](), Counter[str]()
    for tweet in tweets:
        words = set(tweet.split(" "))
        named = [word for word in words if word.startswith("@")]
        tagged = [word for word in words if word.startswith("#")]
        users.update(named)
        hashtags.update(tagged)
        both.update(f"{user}:{hashtag}" for user in named for hashtag in tagged)
    return {"users": users, "hashtags": hashtags, "users_hashtags": both}


def guarded(server: LocalRedis, prefix: str) -> Counts:
    """Return the counts that a guarded committer has written to three hashes."""
    client = server.client()

    def hash_of(name: str) -> Counter[str]:
        found: dict[bytes, Any] = client.hgetall(f"{prefix}:{name}")
        return Counter({field.decode(): int(n) for field, n in found.items()})

    return {name: hash_of(name) for name in ("users", "hashtags", "users_hashtags")}
