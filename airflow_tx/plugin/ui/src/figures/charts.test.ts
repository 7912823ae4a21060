import { describe, expect, it } from "vitest";

import type { Figures } from "../api/client";
import { charts } from "./charts";

const NOON = Date.parse("2026-01-01T12:00:00Z");
const at = (minute: number) => new Date(NOON + minute * 60_000).toISOString();
const nothing = { transactions: 0, rows: null, processing: null, commit: null, size: null };
const write = { seconds: (value: number) => `${value} s`, whole: String };

function figures(changes: Partial<Figures> = {}): Figures {
  const both = { transactions: 3, rows: 30, processing: { p50: 2, p95: 8 }, commit: { p50: 1, p95: 1 }, size: { p50: 10, p95: 10 } };
  const points = [0, 1, 2, 3].map((index) => ({ start: at(index), ...(index === 2 ? both : nothing) }));
  return { topology: "t", since: at(0), until: at(4), step: 60, points, total: { start: at(0), ...both }, known_since: null, lag: [], lag_unit: null, ...changes };
}

const named = (found: ReturnType<typeof charts>, title: string) => found.find((each) => each.title === title)!;

describe("the charts", () => {
  it("says in words what they show", () => {
    const words = charts(figures(), write).map((each) => `${each.title}: ${each.words}`);
    expect(words).toEqual([
      "Throughput: 3 transactions, 30 rows, each bar 60 s",
      "Processing: p50 2 s, p95 8 s",
      "Commit: p50 1 s, p95 1 s",
      "Batch size: p50 10 rows, p95 10 rows",
      "Lag: not known: the ledger keeps none",
    ]);
  });

  it("draws only what is known", () => {
    const found = charts(figures({ known_since: at(1) }), write);
    expect(named(found, "Throughput").bars.map((bar) => bar.y)).toEqual([0, 0, 3, 0]);
    expect(named(found, "Processing")).toMatchObject({ line: [{ x: 0.625, y: 2 }], above: [{ x: 0.625, y: 8 }], most: 8, unknown: 0.25 });
  });

  it("draws a lag from when on it was seen", () => {
    const lag = named(charts(figures({ lag: [{ at: at(2), value: 9 }, { at: at(3), value: 7 }], lag_unit: "files" }), write), "Lag");
    expect(lag).toMatchObject({ line: [{ x: 0.5, y: 9 }, { x: 0.75, y: 7 }], unknown: 0.5 });
    expect(lag.words).toContain("7 files at last");
  });

  it("says that nothing was committed", () => {
    const found = charts(figures({ total: { start: at(0), ...nothing } }), write);
    expect(named(found, "Throughput").words).toBe("nothing was committed");
    expect(named(found, "Commit").words).toBe("not known");
  });
});
