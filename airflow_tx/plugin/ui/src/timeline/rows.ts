/** The rows of a timeline: newest first, loaded by blocks as they come into view. */

import { keepPreviousData, useQueries, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { useMemo } from "react";

import { api, type TimelineRow } from "../api/client";
import { useLive } from "../api/live";
import { fitting, type Fit } from "./scale";
import type { Rows } from "./window";

export const BLOCK = 100;
const OLD = 30_000;

/** Gives the first txid of each block that holds one of these rows, the newest row being `newest`. */
export function blocks(newest: number, rows: Rows, loaded: (txid: number) => boolean): number[] {
  const found = new Set<number>();
  for (let index = rows.first; index < rows.last; index++) {
    const txid = newest - index;
    if (txid > 0 && !loaded(txid)) found.add(Math.floor((txid - 1) / BLOCK) * BLOCK + 1);
  }
  return [...found];
}

/** Rounds the begin of the span, so that the same question is asked again and its answer has not changed. */
export function roundedSince(until: number, range: number): number {
  const step = Math.max(range * 1000, 60_000) / 10;
  return Math.floor((until - range * 1000) / step) * step;
}

const FIRST_SIGHT = 30;

/** Looks again whether something goes on, while what is shown has ended. */
const IDLE = 5_000;

type First = Awaited<ReturnType<typeof api.timeline>>;

/** Chooses what is shown at first: about a screen of transactions; null: it is not known yet. */
export function useFitting(topology: string, wanted: boolean): [Fit | null, UseQueryResult<unknown, Error>] {
  const query = useQuery({
    enabled: wanted,
    gcTime: 0,
    queryFn: ({ signal }) => api.timeline(topology, { limit: FIRST_SIGHT }, signal),
    queryKey: ["timeline", topology, "first sight"],
    refetchInterval: ({ state }) => (state.data !== undefined && fitOf(state.data, state.dataUpdatedAt).until !== null ? IDLE : false),
    staleTime: Infinity,
  });
  return [query.data === undefined ? null : fitOf(query.data, query.dataUpdatedAt), query];
}

/** Chooses what is shown of these transactions. */
export function fitOf({ transactions }: Pick<First, "transactions">, now: number): Fit {
  const moments = (found: (string | null | undefined)[]) => found.flatMap((at) => (at ? [Date.parse(at)] : []));
  const begun = transactions.flatMap((row) => row.attempts.map((attempt) => attempt.begun_at ?? row.commit?.start));
  const ended = moments(transactions.flatMap((row) => [row.attempts.at(-1)?.ended_at, row.commit?.end]));
  const isOpen = transactions.some((row) => row.open);
  return fitting(moments(begun), isOpen || ended.length === 0 ? null : Math.max(...ended), now);
}

export interface TimelineRows {
  query: ReturnType<typeof useLive<Awaited<ReturnType<typeof api.timeline>>>>;
  total: number;
  newest: number;
  byTxid: ReadonlyMap<number, TimelineRow>;
}

/** Loads the rows between two moments: the newest again and again, older ones when they are `visible`. */
export function useTimelineRows(topology: string, since: number, until: number | null, visible: Rows): TimelineRows {
  const query: { since: string; until?: string } = { since: new Date(since).toISOString() };
  if (until !== null) query.until = new Date(until).toISOString();
  const head = useLive(["timeline", topology, query], (signal) => api.timeline(topology, { ...query, limit: BLOCK }, signal));
  const rows = head.data?.transactions ?? [];
  const newest = rows[0]?.txid ?? 0;
  const oldest = rows.at(-1)?.txid ?? 0;
  const wanted = newest ? blocks(newest, { ...visible, last: Math.min(visible.last, head.data?.total ?? 0) }, (txid) => txid >= oldest) : [];
  const older = useQueries({
    queries: wanted.map((first) => ({
      placeholderData: keepPreviousData,
      queryFn: ({ signal }: { signal: AbortSignal }) => api.timeline(topology, { before: first + BLOCK, limit: BLOCK }, signal),
      queryKey: ["timeline", topology, "block", first],
      refetchInterval: OLD,
      retry: 1,
      staleTime: OLD,
    })),
  });
  const loaded = older.map((each) => each.data);
  const byTxid = useMemo(() => {
    const all = [...loaded.flatMap((each) => each?.transactions ?? []), ...rows];
    return new Map(all.map((row) => [row.txid, row]));
    // eslint-disable-next-line
  }, [head.data, ...loaded]);
  return { query: head, total: head.data?.total ?? 0, newest, byTxid };
}
