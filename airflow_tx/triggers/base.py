"""What the triggers share: one ZooKeeper client and two threads for each connection, and the shortest deferral.

Airflow fails a deferred task that is woken before the scheduler has seen the end of its first leg, so a trigger holds
it for a while whatever happens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

from airflow_tx.errors import StoreError, UnreadableRecord
from airflow_tx.protocol.api import Store
from airflow_tx.triggers.run_slots import SlotWatch

Event = dict[str, Any]
"""What a trigger wakes its task with: plain JSON."""

# Between two looks; a look is a few reads on a client that all triggers share.
POLL = 1.0

log = logging.getLogger(__name__)


@cache
def _threads(conn_id: str) -> ThreadPoolExecutor:
    """For all looks at the ledgers of one connection, so that an ensemble that is away holds up only its own.

    The default executor of the event loop serves the triggers of everybody.
    """
    return ThreadPoolExecutor(max_workers=2, thread_name_prefix=f"airflow_tx-trigger-{conn_id}")


async def until(
    look: Callable[[Store], Event | None],
    conn_id: str,
    *,
    hold: float,
    poll: float = POLL,
    slots: SlotWatch | None = None,
) -> Event:
    """Ask `look` in a thread, again and again, until it answers; not before `hold` seconds have passed.

    A ledger that cannot be reached is no answer: the task would only fail for it. One that is damaged or deleted does
    not mend itself: the task is woken, and meets the error.

    :param look: reads the ledger; blocking.
    :param slots: asked besides, whether the run is to yield.
    """

    async def ask(question: Callable[[Store], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(_threads(conn_id), partial(_ask, question, conn_id))

    await asyncio.sleep(hold)
    told = False
    while True:
        try:
            answer: Event | None = await ask(look)
            if answer is None and slots is not None:
                answer = await slots.look(ask)
            told = False
        except UnreadableRecord as error:
            answer = {"reason": str(error)}
        except StoreError as error:
            answer = None
            if not told:
                log.warning("%s This task goes on waiting.", error)
            told = True
        if answer is not None:
            return answer
        await asyncio.sleep(poll)


def _ask(question: Callable[[Store], Any], conn_id: str) -> Any:
    from airflow_tx.hooks.zookeeper import shared_store

    return question(shared_store(conn_id))
