/** What stands on the page of a transaction once: its error, which several answers repeat. */

import type { TransactionPage } from "../api/client";

/** Where the server has shortened a text. */
const GAP = " ... ";

/** Tells whether two texts say the same: one has the other in it, for example with what to do behind it, or is shortened. */
export function isSame(one: string, other: string): boolean {
  const [a, b] = [one.trim(), other.trim()];
  return a !== "" && b !== "" && (holds(a, b) || holds(b, a));
}

function holds(whole: string, part: string): boolean {
  if (whole.includes(part)) return true;
  const gap = part.indexOf(GAP);
  return gap > 0 && whole.includes(part.slice(0, gap)) && whole.includes(part.slice(gap + GAP.length));
}

/** Gives the error of a transaction, or of the attempt that was replayed last; null: there is none, or `waits` says it. */
export function errorOf({ reason, waits, comparison }: Pick<TransactionPage, "reason" | "waits" | "comparison">): string | null {
  if (reason !== null) return waits !== null && isSame(waits, reason) ? null : reason;
  const before = comparison.at(-2);
  const why = before?.why ?? null;
  return before === undefined || why === null || (waits !== null && isSame(waits, why)) ? null : `Attempt ${before.attempt} was replayed: ${why}`;
}

/** Gives the texts that stand above the sections of the page. */
export function saidAbove(page: Pick<TransactionPage, "reason" | "waits" | "comparison">): string[] {
  const said = page.waits === null && page.reason === null ? [] : [page.waits, errorOf(page)];
  return said.filter((text) => text !== null);
}

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
