/** How a lag is written. */

import type { TopologyLine } from "../api/client";
import { ago, count, counted } from "../parts/words";

/** Writes a lag with its unit and its age; `?`: it is not known, as in `airflow tx list`. */
export function lagWords(lag: TopologyLine["lag"], now: number): string {
  if (lag.value == null) return "?";
  const words = lag.unit ? counted(lag.value, lag.unit.replace(/s$/, ""), lag.unit) : count(lag.value);
  return lag.at ? `${words}, ${ago(lag.at, now)}` : words;
}
