/** What a search of all topologies has found, and what it has not looked at, in words. */

import type { SearchOfAllAnswer } from "../api/client";
import { counted } from "../parts/words";

export type FoundLine = SearchOfAllAnswer["found"][number];

const LONGEST = 160;
const BEFORE = 40;
const PARTS: Record<FoundLine["matched"], string> = {
  txid: "txid",
  run: "run",
  batch: "batch",
  date: "date in",
  status: "status",
  error: "error",
  detail: "batch detail:",
};

/** Names the part of a transaction that has the text. */
export function matchWords({ matched }: Pick<FoundLine, "matched">): string {
  return PARTS[matched];
}

/** Shows the part that has the text; of a long one, the place where the text stands. */
export function shownMatch({ text }: Pick<FoundLine, "text">, what: string): string {
  if (text.length <= LONGEST) return text;
  const at = Math.max(text.toLowerCase().indexOf(what.toLowerCase()) - BEFORE, 0);
  const end = at + LONGEST;
  return `${at > 0 ? "…" : ""}${text.slice(at, end)}${end < text.length ? "…" : ""}`;
}

/** Says how far a search went, what it did not look at, and what to do about it. */
export function extent(answer: SearchOfAllAnswer): string {
  const { topologies, looked, transactions, partly, unknown, unread, complete, found } = answer;
  const of = looked === topologies ? counted(looked, "topology", "topologies") : `${looked} of ${counted(topologies, "topology", "topologies")}`;
  const parts = [
    found.length === 0 ? "None found." : complete ? "" : "There may be more matches.",
    `Searched ${counted(transactions, "transaction")} of ${of}${partly > 0 ? `, but only the newest transactions of ${partly}` : ""}.`,
    unread.length > 0 ? `These topologies could not be read: ${unread.join(", ")}.` : "",
    unknown > 0 ? `The ledger does not keep the batch names of ${counted(unknown, "transaction")}.` : "",
    looked + unread.length < topologies || partly > 0 ? "To search more transactions, filter the topologies below." : "",
    "To find an offset or an id, search on the page of its topology, which queries the source.",
  ];
  return parts.filter(Boolean).join(" ");
}
