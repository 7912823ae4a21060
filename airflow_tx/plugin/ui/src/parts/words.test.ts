import { describe, expect, it } from "vitest";

import { ago, asideWords, count, counted, duration, moment } from "./words";

describe("words", () => {
  it.each([
    [0, "0 s"],
    [0.44, "0.4 s"],
    [9.96, "10 s"],
    [59.6, "1 min"],
    [200, "3 min 20 s"],
    [3_600, "1 h"],
    [3_605, "1 h"],
    [187_200, "2 d 4 h"],
    [-5, "0 s"],
  ])("writes %d seconds as %s", (seconds, text) => expect(duration(seconds)).toBe(text));

  it("says how long ago", () => {
    const now = Date.parse("2026-01-01T00:01:00Z");
    expect(ago("2026-01-01T00:00:00Z", now)).toBe("1 min ago");
    expect(ago("2026-01-01T00:00:59.500Z", now)).toBe("now");
    expect(ago("2026-01-01T00:01:09Z", now)).toBe("now");
  });

  it("writes a moment in a zone", () => {
    expect(moment("2026-01-01T12:00:00Z", "UTC")).toBe("2026-01-01 12:00:00");
    expect(moment("2026-01-01T12:00:00Z", "Asia/Kolkata")).toBe("2026-01-01 17:30:00");
  });

  it("groups thousands, and knows one from many", () => {
    expect(count(1_234_567)).toBe("1\u202f234\u202f567");
    expect([counted(1, "row"), counted(0, "row"), counted(2000, "row")]).toEqual(["1 row", "0 rows", "2\u202f000 rows"]);
  });

  it("says what a transaction kept aside, and which checks warned", () => {
    expect(asideWords({ rejected: 1, warnings: ["positive", "unique"] })).toEqual(["1 rejected row", "2 warnings: positive, unique"]);
    expect(asideWords({ rejected: 0, warnings: [] })).toEqual([]);
  });
});
