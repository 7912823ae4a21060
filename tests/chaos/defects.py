"""What runs have found: defects, each with the test that keeps it from coming back, and what ended stuck."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defect:
    """One defect of the product.

    :param what: what went wrong, for whoever used it.
    :param test: the name of its test.
    """

    what: str
    test: str


@dataclass(frozen=True)
class Stuck:
    """A run that did not come to rest.

    :param what: which topologies had still to count something.
    """

    run: str
    what: str
    cause: str


DEFECTS = (
    Defect(
        "In a lane over Redis, the commit of one transaction closed the connection over which the next one read its "
        "rows. The next one left the lane and became a run",
        "test_closing_a_source_in_one_thread_does_not_affect_another_thread",
    ),
    Defect(
        "A `SqlSource` on a PostgreSQL behind a broken network waited for its answer for hours, and its coordinator or "
        "`begin` with it. A state gave up after half a minute",
        "test_a_reader_sets_keepalives_and_timeouts_to_detect_an_unreachable_server",
    ),
    Defect(
        "Two people asked to skip a transaction, the second one during the first skip: the ledger named the second "
        "person and the receipts of the states the first. `airflow tx verify` reported a finding",
        "test_the_receipt_of_a_skip_that_is_requested_twice_has_the_second_person_and_reason",
    ),
    Defect(
        "A coordinator with a `linger` shorter than the pause of its trigger was woken for each batch, did not ask the "
        "source, and ended. No transaction was allocated any more. The pause is 5 s for a `SqlSource` on a slow "
        "machine, and 30 s for a source that only a task can ask",
        "test_a_batch_that_the_trigger_has_found_is_allocated_without_another_wait_for_the_source",
    ),
    Defect(
        "A person asked to skip a transaction while it was committed to a state that cannot undo, and its committer "
        "died. The skip was refused, but stayed noted. So each clear and each replay by a coordinator was refused, "
        "until a person replayed that transaction by its number",
        "test_a_refused_skip_is_withdrawn_and_the_cleared_run_is_replayed",
    ),
    Defect(
        "A transaction over a Delta table was to be skipped. Its own `begin`, which its coordinator replayed, and the "
        "committer of the next transaction took the skip from each other in turn, before either could finish",
        "test_a_process_that_is_outranked_during_a_skip_waits_for_the_other_process_to_finish_it",
    ),
)
STUCK = (
    Stuck(
        "seed 1, a whole Airflow",
        "`rows` and `files`, after 20 faults",
        "`rows`: most likely the fourth defect, found by seed 31, which looked the same. `files`: the test "
        "itself, which triggered it without end; corrected",
    ),
    Stuck(
        "seed 31, a whole Airflow",
        "`rows`, after 20 faults, for eight minutes",
        "the fourth defect. It came to rest when the scheduler was killed by hand, and a new one had the "
        "corrected coordinator. 20 faults later its time was over before the next check",
    ),
    Stuck(
        "seed 2, a mutant (not counted here)",
        "`rows`, after 80 faults",
        "not proven: a coordinator lived on for six minutes, perhaps by the second defect, not yet corrected there",
    ),
    Stuck(
        "seed 3, its second part",
        "two topologies, after 301 faults",
        "the test itself: it took 240 s without a move for stuck, and on a busy machine a process takes seconds to "
        "start. Now it counts started processes, too. Repeated on an equally busy machine, it was at rest within 325 s",
    ),
    Stuck(
        "seed 7",
        "no rest after 48 faults",
        "it was ended from outside: its first check was due after 50. Repeated, it was at rest after 50 and 100, "
        "within 12 and 26 s",
    ),
    Stuck("seed 55", "`files`, after 60 faults", "the fifth defect"),
    Stuck(
        "seed 100",
        "nothing, after 302 faults; then `sparked`, after 501",
        "first its disks were unmounted from outside, so that the judge had no answer; then the sixth defect",
    ),
    Stuck("seed 23", "no rest", "its time was over on a shared machine"),
)
