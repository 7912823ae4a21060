"""Writes the records of runs as tests/chaos/REPORT.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from tests.chaos.defects import DEFECTS, STUCK
from tests.chaos.record import Fault, Record, Rest

_CONCLUSION = """\
# Chaos test report

**{faults} faults, {rests} checks at rest. Wrong totals: {wrong}. Stuck topologies: {stuck}.**

In each check, every number was in each state exactly once and in order, or the table below counts it as wrong. A
topology counts as stuck if it does not come to rest in time. The second table has the causes. The runs found {defects}
defects of the product. Each defect is corrected and has a test: see [Defects](#defects).

`script/chaos` runs the test. `script/chaos --report FILE` writes this page from the records of runs.
"""
_METHOD = """\
## How it works

* **Faults.** The test kills, freezes and cuts off real processes at random while transactions run. Disks run full.
* **A person.** The test clears, triggers, backfills, skips, re-admits, replays and restates at random. The tasks have a
  bug, which the person corrects during the run.
* **Servers.** Real servers behind proxies that can be cut: three ZooKeepers, PostgreSQL, MariaDB, Redis, Kafka, Spark.
  Each ZooKeeper has a host of its own, which loses the others, its clients or both. Never are two cut off for long.
* **Topologies** (`tests/chaos/dags/under_fire.py`). They use manual runs, backfills, coordinators and lanes. Their
  sources are files, a table, a stream, a topic and data intervals, transactional and opaque. Their states are SQLite,
  PostgreSQL, MariaDB, Redis and Delta tables. One topology writes into two stores, and another one reads what the first
  has committed to a table.
* **Tasks.** They run in a whole Airflow (`--airflow`), whose components and database are killed and frozen, too. Or a
  little scheduler runs them: it gives tasks the same inputs as Airflow, and runs hundreds of them within minutes.
* **Checks.** Again and again the faults stop, and the test compares all states with the sources. Each number must be in
  each state exactly once and in order, as the newest transaction computes it. No transaction may be open, and no ack
  left. `airflow tx verify` must have no finding, before and after skipped transactions are re-admitted.

The first runs had one ZooKeeper, PostgreSQL and Redis, restated no transaction, and read no table of another topology.
"""


def written(records: Sequence[Record]) -> str:
    """Write the page of these runs."""
    runs = [(record, _last_rests(record)) for record in records]
    faults = [fault for record in records for fault in record.faults()]
    rests = [rest for _, own in runs for rest in own]
    wrong, stuck = sum(len(rest.wrong) for rest in rests), sum(len(rest.stuck) for rest in rests)
    found = {"faults": len(faults), "rests": len(rests), "wrong": wrong, "stuck": stuck, "defects": len(DEFECTS)}
    parts = [
        _CONCLUSION.format(**found),
        "## Runs\n",
        _table(
            ("run", "seeds", "tasks run in", "ZooKeepers", "faults", "at rest", "wrong", "stuck", "it ended"),
            [(number, *_run(record, own)) for number, (record, own) in enumerate(runs, 1)],
        ),
        "A run ends when it finds something. Faults after its last good check are not counted.\n",
        "## Runs that did not come to rest\n\n"
        "The numbers above leave out the faults after the last good check. Some runs were ended from outside.\n",
        _table(("run", "stuck", "cause"), [(each.run, each.what, each.cause) for each in STUCK]),
        "## Defects\n",
        _table(("defect", "test"), [(each.what, f"`{each.test}`") for each in DEFECTS]),
        _METHOD,
        "## Faults, and the time to recover\n\n"
        "Seconds from the end of a fault until every topology that it may have stopped has committed again. The\n"
        "machine had two cores, and 5 to 50 processes waited for them, most with a higher priority. Faults overlap.\n",
        _table(("victim", "how", "faults", "median", "worst"), _by_victim(faults)),
        "## Faults by moment\n\nA point in the code, or the task and the phase of the transaction whose turn it was.\n",
        _table(("moment", "faults"), Counter(fault.moment for fault in faults).most_common()),
        "## Checks at rest\n",
        _table(
            (
                "run",
                "after faults",
                "numbers counted",
                "transactions",
                "attempts",
                "skipped",
                "restatements",
                "wrong",
                "stuck",
                "s to rest",
            ),
            [(number, *_rest(rest)) for number, (_, own) in enumerate(runs, 1) for rest in own],
        ),
    ]
    return "\n".join(parts)


def _last_rests(record: Record) -> list[Rest]:
    """Each rest of a run, but for one that a part that was done again came to."""
    rests = record.rests()
    return [
        rest for index, rest in enumerate(rests) if index + 1 == len(rests) or rests[index + 1].faults > rest.faults
    ]


def _run(record: Record, rests: Sequence[Rest]) -> tuple[object, ...]:
    parts = list(record.lines("part"))
    tasks = "a whole Airflow" if any(part.get("airflow") for part in parts) else "the little scheduler"
    seeds = ", ".join(dict.fromkeys(str(part["seed"]) for part in parts))
    found = (sum(len(rest.wrong) for rest in rests), sum(len(rest.stuck) for rest in rests))
    zookeepers = max((part.get("zookeepers", 1) for part in parts), default=1)
    ended = "; then ".join(end["why"].partition("(")[0] for end in record.lines("end")) or "not recorded"
    return (seeds, tasks, zookeepers, len(record.faults()), len(rests), *found, ended)


def _rest(rest: Rest) -> tuple[object, ...]:
    counts = (rest.faults, rest.numbers, rest.transactions, rest.attempts, rest.skipped, rest.restated)
    return (*counts, len(rest.wrong), len(rest.stuck), f"{rest.seconds:.0f}")


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
