"""Tells the records of runs as docs/chaos.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from tests.chaos.defects import DEFECTS, STUCK
from tests.chaos.record import Fault, Record, Rest

_HEAD = """\
# Under fire

Real processes are killed, frozen and cut off at random while transactions run, disks run full, and a person clears,
triggers, backfills, skips, re-admits and replays what there is. The tasks have a bug: the person mends it, and has
committed transactions restated, some of them again and again. Again and again the world comes to rest, and everything
is compared with what the sources were given: each number is in each state exactly once and in order, as the newest
transaction that has counted it computes it, no transaction is open, no ack is left, and `airflow tx verify` has no
finding, first with what is skipped left out, then with all of it re-admitted.

`script/chaos` does it, and makes this page of its records (`--report`). The servers are real ones, reached through
proxies that cut them off: three ZooKeepers, each on a host of its own that loses the others, its clients or all of
them (never two for long); PostgreSQL, MariaDB, Redis, Kafka, Spark. The topologies (`tests/chaos/dags/under_fire.py`)
go by runs that a person triggers or backfills, by runs of a coordinator, and by lanes; over files, a table, a stream, a
topic and data intervals, transactional and opaque; into SQLite, PostgreSQL, MariaDB, Redis and Delta, one of them into
two stores at once. Their tasks are processes of a whole Airflow (`--airflow`: its components and its database are
killed and frozen, too), or of a little scheduler that gives them what Airflow gives, and hundreds of them within
minutes. The first runs had fewer of these: one ZooKeeper, PostgreSQL and Redis; and nothing was restated.
"""


def written(records: Sequence[Record]) -> str:
    """Write the page of these runs."""
    runs = [(record, _last_rests(record)) for record in records]
    faults = [fault for record in records for fault in record.faults()]
    rests = [rest for _, own in runs for rest in own]
    parts = [
        _HEAD,
        f"{len(faults)} faults, {len(rests)} times at rest. **Wrong totals: {sum(len(rest.wrong) for rest in rests)}; "
        f"stuck topologies: {sum(len(rest.stuck) for rest in rests)}.**\n",
        _table(
            ("run", "seeds", "tasks are those of", "ZooKeepers", "faults", "at rest", "wrong", "stuck", "it ended"),
            [(number, *_run(record, own)) for number, (record, own) in enumerate(runs, 1)],
        ),
        "A run ends where it finds something, and the faults since its last good rest are not counted. What ended "
        "stuck, or was ended from outside because nothing moved on, which the numbers above do not count:\n",
        _table(("run", "what was stuck", "cause"), [(each.run, each.what, each.cause) for each in STUCK]),
        "## Faults, and the time to recover\n\nFrom the end of a fault until every topology that it may have stopped\n"
        "has committed again, in seconds. The machine was shared: two cores, for which 5 to 50\n"
        "processes were waiting, most of them with more right to them; and faults come one upon the other.\n",
        _table(("victim", "how", "faults", "median", "worst"), _by_victim(faults)),
        "## By moment\n\nA point in the code, or the task and the phase of the transaction whose turn it was.\n",
        _table(("moment", "faults"), Counter(fault.moment for fault in faults).most_common()),
        "## At rest\n",
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
        "## Defects found on the way\n",
        _table(("what went wrong", "its test"), [(each.what, f"`{each.test}`") for each in DEFECTS]),
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
    ended = "; then ".join(end["why"].partition("(")[0] for end in record.lines("end")) or "not told"
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
