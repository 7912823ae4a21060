/** Words about stale transactions. */

import type { StaleAnswer } from "../api/client";
import { counted } from "../parts/words";

/** Says how many transactions are stale. */
export function outcome({ groups, compared }: Pick<StaleAnswer, "groups" | "compared">): string {
  const stale = groups.reduce((sum, { txids }) => sum + txids.length, 0);
  const of = counted(compared, "transaction");
  return stale === 0 ? `None of ${of} is stale.` : `${stale} of ${of} ${stale === 1 ? "is" : "are"} stale.`;
}

/** Says whether a restatement is requested, or which transaction it is; null: neither. */
export function restatement(txid: number | null): string {
  if (txid === null) return "";
  return txid === 0 ? "requested" : `transaction ${txid}`;
}
