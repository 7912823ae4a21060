import { describe, expect, it } from "vitest";

import { Refusal, type ActionName, type PreviewBody } from "../api/client";
import { act, preview } from "./several";

const asked: string[] = [];

/** A server that refuses transaction 9, whenever it is asked, and transaction 8 when it is to be done. */
const server = {
  preview: async (_: string, action: ActionName, body: PreviewBody) => {
    asked.push(`${action} ${body.txids?.join()}`);
    const line = { txid: body.txids![0]!, run_id: null, what: "skipped" };
    const refused = body.txids?.includes(9);
    return { version: `v${body.txids?.join()}`, sentence: `Skip ${line.txid}.`, effects: refused ? [] : [line], refused: refused ? [line] : [], needs_reason: true, is_refusal: false };
  },
  act: async (_: string, action: ActionName, body: PreviewBody & { version: string }) => {
    asked.push(`${action} ${body.txids?.join()} ${body.version}`);
    if (body.txids?.includes(8)) throw new Refusal(409, "It has changed.");
    return { done: body.txids!.map((txid) => ({ txid, run_id: null, what: "done" })) };
  },
};

function taken(): string[] {
  return asked.splice(0);
}

describe("an action on several transactions", () => {
  it("is one action where the server takes several", async () => {
    await preview("t", "replay", { txids: [7, 5] }, server);
    await act("t", "replay", { txids: [7, 5], version: "v", why: "" }, server);
    expect(taken()).toEqual(["replay 7,5", "replay 7,5 v"]);
  });

  it("is one for each, in order, where the server takes one", async () => {
    const found = await preview("t", "skip", { txids: [7, 5, 9] }, server);
    expect(found.effects.map((each) => each.txid)).toEqual([5, 7]);
    expect(found.refused.map((each) => each.txid)).toEqual([9]);
    expect([found.sentence, found.needs_reason]).toEqual(["Skip 5. Skip 7.", true]);
    const { done } = await act("t", "skip", { txids: [7, 5, 9], version: found.version, why: "x" }, server);
    expect(done.map((each) => each.txid)).toEqual([5, 7]);
    expect(taken()).toEqual(["skip 5", "skip 7", "skip 9", "skip 5 v5", "skip 7 v7"]);
  });

  it("stops at the first that is refused, and says what was done before", async () => {
    const { version } = await preview("t", "skip", { txids: [5, 8, 10] }, server);
    const { done } = await act("t", "skip", { txids: [5, 8, 10], version, why: "x" }, server);
    expect(done.map((each) => each.what)).toEqual(["done", "It has changed. Later transactions were not changed."]);
    await expect(act("t", "skip", { txids: [8, 10], version, why: "x" }, server)).rejects.toThrow("It has changed.");
    taken();
  });
});
