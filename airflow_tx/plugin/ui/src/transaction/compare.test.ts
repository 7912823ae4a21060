import { describe, expect, it } from "vitest";

import type { AttemptLine } from "../api/client";
import { compare, ERRORS, notable } from "./compare";

const task = (states: Record<string, number>, tries = 1, task_id = "count") => ({ task_id, states, tries, seconds: 12, log: null });
const attempt = (changes: Partial<AttemptLine>): AttemptLine => ({
  attempt: 1, begun_at: null, ended_at: null, outcome: "replayed", why: null, above: false, same_as: changes.attempt ?? 1, size: null, resized: false, dag_versions: [], tasks: [], ...changes,
});
const failing = (number: number, why: string, told: Partial<AttemptLine> = {}) => attempt({ attempt: number, why, ...told });

function cells(name: string, attempts: AttemptLine[]): [string, boolean][] {
  return (compare(attempts).find((each) => each.name === name)?.cells ?? []).map((each) => [each.text, each.changed]);
}

const tasks = (...attempts: AttemptLine[]) => notable(attempts).map((each) => each.map(({ name, text, changed }) => [name, text, changed]));

describe("attempts below each other", () => {
  it("mark what has changed since the attempt before", () => {
    const both = [attempt({ size: "1 row", dag_versions: ["3"] }), attempt({ size: "7 rows", resized: true, dag_versions: ["3"] })];
    expect(cells("Batch", both)).toEqual([["1 row", false], ["7 rows", true]]);
    expect(cells("DAG version", both)).toEqual([["3", false], ["3", false]]);
  });

  it("do not mark what is not known of one of them, nor times", () => {
    const times = { begun_at: "2026-01-01T00:00:00Z", ended_at: "2026-01-01T00:01:30Z" };
    const both = [attempt(times), attempt({ begun_at: "2026-01-02T00:00:00Z", size: "7 rows" })];
    expect(cells("Batch", both)).toEqual([["", false], ["7 rows", false]]);
    expect(cells("Begun", both).map(([, changed]) => changed)).toEqual([false, false]);
    expect(cells("Took", both)).toEqual([["1 min 30 s", false], ["", false]]);
  });

  it("have no column for what nobody knows", () => {
    expect(compare([attempt({}), attempt({})]).map((each) => each.name)).toEqual(["Outcome"]);
  });
});

describe("the error of an attempt", () => {
  it("does not stand there again if it stands above", () => {
    const both = [failing(1, "the disk is full"), failing(2, "no rights", { above: true })];
    expect(cells(ERRORS, both)).toEqual([["the disk is full", false], ["the error above", true]]);
  });

  it("stands at the first shown attempt that has it, also if the ledger has shortened it since", () => {
    const some = [failing(1, "the disk ... full"), failing(2, "the disk of the host is full", { same_as: 1 }), failing(3, "no rights")];
    expect(cells(ERRORS, some)).toEqual([["the disk ... full", false], ["as in attempt 1", false], ["no rights", true]]);
    expect(cells(ERRORS, some.slice(1))[0]).toEqual(["the disk of the host is full", false]);
  });
});

describe("the tasks of an attempt", () => {
  it("are those that failed, or that have changed, with their tries", () => {
    expect(tasks(attempt({ tasks: [task({ failed: 1 }, 3), task({ success: 1 }, 1, "load")] }), attempt({ tasks: [task({ success: 1 })] }))).toEqual([
      [["count", "failed, 3 tries, 12 s", false]],
      [["count", "success, 12 s", true]],
    ]);
  });

  it("are those that have not started, and mapped ones of which some failed", () => {
    expect(tasks(attempt({ tasks: [{ ...task({ none: 1 }), seconds: null }] }))).toEqual([[["count", "not started", false]]]);
    expect(tasks(attempt({ tasks: [task({ success: 2, failed: 1 }, 3), task({ success: 2 }, 2, "load")] }))).toEqual([[["count", "1 failed, 2 success, 12 s", false]]]);
  });

  it("have not changed if the attempt before had no such task", () => {
    expect(tasks(attempt({ tasks: [task({ success: 1 }, 1, "old")] }), attempt({ tasks: [task({ failed: 1 }, 1, "new")] }))).toEqual([[], [["new", "failed, 12 s", false]]]);
  });
});
