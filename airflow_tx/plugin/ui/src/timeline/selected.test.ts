import { describe, expect, it } from "vitest";

import { selectedAfter } from "./selected";

const can = (txid: number) => txid !== 4;
const after = (before: number[], txid: number, on: boolean, from: number | null) => [...selectedAfter(new Set(before), txid, on, from, can)];

describe("a pressed box", () => {
  it("selects its row, or no longer", () => {
    expect(after([1], 3, true, null)).toEqual([1, 3]);
    expect(after([1, 3], 3, false, null)).toEqual([1]);
  });

  it("selects all rows from the one pressed before, without the ones that cannot be", () => {
    expect(after([2], 6, true, 2)).toEqual([2, 3, 5, 6]);
    expect(after([6], 2, true, 6)).toEqual([6, 2, 3, 5]);
    expect(after([2, 3, 5, 6], 3, false, 6)).toEqual([2]);
  });
});
