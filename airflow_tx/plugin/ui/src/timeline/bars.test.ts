import { describe, expect, it } from "vitest";

import type { TimelineRow } from "../api/client";
import { draw } from "./bars";

const at = (second: number) => new Date(second * 1000).toISOString();
const NOW = 100_000;

function row(changes: Partial<TimelineRow> = {}): TimelineRow {
  const attempt = { attempt: 1, begun_at: at(10), ended_at: null, outcome: "PROCESSING", why: null };
  return {
    ...{ txid: 7, run_id: "r7", phase: "PROCESSING", open: true, attempt: 1, attempts: [attempt], tasks: [] },
    ...{ waiting: null, commit: null, rows: null, batch_name: null, waiting_for: null, blocked: null, error: null, to_skip: false, lane: false },
    ...{ has_run: true, restates: null, restated_by: null, to_restate: false, behind: null, rejected: 0, warnings: [] },
    ...changes,
  };
}

function task(task_id: string, start: number | null, end: number | null, changes: Partial<TimelineRow["tasks"][number]> = {}) {
  const times = { start: start === null ? null : at(start), end: end === null ? null : at(end) };
  return { task_id, map_index: -1, operator: null, attempt: 1, try_number: 1, state: "success", ...times, ...changes };
}

describe("the bars of a transaction", () => {
  it("puts tasks that overlap into lanes, and the others into the same one", () => {
    const { bars, lanes } = draw(row({ tasks: [task("c", 30, 40), task("a", 10, 20), task("b", 15, 25)] }), NOW);
    expect(bars.map(({ title, lane }) => [title[0], lane])).toEqual([
      ["a", 0],
      ["b", 1],
      ["c", 0],
    ]);
    expect(lanes).toBe(2);
  });

  it("has at most four lanes", () => {
    const tasks = Array.from({ length: 9 }, (_, index) => task("t", 10, 20, { map_index: index }));
    expect(draw(row({ tasks }), NOW).lanes).toBe(4);
  });

  it("ends what is under way now", () => {
    const { bars, end } = draw(row({ tasks: [task("a", 10, null, { state: "running" }), task("b", null, null)] }), NOW);
    expect(bars).toHaveLength(1);
    expect(bars[0]).toMatchObject({ kind: "processing", start: 10_000, end: NOW, open: true, title: "a, try 1: running" });
    expect(end).toBe(NOW);
  });

  it("tells failed tries, waiting and the commit apart", () => {
    const final = row({
      ...{ phase: "COMMITTED", open: false, tasks: [task("a", 10, 12, { state: "failed", map_index: 3 })] },
      ...{ waiting: { start: at(20), end: at(30), waiting_for: null }, commit: { start: at(30), end: at(31) } },
    });
    const { bars, start, end } = draw(final, NOW);
    expect(bars.map(({ kind, open }) => [kind, open])).toEqual([
      ["failed", false],
      ["waiting", false],
      ["commit", false],
    ]);
    expect(bars[0]!.title).toBe("a[3], try 1: failed");
    expect([start, end]).toEqual([10_000, 31_000]);
  });

  it("draws the commit of what counts no more as another thing than one that counts", () => {
    const commit = { start: at(30), end: at(31) };
    const { bars } = draw(row({ phase: "COMMITTED", open: false, commit, restated_by: 9 }), NOW);
    expect(bars).toMatchObject([{ kind: "replaced", title: "committed; transaction 9 counts instead" }]);
  });

  it("draws a task of ours only where it failed, and none that never ran", () => {
    const tasks = [
      task("begin", 8, 10, { operator: "BeginTransactionOperator" }),
      task("count", 10, 20, { state: "upstream_failed" }),
      task("commit", 20, 22, { operator: "CommitOperator", state: "failed" }),
      task("commit", 23, 24, { operator: "CommitOperator", try_number: 2 }),
    ];
    expect(draw(row({ tasks }), NOW).bars.map(({ title }) => title)).toEqual(["commit, try 1: failed"]);
  });

  it("marks where a replay began, and says why", () => {
    const first = { attempt: 1, begun_at: at(10), ended_at: at(40), outcome: "replayed", why: "a task failed" };
    const second = { attempt: 2, begun_at: at(40), ended_at: null, outcome: "PROCESSING", why: null };
    expect(draw(row({ attempt: 2, attempts: [first, second] }), NOW).marks).toEqual([
      { at: 40_000, attempt: 2, title: "attempt 2: a task failed" },
    ]);
  });

  it("draws a transaction of which nothing is remembered", () => {
    const { bars, start, end } = draw(row({ attempts: [], open: false }), NOW);
    expect(bars).toEqual([]);
    expect([start, end]).toEqual([NOW, NOW]);
  });
});
