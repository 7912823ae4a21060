import { describe, expect, it } from "vitest";

import { restatementWords } from "../parts/phase";
import { outcome } from "./Search";

const line = { txid: 7, run_id: "r7", phase: "COMMITTED", batch_name: "a.csv", restates: null, restated_by: null };

describe("what a search says", () => {
  it("names how many have it", () => {
    expect(outcome({ found: [line], looked: 9, oldest: 1, unknown: 0, complete: true }, "a.csv")).toBe("1 transaction matches a.csv:");
  });

  it("says how far it went where it found nothing, or not all", () => {
    expect(outcome({ found: [], looked: 9, oldest: 1, unknown: 0, complete: true }, "a.csv")).toBe("Searched 9 transactions, down to transaction 1. No transaction matches a.csv.");
    const part = { found: [line, line], looked: 1000, oldest: 501, unknown: 3, complete: false };
    expect(outcome(part, "7")).toBe(
      "Searched 1\u202f000 transactions, down to transaction 501. The source cannot check 3 transactions. There may be more matches. 2 transactions match 7:",
    );
    expect(outcome({ found: [], looked: 0, oldest: null, unknown: 0, complete: true }, "x")).toBe("The ledger has no transaction. No transaction matches x.");
  });
});

describe("what was done over", () => {
  it("says which transaction it restates, and which one counts instead", () => {
    expect(restatementWords({ restates: null, restated_by: null, to_restate: false })).toBe("");
    expect(restatementWords({ restates: 7, restated_by: 20 })).toBe("restates 7, restated by 20");
    expect(restatementWords({ restates: null, restated_by: null, to_restate: true })).toBe("to be restated");
    expect(restatementWords({ behind: "a correction of orders 3: its restatement is requested" })).toBe("behind a correction of orders 3: its restatement is requested");
  });
});
