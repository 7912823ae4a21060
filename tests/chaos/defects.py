"""What runs have found, each with the test that keeps it from coming back."""

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


DEFECTS: tuple[Defect, ...] = ()
