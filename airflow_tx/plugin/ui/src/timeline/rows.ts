/** The rows of a timeline: newest first, loaded by blocks as they come into view. */

import { keepPreviousData, useQueries, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { useCallback, useMemo, useRef } from "react";

import { api, type TimelineRow } from "../api/client";
import { EVERY, useLive } from "../api/live";
import { draw } from "./bars";
import { asked, type RowFilter } from "./filter";
import { fitting, type Fit, type Stretch } from "./scale";
import type { Rows } from "./window";

export const BLOCK = 100;
const OLD = 30_000;

/** Gives the first txid of each block that holds one of these rows, which are not loaded; `txidAt` gives the txid of a row. */
export function blocks(txidAt: (index: number) => number, rows: Rows, loaded: (txid: number) => boolean): number[] {
  const found = new Set<number>();
  for (let index = rows.first; index < rows.last; index++) {
    const txid = txidAt(index);
    if (txid > 0 && !loaded(txid)) found.add(Math.floor((txid - 1) / BLOCK) * BLOCK + 1);
  }
  return [...found];
}

/** Rounds the begin of the span, so that the same question is asked again and its answer has not changed. */
export function roundedSince(until: number, range: number): number {
  // A range that grows keeps its step for long.
  const step = 2 ** Math.floor(Math.log2(Math.max(range, 60) / 10)) * 1000;
  return Math.floor((until - range * 1000) / step) * step;
}

const FIRST_SIGHT = 30;

/** Looks again whether something goes on, while what is shown has ended. */
const IDLE = 5_000;
/** Chooses anew what is shown of what goes on, after as much time as all of it took, but not more often than this. */
const ANEW = 600_000;

type First = Pick<Awaited<ReturnType<typeof api.timeline>>, "transactions">;

/** Chooses what is shown at first: about a screen of transactions; null: it is not known yet. */
export function useFitting(topology: string, filter: RowFilter, wanted: boolean): [Fit | null, UseQueryResult<unknown, Error>] {
  const query = useQuery({
    enabled: wanted,
    gcTime: 0,
    queryFn: ({ signal }) => api.timeline(topology, { ...asked(filter), limit: FIRST_SIGHT }, signal),
    queryKey: ["timeline", topology, "first sight", filter],
    refetchInterval: ({ state }) => (state.data === undefined ? EVERY : again(fitOf(state.data, state.dataUpdatedAt), state.dataUpdatedAt)),
    staleTime: Infinity,
  });
  // What is shown stays until the rows of another filter are known.
  const last = useRef<Fit | null>(null);
  if (query.data !== undefined) last.current = fitOf(query.data, query.dataUpdatedAt);
  return [last.current, query];
}

function again(fit: Fit, at: number): number {
  return fit.until === null ? Math.max(at - fit.start, ANEW) : IDLE;
}

/** Chooses what is shown of these transactions. */
export function fitOf({ transactions }: First, now: number): Fit {
  const drawn = transactions.flatMap((row) => busyOf(row, now));
  const last = Math.max(...drawn.map((each) => each.end));
  return fitting(
    drawn.map((each) => each.start),
    transactions.some((row) => row.open) || drawn.length === 0 ? null : last,
    now,
  );
}

/** Lists the times in which something happens in a transaction: its tasks, its commit, and the moments when an attempt or a wait begins or ends. */
export function busyOf(row: TimelineRow, now: number): Stretch[] {
  const begun = row.attempts.flatMap(({ begun_at }) => (begun_at === null ? [] : [Date.parse(begun_at)]));
  const bars = draw(row, now).bars;
  // A transaction may wait for days, while nothing happens.
  const waits = bars.flatMap(({ kind, start, end }) => (kind === "waiting" ? [start, end] : []));
  const work = bars.flatMap(({ kind, start, end }) => (kind === "waiting" ? [] : [{ start, end }]));
  return [...work, ...[...begun, ...waits].map((at) => ({ start: at, end: at }))];
}

/** Lists the times in which something happens in the rows of an answer, and when others of its time were under way. */
export function busyTimes(answer: Pick<Answer, "transactions" | "earlier">, now: number): Stretch[] {
  const others = (answer.earlier ?? []).map(({ start, end }) => ({ start: Date.parse(start), end: end === null ? now : Date.parse(end) }));
  return [...answer.transactions.flatMap((row) => busyOf(row, now)), ...others];
}

type Answer = Awaited<ReturnType<typeof api.timeline>>;

export interface TimelineRows {
  query: ReturnType<typeof useLive<Answer>>;
  total: number;
  txidAt: (index: number) => number;
  byTxid: ReadonlyMap<number, TimelineRow>;
}

/** Loads the rows between two moments: the newest again and again, older ones when they are `visible`. */
export function useTimelineRows(topology: string, since: number, until: number | null, filter: RowFilter, visible: Rows): TimelineRows {
  const query: { since: string; until?: string } = { since: new Date(since).toISOString() };
  if (until !== null) query.until = new Date(until).toISOString();
  const wants = asked(filter);
  const head = useLive(["timeline", topology, query, wants], (signal) => api.timeline(topology, { ...query, ...wants, earlier: true, limit: BLOCK }, signal));
  const rows = head.data?.transactions ?? [];
  const newest = rows[0]?.txid ?? 0;
  const oldest = rows.at(-1)?.txid ?? 0;
  const txids = head.data?.txids ?? null;
  const txidAt = useCallback((index: number) => (txids === null ? newest - index : (txids[index] ?? 0)), [txids, newest]);
  const wanted = newest ? blocks(txidAt, { ...visible, last: Math.min(visible.last, head.data?.total ?? 0) }, (txid) => txid >= oldest) : [];
  const older = useQueries({
    queries: wanted.map((first) => ({
      placeholderData: keepPreviousData,
      queryFn: ({ signal }: { signal: AbortSignal }) => api.timeline(topology, { ...wants, before: first + BLOCK, limit: BLOCK }, signal),
      queryKey: ["timeline", topology, "block", first, wants],
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
  return { query: head, total: head.data?.total ?? 0, txidAt, byTxid };
}
