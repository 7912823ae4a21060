import { describe, expect, it } from "vitest";

import { titleOf } from "../actions/words";
import { lagWords } from "../overview/lag";
import { Refusal, segment, sentence } from "./client";

describe("refusals", () => {
  it("says the sentence of the server", () => {
    expect(sentence(409, { detail: "Transaction 7 has changed." })).toBe("Transaction 7 has changed.");
    expect(sentence(422, { detail: [{ msg: "too long" }, { msg: "no number" }] })).toBe("too long; no number");
  });

  it("has one of its own where there is none", () => {
    expect(sentence(502, "<html>")).toBe("The server answered with status 502.");
    expect(sentence(401, { detail: "Not authenticated" })).toContain("no longer logged in");
  });

  it("knows what passes by itself", () => {
    expect([404, 409, 429, 503].map((status) => new Refusal(status, "").final)).toEqual([true, true, false, false]);
  });
});

describe("the address of a name", () => {
  it("is one segment, whatever the name has", () => {
    expect(segment("flights_2-a")).toBe("flights_2-a");
    expect(segment("net/figures")).toBe("net~2Ffigures");
    expect(segment("..")).toBe("~2E~2E");
    expect(segment("~2F%")).toBe("~7E2F~25");
  });
});

describe("what is written", () => {
  it("writes a lag with its unit and its age", () => {
    const now = Date.parse("2026-01-01T00:01:00Z");
    expect(lagWords({ value: 1200, unit: "files", at: "2026-01-01T00:00:48Z" }, now)).toBe("1\u202f200 files, 12 s ago");
    expect(lagWords({ value: 1, unit: "files" }, now)).toBe("1 file");
    expect(lagWords({ value: 0, unit: null }, now)).toBe("0");
    expect(lagWords({ value: null, why: "not read yet" }, now)).toBe("?");
  });

  it("names what an action is about", () => {
    expect(titleOf("replay", "flights", [7])).toBe("Replay: transaction 7 of flights");
    expect(titleOf("replay", "flights", [7, 8])).toBe("Replay: transactions 7, 8 of flights");
    expect(titleOf("pause", "flights", [])).toBe("Pause the coordinator: flights");
  });
});
