"""Whether a committer waits in its worker or gives its slot back."""

from __future__ import annotations

import pytest

from airflow_tx.commit.turn import Earlier, Wait, WaitingLine
from airflow_tx.protocol.records import Phase


def line(txid: int, current: int, **ready: bool) -> WaitingLine:
    earlier = {int(name[1:]): Earlier(int(name[1:]), name, Phase.PROCESSING, each) for name, each in ready.items()}
    return WaitingLine(txid, current, "op", Phase.PROCESSED, earlier)


@pytest.mark.parametrize("current", [5, 6])
def test_the_transaction_whose_turn_it_is_does_not_wait(current: int) -> None:
    assert line(5, current).wait is Wait.NOT


def test_the_next_two_in_line_wait_in_their_worker_when_all_before_them_only_have_to_commit() -> None:
    assert line(5, 4, t4=True).wait is Wait.WARM
    assert line(5, 3, t3=True, t4=True).wait is Wait.WARM


def test_nobody_holds_a_worker_slot_while_an_earlier_transaction_may_need_one() -> None:
    assert line(5, 4, t4=False).wait is Wait.DEFERRED
    assert line(5, 3, t3=True, t4=False).wait is Wait.DEFERRED


def test_the_third_in_line_defers_itself_whatever_the_others_do() -> None:
    assert line(5, 2, t2=True, t3=True, t4=True).wait is Wait.DEFERRED


def test_a_transaction_that_became_final_while_the_line_was_read_stops_nobody() -> None:
    assert line(5, 3, t4=True).wait is Wait.WARM
