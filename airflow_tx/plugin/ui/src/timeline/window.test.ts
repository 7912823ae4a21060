import { describe, expect, it } from "vitest";

import { blocks, busyTimes, fitOf, roundedSince } from "./rows";
import { scrollFor, visibleRows } from "./window";

describe("the window", () => {
  it("draws the rows in view and a few around them", () => {
    expect(visibleRows(0, 100, 10, 1000, 2)).toEqual({ first: 0, last: 12 });
    expect(visibleRows(5000, 100, 10, 1000, 2)).toEqual({ first: 498, last: 512 });
    expect(visibleRows(9900, 100, 10, 1000, 2)).toEqual({ first: 988, last: 1000 });
  });

  it("draws nothing of nothing, and never more than there is", () => {
    expect(visibleRows(0, 100, 10, 0)).toEqual({ first: 0, last: 0 });
    expect(visibleRows(5000, 100, 10, 3)).toEqual({ first: 3, last: 3 });
  });

  it("scrolls no further than to the row", () => {
    expect(scrollFor(5, 0, 100, 10)).toBeUndefined();
    expect(scrollFor(10, 0, 100, 10)).toBe(10);
    expect(scrollFor(3, 50, 100, 10)).toBe(30);
  });
});

describe("the rows", () => {
  it("loads the blocks of rows that are not there yet", () => {
    const loaded = (txid: number) => txid > 905;
    const newest = (txid: number) => (index: number) => txid - index;
    expect(blocks(newest(1005), { first: 0, last: 100 }, loaded)).toEqual([]);
    expect(blocks(newest(1005), { first: 90, last: 130 }, loaded)).toEqual([901, 801]);
    expect(blocks(newest(3), { first: 0, last: 20 }, () => false)).toEqual([1]);
  });

  it("loads the blocks of rows that a filter lets through", () => {
    const txids = [990, 310, 305, 7];
    expect(blocks((index) => txids[index] ?? 0, { first: 0, last: 9 }, (txid) => txid > 905)).toEqual([301, 1]);
  });

  it("asks the same question for a while", () => {
    const now = 1_700_000_000_000;
    const since = roundedSince(now, 600);
    expect(since).toBeLessThanOrEqual(now - 600_000);
    expect(new Set([0, 1000, 2000, 3000].map((later) => roundedSince(now + later, 600))).size).toBe(1);
    expect(roundedSince(now + 64_000, 600)).toBe(since + 64_000);
  });

  it("asks the same question for long while the range grows with time", () => {
    const begun = 1_700_000_000_000;
    const asked = Array.from({ length: 1000 }, (_, second) => roundedSince(begun + second * 1000, second));
    expect(new Set(asked).size).toBeLessThan(8);
    expect(Math.max(...asked)).toBeLessThanOrEqual(begun);
  });
});

describe("the time that is shown", () => {
  const at = (second: number) => new Date(second * 1000).toISOString();
  const made = (begun: number, ended: number | null, changes: object = {}) =>
    ({
      ...{ txid: 1, open: ended === null, restated_by: null, tasks: [], waiting: null },
      attempts: [{ attempt: 1, begun_at: at(begun), ended_at: ended === null ? null : at(ended), outcome: "COMMITTED", why: null }],
      commit: ended === null ? null : { start: at(ended - 1), end: at(ended) },
      ...changes,
    }) as unknown as Parameters<typeof busyTimes>[0]["transactions"][number];

  it("is from the first drawn moment to the last one", () => {
    expect(fitOf({ transactions: [made(5_000, 5_010), made(4_000, 4_010)] }, 90_000_000)).toEqual({ start: 4_000_000, until: 5_010_000 });
    expect(fitOf({ transactions: [made(5_000, null), made(4_000, 4_010)] }, 90_000_000)).toEqual({ start: 4_000_000, until: null });
  });

  it("has gaps where transactions only wait", () => {
    const waits = made(5_000, null, { waiting: { start: at(5_010), end: null, waiting_for: "4" } });
    const found = busyTimes({ transactions: [waits], earlier: [] }, 90_000_000);
    expect(found).toEqual([5_000_000, 5_010_000, 90_000_000].map((each) => ({ start: each, end: each })));
  });

  it("has no gap where a row is drawn, or where rows that are not loaded were under way", () => {
    const found = busyTimes({ transactions: [made(5_000, 5_010)], earlier: [{ start: at(10), end: at(20) }, { start: at(30), end: null }] }, 40_000);
    expect(found).toEqual([
      { start: 5_009_000, end: 5_010_000 },
      { start: 5_000_000, end: 5_000_000 },
      { start: 10_000, end: 20_000 },
      { start: 30_000, end: 40_000 },
    ]);
  });
});
