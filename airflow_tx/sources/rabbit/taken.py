"""Messages that were taken from a queue, in the staging area: until their transaction is committed they are only there.

::

    <root>/@taken/<queue>/messages/<number>/<random>   the messages of a batch that begins at this number
    <root>/@taken/<queue>/ids/<number>/<random>        digests of the last ids before this number
    <root>/@taken/<queue>/committed/<txid>/<number>    the batch at this number is committed

The root belongs to one incarnation of a topology. So a renamed topology keeps what it has taken, and another ledger
with the same names does not find it. Nothing is overwritten, and only what the ledger names counts: two processes may
stage at one number.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from uuid import uuid4

from airflow_tx.staging.area import TAKEN, quoted
from airflow_tx.staging.files import open_files

DIGEST_SIZE = 16


@dataclass(frozen=True)
class QueueMessage:
    """A message of a queue.

    :param message_id: "" if the publisher has set none.
    :param headers: as JSON.
    """

    message_id: str
    routing_key: str
    headers: str
    body: bytes

    def identity(self, by: str) -> bytes:
        """Digest the identity of a message: its id, or for "content" the whole message."""
        own = json.loads(self.headers)
        parts = [self.message_id.encode()]
        if by == "content":
            # What brokers add differs from one delivery to the next.
            kept = {name: value for name, value in own.items() if not name.startswith("x-")}
            parts = [
                self.routing_key.encode(),
                json.dumps(kept, sort_keys=True).encode(),
                self.body,
            ]
        digest = blake2b(digest_size=DIGEST_SIZE)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()


def read_taken(uri: str) -> list[QueueMessage]:
    """Read the messages that `TakenMessages.stage` has staged.

    :raises FileNotFoundError: they are not there.
    """
    folder, _, name = uri.rpartition("/")
    lines = map(json.loads, open_files(folder).read(name).splitlines())
    return [QueueMessage(id_, key, headers, b64decode(body)) for id_, key, headers, body in lines]


def is_staged(uri: str) -> bool:
    """Ask whether a file of the staging area is there."""
    folder, _, name = uri.rpartition("/")
    return name in open_files(folder).list("")


def read_ids(uri: str) -> dict[bytes, None]:
    """Read the digests that `TakenMessages.stage` has staged, in their order.

    :raises FileNotFoundError: they are not there.
    """
    folder, _, name = uri.rpartition("/")
    content = open_files(folder).read(name)
    return dict.fromkeys(
        content[at : at + DIGEST_SIZE] for at in range(0, len(content), DIGEST_SIZE)
    )


class TakenMessages:
    """The messages that a topology has taken from one queue.

    :param root: of the staging area of the topology.
    """

    def __init__(self, root: str, queue: str) -> None:
        self._files = open_files(root)
        self._folder = f"{TAKEN}/{quoted(queue)}"

    def stage(self, number: int, messages: Sequence[QueueMessage]) -> str:
        """Stage the messages of a batch that begins at this number; returns their URI."""
        # No Parquet: to load what writes it takes `begin` longer than all else that it does.
        lines = [
            json.dumps(
                [each.message_id, each.routing_key, each.headers, b64encode(each.body).decode()]
            )
            for each in messages
        ]
        return self._write(f"messages/{number}/{uuid4().hex}", "\n".join(lines).encode())

    def stage_ids(self, number: int, ids: Iterable[bytes]) -> str:
        """Stage the digests of the last ids before this number; returns their URI."""
        return self._write(f"ids/{number}/{uuid4().hex}", b"".join(ids))

    def left(self, number: int) -> list[QueueMessage]:
        """Read what is staged from this number on, where the ledger stands: no transaction has it."""
        done = {
            start
            for txid in self._numbers("committed")
            for start in self._numbers(f"committed/{txid}")
        }
        found = list[QueueMessage]()
        for at in self._numbers("messages"):
            if at >= number and at not in done:
                folder = f"{self._folder}/messages/{at}"
                for name in sorted(self._files.list(folder)):
                    found += read_taken(self._files.uri(f"{folder}/{name}"))
        return found

    def note_committed(self, txid: int, number: int) -> None:
        """Note that a transaction is committed which has the batch at this number."""
        self._write(f"committed/{txid}/{number}", b"")

    def remove_before(self, txid: int) -> None:
        """Remove the batches of committed transactions before `txid`; of a skipped one they stay, to be re-admitted."""
        for each in self._numbers("committed"):
            if each >= txid:
                continue
            for number in self._numbers(f"committed/{each}"):
                self._remove(f"messages/{number}")
                for at in self._numbers("ids"):
                    # A rebuilt ledger may begin this very transaction again.
                    if at < number:
                        self._remove(f"ids/{at}")
            self._remove(f"committed/{each}")

    def _numbers(self, folder: str) -> list[int]:
        return sorted(
            int(name) for name in self._files.list(f"{self._folder}/{folder}") if name.isdecimal()
        )

    def _write(self, name: str, content: bytes) -> str:
        self._files.write(f"{self._folder}/{name}", content)
        return self._files.uri(f"{self._folder}/{name}")

    def _remove(self, name: str) -> None:
        self._files.remove_tree(f"{self._folder}/{name}")
