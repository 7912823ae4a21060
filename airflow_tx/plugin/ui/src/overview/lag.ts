/** How a lag is written. */

import type { TopologyLine } from "../api/client";
import { ago, count, counted } from "../parts/words";

/** Writes a lag with its unit; `?`: it is not known, as in `airflow tx list`. */
export function lagSize(lag: TopologyLine["lag"]): string {
  if (lag.value == null) return "?";
  return lag.unit ? counted(lag.value, lag.unit.replace(/s$/, ""), lag.unit) : count(lag.value);
}

/** Writes a lag with its unit and its age. */
export function lagWords(lag: TopologyLine["lag"], now: number): string {
  return lag.value != null && lag.at ? `${lagSize(lag)}, ${ago(lag.at, now)}` : lagSize(lag);
}
