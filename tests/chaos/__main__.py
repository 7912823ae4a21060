"""Usage: script/chaos [--faults 1000] [--seed 1] [--every 100] [--record FILE] [--resume] [--airflow] [--at POINT]
[--without SERVER ...], or --history [--seconds 600] [--seed 1] [--mutant again]"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.airflow_world import AirflowWorld
from tests.chaos.driver import ChaosFailed, ChaosRun
from tests.chaos.history import NoJudge, report
from tests.chaos.mutant import RULES
from tests.chaos.points import POINTS
from tests.chaos.record import Record
from tests.chaos.report import written
from tests.chaos.topology import OPTIONAL, leave_out
from tests.chaos.world import World


def main() -> None:
    """Run as long as there are faults to be done, and print the way."""
    parser = argparse.ArgumentParser(prog="script/chaos", description="Kill, freeze and cut; see that all is counted.")
    parser.add_argument("--faults", type=int, default=1000, help="how many in all (default: 1000)")
    parser.add_argument("--seed", type=int, default=1, help="decides what is done to whom (default: 1)")
    parser.add_argument("--every", type=int, default=100, help="faults between two rests (default: 100)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so long")
    parser.add_argument("--record", type=Path, default=Path("build/chaos.jsonl"), help="the file of all that happens")
    parser.add_argument("--resume", action="store_true", help="go on after the last rest in the record")
    parser.add_argument("--mutant", default="", choices=("", *RULES), help="take a rule out of the product")
    parser.add_argument("--at", default="", choices=("", *POINTS), help="each fault is a kill at this point")
    parser.add_argument("--history", action="store_true", help="record all that processes do, and let a model judge it")
    parser.add_argument("--airflow", action="store_true", help="on a whole Airflow, not on a little scheduler")
    parser.add_argument("--without", nargs="+", default=[], choices=OPTIONAL, help="a smaller world (default: all)")
    parser.add_argument(
        "--report", type=Path, nargs="+", metavar="FILE", help="only write tests/chaos/REPORT.md from records"
    )
    options = parser.parse_args()
    if options.report:
        Path("tests/chaos/REPORT.md").write_text(written([Record(path) for path in options.report]))
        return
    if options.history:
        folder = Path(tempfile.mkdtemp(prefix="history-"))
        try:
            allowed = report(folder, min(options.seconds, 600.0), options.seed, mutant=options.mutant)
        except NoJudge as error:
            raise SystemExit(f"{error}") from None
        if not allowed:
            raise SystemExit(f"The protocol does not allow this history: {folder}/history.json")
        shutil.rmtree(folder)
        return
    if options.mutant and options.airflow:
        parser.error("--mutant breaks a rule in the tasks of the little scheduler, not in those of --airflow")
    leave_out(options.without)
    if not options.resume:
        options.record.unlink(missing_ok=True)
    record = Record(options.record)
    told = {"seed": options.seed, "airflow": options.airflow, "mutant": options.mutant, "without": options.without}
    record.add("part", {**told, "zookeepers": 3, "first": record.rested})
    # Ended early, it tells what it waited for, and leaves nothing running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(f"script/chaos: ended after {record.rested} faults at rest"))
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    with (AirflowWorld if options.airflow else World)(folder, mutant=options.mutant) as world:
        try:
            ChaosRun(world, record, options.seed, options.every, options.at).run(options.faults, options.seconds)
        except ChaosFailed as failed:
            raise SystemExit(f"{failed}\nWhat it left is in {folder}") from None
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
