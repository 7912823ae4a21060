import { describe, expect, it } from "vitest";

import { labels, steps } from "./ticks";

describe("the labels of an axis", () => {
  it("writes all seconds of an axis in one unit", () => {
    expect(labels([0, 0.02, 0.04], "s")).toEqual(["0", "0.02 s", "0.04 s"]);
    expect(labels([0, 1800, 3600, 5400], "s")).toEqual(["0", "0.5 h", "1 h", "1.5 h"]);
    expect(labels([0, 172_800], "s")).toEqual(["0", "2 d"]);
  });

  it("writes large counts short", () => {
    expect(labels([0, 500_000, 1_500_000], "rows")).toEqual(["0", "500K", "1.5M"]);
  });

  it("has whole counts, and times that a clock has", () => {
    expect(steps("rows").slice(0, 5)).toEqual([1, 2, 5, 10, 20]);
    expect(steps("s")).toEqual([...steps("s")].sort((a, b) => a - b));
    expect(steps("s")).toContain(900);
    expect(steps("s")).not.toContain(20);
  });
});
