"""Records what real processes do to a ledger and its states while they are killed and stopped, and has it judged.

The judge is `linearizable/main.go`: a model written from docs/protocol.md alone, and porcupine, which finds an order of
the operations that the model allows, or shows that there is none.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow_tx.testing.processes import signal_process
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.chaos.history_worker import Place, main
from tests.servers.postgres import LocalPostgres
from tests.servers.redis import LocalRedis

JUDGE = Path(__file__).with_name("linearizable")
PROCESSES = 4
MOST = 400.0
"""Seconds after which no history is waited for."""
_BEGUN = 8
"""Lines after which a process has begun to work, and may be shot at."""


class NoJudge(Exception):
    """Go, or a module that the judge needs, is not there."""


@dataclass
class History:
    """The operations of a run.

    :ivar done: how often what was done to processes.
    """

    states: int
    operations: list[dict[str, Any]]
    done: Counter[str] = field(default_factory=Counter)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"states": self.states, "operations": self.operations}))

    def __str__(self) -> str:
        kinds = Counter(f"{each['kind']} {each['outcome']}" for each in self.operations)
        said = [f"{count} {name}" for name, count in [*sorted(self.done.items()), *sorted(kinds.items())]]
        laned = sum(each["by"] == "airflow_tx-lane" for each in committed(self.operations))
        return f"{len(self.operations)} operations: {', '.join(said)}; {laned} marks by a lane"


Shows = Callable[[History], bool]


# --- record --------------------------------------------------------------------------------------------------------


def recorded(folder: Path, seconds: float, seed: int, *, mutant: str = "", shows: Shows = lambda _: True) -> History:
    """Let processes work for so many seconds, and do to them what a bad night does.

    :param mutant: a rule that is taken out of the product, see `mutant.py`; "": none.
    :param shows: whether a history has what it is recorded for. On a busy machine that takes longer; at most MOST.
    """
    with LocalZooKeeper(fsync=False) as zookeeper, LocalPostgres() as postgres, LocalRedis() as redis:
        states = (f"sqlite:///{folder}/state.db", postgres.url(), redis.url())
        place = Place(str(folder), zookeeper.hosts, states, 0, 0, mutant)
        night = _Night(place, zookeeper, random.Random(seed))
        night.spend(seconds, shows)
    return night.history()


class _Night:
    """Processes, and what becomes of them."""

    def __init__(self, place: Place, zookeeper: LocalZooKeeper, chance: random.Random) -> None:
        self._place = place
        self._zookeeper = zookeeper
        self._chance = chance
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([main.__module__])
        self.done = Counter[str]()
        self.ended = 0
        """When no process lived any more."""

    def history(self) -> History:
        """Bring together what the processes have written down until now."""
        end = self.ended or time.monotonic_ns()
        return History(len(self._place.states), _merged(Path(self._place.folder), end), self.done)

    def spend(self, seconds: float, shows: Shows) -> None:
        """Start processes, shoot at them, and wait for their ends."""
        begun = time.monotonic()
        workers = [self._start(number) for number in range(PROCESSES)]
        deeds: Mapping[Callable[[int], None], int]
        try:
            while (spent := time.monotonic() - begun) < seconds or (spent < MOST and not shows(self.history())):
                time.sleep(self._chance.uniform(0.2, 1.5))
                number = self._chance.randrange(PROCESSES)
                pid = int(workers[number].pid)
                if not workers[number].is_alive():
                    workers[number] = self._start(number)
                elif self._has_begun(number, pid):
                    deeds = {self._kill: 50, self._stop: 20, self._expire: 20, self._cut: 10}
                    (deed,) = self._chance.choices(list(deeds), list(deeds.values()))
                    deed(number if deed == self._expire else pid)
                    if deed == self._kill:
                        workers[number].join()
                        workers[number] = self._start(number)
            self._place.over.touch()
            for worker in workers:
                worker.join(60)
        finally:
            for worker in workers:
                worker.kill()
                worker.join()
            self.ended = time.monotonic_ns()

    def _start(self, number: int) -> Any:
        place = Place(**{**vars(self._place), "number": number, "seed": self._chance.randrange(10**9)})
        worker = self._context.Process(target=main, args=(place,), daemon=True)
        worker.start()
        return worker

    def _has_begun(self, number: int, pid: int) -> bool:
        lines = Path(self._place.folder, f"history-{number}-{pid}.jsonl")
        return lines.exists() and lines.read_bytes().count(b"\n") >= _BEGUN

    def _kill(self, pid: int) -> None:
        self.done["killed"] += signal_process(pid, signal.SIGKILL)

    def _stop(self, pid: int) -> None:
        self.done["stopped"] += signal_process(pid, signal.SIGSTOP)
        time.sleep(self._chance.uniform(0.2, 6.0))
        signal_process(pid, signal.SIGCONT)

    def _expire(self, number: int) -> None:
        session, password = json.loads(Path(self._place.folder, f"session-{number}").read_text())
        client: Any = SimpleNamespace(client_id=(session, bytes.fromhex(password)))
        self._zookeeper.expire_session(client)
        self.done["expired sessions"] += 1

    def _cut(self, pid: int) -> None:
        self._zookeeper.drop_connections()
        self.done["crashes of ZooKeeper"] += 1


def _merged(folder: Path, end: int) -> list[dict[str, Any]]:
    """Bring the lines of all processes together. What is refused has no effect, and a read that failed says nothing."""
    found = dict[str, dict[str, Any]]()
    for client, path in enumerate(sorted(folder.glob("history-*.jsonl"))):
        for line in path.read_text().splitlines():
            try:
                each = json.loads(line)
            except ValueError:
                continue  # the last line of a killed process
            found.setdefault(each["id"], {"client": client, "outcome": "unknown"}).update(each)
    return [
        {"return": end, **each}
        for each in sorted(found.values(), key=lambda each: each["call"])
        if each["outcome"] == "ok" or (each["outcome"] == "unknown" and each["kind"] not in ("total", "current"))
    ]


# --- judge ---------------------------------------------------------------------------------------------------------


def build_judge(folder: Path) -> Path:
    """Compile the judge.

    :raises NoJudge: it cannot be.
    """
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        raise NoJudge("no judge of histories: Go is not installed")
    judge = folder / "judge"
    built = subprocess.run([go, "build", "-o", str(judge), "."], cwd=JUDGE, capture_output=True, text=True)
    if built.returncode:
        raise NoJudge(f"no judge of histories: {' '.join(built.stderr.split())[-300:]}")
    return judge


def judged(judge: Path, history: History, file: Path) -> str:
    """Ask the judge: "Ok", or "Illegal" and why."""
    history.write(file)
    return subprocess.run([str(judge), str(file)], check=True, capture_output=True, text=True).stdout.strip()


def report(folder: Path, seconds: float, seed: int, *, mutant: str = "") -> bool:
    """Record, judge and print a history; whether the protocol allows it.

    :raises NoJudge: there is none.
    """
    judge = build_judge(folder)
    history = recorded(folder, seconds, seed, mutant=mutant)
    print(f"seed {seed}: {history}")
    said = judged(judge, history, folder / "history.json")
    print(said)
    return said == "Ok"


# --- what the judge has to find --------------------------------------------------------------------------------------


def changed(history: History, name: str) -> History:
    """Change a history by one of CHANGES."""
    copy = deepcopy(history)
    CHANGES[name](copy.operations)
    return copy


def committed(operations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """List the marks that are certain."""
    return [each for each in operations if each["kind"] == "mark" and each["outcome"] == "ok"]


def is_eventful(history: History) -> bool:
    """Ask whether a process was killed, and each state was read beside many commits and after them."""
    marks = committed(history.operations)
    if not history.done["killed"] or len(marks) < 6:
        return False
    late = {read["state"] for read in _totals(history.operations, marks[5]["return"])}
    values = {(read["state"], read["value"]) for read in _totals(history.operations, 0)}
    return len(late) == history.states and len(values) > 3 * history.states


def counted_again(history: History) -> bool:
    """Ask whether two grants of a transaction have written to a state that was read afterwards."""
    first = dict[tuple[int, int], Any]()
    for each in (each for each in history.operations if each["kind"] in ("write", "raise_write") and each["delta"]):
        token, state = each["token"], each["state"]
        if each["outcome"] != "ok" or first.setdefault((token["txid"], state), token) == token:
            continue
        if any(read["state"] == state for read in _totals(history.operations, each["return"])):
            return True
    return False


def _middle(found: Sequence[Any]) -> Any:
    return found[len(found) // 2]


def _totals(operations: Sequence[dict[str, Any]], after: int) -> list[dict[str, Any]]:
    return [each for each in operations if each["kind"] == "total" and each["call"] > after]


def _one_more(operations: list[dict[str, Any]]) -> None:
    _middle(_totals(operations, 0))["value"] += 1


def _left_out(operations: list[dict[str, Any]]) -> None:
    operations.remove(_middle(committed(operations)))


def _twice(operations: list[dict[str, Any]]) -> None:
    """Let the states have what a committed transaction wrote once more than it wrote it."""
    mark = _middle(committed(operations))
    for write in operations:
        if write["kind"] in ("write", "raise_write") and write["token"] == mark["token"]:
            for each in _totals(operations, mark["return"]):
                each["value"] += write["delta"] if each["state"] == write["state"] else 0


def _older(operations: list[dict[str, Any]]) -> None:
    """Let the last read find what the first one of its state has found, many commits before."""
    late = _totals(operations, 0)[-1]
    early = next(each for each in _totals(operations, 0) if each["state"] == late["state"] and each["value"])
    late["value"] = early["value"]


def _swapped(operations: list[dict[str, Any]]) -> None:
    marks = committed(operations)
    one, other = marks[len(marks) // 2 :][:2]
    for name in ("call", "return"):
        one[name], other[name] = other[name], one[name]
    operations.sort(key=lambda each: each["call"])


CHANGES: Mapping[str, Callable[[list[dict[str, Any]]], None]] = {
    "a total changed by one": _one_more,
    "a mark left out": _left_out,
    "a write applied twice": _twice,
    "a read of older values": _older,
    "two commits swapped": _swapped,
}
"""What the protocol does not allow, by name."""
