"""Every GET of the page, on a topology of every kind and three of its transactions."""

from __future__ import annotations

import pytest

from tests.integration.kinds.answers import check_filled_by_page, check_got
from tests.integration.kinds.ledger import Ledger
from tests.integration.kinds.topologies import KINDS, Kind


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_get_route_of_the_page_answers_as_declared(ledger: Ledger, kind: Kind) -> None:
    check_got(ledger.got(kind))


def test_no_topology_has_an_empty_field_that_other_kinds_of_topologies_fill(ledger: Ledger) -> None:
    check_filled_by_page(ledger, KINDS)
