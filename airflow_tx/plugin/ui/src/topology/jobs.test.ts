import { describe, expect, it } from "vitest";

import type { JobLine } from "../api/client";
import { isOver, notes, progress } from "./jobs";

const job: JobLine = {
  kind: "restatement", first: null, last: null, who: "ada", since: "2026-01-01T00:00:00Z", why: "a bug",
  total: 30, done: 17, failed: 2, left_out: 0, under_way: 1, waiting: 10, failed_txids: [41, 42], waiting_txids: [5],
};

describe("a job", () => {
  it("says how far it is", () => {
    expect(progress(job)).toBe("17 of 30 restated, 2 failed, 1 under way, 10 wait");
    expect(progress({ ...job, kind: "backfill", done: 29, failed: 0, under_way: 0, waiting: 1 })).toBe("29 of 30 committed, 1 waits");
    expect(progress({ ...job, done: 28, failed: 0, under_way: 0, waiting: 0, left_out: 2 })).toBe("28 of 30 restated, 2 skipped");
  });

  it("is over once nothing more happens by itself", () => {
    expect([isOver(job), isOver({ ...job, under_way: 0, waiting: 0 })]).toEqual([false, true]);
  });

  it("says what cannot be replayed, and what it does not know", () => {
    expect(notes(job)).toEqual([]);
    expect(notes({ ...job, failed_txids: [41] })[0]).toContain("1 run failed before the restatement began");
    expect(notes({ ...job, kind: "tx-backfill", failed_txids: [] })).toHaveLength(2);
  });
});
