/** Time on the horizontal axis: which moments are shown, where, and which of them are labelled. */

export interface Span {
  /** Milliseconds since the epoch. */
  start: number;
  end: number;
}

export const RANGES = [
  { label: "1 min", seconds: 60 },
  { label: "10 min", seconds: 600 },
  { label: "1 h", seconds: 3_600 },
  { label: "6 h", seconds: 21_600 },
  { label: "1 d", seconds: 86_400 },
  { label: "7 d", seconds: 604_800 },
  { label: "30 d", seconds: 2_592_000 },
] as const;

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const STEPS = [
  ...[1, 2, 5, 10, 15, 30].map((count) => count * SECOND),
  ...[1, 2, 5, 10, 15, 30].map((count) => count * MINUTE),
  ...[1, 2, 3, 6, 12].map((count) => count * HOUR),
  ...[1, 2, 5, 10].map((count) => count * DAY),
];

/** Up to now, no less is shown at first sight than this: a page that changes its range with each transaction is not read. */
const FIRST_LEAST = 600;
const WIDEST = RANGES[RANGES.length - 1]!.seconds;

export interface Fit {
  /** Seconds. */
  range: number;
  /** Where it ends, in milliseconds; null: now. */
  until: number | null;
}

/**
 * Chooses what is shown at first: what there is, with some space. It ends now, unless more than half of that is empty.
 *
 * @param moments at which something began.
 * @param last when the last one ended; null: one is under way.
 */
export function fitting(moments: readonly number[], last: number | null, now: number): Fit {
  const first = Math.min(now, ...moments);
  const end = Math.min(last ?? now, now);
  const filled = end - first;
  const behind = now - first;
  if (behind <= FIRST_LEAST * SECOND * FILLED) return { range: FIRST_LEAST, until: null };
  if (last === null || behind <= 2 * filled) return { range: fittingRange(behind), until: null };
  const range = fittingRange(filled);
  return { range, until: Math.min(end + (range * SECOND - filled) / 2, now) };
}

/** How much of the picture the transactions fill at most. */
const FILLED = 0.95;

/** Chooses a usual range if it is not much more than needed, else one of the length itself. */
function fittingRange(length: number): number {
  const needed = Math.max(Math.ceil(length / SECOND / FILLED), RANGES[0].seconds);
  const usual = RANGES.find(({ seconds }) => seconds >= needed)?.seconds ?? WIDEST;
  return Math.min(usual <= 1.5 * needed ? usual : needed, WIDEST);
}

/** Gives the position of a moment, in pixels from the left; moments outside of the span lie outside of the width. */
export function position(at: number, span: Span, width: number): number {
  return ((at - span.start) / (span.end - span.start)) * width;
}

/** Gives the labelled moments: round ones, not closer than `apart` pixels. `offset` is the zone's, in minutes. */
export function ticks(span: Span, width: number, apart: number, offset = 0): number[] {
  const atLeast = ((span.end - span.start) / Math.max(width, 1)) * apart;
  const step = STEPS.find((each) => each >= atLeast) ?? 30 * DAY;
  const shift = offset * MINUTE;
  const found: number[] = [];
  for (let at = Math.ceil((span.start + shift) / step) * step - shift; at <= span.end; at += step) found.push(at);
  return found;
}

/** Gives the zone's distance from UTC at a moment, in minutes. */
export function zoneOffset(at: number, zone: string | undefined): number {
  const local = new Date(at).toLocaleString("sv-SE", { timeZone: zone });
  return Math.round((Date.parse(`${local.replace(" ", "T")}Z`) - at) / MINUTE);
}

/** Writes a tick: the time of day, or the day where a day begins. */
export function tickLabel(at: number, zone: string | undefined): string {
  const second = at % MINUTE === 0 ? undefined : "2-digit";
  const time = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second, timeZone: zone }).format(at);
  return time === "00:00"
    ? new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: zone }).format(at)
    : time;
}

/** What a person has dragged over becomes the span that is shown: never less than a minute, never beyond now. */
export function dragged(from: number, to: number, span: Span, width: number, now: number): { range: number; until: number | null } {
  const at = (x: number) => span.start + (Math.min(Math.max(x, 0), width) / width) * (span.end - span.start);
  const start = at(Math.min(from, to));
  const end = Math.min(at(Math.max(from, to)), now);
  const range = Math.max((end - start) / SECOND, RANGES[0].seconds);
  return { range, until: end >= now ? null : Math.min(Math.max(end, start + range * SECOND), now) };
}
