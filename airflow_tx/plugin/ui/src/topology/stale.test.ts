import { describe, expect, it } from "vitest";

import { outcome, restatement } from "./stale";

const group = (txids: number[]) => ({ txids, transactions: "", reason: "code", what: "", since: null, restatement: null });

describe("stale transactions", () => {
  it("are counted over all reasons", () => {
    expect(outcome({ groups: [], compared: 3 })).toBe("None of 3 transactions is stale.");
    expect(outcome({ groups: [group([1]), group([])], compared: 1 })).toBe("1 of 1 transaction is stale.");
    expect(outcome({ groups: [group([1, 2]), group([4])], compared: 9 })).toBe("3 of 9 transactions are stale.");
  });

  it("say whether a restatement is requested or has begun", () => {
    expect([null, 0, 7].map(restatement)).toEqual(["", "requested", "transaction 7"]);
  });
});
