import { describe, expect, it } from "vitest";

import { besideMark } from "./Plot";

describe("the number of an attempt", () => {
  it("is at the left of its line, and at the right where it would be cut", () => {
    expect([0, 10, 17, 100].map((x) => besideMark(x, 12).textAnchor)).toEqual(["start", "start", "start", "end"]);
  });
});
