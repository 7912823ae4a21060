import { describe, expect, it } from "vitest";

import { readAddress, writeAddress, type Address } from "./address";

const read = (text: string) => readAddress(new URLSearchParams(text));
const NOTHING: Address = { topology: null, txid: null, range: null, until: null, state: null, text: null, offset: null, cause: null, word: null, status: null, what: null, find: null, run: null, only: null };

describe("the address", () => {
  it("keeps what is shown", () => {
    const address: Address = { ...NOTHING, topology: "a/b & c", txid: 7, range: 3_600, until: 1_700_000_000_000 };
    expect(read(writeAddress(address, {}).slice(1))).toEqual(address);
    const overview: Address = { ...NOTHING, state: "failed", text: "a=b&c", what: "03.csv", cause: "0a1b", offset: 50 };
    expect(read(writeAddress(overview, {}).slice(1))).toEqual(overview);
    expect(read(writeAddress(NOTHING, { word: "fence" }).slice(1)).word).toBe("fence");
    const filtered: Address = { ...NOTHING, topology: "t", status: ["FAILED", "SKIPPED"], find: "a,b & c", run: "r+1", only: ["restated", "slow"] };
    expect(read(writeAddress(filtered, {}).slice(1))).toEqual(filtered);
  });

  it("leaves out what makes no sense", () => {
    expect(read("")).toEqual(NOTHING);
    expect(read("status=,failed,ODD&find=&run=&only=fast,")).toEqual(NOTHING);
    expect(read("only=slow,fast,slow").only).toEqual(["slow"]);
    expect(read("txid=-3&range=7&until=x&state=odd&text=&offset=-1")).toEqual(NOTHING);
    expect(read("txid=1.5&range=999999999&until=0&offset=1.5")).toEqual(NOTHING);
    expect(read(`text=${"x".repeat(999)}`).text).toHaveLength(200);
  });

  it("keeps a stretch of time of any length between the least and the greatest range", () => {
    expect(read("range=10").range).toBe(10);
    expect(read("range=97.4").range).toBe(97.4);
    expect(writeAddress(NOTHING, { range: 97.4 })).toBe("?range=97");
  });

  it("changes a part of it", () => {
    expect(writeAddress(read("topology=t&txid=7&range=3600"), { txid: null })).toBe("?topology=t&range=3600");
  });

  it("keeps the filter for the transactions of the topology, and for no other topology", () => {
    const here = read("topology=t&find=disk&only=slow");
    expect(writeAddress(here, { topology: "t", txid: 7 })).toContain("find=disk&only=slow");
    expect(writeAddress(here, { topology: "u" })).toBe("?topology=u");
    expect(writeAddress(here, { topology: null })).toBe("?");
  });
});
