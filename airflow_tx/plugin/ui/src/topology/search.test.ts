import { describe, expect, it } from "vitest";

import { outcome } from "./Search";

const line = { txid: 7, run_id: "r7", phase: "COMMITTED", batch_name: "a.csv" };

describe("what a search says", () => {
  it("names how many have it", () => {
    expect(outcome({ found: [line], looked: 9, oldest: 1, unknown: 0, complete: true }, "a.csv")).toBe("1 transaction has a.csv:");
  });

  it("says how far it went where it found nothing, or not all", () => {
    expect(outcome({ found: [], looked: 9, oldest: 1, unknown: 0, complete: true }, "a.csv")).toBe("Looked through 9 transactions, down to 1. No transaction has a.csv.");
    const part = { found: [line, line], looked: 1000, oldest: 501, unknown: 3, complete: false };
    expect(outcome(part, "7")).toBe(
      "Looked through 1\u202f000 transactions, down to 501. Of 3 transactions the source cannot tell. There may be more. 2 transactions have 7:",
    );
    expect(outcome({ found: [], looked: 0, oldest: null, unknown: 0, complete: true }, "x")).toBe("The ledger knows no transaction. No transaction has x.");
  });
});
