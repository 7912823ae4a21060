import { describe, expect, it } from "vitest";

import { blocks, roundedSince } from "./rows";
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
    expect(blocks(1005, { first: 0, last: 100 }, loaded)).toEqual([]);
    expect(blocks(1005, { first: 90, last: 130 }, loaded)).toEqual([901, 801]);
    expect(blocks(3, { first: 0, last: 20 }, () => false)).toEqual([1]);
  });

  it("asks the same question for a while", () => {
    const now = 1_700_000_000_000;
    const since = roundedSince(now, 600);
    expect(since).toBeLessThanOrEqual(now - 600_000);
    expect(new Set([0, 1000, 2000, 3000].map((later) => roundedSince(now + later, 600))).size).toBe(1);
    expect(roundedSince(now + 60_000, 600)).toBe(since + 60_000);
  });
});
