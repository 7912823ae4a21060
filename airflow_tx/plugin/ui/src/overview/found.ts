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
  detail: "detail of the batch:",
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
    found.length === 0 ? "None found." : complete ? "" : "There may be more.",
    `Looked at ${counted(transactions, "transaction")} of ${of}${partly > 0 ? `, of ${partly} only at the newest` : ""}.`,
    unread.length > 0 ? `Not read: ${unread.join(", ")}.` : "",
    unknown > 0 ? `Of ${counted(unknown, "transaction")} the ledger does not keep the names of the batch.` : "",
    looked + unread.length < topologies || partly > 0 ? "To look at more, filter the topologies below." : "",
    "Offsets and ids: search on the page of a topology, which asks its source.",
  ];
  return parts.filter(Boolean).join(" ");
}
