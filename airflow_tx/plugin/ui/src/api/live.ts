/** Answers that stay fresh: asked for again every two seconds, as long as the page is in view. */

import { keepPreviousData, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { useEffect, useState } from "react";

import { Refusal } from "./client";

export const EVERY = 2000;
const PATIENCE = 1000;

/** Keeps an answer fresh. What was answered last stays while nothing newer can be had. */
export function useLive<T>(
  key: readonly unknown[],
  ask: (signal: AbortSignal) => Promise<T>,
  options: { enabled?: boolean; every?: number } = {},
): UseQueryResult<T, Error> {
  return useQuery({
    enabled: options.enabled ?? true,
    placeholderData: keepPreviousData,
    queryFn: ({ signal }) => ask(signal),
    queryKey: key,
    refetchInterval: (query) => (query.state.error instanceof Refusal && query.state.error.final ? 10 * EVERY : (options.every ?? EVERY)),
    refetchOnWindowFocus: true,
    retry: false,
    staleTime: 0,
  });
}

/** Says why an answer is not fresh: it was refused, or it has not come for a second; null: it is. */
export function useTrouble(query: UseQueryResult<unknown, Error>): string | null {
  const [slow, setSlow] = useState(false);
  const asking = query.fetchStatus === "fetching";
  useEffect(() => {
    setSlow(false);
    if (!asking) return undefined;
    const timer = setTimeout(() => setSlow(true), PATIENCE);
    return () => clearTimeout(timer);
  }, [asking, query.dataUpdatedAt]);
  if (query.error) return query.error instanceof Refusal ? query.error.message : "Airflow's api-server cannot be reached.";
  return slow && query.data !== undefined ? "Airflow's api-server has not answered for more than a second." : null;
}

/** Gives the time, again and again. */
export function useNow(every = 1000): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}
