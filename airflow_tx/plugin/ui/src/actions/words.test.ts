import { describe, expect, it } from "vitest";

import { logName } from "./AdviceLine";
import { aboutWords, titleOf } from "./words";

describe("what a button is about", () => {
  it("is one transaction, several, or the topology", () => {
    expect(aboutWords("flights", [7])).toBe("transaction 7 of flights");
    expect(titleOf("replay", "flights", [7, 8])).toBe("Replay: transactions 7, 8 of flights");
    expect(titleOf("accept-loss", "flights", [])).toBe("Accept a loss: flights");
    expect(titleOf("accept-check", "flights", [7], undefined, ["positive", "no gaps"])).toBe("Accept the check: positive, no gaps of transaction 7 of flights");
    expect(titleOf("state-rename", "flights", [], undefined, ["one", "two"])).toBe("Rename the state: one to two of flights");
    expect(titleOf("repair", "flights", [], undefined, ["one"], "state-lost")).toBe("Accept the lost state: one of flights");
    expect(titleOf("repair", "flights", [], undefined, [], "ledger-lost")).toBe("Rebuild the ledger: flights");
    expect(titleOf("repair", "flights", [7], undefined, [], "back")).toBe("Take transactions back: transactions after 7 of flights");
    expect(titleOf("repair", "flights", [7], undefined, [], "back")).toBe("Take transactions back: transactions after 7 of flights");
    expect(titleOf("accept-change", "flights", [], undefined, ["tx_state.totals"])).toBe("Accept the change: tx_state.totals of flights");
  });

  it("is the log of an instance of a mapped task", () => {
    expect(logName({ task_id: "count", map_index: -1 })).toBe("count");
    expect(logName({ task_id: "count", map_index: 4 })).toBe("count[4]");
  });
});
