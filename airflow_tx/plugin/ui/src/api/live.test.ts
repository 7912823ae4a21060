import { describe, expect, it } from "vitest";

import { Refusal } from "./client";
import { lost, type Asked } from "./live";

const NOW = Date.parse("2026-11-29T12:00:00Z");
const fresh: Asked = { error: null, answered: NOW - 1000, asked: null, every: 2000 };
const gone = new TypeError("Failed to fetch");

describe("what the page shows", () => {
  it("is fresh while answers come", () => {
    expect(lost([fresh, { ...fresh, asked: NOW - 4000 }], NOW, true)).toBeNull();
    expect(lost([], NOW, false)).toBeNull();
  });

  it("is as old as the oldest answer that cannot be renewed", () => {
    const found = lost([fresh, { ...fresh, error: gone, answered: NOW - 60_000, every: 10_000 }, { ...fresh, error: gone }], NOW, true);
    expect(found).toEqual({ why: "Airflow's api-server cannot be reached.", since: NOW - 60_000, again: 2 });
  });

  it("is old without a network, and says that", () => {
    expect(lost([{ ...fresh, error: gone }], NOW, false)?.why).toBe("There is no network.");
  });

  it("is old where an answer does not come, without an error", () => {
    expect(lost([{ ...fresh, asked: NOW - 5001 }], NOW, true)).toEqual({ why: "Airflow's api-server has not answered for more than 5 seconds.", since: NOW - 1000, again: 2 });
  });

  it("is old after a session has ended, and asked for more seldom", () => {
    const ended = new Refusal(401, "You are no longer logged in. Reload the page.");
    expect(lost([{ ...fresh, error: ended }], NOW, true)).toEqual({ why: ended.message, since: NOW - 1000, again: 20 });
  });

  it("is old while the ledger is away, and fresh where one question is refused", () => {
    expect(lost([{ ...fresh, error: new Refusal(503, "The ledger is away.") }], NOW, true)?.why).toBe("The ledger is away.");
    expect(lost([{ ...fresh, error: new Refusal(404, "There is no such topology.") }], NOW, true)).toBeNull();
  });

  it("has no time before the first answer", () => {
    expect(lost([{ ...fresh, error: gone, answered: 0 }], NOW, true)?.since).toBeNull();
  });
});
