"""Tells the record of a run as docs/chaos.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from tests.chaos.defects import DEFECTS
from tests.chaos.record import Fault, Record

_HEAD = """\
# A thousand kills

Real processes are killed, frozen and cut off at random while transactions run, and a person clears, triggers, skips,
re-admits and replays what there is. Again and again the world comes to rest, and everything is compared with what the
sources were given: each number is in each state exactly once and in order, no transaction is open, no ack is
left, and `airflow tx verify` has no finding, first with what is skipped left out, then with all of it re-admitted.

`script/chaos` does it; this page is its record, by `script/chaos --report`. The servers are real ones, reached through
proxies that cut them off: ZooKeeper, PostgreSQL, Redis. Four topologies (`tests/chaos/dags/under_fire.py`) go by runs
that a person triggers, by runs of a coordinator, and by lanes; over files, a table and a stream, transactional and
opaque; into SQLite, PostgreSQL and Redis, one of them into two stores at once. Their tasks are processes of a whole
Airflow (`--airflow`: its components and its database are killed and frozen, too), or of a little scheduler that gives
them what Airflow gives, and hundreds of them within minutes.
"""


def written(record: Record) -> str:
    """Write the page."""
    faults, rests = record.faults(), record.rests()
    last = [
        rest for index, rest in enumerate(rests) if index + 1 == len(rests) or rests[index + 1].faults > rest.faults
    ]
    parts = [
        _HEAD,
        f"{len(faults)} faults, {len(last)} times at rest. **Wrong totals: {sum(len(rest.wrong) for rest in last)}; "
        f"stuck topologies: {sum(len(rest.stuck) for rest in last)}.**\n",
        _table(("from fault", "seed", "tasks are those of"), _parts(record)),
        "## Faults, and the time to recover\n\nFrom the end of a fault until every topology that it may have stopped\n"
        "has committed again, in seconds. The machine was shared: two cores, for which 15 to 50\n"
        "processes were waiting, most of them with more right to them; and faults come one upon the other.\n",
        _table(("victim", "how", "faults", "median", "worst"), _by_victim(faults)),
        "## By moment\n\nA point in the code, or the task and the phase of the transaction whose turn it was.\n",
        _table(("moment", "faults"), Counter(fault.moment for fault in faults).most_common()),
        "## At rest\n",
        _table(
            ("after faults", "numbers counted", "transactions", "attempts", "skipped", "wrong", "stuck", "s to rest"),
            [
                (
                    rest.faults,
                    rest.numbers,
                    rest.transactions,
                    rest.attempts,
                    rest.skipped,
                    len(rest.wrong),
                    len(rest.stuck),
                    f"{rest.seconds:.0f}",
                )
                for rest in last
            ],
        ),
        "## Defects found on the way\n",
        _table(("what went wrong", "its test"), [(each.what, f"`{each.test}`") for each in DEFECTS])
        if DEFECTS
        else "None.\n",
    ]
    return "\n".join(parts)


def _parts(record: Record) -> list[tuple[object, ...]]:
    """The parts of the run that came to a rest."""
    found = {part["first"]: part for part in record.lines("part") if part["first"] < record.rested}
    return [
        (first + 1, part["seed"], "a whole Airflow" if part.get("airflow") else "the little scheduler")
        for first, part in sorted(found.items())
    ]


def _by_victim(faults: Sequence[Fault]) -> list[tuple[object, ...]]:
    found: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        found.setdefault((fault.victim, fault.how), []).append(fault)
    rows = list[tuple[object, ...]]()
    for (victim, how), own in sorted(found.items()):
        times = [fault.recovered for fault in own if fault.recovered is not None]
        shown = (f"{median(times):.1f}", f"{max(times):.1f}") if times else ("at rest", "at rest")
        rows.append((victim, how, len(own), *shown))
    return rows


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"
