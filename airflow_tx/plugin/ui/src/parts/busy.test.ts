import { describe, expect, it } from "vitest";

import { Refusal } from "../api/client";
import { waits } from "./Busy";

describe("a question that was refused", () => {
  it("is asked again after as long as the server says, if only others are in its way", () => {
    expect(waits(new Refusal(429, "The Transactions page is busy: a search.", 7))).toBe(7000);
  });

  it("is not asked again by itself where a person has to settle something", () => {
    expect(waits(new Refusal(409, "It has changed."))).toBeNull();
    expect(waits(new Error("no answer"))).toBeNull();
    expect(waits(null)).toBeNull();
  });
});
