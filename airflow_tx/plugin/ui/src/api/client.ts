/** The board's API, typed by its OpenAPI description. The browser's cache holds answers with their ETags. */

import createClient from "openapi-fetch";

import type { components, paths } from "./schema";

/** A line of a log, as Airflow's API gives it. */
export interface LogLine {
  event: string;
  logger?: string;
  error_detail?: { exc_type: string; exc_value: string }[];
}

type Schemas = components["schemas"];
export type TopologyLine = Schemas["TopologyLine"];
export type TopologyList = Schemas["TopologyList"];
export type CauseLine = Schemas["CauseLine"];
export type TopologyPage = Schemas["TopologyPage"];
export type TopologyState = Schemas["TopologyState"];
export type Timeline = Schemas["Timeline"];
export type TimelineRow = Schemas["TimelineRow"];
export type TimelineQuery = paths["/api/v1/topologies/{topology}/transactions"]["get"]["parameters"]["query"];
export type Activity = Schemas["Activity"];
export type Figures = Schemas["Figures"];
export type SearchAnswer = Schemas["SearchAnswer"];
export type StaleAnswer = Schemas["StaleAnswer"];
export type JobLine = Schemas["JobLine"];
export type SearchOfAllAnswer = Schemas["SearchOfAllAnswer"];
export type RejectedAnswer = Schemas["RejectedAnswer"];
export type TransactionPage = Schemas["TransactionPage"];
export type AttemptLine = Schemas["AttemptLine"];
export type Advice = Schemas["Advice"];
export type AdvisedAction = Schemas["AdvisedAction"];
export type ActionName = Schemas["ActionName"];
export type EffectLine = Schemas["EffectLine"];
export type PreviewAnswer = Schemas["PreviewAnswer"];
export type PreviewBody = Partial<Schemas["PreviewBody"]>;

/** Where the server does not say when to ask again. */
const AGAIN = 5;

/** An answer that is a refusal, with its sentence. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    message: string,
    /** Seconds after which it may be asked again. */
    readonly again = AGAIN,
  ) {
    super(message);
  }

  /** Tells whether it was refused only because other questions are under way. */
  get busy(): boolean {
    return this.status === 429;
  }

  /** Tells what a person has to settle from what passes by itself. */
  get final(): boolean {
    return this.status >= 400 && this.status < 500 && this.status !== 429;
  }
}

/** Reads the sentence of a refusal: `detail` is text, or a list of what is wrong with a request. */
export function sentence(status: number, body: unknown): string {
  const detail: unknown = typeof body === "object" && body !== null && "detail" in body ? body.detail : undefined;
  if (typeof detail === "string" && status !== 401) return detail;
  if (Array.isArray(detail)) return detail.map((each: { msg?: string }) => each.msg ?? "").join("; ");
  if (status === 401) return "You are no longer logged in. Reload the page.";
  return `The server answered with status ${status}.`;
}

/** Writes a name as one segment of a path: a server or a proxy would decode `%2F`, and a browser would follow `..`. */
export function segment(name: string): string {
  return encodeURIComponent(name).replace(/~/g, "%7E").replace(/\./g, "%2E").replace(/%/g, "~");
}

/** Gives the path of Airflow below its host, with a slash at its end: `/`, or that of `[api] base_url`. */
export const airflow = () => new URL(document.baseURI).pathname;

const client = createClient<paths>({
  baseUrl: `${globalThis.location?.origin ?? ""}${globalThis.document ? airflow() : "/"}tx`,
  // `no-cache` asks with the ETag of the cached answer; it does not mean that nothing is cached.
  cache: "no-cache",
  credentials: "same-origin",
});

type Answer<T> = { data?: T; error?: unknown; response: Response };

async function need<T>(asked: Promise<Answer<T>>): Promise<T> {
  const { data, error, response } = await asked;
  if (data === undefined) throw new Refusal(response.status, sentence(response.status, error), Number(response.headers.get("retry-after")) || AGAIN);
  return data;
}

