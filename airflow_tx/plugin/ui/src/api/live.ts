/** Answers that stay fresh: asked for again every two seconds, as long as the page is in view. */

import { hashKey, keepPreviousData, useQuery, useQueryClient, type QueryClient, type UseQueryResult } from "@tanstack/react-query";
import { createContext, useCallback, useContext, useEffect, useRef, useState, useSyncExternalStore } from "react";

import { Refusal } from "./client";

export const EVERY = 2000;
/** An answer that takes longer than this is late. */
const PATIENCE = 5000;
/** A question that takes longer has no answer any more: a machine that was asleep, or that changed its network, has lost it. */
const LONGEST = 30_000;

/** When each question that is under way was asked, by the hash of its key. */
const underWay = new Map<string, number>();

/** Keeps an answer fresh. What was answered last stays while nothing newer can be had. */
export function useLive<T>(
  key: readonly unknown[],
  ask: (signal: AbortSignal) => Promise<T>,
  options: { enabled?: boolean; every?: number } = {},
): UseQueryResult<T, Error> {
  const every = options.every ?? EVERY;
  return useQuery({
    enabled: options.enabled ?? true,
    meta: { every },
    placeholderData: keepPreviousData,
    queryFn: async ({ signal }) => {
      underWay.set(hashKey(key), Date.now());
      try {
        return await ask(within(signal, LONGEST));
      } finally {
        underWay.delete(hashKey(key));
      }
    },
    queryKey: key,
    refetchInterval: ({ state }) => again(state.error, every),
    refetchOnWindowFocus: true,
    retry: false,
    staleTime: 0,
  });
}

/** Gives after how many milliseconds a question is asked again: all at the same time, while nobody answers. */
function again(error: Error | null, every: number): number {
  if (error instanceof Refusal) return error.final ? 10 * EVERY : every;
  return error === null ? every : EVERY;
}

/** Ends a question that takes too long. */
function within(signal: AbortSignal, longest: number): AbortSignal {
  const both = new AbortController();
  const timer = setTimeout(() => both.abort(new DOMException("no answer", "TimeoutError")), longest);
  signal.addEventListener("abort", () => (clearTimeout(timer), both.abort(signal.reason)));
  return both.signal;
}

/** Says why an answer was refused; null: it was not, or the whole page says so. */
export function useTrouble(query: UseQueryResult<unknown, Error>): string | null {
  const { error } = query;
  return error === null || isLost(error) ? null : error.message;
}

/** What is known of a question that is asked again and again. */
export interface Asked {
  error: Error | null;
  /** When it was answered last; 0: never. */
  answered: number;
  /** When the question under way was asked; null: none is. */
  asked: number | null;
  every: number;
}

/** What the page shows is old. */
export interface Lost {
  why: string;
  /** When the oldest answer that is shown came; null: nothing is shown. */
  since: number | null;
  /** Seconds between two trials. */
  again: number;
}

/** Says that what is shown is old, and why; null: it is fresh. */
export function lost(questions: readonly Asked[], now: number, online: boolean): Lost | null {
  const old = questions.filter(({ error, asked }) => isLost(error) || (asked !== null && now - asked > PATIENCE));
  if (old.length === 0) return null;
  const answered = old.map((each) => each.answered).filter((at) => at > 0);
  return {
    why: whyLost(old.map(({ error }) => error).find(isLost) ?? null, online),
    since: answered.length > 0 ? Math.min(...answered) : null,
    again: Math.min(...old.map(({ error, every }) => again(error, every))) / 1000,
  };
}

/** Whether an error concerns the whole page: nobody answers, the ledger does not, or nobody will before a person logs in. */
function isLost(error: Error | null): boolean {
  return error !== null && (!(error instanceof Refusal) || error.status === 401 || error.status >= 500);
}

function whyLost(error: Error | null, online: boolean): string {
  if (error instanceof Refusal) return error.message;
  if (!online) return "There is no network.";
  return error === null ? `Airflow's api-server has not answered for more than ${PATIENCE / 1000} seconds.` : "Airflow's api-server cannot be reached.";
}

export const LostContext = createContext<Lost | null>(null);

/** Says that what the page shows is old; null: it is fresh. */
export const useLost = () => useContext(LostContext);

/** Finds out whether what the page shows is old, again and again. */
export function useConnection(): Lost | null {
  const queries = useQueryClient();
  const last = useRef<Lost | null>(null);
  const listen = useCallback(
    (changed: () => void) => {
      const stop = queries.getQueryCache().subscribe(changed);
      const timer = setInterval(changed, 1000);
      return () => (stop(), clearInterval(timer));
    },
    [queries],
  );
  return useSyncExternalStore(listen, () => {
    const found = lost(asked(queries), Date.now(), navigator.onLine);
    // The same object as long as it says the same.
    return JSON.stringify(found) === JSON.stringify(last.current) ? last.current : (last.current = found);
  });
}

/** Lists the questions whose answers are on the page. */
function asked(queries: QueryClient): Asked[] {
  return queries
    .getQueryCache()
    .findAll({ type: "active", predicate: ({ meta }) => meta?.["every"] !== undefined })
    .map(({ meta, state, queryHash }) => ({ error: state.error, answered: state.dataUpdatedAt, asked: underWay.get(queryHash) ?? null, every: meta!["every"] as number }));
}

/** Gives the time, again and again; where what is shown is old, the time of which it is: the page claims nothing later. */
export function useNow(every = 1000): number {
  const since = useLost()?.since ?? null;
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    setNow(Date.now());
    const timer = setInterval(() => setNow(Date.now()), every);
    return () => clearInterval(timer);
  }, [every, since]);
  return since ?? now;
}
