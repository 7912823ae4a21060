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
        "In a lane over Redis, the commit of one transaction closed the connection over which the rows of the next one "
        "were read: that one left the lane, and became a run",
        "test_whoever_closes_the_source_for_himself_closes_it_for_nobody_else",
    ),
    Defect(
        "A `SqlSource` on a PostgreSQL that a network had swallowed waited for its answer for hours, and its "
        "coordinator or `begin` with it; a state gave up after half a minute",
        "test_a_server_that_a_network_has_swallowed_is_noticed_by_a_reader_too",
    ),
    Defect(
        "Two people wanted a transaction skipped, the second one while the first skip was under way: the ledger named "
        "the second one and the receipts of the states the first, and `airflow tx verify` told this as a finding",
        "test_a_skip_that_is_wanted_twice_is_told_as_the_states_were_told_it",
    ),
)
STUCK = (Stuck("seed 2", "TODO", "TODO"),)
