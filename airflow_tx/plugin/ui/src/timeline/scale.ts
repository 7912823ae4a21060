/** Time on the horizontal axis: which moments are shown, where, and which of them are labelled. */

/** Moments are in milliseconds since the epoch. */
export interface Stretch {
  start: number;
  end: number;
}

/** The time that is drawn. */
export interface Span extends Stretch {
  /** Gaps in which nothing happened, in order: each takes a few pixels only. */
  cuts?: readonly Stretch[];
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
/** A day is an hour shorter where the clock is put forward, and months have 28 to 31 days. */
const SHORTEST = 0.9;
/** The shortest one. */
const MONTH = 28 * DAY;
/** Months between two labels. */
const MONTHS = [1, 2, 3, 6, 12, 24, 60, 120];

/** The shortest and the longest time that an address may ask for, in seconds. */
export const NARROWEST = 10;
export const WIDEST = 3653 * 86_400;

/** The width of a cut, in pixels, where there are few; how much of the picture all cuts take at most; the least width of one. */
const BREAK = 14;
const BROKEN = 0.3;
const LEAST_BREAK = 6;
/** A gap is cut if it is as long as this, and takes more than this share of what is left. */
const LEAST_GAP = 10 * SECOND;
const GAP = 0.1;
/** The space before the first moment and after the last one, and at both ends of a cut: shares of the time that is not cut. */
const SPACE = 0.02;
const MARGIN = 0.01;

/** No bar is narrower than this, in pixels: its pattern would not be seen. */
export const LEAST_BAR = 3;

/** The page stays live for so long after the last moment, or for as long as all of it took. */
const LIVE = 600 * SECOND;

export interface Fit {
  start: number;
  /** Null: now. */
  until: number | null;
}

/**
 * Chooses what is shown at first: from the first moment to the last one, or to now, while something goes on.
 *
 * @param moments at which something began.
 * @param last when the last one ended; null: one is under way.
 */
export function fitting(moments: readonly number[], last: number | null, now: number): Fit {
  if (moments.length === 0) return { start: now - LIVE, until: null };
  const end = Math.min(last ?? now, now);
  const start = Math.min(...moments, end - SECOND);
  const isLive = last === null || now - end <= Math.max(end - start, LIVE);
  return { start, until: isLive ? null : end };
}

/**
 * Makes the span from one moment to another: without the long gaps between the times in which something happened.
 *
 * @param busy these times, in any order.
 */
export function fitted(busy: readonly Stretch[], start: number, end: number, width: number): Span {
  const gaps = gapsOf(busy, start, end);
  const most = Math.floor((width * BROKEN) / LEAST_BREAK);
  const shortest = [...gaps].sort((a, b) => lengthOf(a) - lengthOf(b));
  let kept = end - start - gaps.reduce((sum, gap) => sum + lengthOf(gap), 0);
  const cut = new Set<Stretch>();
  for (const [index, gap] of shortest.entries()) {
    const isLong = lengthOf(gap) >= LEAST_GAP && lengthOf(gap) > GAP * kept;
    if (isLong && shortest.length - index <= most) cut.add(gap);
    else kept += lengthOf(gap);
  }
  const margin = kept * Math.min(MARGIN, (10 * MARGIN) / Math.max(cut.size, 1));
  const space = Math.max(kept * SPACE, SECOND / 4);
  const cuts = gaps.filter((gap) => cut.has(gap)).map((gap) => ({
    start: gap.start + (gap.start > start ? margin : 0),
    end: gap.end - (gap.end < end ? margin : 0),
  }));
  return { start: start - space, end: end + space, cuts };
}

const lengthOf = ({ start, end }: Stretch) => end - start;

/** Lists the times from one moment to another that belong to none of these; none where nothing happened at all. */
function gapsOf(busy: readonly Stretch[], start: number, end: number): Stretch[] {
  const inside = busy.filter((each) => each.end >= start && each.start <= end).sort((a, b) => a.start - b.start);
  if (inside.length === 0) return [];
  const gaps: Stretch[] = [];
  let at = start;
  for (const each of inside) {
    if (each.start > at) gaps.push({ start: at, end: each.start });
    at = Math.max(at, each.end);
  }
  if (at < end) gaps.push({ start: at, end });
  return gaps;
}

/** A part of the picture in which pixels go with time: all parts that are not cut have the same scale. */
interface Piece extends Stretch {
  left: number;
  right: number;
  isCut: boolean;
}

const known = new WeakMap<Span, { width: number; pieces: Piece[] }>();

function piecesOf(span: Span, width: number): Piece[] {
  const found = known.get(span);
  if (found?.width === width) return found.pieces;
  const pieces = madePieces(span, width);
  known.set(span, { width, pieces });
  return pieces;
}

function madePieces(span: Span, width: number): Piece[] {
  const cuts = span.cuts ?? [];
  const narrow = Math.min(BREAK, (width * BROKEN) / Math.max(cuts.length, 1));
  const pixels = (width - narrow * cuts.length) / (lengthOf(span) - cuts.reduce((sum, cut) => sum + lengthOf(cut), 0));
  const pieces: Piece[] = [];
  let at = span.start;
  let left = 0;
  const add = (end: number, right: number, isCut: boolean) => {
    pieces.push({ start: at, end, left, right, isCut });
    [at, left] = [end, right];
  };
  for (const cut of cuts) {
    if (cut.start > at) add(cut.start, left + (cut.start - at) * pixels, false);
    add(cut.end, left + narrow, true);
  }
  add(span.end, width, false);
  return pieces;
}

/** Gives the position of a moment, in pixels from the left; moments outside of the span lie outside of the width. */
export function position(at: number, span: Span, width: number): number {
  const pieces = piecesOf(span, width);
  const piece = pieces.find((each) => at <= each.end) ?? pieces[pieces.length - 1]!;
  return piece.left + ((at - piece.start) / lengthOf(piece)) * (piece.right - piece.left);
}

/** Gives the moment at a position: the reverse of `position`. */
export function momentAt(x: number, span: Span, width: number): number {
  const pieces = piecesOf(span, width);
  const piece = pieces.find((each) => x <= each.right) ?? pieces[pieces.length - 1]!;
  return piece.start + ((x - piece.left) / Math.max(piece.right - piece.left, Number.MIN_VALUE)) * lengthOf(piece);
}

/** Gives where a bar is drawn: its left end and its length, what is seen of it not below `LEAST_BAR`; null: it is outside. */
export function extent(bar: Stretch, span: Span, width: number): [left: number, length: number] | null {
  const [left, right] = [position(bar.start, span, width), position(bar.end, span, width)];
  if (right < 0 || left > width) return null;
  const from = Math.min(Math.max(left, -4), width - LEAST_BAR);
  return [from, Math.max(Math.min(right, width + 4), Math.max(from, 0) + LEAST_BAR) - from];
}

export interface Break {
  /** In pixels. */
  left: number;
  right: number;
  seconds: number;
}

/** Lists the cuts that are drawn. */
export function breaks(span: Span, width: number): Break[] {
  return piecesOf(span, width)
    .filter((each) => each.isCut)
    .map((each) => ({ left: each.left, right: each.right, seconds: lengthOf(each) / SECOND }));
}

/**
 * Gives the labelled moments, not closer than `apart` pixels: round ones of the zone, none of them in a cut. A part
 * between two cuts that has no round one has its first moment.
 */
export function ticks(span: Span, width: number, apart: number, zone?: string): number[] {
  const whole = piecesOf(span, width).filter((each) => !each.isCut);
  const time = whole.reduce((sum, each) => sum + lengthOf(each), 0);
  const pixels = whole.reduce((sum, each) => sum + each.right - each.left, 0);
  const atLeast = (time / Math.max(pixels, 1)) * apart;
  const step = STEPS.find((each) => each >= atLeast);
  const months = MONTHS.find((each) => each * MONTH >= atLeast) ?? MONTHS[MONTHS.length - 1]!;
  const found: number[] = [];
  for (const piece of whole) {
    const round = step === undefined ? roundMonths(piece, months, zone) : roundMoments(piece, step, zone);
    for (const at of round.length > 0 ? round : [piece.start]) {
      const last = found[found.length - 1];
      if (last === undefined || position(at, span, width) - position(last, span, width) >= (last > piece.start ? apart * SHORTEST : apart - 0.5)) found.push(at);
    }
  }
  return found;
}

/** Lists the moments at which the clock of the zone shows a multiple of the step, also after the clock was changed. */
function roundMoments({ start, end }: Stretch, step: number, zone: string | undefined): number[] {
  const found: number[] = [];
  const offset = zoneOffset(start, zone) * MINUTE;
  const first = Math.ceil((start + offset) / step) * step;
  const last = end + Math.max(offset, zoneOffset(end, zone) * MINUTE);
  for (let shown = first; shown <= last; shown += step) {
    // Clocks are changed by whole hours: shorter steps go on.
    const at = step < HOUR ? shown - offset : momentOf(shown, zone);
    if (at !== null && at >= start && at <= end) found.push(at);
  }
  return found;
}

/** Lists the moments at which every so many months begin. */
function roundMonths({ start, end }: Stretch, months: number, zone: string | undefined): number[] {
  const found: number[] = [];
  // Ten years are counted from a round one.
  const year = Math.floor(new Date(start + zoneOffset(start, zone) * MINUTE).getUTCFullYear() / 10) * 10;
  for (let month = 0; ; month += months) {
    const shown = Date.UTC(year, month);
    if (shown - DAY > end) return found;
    const at = momentOf(shown, zone);
    if (at !== null && at >= start && at <= end) found.push(at);
  }
}

/** Gives the first moment at which the clock of the zone shows a time, which is written as if it were UTC; null: it skips that time. */
function momentOf(shown: number, zone: string | undefined): number | null {
  const [first, second] = [shown - DAY, shown + DAY].map((each) => shown - zoneOffset(each, zone) * MINUTE).sort((a, b) => a - b) as [number, number];
  const shows = (at: number) => at + zoneOffset(at, zone) * MINUTE;
  const exact = [first, second].find((at) => shows(at) === shown);
  if (exact !== undefined) return exact;
  // Where the clock skips midnight, the day begins all the same.
  return shows(second - 1) < shown ? second : null;
}

/** A label that is whole: nothing of it lies outside, or on another one. */
export interface Label {
  at: number;
  text: string;
  /** Its middle, in pixels. */
  x: number;
}

interface Room {
  /** Between which pixels labels may be. */
  left: number;
  right: number;
  /** How wide a text is. */
  measure: (text: string) => number;
  /** Whether a label at an end is moved into the room; else it is left out. */
  moves?: boolean;
}

/** Pixels between two labels. */
const BETWEEN = 6;

/**
 * Writes the labels that have room. A label says as much as the one before it leaves open: the day if it is another
 * one, the year, and the distance from UTC after the clock was changed.
 *
 * @param dated whether the first label says its day, too, as it must where time is cut.
 */
export function labels(moments: readonly number[], { start, end }: Stretch, place: (at: number) => number, zone: string | undefined, dated: boolean, { left, right, measure, moves = false }: Room): Label[] {
  const found: Label[] = [];
  const years = parts(start, zone).year !== parts(end, zone).year;
  for (const at of moments) {
    const before = found[found.length - 1];
    const text = labelAfter(at, before?.at, zone, dated, years);
    const half = measure(text) / 2;
    const x = moves ? Math.min(Math.max(place(at), left + half), right - half) : place(at);
    const free = before === undefined ? left : before.x + measure(before.text) / 2 + BETWEEN;
    if (x - half >= free - 0.5 && x + half <= right + 0.5) found.push({ at, text, x });
  }
  return found;
}

interface Parts {
  year: string;
  day: string;
  time: string;
  offset: number;
  /** Whether a day, or a month, of the zone begins at the moment, also where the clock skips midnight. */
  beginsDay: boolean;
}

function parts(at: number, zone: string | undefined): Parts {
  const second = at % MINUTE === 0 ? undefined : "2-digit";
  const [day, before] = [at, at - 1].map((each) => format(each, { day: "numeric", month: "short" }, zone));
  return {
    year: format(at, { year: "numeric" }, zone),
    day: day!,
    time: format(at, { hour: "2-digit", minute: "2-digit", second }, zone),
    offset: zoneOffset(at, zone),
    beginsDay: day !== before,
  };
}

function labelAfter(at: number, before: number | undefined, zone: string | undefined, dated: boolean, years: boolean): string {
  const own = parts(at, zone);
  const last = before === undefined ? undefined : parts(before, zone);
  const year = years && last?.year !== own.year ? ` ${own.year}` : "";
  const isOther = last === undefined ? dated : last.day !== own.day || year !== "";
  const day = own.beginsDay || isOther ? `${own.day}${year}` : "";
  const shift = last !== undefined && last.offset !== own.offset && last.day === own.day ? ` ${format(at, { timeZoneName: "shortOffset" }, zone).split(" ").pop()}` : "";
  return own.beginsDay ? day : `${day} ${own.time}${shift}`.trim();
}

const formats = new Map<string, Intl.DateTimeFormat>();

function format(at: number, how: Intl.DateTimeFormatOptions, zone: string | undefined): string {
  const key = `${JSON.stringify(how)} ${zone}`;
  // To make one takes far longer than to use it.
  if (!formats.has(key)) formats.set(key, new Intl.DateTimeFormat("en-GB", { ...how, timeZone: zone }));
  return formats.get(key)!.format(at);
}

/** Gives the zone's distance from UTC at a moment, in minutes. */
export function zoneOffset(at: number, zone: string | undefined): number {
  const local = format(at, { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" }, zone);
  const [day, month, year, ...time] = local.match(/\d+/g)!.map(Number);
  return Math.round((Date.UTC(year!, month! - 1, day, ...time) - at) / MINUTE);
}

/** What a person has dragged over becomes the span that is shown: never less than `NARROWEST`, never beyond now. */
export function dragged(from: number, to: number, span: Span, width: number, now: number): { range: number; until: number | null } {
  const at = (x: number) => momentAt(Math.min(Math.max(x, 0), width), span, width);
  return shownFrom({ start: at(Math.min(from, to)), end: at(Math.max(from, to)) }, now);
}

/** Gives what an address says of a time: how many seconds until when. */
export function shownFrom(time: Stretch, now: number): { range: number; until: number | null } {
  const end = Math.min(time.end, now);
  const range = Math.min(Math.max((end - time.start) / SECOND, NARROWEST), WIDEST);
  return { range, until: end >= now ? null : Math.min(Math.max(end, time.start + range * SECOND), now) };
}
