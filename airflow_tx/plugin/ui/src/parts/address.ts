/**
 * Which part of the board is shown: kept in the address, so that it can be sent to others.
 *
 * Of a topology, all of these may be left out:
 *   range, until  which time is shown: `range` seconds that end at `until`, in milliseconds since the epoch. Without
 *                 `until` the time ends now, and goes on. Without `range` it is as long as the newest transactions took.
 *                 To show the time from A to B, both in milliseconds: range = (B - A) / 1000, until = B.
 *   status        rows of one of these statuses, with commas between them: FAILED,BLOCKED
 *   find          rows with this text in their run id, their batch or an error
 *   run           rows of this run id
 *   only          rows that are each of these, with commas between them: restated,replayed,slow
 */

import { useSearchParams } from "react-router-dom";

import { EVERY_ROW, MARKS, STATUSES, type Mark, type RowFilter, type Status } from "../timeline/filter";
import { NARROWEST, WIDEST } from "../timeline/scale";
import { STATE_CODES, type StateCode } from "./phase";

export interface Address extends RowFilter {
  topology: string | null;
  txid: number | null;
  /** Seconds that the timeline shows; null: as many as fit. */
  range: number | null;
  /** Where it ends, in milliseconds; null: now. */
  until: number | null;
  /** Of the overview: topologies in this state. */
  state: StateCode | null;
  /** Of the overview: topologies that have this text. */
  text: string | null;
  /** Of the overview: the text that transactions are searched for. */
  what: string | null;
  /** Of the overview: how many topologies come before the page. */
  offset: number | null;
  /** Of the overview: the cause whose topologies are shown. */
  cause: string | null;
  /** The word that is explained. */
  word: string | null;
}

const LONGEST_TEXT = 200;
const LONGEST_RUN_ID = 250;
const LONGEST_CAUSE = 64;

/** Reads an address; what makes no sense in it is left out. */
export function readAddress(params: URLSearchParams): Address {
  const number = (name: string) => Number(params.get(name) ?? Number.NaN);
  const [txid, range, until, offset] = [number("txid"), number("range"), number("until"), number("offset")];
  return {
    topology: params.get("topology"),
    txid: Number.isInteger(txid) && txid > 0 ? txid : null,
    range: range >= NARROWEST && range <= WIDEST ? range : null,
    until: until > 0 ? until : null,
    state: STATE_CODES.find((code) => code === params.get("state")) ?? null,
    text: params.get("text")?.slice(0, LONGEST_TEXT) || null,
    what: params.get("what")?.trim().slice(0, LONGEST_TEXT) || null,
    offset: Number.isInteger(offset) && offset > 0 ? offset : null,
    cause: params.get("cause")?.slice(0, LONGEST_CAUSE) || null,
    word: params.get("word"),
    status: some<Status>(params.get("status"), STATUSES),
    find: params.get("find")?.slice(0, LONGEST_TEXT) || null,
    run: params.get("run")?.slice(0, LONGEST_RUN_ID) || null,
    only: some<Mark>(params.get("only"), MARKS),
  };
}

/** Reads which of several words are in a text; null: none. */
function some<T extends string>(text: string | null, words: readonly T[]): T[] | null {
  const named = (text ?? "").split(",");
  const found = words.filter((word) => named.includes(word));
  return found.length > 0 ? found : null;
}

/** Writes an address as the part behind the question mark, with these changes. Another topology has a filter of its own. */
export function writeAddress(address: Address, changes: Partial<Address>): string {
  const params = new URLSearchParams();
  const isOther = changes.topology !== undefined && changes.topology !== address.topology;
  for (const [name, value] of Object.entries({ ...address, ...(isOther && EVERY_ROW), ...changes })) {
    if (value !== null) params.set(name, typeof value === "number" ? String(Math.round(value)) : String(value));
  }
  return `?${params.toString()}`;
}

/** Gives the address of the page, and how to write another one. */
export function useAddress(): [Address, (changes: Partial<Address>) => string] {
  const [params] = useSearchParams();
  const address = readAddress(params);
  return [address, (changes) => writeAddress(address, changes)];
}
