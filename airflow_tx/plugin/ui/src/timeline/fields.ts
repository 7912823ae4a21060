/** Moments as a person types them: in the time zone of the page. */

import { zoneOffset } from "./scale";

const MINUTE = 60_000;

/** Names the time zone in which the page writes moments. */
export function zoneName(zone: string | undefined): string {
  return zone ?? new Intl.DateTimeFormat().resolvedOptions().timeZone;
}

/** Writes a moment as a field for a day and a time has it: to the second, unless that is 0, or the field would change it. */
export function fieldText(at: number, zone: string | undefined): string {
  return new Date(at + zoneOffset(at, zone) * MINUTE).toISOString().slice(0, 19).replace(/:00$/, "");
}

/** Reads what such a field has; null: it is empty, or no moment. */
export function fieldMoment(text: string, zone: string | undefined): number | null {
  const utc = Date.parse(`${text}Z`);
  if (text === "" || Number.isNaN(utc)) return null;
  const near = utc - zoneOffset(utc, zone) * MINUTE;
  // The offset may change between the two.
  return utc - zoneOffset(near, zone) * MINUTE;
}
