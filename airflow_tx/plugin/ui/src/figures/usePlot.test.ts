import { describe, expect, it } from "vitest";

import { series } from "./usePlot";

describe("a line of a chart", () => {
  it.each(["line", "dashed"] as const)("has a gap where there is no value, and a dot for each that there is (%s)", (look) => {
    const drawn = series({ look, color: "blue-fg", values: [1, null, 2] }, (token) => token);
    expect([drawn.spanGaps, drawn.points!.show]).toEqual([false, true]);
  });
});
