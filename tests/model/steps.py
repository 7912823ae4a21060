"""What walks are made of: a topology with what its tasks give, and steps, each of which can be taken in any world."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from airflow_tx.sources.api import Batch, Json, SourceKind
from tests.unit.bench import Numbers

Rows = list[dict[str, Any]]


class Log(Numbers):
    """Three numbers a transaction, and there are always more."""

    def __init__(self, kind: str) -> None:
        self.kind = SourceKind(kind)

    def initialize_transaction(self, txid: int, position: Json) -> Batch:
        first = position if isinstance(position, int) else 0
        return Batch(metadata=[first, first + 3], position=first + 3)


def outputs(numbers: Sequence[int], version: int) -> dict[str, Rows]:
    """What a version of the job makes of a batch, by output."""
    sums: dict[str, Counter[str]] = {}
    for number in numbers:
        if version % 3 == 1 and number % 2:
            continue
        for key in (f"w{number}", "all", f"m{number % 3}", *((f"v{version}",) if version % 2 else ())):
            sums.setdefault(key, Counter()).update({"n": (number + 1) * version, "c": 1})
    if version % 5 == 0:
        sums = {}
    kept = [number for number in numbers if (number + version) % 4]
    return {
        "sums": [{"word": key, **sums[key]} for key in sorted(sums)],
        "others": [{"word": key, "n": sums[key]["n"] - 5} for key in sorted(sums) if key[0] != "m"],
        "tops": [{"word": key, "m": sums[key]["n"]} for key in sorted(sums) if key[0] == "w"],
        "rows": [{"i": number, "v": version, "t": f"x{number}" if number % 3 else None} for number in kept],
    }


@dataclass(frozen=True)
class Setting:
    """What a walk is about.

    :param source: and `state`: their kinds; `second`: what the second state adds up.
    :param shared: whether both states are in one database; `ledger_lost`: whether the ledger is lost, too.
    :param table_first: whether the DAG names the table before the states.
    """

    source: str = "opaque"
    state: str = "opaque"
    second: str = "sum"
    shared: bool = False
    ledger_lost: bool = False
    table_first: bool = False


class Step(NamedTuple):
    name: str
    a: int
    b: int

    @classmethod
    def of(cls, text: str) -> Step:
        """Read what `str` gives."""
        name, a, b = text.split(" ")
        return cls(name.replace("-", " "), int(a), int(b))

    def __str__(self) -> str:
        return f"{self.name.replace(' ', '-')} {self.a} {self.b}"


STEPS = {
    "begin": 16,
    "process": 12,
    "commit": 26,
    "turn": 12,
    "cut": 5,
    "skip": 4,
    "readmit": 2,
    "restate": 8,
    "late": 3,
    "keep": 8,
    "put back": 7,
    "values back": 2,
    "rows lost": 1,
    "lose": 1,
    "roll": 3,
    "accept": 1,
    "edit": 2,
    "ledger lost": 1,
    "entry lost": 1,
}


def steps_of(seed: int, length: int, more: Mapping[str, int] = MappingProxyType({})) -> list[Step]:
    rnd = random.Random(seed)
    weights = {**STEPS, **more}
    names = rnd.choices([*weights], weights=[*weights.values()], k=length)
    return [Step(name, rnd.randrange(1000), rnd.randrange(1000)) for name in names]
