"""Wait in tests for a condition, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from airflow_tx.testing.deadline import Deadline

T = TypeVar("T")
# Factor by which a pause is longer than the check, so that checks do not load a busy machine.
_PAUSE = 12
_LONGEST_PAUSE = 3.0


class NotInTime(AssertionError):
    """The condition was not true in time."""


class Hopeless(AssertionError):
    """Raised by a check to end the wait, because the condition can no longer become true."""


def eventually(
    check: Callable[[], T],
    timeout: float,
    what: str,
    *,
    interval: float = 0.1,
    explain: Callable[[], str] | None = None,
) -> T:
    """Call `check` until its result is true, and return the result.

    :param check: function without side effects; an exception counts as "not yet".
    :param timeout: seconds, without the time in which the processes of this test waited for a processor.
    :param what: the condition, for the message, such as "run r1 has ended".
    :param interval: least seconds between two calls; the pause is longer if a call takes long.
    :param explain: called once when the time is over; its text is added to the message.
    :raises NotInTime: the result stayed false; the message has the last result or error.
    :raises Hopeless: `check` raised it.
    """
    deadline = Deadline(timeout)
    while True:
        began = time.monotonic()
        try:
            answer = check()
            if answer:
                return answer
            last = f"the last answer was {answer!r}"
            cause = None
        except Hopeless as error:
            raise Hopeless(f"{what}: {error}" + (f"\n{explain()}" if explain else "")) from None
        except Exception as error:  # noqa: BLE001 - an exception of a check means "not yet"
            last = f"the last call raised {type(error).__name__}: {error}"
            cause = error
        if deadline.left() <= 0:
            told = f"\n{explain()}" if explain else ""
            raise NotInTime(f"not within {timeout:g} s: {what}; {last}{told}") from cause
        time.sleep(max(interval, min(_PAUSE * (time.monotonic() - began), _LONGEST_PAUSE)))
