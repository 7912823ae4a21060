/** Which part of the board is shown: kept in the address, so that it can be sent to others. */

import { useSearchParams } from "react-router-dom";

import { RANGES } from "../timeline/scale";
import { STATE_CODES, type StateCode } from "./phase";

export interface Address {
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
  /** Of the overview: how many topologies come before the page. */
  offset: number | null;
  /** The word that is explained. */
  word: string | null;
}

const WIDEST = Math.max(...RANGES.map((each) => each.seconds));
export const NARROWEST = Math.min(...RANGES.map((each) => each.seconds));
const LONGEST_TEXT = 200;

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
    offset: Number.isInteger(offset) && offset > 0 ? offset : null,
    word: params.get("word"),
  };
}

/** Writes an address as the part behind the question mark, with these changes. */
export function writeAddress(address: Address, changes: Partial<Address>): string {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...address, ...changes })) {
    if (value !== null) params.set(name, typeof value === "number" ? String(Math.round(value)) : value);
  }
  return `?${params.toString()}`;
}

/** Gives the address of the page, and how to write another one. */
export function useAddress(): [Address, (changes: Partial<Address>) => string] {
  const [params] = useSearchParams();
  const address = readAddress(params);
  return [address, (changes) => writeAddress(address, changes)];
}
