import { describe, expect, it } from "vitest";

import type { TransactionPage } from "../api/client";
import { draw } from "../timeline/bars";
import { inWords, withoutErrors } from "./once";

describe("the error of a transaction", () => {
  it("is in no title of a bar", () => {
    const at = "2026-01-01T00:00:00Z";
    const attempts = [1, 2].map((attempt) => ({ attempt, begun_at: at, ended_at: at, outcome: "replayed", why: "no rights" }));
    const page = { attempts, tasks: [], waiting: { start: at, end: null, waiting_for: "a person (no rights)" }, commit: null, open: true } as unknown as TransactionPage;
    const titles = (row: TransactionPage) => [...draw(row, 0).bars, ...draw(row, 0).marks].map(({ title }) => title).join();
    expect(titles(page)).toContain("no rights");
    expect(titles(withoutErrors(page))).toBe("waited to commit,attempt 2");
  });
});

describe("rows and positions", () => {
  it.each([
    [17, "17"],
    ["2026-01-01", "2026-01-01"],
    [{ "orders-0": 17, "orders-1": 20, none: null }, "orders-0: 17, orders-1: 20"],
    [[1, 2, 3, 4, 5], "1, 2, 3 and 2 more"],
  ])("are written in words: %j", (value, words) => expect(inWords(value)).toBe(words));

  it.each([[null], [undefined], [""], [{}], [[]], [{ files: [{ name: "a" }] }], ["x".repeat(101)]])("have to be read as JSON: %j", (value) => expect(inWords(value)).toBeNull());
});
