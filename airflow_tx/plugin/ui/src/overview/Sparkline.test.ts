import { describe, expect, it } from "vitest";

import { commitsOf, spokenCommits } from "./Sparkline";

describe("commits an hour", () => {
  it("says all of them in words", () => {
    expect(spokenCommits([0, 2, 1])).toBe("3 commits in 3 h; per hour, oldest first: 0, 2, 1");
  });

  it("says when the hour of one of them began", () => {
    const now = Date.parse("2026-01-01T12:34:00Z");
    expect(commitsOf([0, 2, 1], 1, now)).toMatch(/^2 from \d\d:00$/);
  });
});
