"""What an error says, and what is left of it where it is shortened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.base.errors import (
    EntryDiffers,
    EntryMissing,
    FailedBatch,
    FenceForeign,
    JournalError,
    LedgerBehind,
    NotTakenBack,
    PortionsLost,
    RollingForward,
    RowsRefused,
    SourceError,
    StateBehind,
    StateError,
    StateMissing,
    StateUnavailable,
    TxError,
)
from airflow_tx.base.remedy import shortened_reason, without_controls
from airflow_tx.transaction.commit.check import ChecksFailed

BEGIN = "Commit refused: the table has"
END = "Restore it, or repair: airflow tx repair flights --state-lost t"


def test_a_shortened_reason_loses_its_middle_and_keeps_the_failure_and_the_advice() -> None:
    found = shortened_reason(f"{BEGIN} {' '.join(f'column{number}' for number in range(100))}. {END}", 300)
    assert found.startswith(BEGIN)
    assert found.endswith(END)
    assert len(found) <= 300


@given(words=st.lists(st.text("abc", min_size=1, max_size=30), min_size=1), most=st.integers(40, 400))
def test_a_reason_is_cut_between_two_words(words: list[str], most: int) -> None:
    text = " ".join(words)
    found = shortened_reason(text, most)
    if len(text) <= most:
        assert found == text
        return
    assert len(found) <= most
    begin, _, end = found.partition(" ... ")
    # A single word that is longer than its part is cut all the same.
    assert text.startswith(f"{begin} ") or " " not in begin
    assert text.endswith(f" {end}") or " " not in end


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (SourceError(source="files. x", problem="a. b is gone", remedy="Bring a. b back."), "Bring a. b back."),
        (StateError(state="t", problem="it has other columns", remedy="Rename it."), "Rename it."),
        (
            StateMissing(txid=2, states="t. u"),
            "Put it back into the DAG until transaction 2 is committed, then remove it.",
        ),
        (FailedBatch("the file is broken. Look at it."), None),
        (TxError(message="Anything. At all."), None),
    ],
)
def test_the_advice_of_an_error_is_the_last_part_of_its_text(error: TxError, advice: str | None) -> None:
    assert (str(error.advice) if error.advice else None) == advice
    assert str(error).endswith(advice or "")
    assert f"{error.problem_text} {advice or ''}".strip() == str(error) or advice is None


class NotOfThisFile(TxError):
    template = ("Row no. {row} of St. Gallen is refused.", "Take it out, e. g. by hand.")


def test_all_sentences_of_an_error_template_after_the_first_are_advice() -> None:
    error = NotOfThisFile(row=7)
    assert error.problem_text == "Row no. 7 of St. Gallen is refused."
    assert str(error.advice) == "Take it out, e. g. by hand."
    assert str(error) == f"{error.problem_text} {error.advice}"


def test_the_advice_for_the_fence_of_another_ledger_lists_the_check_and_the_repair() -> None:
    error = FenceForeign(state="t", found="a", expected="b", topology="flights")
    assert str(error.advice).startswith("First check that its connection names the right ZooKeeper")
    assert "airflow tx repair flights --ledger-lost" in str(error.advice)


def test_a_text_loses_its_colors_and_control_characters_and_keeps_its_line_breaks() -> None:
    assert without_controls("\x1b[1;31mred\x1b[0m\tand\x00 [x]\nnext\r\u202eline") == "red and  [x]\nnext  line"


def test_the_remedy_of_an_error_quotes_its_topology_for_a_shell() -> None:
    error = FenceForeign(state="t", found="a", expected="b", topology="two words")
    assert "airflow tx repair 'two words' --ledger-lost" in str(error)
    assert "airflow tx repair 'two words' --ledger-lost" in str(error.advice)


def _all_of(kind: type[TxError]) -> Iterator[type[TxError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _all_of(each)


def test_only_a_permanent_refusal_of_rows_or_values_ends_a_restatement() -> None:
    assert ChecksFailed.of_values
    kinds = [each for each in _all_of(TxError) if each.__module__.startswith("airflow_tx.")]
    ending = {each for each in kinds if each.for_good and not each.__new__(each).repairable}
    assert ending == {RowsRefused, JournalError, EntryMissing, EntryDiffers, NotTakenBack, ChecksFailed}


@pytest.mark.parametrize("kind", [StateBehind, LedgerBehind, RollingForward, StateUnavailable, PortionsLost])
def test_a_refusal_that_a_repair_can_resolve_never_ends_a_restatement(kind: type[TxError]) -> None:
    assert kind.__new__(kind).repairable


@pytest.mark.parametrize("kind", [TxError, StateError])
def test_another_failure_ends_a_restatement_after_it_has_happened_too_often(kind: type[TxError]) -> None:
    assert not kind.__new__(kind).repairable
