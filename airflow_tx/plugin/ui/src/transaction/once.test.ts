import { describe, expect, it } from "vitest";

import type { AttemptLine, TransactionPage } from "../api/client";
import { draw } from "../timeline/bars";
import { errorOf, inWords, isSame, saidAbove, withoutErrors } from "./once";

const replayed = (why: string | null) => [{ attempt: 1, why }, { attempt: 2, why: null }] as AttemptLine[];

describe("two texts", () => {
  it("say the same if one has what to do behind it, or is shortened", () => {
    expect(isSame("no rights. Clear the task.", "no rights.")).toBe(true);
    expect(isSame("the disk ... make room", "the disk of the host is full, make room")).toBe(true);
    expect(isSame("the disk is full", "no rights")).toBe(false);
    expect(isSame("", "no rights")).toBe(false);
  });
});

describe("the error of a transaction", () => {
  it("stands once, though the sentence about waiting says it", () => {
    const page = { waits: "a person: it is replayed no more (no rights)", reason: "no rights", comparison: [] };
    expect(errorOf(page)).toBeNull();
    expect(saidAbove(page)).toEqual([page.waits]);
    expect(errorOf({ ...page, waits: "a replay" })).toBe("no rights");
  });

  it("is that of the attempt before while nothing has failed since", () => {
    expect(errorOf({ waits: "its committer", reason: null, comparison: replayed("no rights") })).toBe("Attempt 1 was replayed: no rights");
    expect(errorOf({ waits: "its run, which is not there yet: no rights", reason: null, comparison: replayed("no rights") })).toBeNull();
    expect(errorOf({ waits: null, reason: null, comparison: replayed(null) })).toBeNull();
  });

  it("is in no title of a bar", () => {
    const at = "2026-01-01T00:00:00Z";
    const attempts = [1, 2].map((attempt) => ({ attempt, begun_at: at, ended_at: at, outcome: "replayed", why: "no rights" }));
    const page = { attempts, tasks: [], waiting: { start: at, end: null, waiting_for: "a person (no rights)" }, commit: null, open: true } as unknown as TransactionPage;
    const titles = (row: TransactionPage) => [...draw(row, 0).bars, ...draw(row, 0).marks].map(({ title }) => title).join();
    expect(titles(page)).toContain("no rights");
    expect(titles(withoutErrors(page))).toBe("waited to commit,attempt 2");
  });

  it("does not stand above a transaction that is final", () => {
    expect(saidAbove({ waits: null, reason: null, comparison: replayed("no rights") })).toEqual([]);
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
