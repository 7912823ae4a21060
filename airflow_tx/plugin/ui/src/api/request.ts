/** Requests that are typed by openapi-fetch, without its code: the board needs a tenth of it. */

import type { Client } from "openapi-fetch";

interface Options extends RequestInit {
  baseUrl: string;
}

interface Asked extends Omit<RequestInit, "body"> {
  params?: { path?: Record<string, unknown>; query?: Record<string, unknown> };
  body?: unknown;
}

/** Makes the methods of a client: each gives `data`, or else `error`, and the `response`. */
export function makeClient<Paths extends object>({ baseUrl, ...options }: Options): Pick<Client<Paths>, "GET" | "POST" | "DELETE"> {
  const method = (name: string) => async (path: string, { params, body, headers, ...asked }: Asked = {}) => {
    const sent = body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...headers } };
    const response = await fetch(baseUrl + address(path, params), { ...options, headers, ...asked, ...sent, method: name });
    const text = await response.text();
    return response.ok ? { data: text === "" ? undefined : (JSON.parse(text) as unknown), response } : { error: readable(text), response };
  };
  return { GET: method("GET"), POST: method("POST"), DELETE: method("DELETE") } as unknown as Client<Paths>;
}

function address(path: string, { path: names = {}, query = {} }: Asked["params"] = {}): string {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(names[name])));
  const values = Object.entries(query).flatMap(([name, value]) => [value].flat().map((each) => [name, each] as const));
  const given = values.filter(([, each]) => each !== undefined && each !== null).map(([name, each]) => [name, String(each)]);
  return given.length > 0 ? `${filled}?${new URLSearchParams(given).toString()}` : filled;
}

function readable(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
