import { replaceEqualDeep } from "@tanstack/react-query";
import { describe, expect, it } from "vitest";

import type { Figures } from "../api/client";
import { charts, periodShown, said, spoken } from "./charts";

const NOON = Date.parse("2026-01-01T12:00:00Z");
const at = (minute: number) => new Date(NOON + minute * 60_000).toISOString();
const nothing = { transactions: 0, rows: null, processing: null, commit: null, size: null, age: null, lag: null as number | null, replays: 0, failures: 0, skipped: 0, rejected: 0, warnings: 0 };
const both = { ...nothing, transactions: 3, rows: 30, processing: { p50: 2, p95: 8 }, commit: { p50: 0.04, p95: 1 }, size: { p50: 10, p95: 10 }, age: 90 };

/** Four minutes, in the third of which all was committed. */
function figures(changes: Partial<Figures> = {}, third: Partial<typeof both> = {}): Figures {
  const points = [0, 1, 2, 3].map((index) => ({ start: at(index), ...(index === 2 ? { ...both, ...third } : nothing) }));
  const total = { start: at(0), ...both, ...third };
  return { topology: "t", since: at(0), until: at(4), step: 60, points, total, known_since: null, untimed_replays: 0, lag_unit: "files", late_after: null, max_lag: null, ...changes };
}

const named = (found: Figures, title: string) => charts(found).find((each) => each.title === title)!;

describe("the charts", () => {
  it("says in words what they show", () => {
    expect(charts(figures()).map((each) => spoken(each, null))).toEqual([
      "Throughput: 3 transactions, 45 an hour, 30 rows",
      "Processing: p50 2 s, p95 8 s",
      "Commit: p50 0.04 s, p95 1 s",
      "Batch size: p50 10 rows, p95 10 rows",
      "Age: up to 1 min 30 s",
      "Lag: not seen",
      "Replays: 0 replays, 0 an hour",
      "Failures: 0 failures, 0 an hour",
      "Skips: 0 skipped transactions, 0 an hour",
    ]);
  });

  it("says the values of one time", () => {
    const found = charts(figures({}, { replays: 2, failures: 1 }));
    expect(found.map((each) => spoken(each, 2)).join("; ")).toBe(
      "Throughput: 3 transactions, 30 rows; Processing: p50 2 s, p95 8 s; Commit: p50 0.04 s, p95 1 s; Batch size: p50 10 rows, p95 10 rows; " +
        "Age: up to 1 min 30 s; Lag: not seen; Replays: 2 replays; Failures: 1 failure; Skips: 0 skipped transactions",
    );
    expect(spoken(found[1]!, 1)).toBe("Processing: no transaction was committed");
  });

  it("has one of rejected rows and one of warnings only where there are some", () => {
    const added = charts(figures({}, { rejected: 6, warnings: 1 })).slice(charts(figures()).length);
    expect(added.map((each) => spoken(each, null))).toEqual([
      "Rejected rows: 6 rejected rows, 90 an hour, 2 a transaction",
      "Warnings: 1 warning, 15 an hour, 0.33 a transaction",
    ]);
    expect(added.map((each) => each.drawn.lines.map(({ look, values }) => [look, values]))).toEqual([[["bar", [0, 0, 6, 0]]], [["bar", [0, 0, 1, 0]]]]);
  });

  it("says of a time before the history that nothing is known", () => {
    const found = named(figures({ known_since: at(1.6) }), "Throughput");
    expect([0, 1, 2].map((index) => spoken(found, index))).toEqual(["Throughput: not known", "Throughput: not known", "Throughput: 3 transactions, 30 rows"]);
    expect(found.drawn.unknown).toBe((NOON + 96_000) / 1000);
  });

  it("knows a lag that was seen before the history begins", () => {
    const found = named(figures({ known_since: at(4) }, { lag: 7 }), "Lag");
    expect([1, 2].map((index) => spoken(found, index))).toEqual(["Lag: not seen", "Lag: 7 files"]);
    expect(found.drawn.unknown).toBeNull();
  });

  it("counts what is an hour in the time that is known", () => {
    const found = named(figures({ known_since: at(1) }, { replays: 2 }), "Replays");
    expect(spoken(found, null)).toBe("Replays: 2 replays, 40 an hour");
  });

  it("draws each value in the middle of its period, and nothing where there is none", () => {
    const { drawn } = named(figures(), "Processing");
    expect(drawn.x.map((each) => each * 1000 - NOON)).toEqual([30_000, 90_000, 150_000, 210_000]);
    expect([drawn.start, drawn.end].map((each) => each * 1000 - NOON)).toEqual([0, 240_000]);
    expect(drawn.lines.map(({ look, values }) => [look, values])).toEqual([
      ["line", [null, null, 2, null]],
      ["dashed", [null, null, 8, null]],
    ]);
  });

  it("draws the same while nothing but the time goes on", () => {
    const [before, after] = [charts(figures({ until: at(3.5) })), charts(figures({ until: at(3.6) }))];
    const kept = replaceEqualDeep(before, after);
    expect(kept.map(({ drawn }, index) => drawn === before[index]!.drawn)).toEqual(before.map(() => true));
  });

  it("draws the limit beyond which the topology is late", () => {
    const found = figures({ late_after: 3600, max_lag: 100 });
    expect(named(found, "Age").drawn.lines.at(-1)).toMatchObject({ look: "limit", values: [3600, 3600, 3600, 3600] });
    expect(spoken(named(found, "Age"), 2)).toBe("Age: up to 1 min 30 s, late_after 1 h");
    expect(spoken(named(found, "Age"), 0)).toBe("Age: no transaction was open, late_after 1 h");
    expect(spoken(named(found, "Lag"), null)).toBe("Lag: not seen, max_lag 100 files");
  });

  it("tells how each written value is drawn", () => {
    expect(said(named(figures(), "Throughput"), null).map(({ look }) => look)).toEqual(["bar", undefined, undefined]);
  });
});

describe("a period that is chosen", () => {
  const now = NOON + 3_600_000;

  it("is shown from its begin to its end", () => {
    expect(periodShown(NOON, 120, now)).toEqual({ range: 120, until: NOON + 120_000 });
  });

  it("is shown in the middle of ten seconds if it is shorter", () => {
    expect(periodShown(NOON, 2, now)).toEqual({ range: 10, until: NOON + 6_000 });
  });

  it("is shown up to now if it has not ended", () => {
    expect(periodShown(NOON, 7_200, now)).toEqual({ range: 3_600, until: null });
    expect(periodShown(now - 2_000, 2, now)).toEqual({ range: 10, until: null });
  });
});
