"""Functions that wait for a condition in tests. Tests never wait for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from airflow_tx.testing.deadline import Deadline

T = TypeVar("T")
# The minimum pause, as a multiple of the check's duration, so that checks do not load a busy
# machine.
_PAUSE = 12
_LONGEST_PAUSE = 3.0


class NotInTime(AssertionError):
    """The condition has not become true in time."""


class Hopeless(AssertionError):
    """The condition can no longer become true. A check raises this error to stop the wait."""


def eventually(
    check: Callable[[], T],
    timeout: float,
    what: str,
    *,
    interval: float = 0.1,
    explain: Callable[[], str] | None = None,
) -> T:
    """Call `check` until its result is true, and return the result.

    :param check: a function without side effects. If it raises an exception, it is called again.
    :param timeout: the longest time to wait, in seconds. Time in which the processes of this test wait for a processor
        does not count.
    :param what: the condition for the message, such as "run r1 has ended".
    :param interval: the minimum number of seconds between two calls. Slow calls have longer pauses.
    :param explain: a function that is called once after the timeout, and whose result is added to the message
    :raises NotInTime: the result was never true. The message contains the last result or error.
    :raises Hopeless: `check` has raised it.
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
