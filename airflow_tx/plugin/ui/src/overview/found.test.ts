import { describe, expect, it } from "vitest";

import type { SearchOfAllAnswer } from "../api/client";
import { extent, matchWords, shownMatch } from "./found";

const whole: SearchOfAllAnswer = { found: [], topologies: 3, looked: 3, transactions: 1200, partly: 0, unknown: 0, unread: [], complete: true };
const line = { topology: "t", txid: 7, run_id: "r", phase: "COMMITTED", batch_name: null, restates: null, restated_by: null, matched: "run", text: "r" } as const;

describe("a search of all topologies", () => {
  it("says how much it looked at where it found nothing", () => {
    expect(extent(whole)).toBe(
      "None found. Searched 1\u202f200 transactions of 3 topologies. To find an offset or an id, search on the page of its topology, which queries the source.",
    );
  });

  it("says that there may be more, and how to look at it", () => {
    const part = { ...whole, found: [line], topologies: 500, looked: 200, partly: 150, complete: false };
    expect(extent(part)).toContain("There may be more matches. Searched 1\u202f200 transactions of 200 of 500 topologies, but only the newest transactions of 150. To search");
    expect(extent(part)).toContain("filter the topologies below");
  });

  it("names the topologies that it could not read, and what the ledger does not keep", () => {
    const away = extent({ ...whole, looked: 2, unread: ["orders"], unknown: 4, complete: false });
    expect(away).toContain("These topologies could not be read: orders. The ledger does not keep the batch names of 4 transactions.");
    expect(away).not.toContain("filter the topologies");
  });

  it("says what a text is a part of", () => {
    expect([matchWords({ matched: "status" }), matchWords({ matched: "detail" })]).toEqual(["status", "batch detail:"]);
  });

  it("shows of a long text the place where it was found", () => {
    const text = `${"a".repeat(300)} Disk is full ${"b".repeat(300)}`;
    expect(shownMatch({ text }, "disk is FULL")).toContain("Disk is full");
    expect(shownMatch({ text }, "disk is full").length).toBeLessThan(170);
    expect(shownMatch({ text: "short" }, "s")).toBe("short");
  });
});
