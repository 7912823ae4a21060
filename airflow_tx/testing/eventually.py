"""Waiting in tests: for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from airflow_tx.testing.deadline import Deadline

T = TypeVar("T")
# On a busy machine a check takes long. The pause is this many times longer, so that checks do not keep it busy.
_PAUSE = 12
_LONGEST_PAUSE = 3.0


class NotInTime(AssertionError):
    """A condition that did not come true in time."""


class Hopeless(AssertionError):
    """Raised by a check when waiting makes no sense any more."""


def eventually(
    check: Callable[[], T],
    timeout: float,
    what: str,
    *,
    interval: float = 0.1,
    explain: Callable[[], str] | None = None,
) -> T:
    """Call `check` until its answer is true, and return that answer.

    :param check: a question without side effects; what it raises counts as "not yet".
    :param timeout: seconds, without those in which the processes of this test waited for a processor.
    :param what: what is waited for, for the message: "run r1 has ended".
    :param interval: seconds between two calls at least; more if a call takes long.
    :param explain: asked once when time is up; its text goes below the message.
    :raises NotInTime: it stayed false; says the last answer or error.
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
        except Exception as error:  # noqa: BLE001 - what a check raises means "not yet"
            last = f"the last call raised {type(error).__name__}: {error}"
            cause = error
        if deadline.left() <= 0:
            told = f"\n{explain()}" if explain else ""
            raise NotInTime(f"not within {timeout:g} s: {what}; {last}{told}") from cause
        time.sleep(max(interval, min(_PAUSE * (time.monotonic() - began), _LONGEST_PAUSE)))
