/** Which topology, transaction and stretch of time are shown: kept in the address, so that it can be sent to others. */

import { useSearchParams } from "react-router-dom";

import { RANGES } from "../timeline/scale";

export interface Address {
  topology: string | null;
  txid: number | null;
  /** Seconds that the timeline shows; null: as many as fit. */
  range: number | null;
  /** Where it ends, in milliseconds; null: now. */
  until: number | null;
}

const WIDEST = Math.max(...RANGES.map((each) => each.seconds));

/** Reads an address; what makes no sense in it is left out. */
export function readAddress(params: URLSearchParams): Address {
  const [txid, range, until] = ["txid", "range", "until"].map((name) => Number(params.get(name) ?? Number.NaN));
  return {
    topology: params.get("topology"),
    txid: Number.isInteger(txid) && txid! > 0 ? txid! : null,
    range: range! >= 60 && range! <= WIDEST ? range! : null,
    until: until! > 0 ? until! : null,
  };
}

/** Writes an address as the part behind the question mark, with these changes. */
export function writeAddress(address: Address, changes: Partial<Address>): string {
  const next = { ...address, ...changes };
  const params = new URLSearchParams();
  if (next.topology !== null) params.set("topology", next.topology);
  if (next.txid !== null) params.set("txid", String(next.txid));
  if (next.range !== null) params.set("range", String(next.range));
  if (next.until !== null) params.set("until", String(Math.round(next.until)));
  return `?${params.toString()}`;
}

/** Gives the address of the page, and how to write another one. */
export function useAddress(): [Address, (changes: Partial<Address>) => string] {
  const [params] = useSearchParams();
  const address = readAddress(params);
  return [address, (changes) => writeAddress(address, changes)];
}
