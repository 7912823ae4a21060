"""Every GET of the page, on a topology of every kind and three of its transactions."""

from __future__ import annotations

import pytest

from tests.integration.kinds.answers import check_filled_by_page, check_got
from tests.integration.kinds.ledger import Ledger
from tests.integration.kinds.topologies import KINDS, Kind


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_get_route_of_the_page_returns_the_declared_response_type(ledger: Ledger, kind: Kind) -> None:
    check_got(ledger.got(kind))


def test_a_field_that_is_filled_for_one_kind_of_topology_is_filled_for_every_kind(ledger: Ledger) -> None:
    check_filled_by_page(ledger, KINDS)
