import { afterEach, describe, expect, it, vi } from "vitest";

import { makeClient } from "./request";
import type { paths } from "./schema";

const client = makeClient<paths>({ baseUrl: "http://host/tx", cache: "no-cache" });
const asked = (answer: Response) => {
  const fetched = vi.fn<typeof fetch>(() => Promise.resolve(answer.clone()));
  vi.stubGlobal("fetch", fetched);
  return fetched;
};

afterEach(() => vi.unstubAllGlobals());

describe("a request", () => {
  it("has its parameters in the address, and leaves out what is not given", async () => {
    const fetched = asked(Response.json({ topologies: [] }));
    await client.GET("/api/v1/topologies", { params: { query: { state: ["failed", "late"], text: "a b&c", limit: 5, offset: undefined } } });
    expect(fetched.mock.calls[0]![0]).toBe("http://host/tx/api/v1/topologies?state=failed&state=late&text=a+b%26c&limit=5");
    await client.GET("/api/v1/topologies/{topology}/transactions/{txid}", { params: { path: { topology: "net~2Ffigures", txid: 7 } } });
    expect(fetched.mock.calls[1]![0]).toBe("http://host/tx/api/v1/topologies/net~2Ffigures/transactions/7");
  });

  it("sends a body as JSON, beside its own headers", async () => {
    const fetched = asked(Response.json({}));
    const body = { txids: [7], force: false, changed_rows: false };
    await client.POST("/api/v1/topologies/{topology}/actions/{action}/preview", { params: { path: { topology: "t", action: "replay" } }, body, headers: { "X-Requested-With": "airflow_tx" } });
    const init = fetched.mock.calls[0]![1]!;
    expect([init.method, init.cache, init.body]).toEqual(["POST", "no-cache", JSON.stringify(body)]);
    expect(init.headers).toEqual({ "Content-Type": "application/json", "X-Requested-With": "airflow_tx" });
  });

  it("gives the answer, or what is wrong", async () => {
    asked(Response.json({ topology: "t" }));
    expect(await client.GET("/api/v1/dags/{dag_id}", { params: { path: { dag_id: "d" } } })).toMatchObject({ data: { topology: "t" } });
    asked(Response.json({ detail: "no" }, { status: 404 }));
    const refused = await client.GET("/api/v1/dags/{dag_id}", { params: { path: { dag_id: "d" } } });
    expect([refused.data, refused.error, refused.response.status]).toEqual([undefined, { detail: "no" }, 404]);
    asked(new Response("<html>", { status: 502 }));
    expect((await client.GET("/api/v1/dags/{dag_id}", { params: { path: { dag_id: "d" } } })).error).toBe("<html>");
  });
});
