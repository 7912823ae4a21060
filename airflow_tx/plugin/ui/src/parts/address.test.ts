import { describe, expect, it } from "vitest";

import { readAddress, writeAddress, type Address } from "./address";

const read = (text: string) => readAddress(new URLSearchParams(text));

describe("the address", () => {
  it("keeps what is shown", () => {
    const address: Address = { topology: "a/b & c", txid: 7, range: 3_600, until: 1_700_000_000_000 };
    expect(read(writeAddress(address, {}).slice(1))).toEqual(address);
  });

  it("leaves out what makes no sense", () => {
    const nothing = { topology: null, txid: null, range: null, until: null };
    expect(read("")).toEqual(nothing);
    expect(read("txid=-3&range=7&until=x")).toEqual(nothing);
    expect(read("txid=1.5&range=99999999&until=0")).toEqual(nothing);
  });

  it("changes a part of it", () => {
    expect(writeAddress(read("topology=t&txid=7&range=3600"), { txid: null })).toBe("?topology=t&range=3600");
  });
});
