import { describe, expect, it } from "vitest";

import type { AttemptLine } from "../api/client";
import { compare } from "./compare";

const task = (states: Record<string, number>, tries = 1, task_id = "count") => ({ task_id, states, tries, seconds: 12, log: null });
const attempt = (changes: Partial<AttemptLine>): AttemptLine => ({
  attempt: 1, begun_at: null, ended_at: null, outcome: "replayed", why: null, size: null, dag_versions: [], tasks: [], ...changes,
});

function cells(name: string, ...attempts: AttemptLine[]): [string, boolean][] {
  return (compare(attempts).find((each) => each.name === name)?.cells ?? []).map((each) => [each.text, each.changed]);
}

describe("attempts beside each other", () => {
  it("mark what has changed since the attempt before", () => {
    const [first, second] = [attempt({ size: "1 row", dag_versions: ["3"] }), attempt({ size: "7 rows", dag_versions: ["3"] })];
    expect(cells("Batch", first, second)).toEqual([["1 row", false], ["7 rows", true]]);
    expect(cells("DAG version", first, second)).toEqual([["3", false], ["3", false]]);
  });

  it("do not mark what is not known of one of them, nor times", () => {
    const [first, second] = [attempt({ begun_at: "2026-01-01T00:00:00Z" }), attempt({ begun_at: "2026-01-02T00:00:00Z", size: "7 rows" })];
    expect(cells("Batch", first, second)).toEqual([["", false], ["7 rows", false]]);
    expect(cells("Begun", first, second).map(([, changed]) => changed)).toEqual([false, false]);
  });

  it("mark a batch of another size only if both were counted alike", () => {
    const sizes = ["2 files", "at most 9 rows", "at most 1 row", "1 row", "7 rows"].map((size) => attempt({ size }));
    expect(cells("Batch", ...sizes).map(([, changed]) => changed)).toEqual([false, false, true, false, true]);
  });

  it("compare the state of a task, and say how often it was tried", () => {
    const [first, second] = [attempt({ tasks: [task({ failed: 1 }, 3)] }), attempt({ tasks: [task({ success: 1 })] })];
    expect(cells("count", first, second)).toEqual([["failed, 3 tries, 12 s", false], ["success, 12 s", true]]);
    expect(cells("count", attempt({ tasks: [{ ...task({ none: 1 }), seconds: null }] }))).toEqual([["not started", false]]);
    const mapped = attempt({ tasks: [task({ success: 2, failed: 1 }, 3)] });
    expect(cells("count", mapped)).toEqual([["1 failed, 2 success, 12 s", false]]);
  });

  it("have a line for a task that only one of them has, and none for what nobody knows", () => {
    const [first, second] = [attempt({ tasks: [task({ success: 1 }, 1, "old")] }), attempt({ tasks: [task({ success: 1 }, 1, "new")] })];
    expect(compare([first, second]).map((each) => each.name)).toEqual(["Outcome", "old", "new"]);
    expect(cells("new", first, second)).toEqual([["", false], ["success, 12 s", false]]);
  });
});
