/** How a lag is written. */

import type { TopologyLine } from "../api/client";
import { count } from "../parts/words";

/** Writes a lag with its unit; `?`: it is not known, as in `airflow tx list`. */
export function lagWords(lag: TopologyLine["lag"]): string {
  return lag.value == null ? "?" : [count(lag.value), lag.unit].filter(Boolean).join(" ");
}
