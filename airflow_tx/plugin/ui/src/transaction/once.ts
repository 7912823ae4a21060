/** What stands on the page of a transaction once: its error, and rows and positions in words. */

import type { TransactionPage } from "../api/client";

/** Leaves the error out of the titles of bars: it stands above them. */
export function withoutErrors<T extends Pick<TransactionPage, "attempts" | "waiting">>(page: T): T {
  const attempts = page.attempts.map((each) => ({ ...each, why: null }));
  return { ...page, attempts, waiting: page.waiting && { ...page.waiting, waiting_for: null } };
}

const LONGEST = 100;
const SHOWN = 3;

/** Writes which rows a batch has, or a position, in words; null: a person has to read the JSON. */
export function inWords(value: unknown): string | null {
  const parts = partsOf(value);
  if (parts === null || parts.length === 0) return null;
  const more = parts.length - SHOWN;
  const words = more > 0 ? `${parts.slice(0, SHOWN).join(", ")} and ${more} more` : parts.join(", ");
  return words.length > LONGEST ? null : words;
}

function partsOf(value: unknown): string[] | null {
  if (isPlain(value)) return [String(value)];
  if (typeof value !== "object" || value === null) return null;
  const plain = Object.entries(value).filter(([, each]) => each !== null);
  if (!plain.every(([, each]) => isPlain(each))) return null;
  return plain.map(([name, each]) => (Array.isArray(value) ? String(each) : `${name}: ${String(each)}`));
}

function isPlain(value: unknown): boolean {
  return (typeof value === "string" && value !== "") || typeof value === "number" || typeof value === "boolean";
}
