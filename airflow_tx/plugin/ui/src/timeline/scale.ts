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
 * Gives the labelled moments, not closer than `apart` pixels: round ones, none of them in a cut. A part between two
 * cuts that has no round one has its first moment. `offset` is the zone's, in minutes.
 */
export function ticks(span: Span, width: number, apart: number, offset = 0): number[] {
  const whole = piecesOf(span, width).filter((each) => !each.isCut);
  const time = whole.reduce((sum, each) => sum + lengthOf(each), 0);
  const pixels = whole.reduce((sum, each) => sum + each.right - each.left, 0);
  const atLeast = (time / Math.max(pixels, 1)) * apart;
  const step = STEPS.find((each) => each >= atLeast) ?? Math.ceil(atLeast / (30 * DAY)) * 30 * DAY;
  const found: number[] = [];
  for (const piece of whole) {
    const round = roundMoments(piece, step, offset * MINUTE);
    for (const at of round.length > 0 ? round : [piece.start]) {
      const last = found[found.length - 1];
      if (last === undefined || position(at, span, width) - position(last, span, width) >= apart - 0.5) found.push(at);
    }
  }
  return found;
}

function roundMoments({ start, end }: Stretch, step: number, shift: number): number[] {
  const found: number[] = [];
  for (let at = Math.ceil((start + shift) / step) * step - shift; at <= end; at += step) found.push(at);
  return found;
}

/** Writes the labels of ticks: with the day where it is another one than that of the label before. */
export function tickLabels(moments: readonly number[], zone: string | undefined, hasCuts: boolean): string[] {
  const day = (at: number) => new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: zone }).format(at);
  return moments.map((at, index) => {
    const label = tickLabel(at, zone);
    const before = moments[index - 1];
    const isOther = hasCuts && (before === undefined || day(before) !== day(at)) && label !== day(at);
    return isOther ? `${day(at)} ${label}` : label;
  });
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