export const api = {
  topologies: (query: { state?: TopologyState["code"][]; text?: string; limit: number; offset: number; grouped?: boolean; cause?: string }, signal: AbortSignal) =>
    need(client.GET("/api/v1/topologies", { params: { query }, signal })),

  topology: (topology: string, signal: AbortSignal) =>
    need(client.GET("/api/v1/topologies/{topology}", { params: { path: { topology: segment(topology) } }, signal })),

  timeline: (topology: string, query: TimelineQuery, signal: AbortSignal) =>
    need(client.GET("/api/v1/topologies/{topology}/transactions", { params: { path: { topology: segment(topology) }, query }, signal })),

  activity: (topology: string, signal: AbortSignal) =>
    need(client.GET("/api/v1/topologies/{topology}/activity", { params: { path: { topology: segment(topology) } }, signal })),

  figures: (topology: string, query: { since?: string; until?: string }, signal: AbortSignal) =>
    need(client.GET("/api/v1/topologies/{topology}/figures", { params: { path: { topology: segment(topology) }, query }, signal })),

  jobs: (topology: string, signal: AbortSignal) =>
    need(client.GET("/api/v1/topologies/{topology}/jobs", { params: { path: { topology: segment(topology) } }, signal })),

  searchAll: (query: { what: string; state?: TopologyState["code"][]; text?: string }, signal: AbortSignal) =>
    need(client.GET("/api/v1/search", { params: { query }, signal })),

  stale: (topology: string, signal: AbortSignal) =>
    need(client.GET("/api/v1/topologies/{topology}/stale", { params: { path: { topology: segment(topology) } }, signal })),

  search: (topology: string, what: string, signal: AbortSignal) =>
    need(client.GET("/api/v1/topologies/{topology}/search", { params: { path: { topology: segment(topology) }, query: { what } }, signal })),

  transaction: (topology: string, txid: number, signal: AbortSignal) =>
    need(client.GET("/api/v1/topologies/{topology}/transactions/{txid}", { params: { path: { topology: segment(topology), txid } }, signal })),

  rejected: (topology: string, txid: number, signal: AbortSignal) =>
    need(client.GET("/api/v1/topologies/{topology}/transactions/{txid}/rejected", { params: { path: { topology: segment(topology), txid } }, signal })),

  /** Reads the log of a try from Airflow's own API, which decides who may. */
  log: async ({ dag_id, run_id, task_id, map_index, try_number }: NonNullable<Advice["log"]>, signal: AbortSignal): Promise<(LogLine | string)[]> => {
    const [dag, run, task] = [dag_id, run_id, task_id].map(encodeURIComponent);
    const path = `api/v2/dags/${dag}/dagRuns/${run}/taskInstances/${task}/logs/${try_number}?map_index=${map_index}&full_content=true`;
    const answer = await fetch(`${airflow()}${path}`, { credentials: "same-origin", headers: { accept: "application/json" }, signal });
    if (!answer.ok) throw new Refusal(answer.status, sentence(answer.status, await answer.json().catch(() => null)));
    return ((await answer.json()) as { content: (LogLine | string)[] }).content;
  },

  dag: (dag_id: string, signal: AbortSignal) =>
    need(client.GET("/api/v1/dags/{dag_id}", { params: { path: { dag_id: segment(dag_id) } }, signal })),

  run: (dag_id: string, run_id: string, signal: AbortSignal) =>
    need(client.GET("/api/v1/dags/{dag_id}/runs/{run_id}", { params: { path: { dag_id: segment(dag_id), run_id: segment(run_id) } }, signal })),

  preview: (topology: string, action: ActionName, body: PreviewBody) =>
    need(
      client.POST("/api/v1/topologies/{topology}/actions/{action}/preview", {
        params: { path: { topology: segment(topology), action } },
        body: { ...NOTHING, ...body },
        headers: OURS,
      }),
    ),

  act: (topology: string, action: ActionName, body: PreviewBody & { version: string; why: string }) =>
    need(
      client.POST("/api/v1/topologies/{topology}/actions/{action}", {
        params: { path: { topology: segment(topology), action } },
        body: { ...NOTHING, ...body },
        headers: OURS,
      }),
    ),
};

const NOTHING = { txids: [], force: false, changed_rows: false, first: "", last: "", names: [], repair: "", restate: false, follow: false, stale: false };

// A page of another origin cannot send it: the server refuses actions without it.
const OURS = { "X-Requested-With": "airflow_tx" };
